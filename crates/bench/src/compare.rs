//! Compares several policies under the same loads within one run, in alternating order.

use std::{sync::Arc, time::Duration};

use paternoster_lab::workload::Arrivals;

use crate::{
    Meter, Target,
    checked_requests::CheckedRequests,
    load::{self, LoadFigures, LoadPattern, Timing},
};

/// A loaded policy, with the name that tables show.
#[derive(Clone, Debug)]
pub struct Subject {
    /// Name in tables.
    pub name: String,
    /// Target of the load.
    pub target: Target,
    /// Meter of the energy that the runs of the target take, if there is one.
    pub meter: Option<Meter>,
}

/// A load to measure at.
#[derive(Clone, Debug, PartialEq)]
pub struct LoadPoint {
    /// Name in tables.
    pub name: String,
    /// Position on the horizontal axis: fraction of the peak, rate or concurrency.
    pub at: f64,
    /// The load.
    pub load: LoadPattern,
}

/// Results of one policy at one load.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Name of the policy.
    pub name: String,
    /// Figures of each round.
    pub rounds: Vec<LoadFigures>,
}

/// A figure of one policy divided by the same figure of another, over rounds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ratio {
    /// Median over rounds.
    pub median: f64,
    /// Minimum over rounds.
    pub least: f64,
    /// Maximum over rounds.
    pub greatest: f64,
}

impl Outcome {
    /// Returns the figures of all rounds together.
    pub fn total(&self) -> LoadFigures {
        let mut total = LoadFigures::default();
        self.rounds.iter().for_each(|figures| total.merge(figures));
        total.joules = self.rounds.iter().map(|figures| figures.joules).sum();
        total
    }

    /// Returns a figure relative to the same figure of `to`, round by round. `None` if the figure of `to` is 0 in every
    /// round.
    pub fn ratio(&self, to: &Self, figure: impl Fn(&LoadFigures) -> f64) -> Option<Ratio> {
        let pairs = self.rounds.iter().zip(&to.rounds);
        let mut ratios: Vec<f64> = pairs.map(|(own, other)| figure(own) / figure(other)).collect();
        ratios.retain(|ratio| ratio.is_finite());
        ratios.sort_by(f64::total_cmp);
        let (least, greatest) = (*ratios.first()?, *ratios.last()?);
        let middle = ratios.len() / 2;
        let median =
            if ratios.len() % 2 == 1 { ratios[middle] } else { f64::midpoint(ratios[middle - 1], ratios[middle]) };
        Some(Ratio { median, least, greatest })
    }
}

/// Measures all subjects for a number of rounds. Every second round runs in the opposite order, so that drift of the
/// machine affects all subjects alike. Within a round, all subjects get the same arrivals, from the load that `load`
/// returns for it. Calls `done` after each run.
pub async fn measure(
    subjects: &[Subject],
    work: &Arc<CheckedRequests>,
    mut load: impl AsyncFnMut() -> LoadPattern,
    timing: Timing,
    rounds: u64,
    seed: u64,
    mut done: impl FnMut(),
) -> Vec<Outcome> {
    let mut outcomes: Vec<Outcome> =
        subjects.iter().map(|subject| Outcome { name: subject.name.clone(), rounds: Vec::new() }).collect();
    for round in 0..rounds {
        let mut order: Vec<usize> = (0..subjects.len()).collect();
        if round % 2 == 1 {
            order.reverse();
        }
        let load = load().await;
        for index in order {
            let Subject { target, meter, .. } = &subjects[index];
            let seed = seed.wrapping_add(round);
            let figures = load::run_metered(target, work, &load, timing, seed, meter.as_ref()).await;
            outcomes[index].rounds.push(figures);
            done();
        }
    }
    outcomes
}

/// Measures the throughput in a closed loop with `concurrency` requests in flight.
pub async fn peak(target: &Target, work: &Arc<CheckedRequests>, concurrency: usize, timing: Timing) -> LoadFigures {
    let timing = Timing { interval: Duration::ZERO, ..timing };
    load::run(target, work, &LoadPattern::Closed { concurrency }, timing, 0).await
}

/// Speed of the machine relative to its speed at the start, measured by the throughput of a reference target.
#[derive(Debug)]
pub struct Pace {
    target: Target,
    work: Arc<CheckedRequests>,
    timing: Timing,
    at_first: f64,
}

impl Pace {
    const IN_FLIGHT: usize = 16;

    /// Measures the initial speed.
    pub async fn start(target: Target, work: Arc<CheckedRequests>, timing: Timing) -> Self {
        let mut pace = Self { target, work, timing, at_first: 1.0 };
        pace.at_first = pace.now().await;
        pace
    }

    /// Returns the current speed relative to the initial one; 1 if nothing was answered.
    pub async fn now(&self) -> f64 {
        let figures = peak(&self.target, &self.work, Self::IN_FLIGHT, self.timing).await;
        if figures.latencies.count() == 0 { 1.0 } else { figures.throughput() / self.at_first }
    }
}

/// The loads to measure at, as given on the command line.
#[derive(Clone, Debug, PartialEq)]
pub enum Points {
    /// Fractions of the measured peak of the first policy.
    Shares(Vec<f64>),
    /// Mean rates in requests per second.
    Rates(Vec<f64>),
    /// Arrivals at their own rate.
    AsTheyAre,
    /// Closed loops.
    Concurrencies(Vec<usize>),
}

impl Points {
    /// Returns the loads. `peak`, in requests per second, is required for fractions of it.
    pub fn resolve(&self, shape: &Arrivals, peak: Option<f64>) -> Vec<LoadPoint> {
        let open =
            |name: String, at: f64, rate: f64| LoadPoint { name, at, load: LoadPattern::Open(shape.scaled(rate)) };
        match self {
            Self::Shares(shares) => {
                let rate = |share: &f64| share * peak.unwrap_or_default();
                shares.iter().map(|share| open(format!("{share} of peak"), *share, rate(share))).collect()
            }
            Self::Rates(rates) => rates.iter().map(|&rate| open(format!("{rate}/s"), rate, rate)).collect(),
            Self::AsTheyAre => {
                let at = shape.mean_rate().unwrap_or_default();
                vec![LoadPoint { name: "as they are".to_owned(), at, load: LoadPattern::Open(shape.clone()) }]
            }
            Self::Concurrencies(all) => {
                let closed = |&concurrency: &usize| LoadPoint {
                    name: format!("{concurrency} in flight"),
                    at: concurrency as f64,
                    load: LoadPattern::Closed { concurrency },
                };
                all.iter().map(closed).collect()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(means_ns: &[u64]) -> Outcome {
        let figures = |&ns: &u64| {
            let mut figures = LoadFigures { seconds: 1.0, ..LoadFigures::default() };
            figures.latencies.record(ns);
            figures
        };
        Outcome { name: String::new(), rounds: means_ns.iter().map(figures).collect() }
    }

    #[test]
    fn ratios_are_taken_round_by_round() {
        let mean = |figures: &LoadFigures| figures.latencies.mean_ns();
        let ratio = outcome(&[100, 300, 90]).ratio(&outcome(&[200, 100, 100]), mean);
        assert_eq!(ratio, Some(Ratio { median: 0.9, least: 0.5, greatest: 3.0 }));
        let even = outcome(&[100, 300]).ratio(&outcome(&[200, 100]), mean);
        assert_eq!(even, Some(Ratio { median: 1.75, least: 0.5, greatest: 3.0 }));
        assert_eq!(outcome(&[100]).ratio(&outcome(&[0]), mean), None);
    }

    #[test]
    fn rounds_add_up() {
        let total = outcome(&[100, 300]).total();
        assert_eq!((total.latencies.count(), total.latencies.mean_ns(), total.throughput()), (2, 200.0, 1.0));
    }

    #[test]
    fn shares_are_of_the_peak_and_rates_are_their_own() {
        let shape = Arrivals::Poisson { rate: 1.0 };
        let loads = |points: Points| {
            points.resolve(&shape, Some(200.0)).into_iter().map(|point| point.load).collect::<Vec<_>>()
        };
        let poisson = |rate| LoadPattern::Open(Arrivals::Poisson { rate });
        assert_eq!(loads(Points::Shares(vec![0.25, 0.9])), [poisson(50.0), poisson(180.0)]);
        assert_eq!(loads(Points::Rates(vec![7.0])), [poisson(7.0)]);
        assert_eq!(loads(Points::AsTheyAre), [poisson(1.0)]);
        let closed = LoadPattern::Closed { concurrency: 8 };
        assert_eq!(loads(Points::Concurrencies(vec![8])), std::slice::from_ref(&closed));
        assert_eq!((poisson(50.0).times(0.5), closed.clone().times(0.5)), (poisson(25.0), closed));
    }
}

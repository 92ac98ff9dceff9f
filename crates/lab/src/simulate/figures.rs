//! The results of simulated runs.

use paternoster_batching::{Counters, Ns};

use crate::report::Latencies;

const NS_PER_S: f64 = 1e9;

/// Results of one model in one or more runs. Requests of the warm-up are only in `counters`.
#[derive(Clone, Debug, Default)]
pub struct ModelFigures {
    /// Requests that arrived.
    pub offered: u64,
    /// Requests that completed.
    pub completed: u64,
    /// Requests that did not complete: rejected by a queue's limit, timed out, or too late.
    pub refused: u64,
    /// Requests that completed within the objective; without an objective, all completed requests.
    pub in_time: u64,
    /// Time from arrival to end of completed requests.
    pub latencies: Latencies,
    /// The part of it from arrival to the start of the first task.
    pub queued: Latencies,
    /// The rest of it.
    pub computing: Latencies,
    /// Counters of the cores, including the warm-up.
    pub counters: Counters,
}

/// A number of consecutive arrivals, including the warm-up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Period {
    /// Requests that arrived.
    pub offered: u64,
    /// Sum of their arrival times.
    pub arrived_ns: u128,
    /// Time from their first arrival to the first of the next period, or to the last arrival of all.
    pub span_ns: u128,
    /// Requests that completed.
    pub completed: u64,
    /// Sum of the latencies of completed requests.
    pub latency_ns: u128,
}

/// Results of one policy under one load, in one or more runs.
#[derive(Clone, Debug, Default)]
pub struct SimulatedFigures {
    /// By model, in the setup's order.
    pub models: Vec<ModelFigures>,
    /// Time from the first counted arrival to the last end.
    pub span_ns: u128,
    /// Time from the first counted arrival to the last arrival.
    pub arriving_ns: u128,
    /// Time from the start of the run to the last end.
    pub run_ns: u128,
    /// Total duration of all tasks.
    pub busy_ns: u128,
    /// Number of lanes of all devices. The same in runs that are added.
    pub lanes: u64,
    /// Energy of all devices from the start of the run.
    pub joules: f64,
    /// Number of completed requests, including the warm-up.
    pub served: u64,
    /// Periods by request number, as the setup requests them.
    pub periods: Vec<Period>,
}

impl Period {
    /// Returns the number of arrivals per second.
    pub fn rate(&self) -> f64 {
        ratio(self.offered as f64 * NS_PER_S, self.span_ns as f64)
    }

    /// Returns the mean arrival time, in nanoseconds.
    pub fn mean_arrival_ns(&self) -> f64 {
        ratio(self.arrived_ns as f64, self.offered as f64)
    }

    /// Returns the mean latency of completed requests in nanoseconds, if any completed.
    pub fn mean_latency_ns(&self) -> Option<f64> {
        (self.completed > 0).then(|| self.latency_ns as f64 / self.completed as f64)
    }

    fn add(&mut self, other: &Self) {
        self.offered += other.offered;
        self.arrived_ns += other.arrived_ns;
        self.span_ns += other.span_ns;
        self.completed += other.completed;
        self.latency_ns += other.latency_ns;
    }
}

impl ModelFigures {
    /// Returns the mean number of rows per task; 0 without tasks.
    pub fn mean_batch(&self) -> f64 {
        ratio(self.counters.rows_launched as f64, self.counters.tasks_launched as f64)
    }

    /// Returns the fraction of the offered requests that missed the objective or were rejected.
    pub fn missed(&self) -> f64 {
        ratio((self.offered - self.in_time) as f64, self.offered as f64)
    }

    /// Adds the results of the same model in another run, or of another model.
    pub fn add(&mut self, other: &Self) {
        self.offered += other.offered;
        self.completed += other.completed;
        self.refused += other.refused;
        self.in_time += other.in_time;
        self.latencies.merge(&other.latencies);
        self.queued.merge(&other.queued);
        self.computing.merge(&other.computing);
        self.counters += &other.counters;
    }
}

impl SimulatedFigures {
    /// Adds another run of the same setup.
    pub fn add(&mut self, other: &Self) {
        self.models.resize_with(self.models.len().max(other.models.len()), ModelFigures::default);
        self.models.iter_mut().zip(&other.models).for_each(|(model, more)| model.add(more));
        self.span_ns += other.span_ns;
        self.arriving_ns += other.arriving_ns;
        self.run_ns += other.run_ns;
        self.busy_ns += other.busy_ns;
        self.lanes = other.lanes;
        self.joules += other.joules;
        self.served += other.served;
        self.periods.resize(self.periods.len().max(other.periods.len()), Period::default());
        self.periods.iter_mut().zip(&other.periods).for_each(|(period, more)| period.add(more));
    }

    /// Returns the peak rate at a stepping load (DVABatch section 8.3): the rate of the last period before the mean
    /// latency first exceeds `most_ns`; `None` if the first period already exceeds it.
    pub fn highest_step(&self, most_ns: f64) -> Option<f64> {
        let carried = self.periods.iter().take_while(|period| period.mean_latency_ns().is_some_and(|ns| ns <= most_ns));
        carried.last().map(Period::rate)
    }

    /// Returns the sum over all models.
    pub fn all(&self) -> ModelFigures {
        let mut all = ModelFigures::default();
        self.models.iter().for_each(|model| all.add(model));
        all
    }

    /// Returns completed requests per second.
    pub fn throughput(&self, model: &ModelFigures) -> f64 {
        ratio(model.completed as f64 * NS_PER_S, self.span_ns as f64)
    }

    /// Returns requests per second that completed within the objective.
    pub fn goodput(&self, model: &ModelFigures) -> f64 {
        ratio(model.in_time as f64 * NS_PER_S, self.span_ns as f64)
    }

    /// Returns the fraction of the lanes' time with a task.
    pub fn utilisation(&self) -> f64 {
        ratio(self.busy_ns as f64, self.run_ns as f64 * self.lanes as f64)
    }

    /// Returns completed requests per joule.
    pub fn requests_per_joule(&self) -> f64 {
        ratio(self.served as f64, self.joules)
    }

    /// Whether the queue stayed bounded: after the last arrival, the remaining work takes at most a twentieth of the
    /// time before it, plus `allowance_ns`.
    pub fn keeps_up(&self, allowance_ns: Ns) -> bool {
        let left_ns = self.span_ns.saturating_sub(self.arriving_ns);
        left_ns <= self.arriving_ns / 20 + u128::from(allowance_ns)
    }
}

/// Divides; 0 if the divisor is 0.
fn ratio(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_that_takes_long_to_empty_did_not_keep_up() {
        let left = |left_ns: u128| SimulatedFigures {
            arriving_ns: 1000,
            span_ns: 1000 + left_ns,
            ..SimulatedFigures::default()
        };
        assert!(left(60).keeps_up(10), "a twentieth of 1,000 and 10");
        assert!(!left(61).keeps_up(10));
    }

    #[test]
    fn the_highest_step_is_the_last_before_the_first_that_is_too_slow() {
        let period = |rate, latency_ns| Period {
            offered: rate,
            span_ns: 1_000_000_000,
            completed: 1,
            latency_ns,
            ..Period::default()
        };
        let periods = vec![period(10, 100), period(20, 150), period(30, 900), period(40, 100)];
        let figures = SimulatedFigures { periods, ..SimulatedFigures::default() };
        assert_eq!(
            [99.0, 100.0, 150.0, 899.0].map(|most_ns| figures.highest_step(most_ns)),
            [None, Some(10.0), Some(20.0), Some(20.0)]
        );
    }

    #[test]
    fn runs_add_up() {
        let model = |ns: &[u64]| {
            let mut latencies = Latencies::new();
            ns.iter().for_each(|&ns| latencies.record(ns));
            let completed = ns.len() as u64;
            let counters = Counters { tasks_launched: 1, rows_launched: completed, ..Counters::default() };
            ModelFigures {
                offered: completed + 1,
                completed,
                refused: 1,
                in_time: 1,
                latencies,
                counters,
                ..ModelFigures::default()
            }
        };
        let run = |ns: &[u64]| SimulatedFigures {
            models: vec![model(ns)],
            span_ns: 1_000_000_000,
            run_ns: 2_000_000_000,
            busy_ns: 1_000_000_000,
            lanes: 2,
            joules: 2.0,
            served: ns.len() as u64,
            periods: vec![Period { offered: 4, span_ns: 2_000_000_000, arrived_ns: 8, completed: 2, latency_ns: 30 }],
            ..SimulatedFigures::default()
        };
        let mut sum = run(&[100, 200]);
        sum.add(&run(&[300, 400, 500, 600]));
        let all = sum.all();
        assert_eq!((all.offered, all.completed, all.refused, all.latencies.mean_ns()), (8, 6, 2, 350.0));
        assert_eq!((sum.throughput(&all), sum.goodput(&all), all.missed()), (3.0, 1.0, 0.75));
        assert_eq!((all.mean_batch(), sum.utilisation(), sum.requests_per_joule()), (3.0, 0.25, 1.5));
        let period = sum.periods[0];
        assert_eq!((period.rate(), period.mean_arrival_ns(), period.mean_latency_ns()), (2.0, 2.0, Some(15.0)));
        assert_eq!(SimulatedFigures::default().throughput(&ModelFigures::default()), 0.0, "nothing in no time");
    }
}

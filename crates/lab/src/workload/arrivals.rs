//! Arrival processes: open loops, whose clients do not wait for each other's answers.

use rand_chacha::{ChaCha8Rng, rand_core::SeedableRng};
use rand_distr::{Distribution, Exp1};

const NS_PER_S: f64 = 1e9;

/// When requests arrive. Rates are in requests per second.
///
/// All but [`At`](Self::At) are Poisson processes, of a rate that may change with time or with the number of requests.
#[derive(Clone, Debug, PartialEq)]
pub enum Arrivals {
    /// A steady rate.
    Poisson {
        /// Mean rate.
        rate: f64,
    },
    /// A rate that changes after so many requests (DVABatch §8.3); the last one stays.
    Stepped {
        /// Each rate, with the number of requests that arrive at it.
        steps: Vec<(f64, u64)>,
    },
    /// A rate that rises evenly, falls evenly, and rises again (adaptive batching fig. 2a).
    Ramp {
        /// The least rate.
        from: f64,
        /// The greatest rate.
        to: f64,
        /// How long one rise and one fall take together.
        seconds: f64,
    },
    /// A high rate and a low rate in turn.
    Bursts {
        /// Mean rate over both.
        rate: f64,
        /// How many times the low rate the high rate is.
        factor: f64,
        /// How long each burst takes, in seconds.
        on_s: f64,
        /// How long it is between two bursts, in seconds.
        off_s: f64,
    },
    /// Exactly these times in nanoseconds, ascending.
    At(Vec<u64>),
}

impl Arrivals {
    /// The shapes that have names, for command lines and their messages.
    pub const NAMES: [&str; 4] = ["poisson", "stepped", "ramp", "bursts"];

    /// A shape by its name, at the rates of its paper:
    /// - `poisson`: one request a second.
    /// - `stepped`: 66 to 4,000 requests a second in 16 steps of 2,000 requests (DVABatch §8.3).
    /// - `ramp`: 1 to 240 requests a second and back in 300 s (adaptive batching fig. 2a).
    /// - `bursts`: one request a second, for a second ten times as many as in the nine seconds after it.
    pub fn named(name: &str) -> Option<Self> {
        const STEPS: u32 = 16;
        Some(match name {
            "poisson" => Self::Poisson { rate: 1.0 },
            "stepped" => {
                let rate = |step| 66.0 + (4000.0 - 66.0) * f64::from(step) / f64::from(STEPS - 1);
                Self::Stepped { steps: (0..STEPS).map(|step| (rate(step), 2000)).collect() }
            }
            "ramp" => Self::Ramp { from: 1.0, to: 240.0, seconds: 300.0 },
            "bursts" => Self::Bursts { rate: 1.0, factor: 10.0, on_s: 1.0, off_s: 9.0 },
            _ => return None,
        })
    }

    /// Times of arrival in nanoseconds from the start, ascending and the same for the same seed; without end, but for
    /// [`At`](Self::At) and where no rate is above zero.
    pub fn times(&self, seed: u64) -> impl Iterator<Item = u64> + Send + use<> {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let mut gap = move || -> f64 { Exp1.sample(&mut random) };
        let times: Box<dyn Iterator<Item = u64> + Send> = match self.clone() {
            Self::Poisson { rate } => Box::new(ascending(std::iter::repeat_with(move || gap() / rate))),
            Self::Stepped { steps } => {
                let last = steps.last().map(|&(rate, _)| rate);
                let listed = steps.into_iter().flat_map(|(rate, requests)| (0..requests).map(move |_| rate));
                let rates = listed.chain(last.into_iter().flat_map(std::iter::repeat));
                Box::new(ascending(rates.map(move |rate| gap() / rate)))
            }
            Self::Ramp { from, to, seconds } => {
                let half = seconds / 2.0;
                let rise = Stretch { seconds: half, from, to };
                let fall = Stretch { seconds: half, from: to, to: from };
                Box::new(in_turn([rise, fall], gap))
            }
            Self::Bursts { rate, factor, on_s, off_s } => {
                let low = rate * (on_s + off_s) / (factor * on_s + off_s);
                let steady = |seconds, rate| Stretch { seconds, from: rate, to: rate };
                Box::new(in_turn([steady(on_s, factor * low), steady(off_s, low)], gap))
            }
            Self::At(times) => Box::new(times.into_iter()),
        };
        times
    }

    /// The same shape at this mean rate. Recorded times are drawn apart or together; the lengths of ramps and bursts
    /// stay. Without a mean rate of its own nothing changes.
    #[must_use]
    pub fn scaled(&self, rate: f64) -> Self {
        let Some(own) = self.mean_rate() else { return self.clone() };
        let by = rate / own;
        match self {
            Self::Poisson { .. } => Self::Poisson { rate },
            Self::Stepped { steps } => {
                Self::Stepped { steps: steps.iter().map(|&(rate, requests)| (rate * by, requests)).collect() }
            }
            &Self::Ramp { from, to, seconds } => Self::Ramp { from: from * by, to: to * by, seconds },
            &Self::Bursts { factor, on_s, off_s, .. } => Self::Bursts { rate, factor, on_s, off_s },
            Self::At(times) => Self::At(times.iter().map(|&at| (at as f64 / by) as u64).collect()),
        }
    }

    /// Requests per second in the mean: over the listed steps, over whole rises and bursts, or from the first to the
    /// last recorded time. `None` where that is no positive number, as with fewer than two recorded times.
    pub fn mean_rate(&self) -> Option<f64> {
        let mean = match self {
            Self::Poisson { rate } | Self::Bursts { rate, .. } => *rate,
            Self::Stepped { steps } => {
                let requests: u64 = steps.iter().map(|&(_, requests)| requests).sum();
                requests as f64 / steps.iter().map(|&(rate, requests)| requests as f64 / rate).sum::<f64>()
            }
            Self::Ramp { from, to, .. } => f64::midpoint(*from, *to),
            Self::At(times) => {
                let (first, last) = (times.first()?, times.last()?);
                (times.len() - 1) as f64 / (last.saturating_sub(*first) as f64 / NS_PER_S)
            }
        };
        (mean.is_finite() && mean > 0.0).then_some(mean)
    }
}

/// Times in nanoseconds from gaps in seconds, until a gap is no number or has no end.
fn ascending(gaps: impl Iterator<Item = f64>) -> impl Iterator<Item = u64> {
    gaps.take_while(|gap| gap.is_finite() && *gap >= 0.0).scan(0.0, |at, gap| {
        *at += gap;
        Some((*at * NS_PER_S) as u64)
    })
}

/// A stretch of time over which the rate changes evenly.
#[derive(Clone, Copy)]
struct Stretch {
    seconds: f64,
    from: f64,
    to: f64,
}

impl Stretch {
    /// Requests in the mean between its start and `at` seconds later.
    fn mass(&self, at: f64) -> f64 {
        at * (self.from + (self.to - self.from) * at / self.seconds / 2.0)
    }

    /// The time at which `mass` says `mass`.
    fn at(&self, mass: f64) -> f64 {
        if mass <= 0.0 {
            return 0.0;
        }
        // The root of slope / 2 · t² + from · t = mass in the form that also holds where the slope is zero.
        let slope = (self.to - self.from) / self.seconds;
        2.0 * mass / (self.from + (self.from * self.from + 2.0 * slope * mass).max(0.0).sqrt())
    }
}

/// Arrivals over stretches that come one after another again and again: steps of a Poisson process of rate 1, drawn
/// apart by the inverse of the mean number of requests.
fn in_turn(stretches: [Stretch; 2], mut gap: impl FnMut() -> f64) -> impl Iterator<Item = u64> {
    let sound = stretches.iter().all(|stretch| {
        let Stretch { seconds, from, to } = *stretch;
        [seconds, from, to].iter().all(|part| part.is_finite() && *part >= 0.0)
    });
    let some = stretches.iter().any(|stretch| stretch.seconds > 0.0 && stretch.from + stretch.to > 0.0);
    let (mut begin_s, mut current, mut reached) = (0.0, 0, 0.0);
    std::iter::from_fn(move || {
        if !(sound && some) {
            return None;
        }
        reached += gap();
        loop {
            let stretch = stretches[current];
            let whole = if stretch.seconds > 0.0 { stretch.mass(stretch.seconds) } else { 0.0 };
            if reached < whole {
                return Some(((begin_s + stretch.at(reached)) * NS_PER_S) as u64);
            }
            reached -= whole;
            begin_s += stretch.seconds;
            current = (current + 1) % stretches.len();
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEED: u64 = 11;

    fn shapes() -> [Arrivals; 4] {
        Arrivals::NAMES.map(|name| Arrivals::named(name).expect("it has a name"))
    }

    /// Requests that arrive in each of the first `windows` windows.
    fn counts(arrivals: &Arrivals, window_s: f64, windows: usize) -> Vec<f64> {
        let mut counts = vec![0.0; windows];
        for at in arrivals.times(SEED) {
            let window = (at as f64 / NS_PER_S / window_s) as usize;
            match counts.get_mut(window) {
                Some(count) => *count += 1.0,
                None => break,
            }
        }
        counts
    }

    fn mean(values: &[f64]) -> f64 {
        values.iter().sum::<f64>() / values.len() as f64
    }

    fn assert_near(got: f64, expected: f64, share: f64, what: &str) {
        assert!((got / expected - 1.0).abs() < share, "{what} is {got}, expected {expected}");
    }

    #[test]
    fn the_seed_fixes_the_times() {
        for arrivals in shapes() {
            let times = |seed| arrivals.times(seed).take(1000).collect::<Vec<_>>();
            assert_eq!(times(3), times(3), "{arrivals:?}");
            assert_ne!(times(3), times(4), "{arrivals:?}");
            assert!(times(3).is_sorted(), "{arrivals:?}");
        }
    }

    #[test]
    fn poisson_counts_have_their_mean_as_variance() {
        let counts = counts(&Arrivals::Poisson { rate: 50.0 }, 1.0, 4000);
        let average = mean(&counts);
        let variance = mean(&counts.iter().map(|count| (count - average).powi(2)).collect::<Vec<_>>());
        assert_near(average, 50.0, 0.01, "the mean");
        assert_near(variance, 50.0, 0.08, "the variance");
    }

    #[test]
    fn poisson_gaps_are_exponential() {
        let times: Vec<u64> = Arrivals::Poisson { rate: 1.0 }.times(SEED).take(100_000).collect();
        let gaps: Vec<f64> = times.windows(2).map(|pair| (pair[1] - pair[0]) as f64 / NS_PER_S).collect();
        let above = |limit: f64| gaps.iter().filter(|gap| **gap > limit).count() as f64 / gaps.len() as f64;
        for limit in [0.5, 1.0, 2.0, 4.0] {
            assert_near(above(limit), (-limit).exp(), 0.06, "the share of longer gaps");
        }
    }

    #[test]
    fn steps_change_the_rate_after_their_requests_and_the_last_stays() {
        let arrivals = Arrivals::Stepped { steps: vec![(10.0, 5000), (100.0, 5000)] };
        let times: Vec<f64> = arrivals.times(SEED).take(20_000).map(|at| at as f64 / NS_PER_S).collect();
        assert_near(times[4999], 500.0, 0.05, "the first step's length");
        assert_near(times[9999] - times[4999], 50.0, 0.05, "the second step's length");
        assert_near(times[19_999] - times[9999], 100.0, 0.05, "the time of 10,000 more");
        assert_near(arrivals.mean_rate().expect("it has one"), 10_000.0 / 550.0, 1e-9, "the mean rate");
    }

    #[test]
    fn a_ramp_rises_and_falls_evenly() {
        let counts = counts(&Arrivals::named("ramp").expect("it has a name"), 300.0 / 6.0, 600);
        let by_part: Vec<f64> =
            (0..6).map(|part| mean(&counts.iter().skip(part).step_by(6).copied().collect::<Vec<_>>()) / 50.0).collect();
        // The middles of the six parts lie at 1/6, 1/2 and 5/6 of the rise.
        let at = |share: f64| 1.0 + 239.0 * share;
        let expected = [1.0, 3.0, 5.0, 5.0, 3.0, 1.0].map(|sixths| at(sixths / 6.0));
        for (got, expected) in by_part.iter().zip(expected) {
            assert_near(*got, expected, 0.02, "the rate");
        }
    }

    #[test]
    fn bursts_are_as_much_denser_as_their_factor_says() {
        let arrivals = Arrivals::Bursts { rate: 190.0, factor: 10.0, on_s: 1.0, off_s: 9.0 };
        let counts = counts(&arrivals, 1.0, 5000);
        let on = mean(&counts.iter().step_by(10).copied().collect::<Vec<_>>());
        assert_near(mean(&counts), 190.0, 0.01, "the mean rate");
        assert_near(on, 1000.0, 0.01, "the rate of a burst");
        let off = (10.0 * mean(&counts) - on) / 9.0;
        assert_near(on / off, 10.0, 0.02, "the factor");
    }

    #[test]
    fn scaling_keeps_the_shape_and_sets_the_mean_rate() {
        for arrivals in shapes().into_iter().chain([Arrivals::At(vec![0, 1_000_000_000, 4_000_000_000])]) {
            let own = arrivals.mean_rate().expect("it has one");
            let scaled = arrivals.scaled(3.0 * own);
            assert_near(scaled.mean_rate().expect("it has one"), 3.0 * own, 1e-6, "the mean rate");
            assert_eq!(std::mem::discriminant(&scaled), std::mem::discriminant(&arrivals));
        }
        let recorded = Arrivals::At(vec![0, 1_000_000_000, 4_000_000_000]);
        assert_eq!(recorded.scaled(1.0), Arrivals::At(vec![0, 500_000_000, 2_000_000_000]));
    }

    #[test]
    fn recorded_times_come_as_they_are_and_end() {
        let recorded = Arrivals::At(vec![5, 5, 9]);
        assert_eq!(recorded.times(SEED).collect::<Vec<_>>(), [5, 5, 9]);
        assert_eq!(Arrivals::At(vec![5]).mean_rate(), None, "one time has no rate");
    }

    #[test]
    fn without_a_rate_nothing_arrives() {
        let none = [
            Arrivals::Poisson { rate: 0.0 },
            Arrivals::Poisson { rate: f64::NAN },
            Arrivals::Poisson { rate: -1.0 },
            Arrivals::Stepped { steps: vec![] },
            Arrivals::Ramp { from: 0.0, to: 0.0, seconds: 1.0 },
            Arrivals::Ramp { from: 1.0, to: 1.0, seconds: 0.0 },
            Arrivals::Bursts { rate: 1.0, factor: 1.0, on_s: 0.0, off_s: 0.0 },
            Arrivals::Bursts { rate: -1.0, factor: 2.0, on_s: 1.0, off_s: 1.0 },
        ];
        for arrivals in none {
            assert_eq!(arrivals.times(SEED).next(), None, "{arrivals:?}");
        }
    }

    #[test]
    fn a_ramp_from_zero_starts_and_ends_in_silence() {
        let arrivals = Arrivals::Ramp { from: 0.0, to: 100.0, seconds: 20.0 };
        assert_near(mean(&counts(&arrivals, 20.0, 200)), 1000.0, 0.02, "requests in a rise and a fall");
    }
}

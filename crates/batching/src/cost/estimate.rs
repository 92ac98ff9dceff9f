//! One predicted time: an exponential average that follows a drift but is robust against outliers.

/// Number of samples after which an estimate counts as confirmed, and number of consecutive surprises that restart it.
pub(super) const CONFIRMED: u32 = 4;

/// Weight of a sample in a settled average: 1/8, so that 20 samples absorb 93 % of a change.
const SETTLED: u32 = 8;

/// A sample that differs from the average by more than this factor, either way, is a surprise.
const SURPRISE: f64 = 2.0;

/// Relative change of an average after which the surface is recomputed. Recomputing takes as long as a decision, and
/// run times vary more than this.
const NOTABLE: f64 = 0.01;

/// An average of run times in nanoseconds.
///
/// A sample of more than twice or less than half the average is a surprise, and is clamped to that limit: a run whose
/// lane was descheduled moves a settled average by an eighth at most. [`CONFIRMED`] consecutive surprises on one side
/// are not outliers; the average restarts from the mildest of them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Estimate {
    ns: f64,
    /// The average at the last computation of the surface.
    drawn_ns: f64,
    samples: u32,
    /// The profiled time, if any, and the number of runs learned since, up to `SETTLED`.
    profiled_ns: Option<f64>,
    learned: u32,
    run: Surprises,
}

/// Consecutive surprises on one side.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Surprises {
    count: u32,
    above: bool,
    mildest: f64,
}

impl Estimate {
    /// Creates an estimate from its first sample.
    pub(super) fn first(ns: f64) -> Self {
        Self { ns, drawn_ns: 0.0, samples: 1, profiled_ns: None, learned: 1, run: Surprises::default() }
    }

    /// Creates an estimate from a profiled time, which counts as settled.
    pub(super) fn profiled(ns: f64) -> Self {
        let profiled_ns = Some(ns);
        Self { ns, drawn_ns: 0.0, samples: SETTLED, profiled_ns, learned: 0, run: Surprises::default() }
    }

    pub(super) fn ns(&self) -> f64 {
        self.ns
    }

    pub(super) fn is_confirmed(&self) -> bool {
        self.samples >= CONFIRMED
    }

    /// Whether it is confirmed, and the latest samples were no surprises that may restart it. The first runs of a size
    /// touch its memory for the first time.
    pub(super) fn is_settled(&self) -> bool {
        self.is_confirmed() && self.run.count == 0
    }

    /// Returns the ratio between the learned and the profiled time, with its weight; `None` without both.
    pub(super) fn drift(&self) -> Option<(f64, f64)> {
        let profiled_ns = self.profiled_ns.filter(|_| self.learned > 0)?;
        Some((self.ns / profiled_ns, f64::from(self.learned)))
    }

    /// Scales a profiled time by the drift of other sizes, if this size has not run since it was profiled.
    pub(super) fn follow(&mut self, drift: f64) {
        if let Some(profiled_ns) = self.profiled_ns.filter(|_| self.learned == 0) {
            self.ns = profiled_ns * drift;
        }
    }

    pub(super) fn learn(&mut self, ns: f64) {
        self.learned = (self.learned + 1).min(SETTLED);
        let (least, most) = (self.ns / SURPRISE, self.ns * SURPRISE);
        if (least..=most).contains(&ns) {
            self.run = Surprises::default();
        } else if self.surprised(ns) {
            (self.ns, self.samples, self.run) = (self.run.mildest, CONFIRMED, Surprises::default());
            return;
        }
        self.samples = (self.samples + 1).min(SETTLED);
        self.ns += (ns.clamp(least, most) - self.ns) / f64::from(self.samples);
    }

    /// Whether the average has moved so far that the surface must be recomputed.
    pub(super) fn has_moved(&self) -> bool {
        (self.ns - self.drawn_ns).abs() > self.drawn_ns * NOTABLE
    }

    /// Records that the surface was computed from the current average.
    pub(super) fn draw(&mut self) {
        self.drawn_ns = self.ns;
    }

    /// Counts a surprise, and returns whether it is one too many.
    fn surprised(&mut self, ns: f64) -> bool {
        let above = ns > self.ns;
        let run = &mut self.run;
        if run.count == 0 || run.above != above {
            *run = Surprises { count: 1, above, mildest: ns };
            return false;
        }
        run.count += 1;
        run.mildest = if above { run.mildest.min(ns) } else { run.mildest.max(ns) };
        run.count >= CONFIRMED
    }

    /// Moves the time into `least..=most`, the bounds set by other sizes.
    pub(super) fn confine(&mut self, least: f64, most: f64) {
        self.ns = self.ns.max(least).min(most);
    }
}

/// Relative deviation of run times from predictions; yields the factor to the 99th percentile of one stage.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spread {
    variance: f64,
    /// Raises a predicted time to a bound that about 99 of 100 runs stay below.
    pub(super) factor: f64,
}

impl Spread {
    /// Standard deviation assumed before any run.
    const ASSUMED: f64 = 0.05;
    /// Weight of a sample.
    const WEIGHT: f64 = 1.0 / 32.0;
    /// Standard deviations above the mean. 2.33 would give the 99th percentile of a normal distribution, but run times
    /// have a longer upper tail.
    const DEVIATIONS: f64 = 3.0;

    pub(super) fn new() -> Self {
        Self { variance: Self::ASSUMED * Self::ASSUMED, factor: 1.0 + Self::DEVIATIONS * Self::ASSUMED }
    }

    /// Adds a run whose time was `ratio` times the prediction.
    pub(super) fn learn(&mut self, ratio: f64) {
        let error = ratio.min(SURPRISE) - 1.0;
        self.variance += Self::WEIGHT * (error * error - self.variance);
        self.factor = 1.0 + Self::DEVIATIONS * self.variance.sqrt();
    }
}

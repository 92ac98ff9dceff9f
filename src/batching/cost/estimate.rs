//! One predicted time: an exponential average that an outlier does not move far and that a drift does.

/// Samples after which an estimate is held against younger ones, and surprises in a row that make it start again.
pub(super) const CONFIRMED: u32 = 4;

/// Weight of a sample once the average is settled: 1/8, so that 20 samples take up 93 % of a change.
const SETTLED: u32 = 8;

/// A sample beyond this ratio to the average, either way, is a surprise.
const SURPRISE: f64 = 2.0;

/// Share of an average by which it may move before the surface is computed again: that takes as long as a decision, and
/// run times lie further apart than this.
const NOTABLE: f64 = 0.01;

/// An average of run times in nanoseconds.
///
/// A sample of more than twice or less than half the average is a surprise and counts as just that: a run whose lane
/// was descheduled moves a settled average by an eighth at most. [`CONFIRMED`] surprises in a row on one side are no
/// outliers; the average restarts from the mildest of them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Estimate {
    ns: f64,
    /// The average when the surface was last drawn through it.
    drawn_ns: f64,
    samples: u32,
    /// The profiled time, and how many runs have been learned since, as far as that counts.
    profiled_ns: Option<f64>,
    learned: u32,
    run: Surprises,
}

/// Surprises in a row on one side.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Surprises {
    count: u32,
    above: bool,
    mildest: f64,
}

impl Estimate {
    /// The first sample.
    pub(super) fn first(ns: f64) -> Self {
        Self { ns, drawn_ns: 0.0, samples: 1, profiled_ns: None, learned: 1, run: Surprises::default() }
    }

    /// A profiled time: as settled as one that was learned.
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

    /// How far the device has come from what was profiled, and how much that says: none where no run or no profile
    /// tells.
    pub(super) fn drift(&self) -> Option<(f64, f64)> {
        let profiled_ns = self.profiled_ns.filter(|_| self.learned > 0)?;
        Some((self.ns / profiled_ns, f64::from(self.learned)))
    }

    /// A size of which there was no run since it was profiled goes the way of the others.
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

    /// Whether the average has come so far from where it was drawn that the surface no longer holds.
    pub(super) fn has_moved(&self) -> bool {
        (self.ns - self.drawn_ns).abs() > self.drawn_ns * NOTABLE
    }

    /// The surface is drawn through the average as it is.
    pub(super) fn draw(&mut self) {
        self.drawn_ns = self.ns;
    }

    /// Whether this surprise is one too many.
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

    /// Moves the time into `least..=most`, which what is known of other sizes asks for.
    pub(super) fn confine(&mut self, least: f64, most: f64) {
        self.ns = self.ns.max(least).min(most);
    }
}

/// How far run times lie from what was predicted, as a share of it: the p99 factor of one stage.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spread {
    variance: f64,
    factor: f64,
}

impl Spread {
    /// Standard deviation that is assumed before anything was learned.
    const ASSUMED: f64 = 0.05;
    /// Weight of a sample.
    const WEIGHT: f64 = 1.0 / 32.0;
    /// Standard deviations above the mean: 2.33 would be the 99th percentile of a normal distribution, and run times
    /// have a longer upper tail.
    const DEVIATIONS: f64 = 3.0;

    pub(super) fn new() -> Self {
        Self { variance: Self::ASSUMED * Self::ASSUMED, factor: 1.0 + Self::DEVIATIONS * Self::ASSUMED }
    }

    /// A run took `ratio` times what was predicted.
    pub(super) fn learn(&mut self, ratio: f64) {
        let error = ratio.min(SURPRISE) - 1.0;
        self.variance += Self::WEIGHT * (error * error - self.variance);
        self.factor = 1.0 + Self::DEVIATIONS * self.variance.sqrt();
    }

    /// What to multiply a predicted time by so that about 99 of 100 runs stay below.
    pub(super) fn factor(&self) -> f64 {
        self.factor
    }
}

//! A linear cost law: a stage's time as a function of the padded tokens of its batch. Policies use it to compare
//! batches for which there are no profiled times.

/// Prior of a run's fixed time, in tokens.
const FIXED_TOKENS: f64 = 4.0;

/// Standard deviations of the prior: of the fixed time, in tokens, and of a run's relative distance from the law.
const FIXED_SPREAD: f64 = 32.0;
const RUN_SPREAD: f64 = 0.1;

/// Share of a run's weight that remains after the next one, so about 128 runs count.
const KEPT: f64 = 1.0 - 1.0 / 128.0;

/// The first runs take many times longer than later ones, whatever their size: memory is touched for the first time.
/// They would show that tokens cost nothing, and a whole queue would board as one padded batch. Until this many runs
/// the fixed time is at most [`FIXED_SPREAD`] tokens' worth, and only about the latest two of them count.
const COLD: u32 = 8;
const COLD_KEPT: f64 = 0.5;

/// Later, a run's time is clamped to within this factor of the prediction. Outliers come from a descheduled lane or a
/// page fault.
const SURPRISE: f64 = 4.0;

/// `T = fixed + per token · tokens`, where tokens are rows times padded length.
///
/// Fitted to the latest runs by least squares of their relative errors, with neither term below 0. The prior says that
/// time is proportional to tokens, plus a small fixed part. It dominates as long as all runs have similar numbers of
/// tokens, and loses weight as they differ: if short runs take as long as long ones, about ten runs are enough to show
/// that larger batches cost nothing.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LinearCost {
    /// Weighted sums over runs: of 1, tokens, tokens², time, and tokens × time.
    ones: f64,
    tokens: f64,
    squares: f64,
    ns: f64,
    products: f64,
    runs: u32,
    fixed_ns: f64,
    token_ns: f64,
    row_ns: f64,
    rows: f64,
}

impl LinearCost {
    /// Adds a run of `rows` rows, executed in a `bucket`, that took `took_ns`.
    pub(super) fn learn(&mut self, rows: u32, bucket: u32, length: u64, took_ns: f64) {
        let rows = f64::from(rows.max(1));
        let tokens = f64::from(bucket.max(1)) * length.max(1) as f64;
        let took_ns = match self.ns_of(tokens).filter(|_| self.runs >= COLD) {
            Some(foretold) => took_ns.clamp(foretold / SURPRISE, foretold * SURPRISE),
            None => took_ns,
        };
        let weight = 1.0 / (tokens * tokens);
        let kept = if self.runs < COLD { COLD_KEPT } else { KEPT };
        let add = |sum: &mut f64, value: f64| *sum = *sum * kept + weight * value;
        add(&mut self.ones, 1.0);
        add(&mut self.tokens, tokens);
        add(&mut self.squares, tokens * tokens);
        add(&mut self.ns, took_ns);
        add(&mut self.products, tokens * took_ns);
        self.runs = self.runs.saturating_add(1);
        self.fit();
        let share = if self.runs == 1 { 1.0 } else { 1.0 - KEPT };
        self.row_ns += share * (took_ns / rows - self.row_ns);
        self.rows += share * (rows - self.rows);
    }

    /// Returns the predicted time of a run, or `None` before the first run.
    pub(super) fn predict(&self, rows: u32, length: u64) -> Option<f64> {
        self.ns_of(f64::from(rows.max(1)) * length.max(1) as f64)
    }

    /// Returns the share of a run's fixed time that falls to `rows` rows, by the recent mean number of rows.
    pub(super) fn share_of(&self, rows: u32) -> f64 {
        (f64::from(rows.max(1)) / self.rows).min(1.0)
    }

    /// Returns the time of the tokens of `rows` rows, or `None` before the first run.
    pub(super) fn tokens_ns(&self, rows: u32, length: u64) -> Option<f64> {
        (self.runs > 0).then(|| self.token_ns * f64::from(rows.max(1)) * length.max(1) as f64)
    }

    /// Returns the fixed time of a run, or `None` before the first run.
    pub(super) fn fixed_ns(&self) -> Option<f64> {
        (self.runs > 0).then_some(self.fixed_ns)
    }

    /// Returns the average number of rows of recent runs, or `None` before the first run.
    pub(super) fn mean_rows(&self) -> Option<f64> {
        (self.runs > 0).then_some(self.rows)
    }

    /// Returns the average time per row of recent runs, or `None` before the first run.
    pub(super) fn row_ns(&self) -> Option<f64> {
        (self.runs > 0).then_some(self.row_ns)
    }

    fn ns_of(&self, tokens: f64) -> Option<f64> {
        (self.runs > 0).then_some(self.fixed_ns + self.token_ns * tokens)
    }

    /// Solves the normal equations of `Σ weight · (T − fixed − per token · tokens)² + prior · (fixed − FIXED_TOKENS ·
    /// per token)²`.
    fn fit(&mut self) {
        let prior = (RUN_SPREAD / FIXED_SPREAD).powi(2);
        let (ones, squares) = (self.ones + prior, self.squares + prior * FIXED_TOKENS * FIXED_TOKENS);
        let tokens = self.tokens - prior * FIXED_TOKENS;
        // Always positive: no number of tokens agrees both with a run and with the prior's negative number.
        let determinant = ones * squares - tokens * tokens;
        let fixed_ns = (self.ns * squares - tokens * self.products) / determinant;
        let token_ns = (ones * self.products - tokens * self.ns) / determinant;
        (self.fixed_ns, self.token_ns) = if token_ns < 0.0 {
            (self.ns / self.ones, 0.0)
        } else if fixed_ns < 0.0 {
            (0.0, self.products / self.squares)
        } else {
            (fixed_ns, token_ns)
        };
        if self.runs < COLD && self.fixed_ns > FIXED_SPREAD * self.token_ns {
            // The law through the runs that has just this fixed time.
            let squares = self.squares + 2.0 * FIXED_SPREAD * self.tokens + FIXED_SPREAD.powi(2) * self.ones;
            self.token_ns = (self.products + FIXED_SPREAD * self.ns) / squares;
            self.fixed_ns = FIXED_SPREAD * self.token_ns;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn learned(runs: impl IntoIterator<Item = (u32, u64, f64)>) -> LinearCost {
        let mut law = LinearCost::default();
        runs.into_iter().for_each(|(rows, length, took_ns)| law.learn(rows, rows, length, took_ns));
        law
    }

    fn assert_close(found: Option<f64>, expected: f64) {
        let found = found.expect("it has run");
        assert!((found / expected - 1.0).abs() < 0.01, "{found} is not {expected}");
    }

    #[test]
    fn nothing_is_foretold_before_the_first_run() {
        assert_eq!((LinearCost::default().predict(1, 8), LinearCost::default().row_ns()), (None, None));
    }

    #[test]
    fn after_one_run_time_is_tokens_and_a_little() {
        let law = learned([(1, 96, 1e6)]);
        assert_close(law.predict(1, 96), 1e6);
        assert_close(law.predict(2, 96), 1e6 * 196.0 / 100.0);
        assert_close(law.predict(1, 16), 1e6 * 20.0 / 100.0);
    }

    #[test]
    fn fixed_and_proportional_parts_are_told_apart() {
        let line = |tokens: f64| 2e6 + 5e4 * tokens;
        let law = learned([10, 20, 40, 80, 15].repeat(8).into_iter().map(|length| (1, length, line(length as f64))));
        assert_close(law.predict(8, 50), line(400.0));
        assert_close(law.predict(1, 1), line(1.0));
    }

    #[test]
    fn runs_of_any_length_in_the_same_time_make_batches_free() {
        let law = learned([100, 10, 40, 20, 60, 12, 33, 80, 25, 17].map(|length| (1, length, 2e6)));
        let (one, many) = (law.predict(1, 20), law.predict(8, 20));
        assert!(many.zip(one).is_some_and(|(many, one)| many < 1.1 * one), "{one:?} for one, {many:?} for eight");
    }

    #[test]
    fn slow_first_runs_do_not_make_tokens_free() {
        let (slow, fast) = (4e7, 3e6);
        for (lengths, took_ns) in
            [([60, 25], [slow; 2]), ([25, 60], [slow; 2]), ([40, 41], [slow, fast]), ([20, 128], [slow, fast])]
        {
            let mut law = learned([0, 1].map(|at| (1, lengths[at], took_ns[at])));
            let (one, many) = (law.predict(1, 20), law.predict(10, 100));
            assert!(many.zip(one).is_some_and(|(many, one)| many > 15.0 * one), "{lengths:?}: {law:?}");
            [30, 50, 25, 90, 70, 20].into_iter().for_each(|length| law.learn(1, 1, length, 5e4 * length as f64));
            assert!(law.predict(1, 50).is_some_and(|ns| (2.0e6..5.0e6).contains(&ns)), "{lengths:?}: {law:?}");
        }
    }

    #[test]
    fn neither_part_falls_below_zero() {
        let falling = learned([(1, 10, 9e6), (1, 100, 1e6)].repeat(20));
        assert!(falling.predict(1, 1000) >= falling.predict(1, 1));
        let steep = learned([(1, 10, 1e3), (1, 100, 1e6)].repeat(20));
        assert!(steep.predict(1, 1).is_some_and(|ns| ns > 0.0));
    }

    #[test]
    fn one_odd_run_hardly_counts_and_a_slower_device_is_followed() {
        let lengths = [10, 20, 40, 80];
        let at = |speed: f64| lengths.map(|length| (1, length, speed * length as f64)).repeat(64);
        let mut law = learned(at(1e4));
        law.learn(1, 1, 40, 1e9);
        assert!(law.predict(1, 40).is_some_and(|ns| ns < 4.8e5), "{law:?}");
        at(3e4).into_iter().for_each(|(rows, length, took_ns)| law.learn(rows, rows, length, took_ns));
        assert!(law.predict(1, 40).is_some_and(|ns| (1.0e6..1.25e6).contains(&ns)), "{law:?}");
    }

    #[test]
    fn padding_rows_have_tokens_and_share_no_time() {
        let mut law = LinearCost::default();
        law.learn(2, 4, 10, 8e5);
        assert_close(law.row_ns(), 4e5);
        assert_close(law.predict(4, 10), 8e5);
    }

    #[test]
    fn rows_share_the_time_of_their_batch() {
        assert_close(learned([(4, 10, 8e5)]).row_ns(), 2e5);
    }
}

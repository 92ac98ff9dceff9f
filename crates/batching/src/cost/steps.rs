//! The cost law of cells whose tasks run several steps of each row: a task's time as a function of its rows and steps.
//! A curve cannot tell what sizes that never ran would take, and most pairs of rows and steps never do.

use smallvec::SmallVec;

/// Prior of a run's fixed time, in steps of one row.
const FIXED_STEPS: f64 = 4.0;

/// Standard deviations of the prior: of the fixed time and of the difference between what a step and what a row of it
/// takes, both in steps of one row, and of a run's relative distance from the law.
const FIXED_SPREAD: f64 = 32.0;
const ROW_SPREAD: f64 = 4.0;
const RUN_SPREAD: f64 = 0.1;

/// Share of a run's weight that remains after the next one, so about 128 runs count.
const KEPT: f64 = 1.0 - 1.0 / 128.0;

/// After this many runs, a run's time is clamped to within this factor of the prediction. Outliers come from a
/// descheduled lane or a page fault.
const SETTLED: u32 = 8;
const SURPRISE: f64 = 4.0;

/// `T = fixed + steps · (step + rows · row)`: what a run takes whatever it does, what each step takes whatever its
/// rows, and what each row adds to a step.
///
/// Fitted to the latest runs by least squares of their relative errors, with no term below 0. The prior says that the
/// fixed time is small, and that a step takes as much as a row of it; runs of different sizes soon outweigh it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct StepLaw {
    /// Weighted sums over runs, of products of two of the three factors 1, steps, and steps × rows, and of each with
    /// the time.
    products: [[f64; 3]; 3],
    times: [f64; 3],
    runs: u32,
    terms: StepTerms,
}

/// The terms of the law, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct StepTerms {
    /// Of a run.
    pub(crate) fixed_ns: f64,
    /// Of each step of a run.
    pub(crate) step_ns: f64,
    /// Of each row of a step.
    pub(crate) row_ns: f64,
}

impl StepTerms {
    /// Returns the time of a run.
    pub(crate) fn run_ns(&self, rows: f64, steps: f64) -> f64 {
        self.fixed_ns + steps * (self.step_ns + rows * self.row_ns)
    }
}

impl StepLaw {
    /// Adds a run of `steps` steps, the longest of its `rows` rows, that took `took_ns`.
    pub(super) fn learn(&mut self, rows: u32, steps: u64, took_ns: f64) {
        let (rows, steps) = (f64::from(rows.max(1)), steps.max(1) as f64);
        let took_ns = match self.terms().filter(|_| self.runs >= SETTLED).map(|terms| terms.run_ns(rows, steps)) {
            Some(foretold) if foretold > 0.0 => took_ns.clamp(foretold / SURPRISE, foretold * SURPRISE),
            _ => took_ns,
        };
        let factors = [1.0, steps, steps * rows];
        // About proportional to the time, so that errors count relative to it.
        let weight = (factors[1] + factors[2]).powi(-2);
        for (one, sums) in factors.iter().zip(&mut self.products) {
            for (other, sum) in factors.iter().zip(sums) {
                *sum = *sum * KEPT + weight * one * other;
            }
        }
        for (one, sum) in factors.iter().zip(&mut self.times) {
            *sum = *sum * KEPT + weight * one * took_ns;
        }
        self.runs = self.runs.saturating_add(1);
        self.fit();
    }

    /// Returns the terms, or `None` before the first run.
    pub(super) fn terms(&self) -> Option<StepTerms> {
        (self.runs > 0).then_some(self.terms)
    }

    /// Finds the terms of least squared error, the prior included, none of which is below 0: the best of those of any
    /// of the factors alone.
    fn fit(&mut self) {
        let mut products = self.products;
        let mut add = |factors: [f64; 3], spread: f64| {
            for (one, sums) in factors.iter().zip(&mut products) {
                sums.iter_mut()
                    .zip(factors)
                    .for_each(|(sum, other)| *sum += one * other * (RUN_SPREAD / spread).powi(2));
            }
        };
        add([1.0, -FIXED_STEPS / 2.0, -FIXED_STEPS / 2.0], FIXED_SPREAD);
        add([0.0, 1.0, -1.0], ROW_SPREAD);
        let error = |terms: &[f64; 3]| -> f64 {
            let rows = terms.iter().zip(&products).zip(&self.times);
            let row = |((own, sums), time): ((&f64, &[f64; 3]), &f64)| {
                own * (sums.iter().zip(terms).map(|(sum, other)| sum * other).sum::<f64>() - 2.0 * time)
            };
            rows.map(row).sum()
        };
        let candidates = (1..8_u8).filter_map(|used| solve(&products, &self.times, used));
        let best = candidates.map(|terms| (error(&terms), terms)).min_by(|one, other| one.0.total_cmp(&other.0));
        if let Some((_, [fixed_ns, step_ns, row_ns])) = best {
            self.terms = StepTerms { fixed_ns, step_ns, row_ns };
        }
    }
}

/// Solves the normal equations of the factors whose bits are set in `used`; the terms of others are 0. `None` if a term
/// would be below 0, or if the equations have no single solution.
fn solve(products: &[[f64; 3]; 3], times: &[f64; 3], used: u8) -> Option<[f64; 3]> {
    let at: SmallVec<[usize; 3]> = (0..3).filter(|factor| used >> factor & 1 == 1).collect();
    // Gaussian elimination; the matrix is positive definite, so that no rows need to change places.
    let mut rows: SmallVec<[([f64; 3], f64); 3]> = at.iter().map(|&row| (products[row], times[row])).collect();
    for pivot in 0..at.len() {
        let (own, time) = rows[pivot];
        if own[at[pivot]] <= 0.0 {
            return None;
        }
        for (sums, rest) in &mut rows[pivot + 1..] {
            let share = sums[at[pivot]] / own[at[pivot]];
            at.iter().for_each(|&factor| sums[factor] -= share * own[factor]);
            *rest -= share * time;
        }
    }
    let mut terms = [0.0; 3];
    for pivot in (0..at.len()).rev() {
        let (sums, time) = rows[pivot];
        let known: f64 = at[pivot + 1..].iter().map(|&factor| sums[factor] * terms[factor]).sum();
        terms[at[pivot]] = (time - known) / sums[at[pivot]];
    }
    terms.iter().all(|term| *term >= 0.0).then_some(terms)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn learned(runs: impl IntoIterator<Item = (u32, u64, f64)>) -> StepLaw {
        let mut law = StepLaw::default();
        runs.into_iter().for_each(|(rows, steps, took_ns)| law.learn(rows, steps, took_ns));
        law
    }

    fn of(law: &StepLaw, rows: u32, steps: u32) -> f64 {
        law.terms().expect("it has run").run_ns(f64::from(rows), f64::from(steps))
    }

    fn assert_close(found: f64, expected: f64) {
        assert!((found / expected - 1.0).abs() < 0.02, "{found} is not {expected}");
    }

    #[test]
    fn nothing_is_foretold_before_the_first_run() {
        assert_eq!(StepLaw::default().terms(), None);
    }

    #[test]
    fn after_one_run_more_steps_take_a_little_less_than_as_many_runs() {
        let law = learned([(1, 1, 1e5)]);
        assert_close(of(&law, 1, 1), 1e5);
        assert!((5e5..2.2e6).contains(&of(&law, 1, 22)), "{law:?}");
    }

    #[test]
    fn the_three_terms_are_told_apart() {
        let time = |rows: u32, steps: u64| 6e4 + steps as f64 * (2e4 + 5e3 * f64::from(rows));
        let sizes = [(1, 22), (8, 3), (32, 2), (3, 7), (32, 1), (1, 9)].repeat(20);
        let law = learned(sizes.into_iter().map(|(rows, steps)| (rows, steps, time(rows, steps))));
        for (rows, steps) in [(1, 1), (1, 100), (64, 1), (64, 22), (8, 8)] {
            assert_close(of(&law, rows, steps), time(rows, u64::from(steps)));
        }
    }

    #[test]
    fn no_term_falls_below_zero() {
        let falling = learned([(1, 1, 9e6), (1, 100, 1e6), (50, 1, 1e5)].repeat(20));
        let terms = falling.terms().expect("it has run");
        assert!(terms.fixed_ns >= 0.0 && terms.step_ns >= 0.0 && terms.row_ns >= 0.0, "{terms:?}");
    }

    #[test]
    fn one_odd_run_hardly_counts_and_a_slower_device_is_followed() {
        let at = |speed: f64| [(1, 22), (8, 3), (32, 2)].map(|(rows, steps)| (rows, steps, speed * steps as f64));
        let mut law = learned(at(1e5).repeat(64));
        law.learn(1, 22, 1e10);
        assert!(of(&law, 1, 22) < 2.6e6, "{law:?}");
        at(3e5).repeat(100).into_iter().for_each(|(rows, steps, took_ns)| law.learn(rows, steps, took_ns));
        assert!((6e6..7e6).contains(&of(&law, 1, 22)), "{law:?}");
    }
}

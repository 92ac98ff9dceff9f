//! How long each cell type has waited, and the bounds on that.
//!
//! The gain of waiting for a fuller batch assumes that requests keep coming. Where none follow, the rows of one type
//! could wait until nearly all others are done, for thousands of their steps. So a type that has waited for
//! [`FEW_ROUNDS`] rounds runs next as long as it has credit, where a round is one task of every type with ready rows.
//! Credit lasts for two tasks, and grows so that they take at most one part in [`CREDIT`] of the model's time on the
//! device, however many types there are. Without it a type runs after [`MOST_ROUNDS`] rounds, and such tasks take at
//! most one part in as many. Types that usually wait for less meet neither bound.

use paternoster_model::CellId;
use smallvec::SmallVec;

use crate::Ns;

/// Number of rounds after which a type with credit runs next.
const FEW_ROUNDS: u64 = 2;

/// Number of rounds after which any type runs next.
const MOST_ROUNDS: u64 = 20;

/// Part of the model's time that tasks on credit may take: one in this many.
const CREDIT: u64 = 100;

/// How long the rows of each type have waited. What counts is the time of the tasks that the model launches meanwhile:
/// other models' tasks say nothing about which of its types should run.
#[derive(Debug)]
pub(super) struct Waits {
    /// Sum of the durations of all tasks launched so far, as predicted.
    launched_ns: Ns,
    types: Box<[Type]>,
    /// The type that was chosen because it has waited for too long.
    overdue: Option<CellId>,
}

/// The wait and the credit of a type, as values of the sum of durations.
#[derive(Clone, Debug, Default)]
struct Type {
    /// When it was first found to have ready rows after its last task; `None` if it has none.
    since_ns: Option<Ns>,
    /// When its credit will have grown by what its tasks have used up.
    even_ns: Ns,
}

impl Waits {
    pub(super) fn new(cells: usize) -> Self {
        Self { launched_ns: 0, types: vec![Type::default(); cells].into(), overdue: None }
    }

    /// Notes whether a type has ready rows.
    pub(super) fn note(&mut self, cell: CellId, is_ready: bool) {
        let since_ns = &mut self.types[usize::from(cell.0)].since_ns;
        *since_ns = is_ready.then(|| since_ns.unwrap_or(self.launched_ns));
    }

    /// Notes that a task of a type is launched. Rows that it leaves wait for the next.
    pub(super) fn launched(&mut self, cell: CellId, duration_ns: Ns) {
        let (now_ns, growth_ns) = (self.launched_ns, self.growth_ns(duration_ns));
        self.launched_ns = now_ns.saturating_add(duration_ns);
        let own = &mut self.types[usize::from(cell.0)];
        own.since_ns = None;
        if self.overdue.take() == Some(cell) {
            let even_ns = own.even_ns.max(now_ns).saturating_add(growth_ns);
            own.even_ns = even_ns.min(now_ns.saturating_add(growth_ns.saturating_mul(2)));
        }
    }

    /// Returns the type that has waited longest of those that have waited for too long. `ready` has the types that
    /// could run, and the duration of a task of each; nothing is too long until all are known.
    pub(super) fn overdue(&self, ready: &[(CellId, Option<Ns>)]) -> Option<CellId> {
        let durations: SmallVec<[Ns; 4]> = ready.iter().map(|(_, duration_ns)| *duration_ns).collect::<Option<_>>()?;
        let round_ns = durations.iter().copied().fold(0, Ns::saturating_add);
        let waits = ready.iter().zip(durations).filter_map(|(&(cell, _), duration_ns)| {
            let Type { since_ns, even_ns } = self.types[usize::from(cell.0)];
            let has_credit = even_ns <= self.launched_ns.saturating_add(self.growth_ns(duration_ns));
            let rounds = if has_credit { FEW_ROUNDS } else { MOST_ROUNDS };
            (self.launched_ns - since_ns? > round_ns.saturating_mul(rounds)).then_some((since_ns?, cell))
        });
        waits.min().map(|(_, cell)| cell)
    }

    /// Notes that the next task of a type uses up credit.
    pub(super) fn lend(&mut self, overdue: CellId) {
        self.overdue = Some(overdue);
    }

    /// Returns in which time of all tasks the credit of a type grows by a task of this duration.
    fn growth_ns(&self, duration_ns: Ns) -> Ns {
        let others = self.types.len().saturating_sub(1) as u64;
        duration_ns.saturating_mul(CREDIT * others)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAGE_NS: Ns = 1_000;
    const STEP_NS: Ns = 10;

    /// A chain that runs by its gain, and stages that run only where they have waited for too long.
    struct Played {
        waits: Waits,
        ready: Vec<(CellId, Option<Ns>)>,
    }

    impl Played {
        fn new(stages: u16) -> Self {
            let stage = |cell| (CellId(cell), Some(STAGE_NS));
            let ready = (0..stages).map(stage).chain([(CellId(stages), Some(STEP_NS))]).collect();
            Self { waits: Waits::new(usize::from(stages) + 1), ready }
        }

        /// Lets a task run, and returns its type. The stages have rows if they are `ready`.
        fn runs(&mut self, ready: bool) -> CellId {
            let chain = self.ready[self.ready.len() - 1].0;
            self.ready.iter().for_each(|(cell, _)| self.waits.note(*cell, ready || *cell == chain));
            let overdue = if ready { self.waits.overdue(&self.ready) } else { None };
            overdue.into_iter().for_each(|overdue| self.waits.lend(overdue));
            let cell = overdue.unwrap_or(chain);
            self.waits.launched(cell, if cell == chain { STEP_NS } else { STAGE_NS });
            cell
        }

        /// Returns the time of all tasks until a stage runs, in rounds.
        fn rounds_waited(&mut self) -> f64 {
            let from_ns = self.waits.launched_ns;
            let chain = self.ready[self.ready.len() - 1].0;
            let mut waited_ns = 0;
            while self.runs(true) == chain {
                waited_ns = self.waits.launched_ns - from_ns;
            }
            waited_ns as f64 / (STAGE_NS * chain.0 as Ns + STEP_NS) as f64
        }
    }

    #[test]
    fn two_in_succession_wait_for_few_rounds_and_more_for_twenty_until_there_is_credit_again() {
        let mut played = Played::new(1);
        let rounds: Vec<u64> = (0..5).map(|_| played.rounds_waited() as u64).collect();
        assert_eq!(rounds, [2, 2, 20, 20, 20]);
        let until_ns = played.waits.launched_ns + CREDIT * STAGE_NS;
        while played.waits.launched_ns < until_ns {
            played.runs(false);
        }
        let rounds: Vec<u64> = (0..2).map(|_| played.rounds_waited() as u64).collect();
        assert_eq!(rounds, [2, 20]);
    }

    #[test]
    fn types_that_have_waited_too_long_take_a_twentieth_of_the_time() {
        for stages in [1, 2, 4] {
            let mut played = Played::new(stages);
            let ran: Vec<CellId> = (0..100_000).map(|_| played.runs(true)).collect();
            let of = |cell: u16| ran.iter().filter(|own| **own == CellId(cell)).count() as u64;
            let taken_ns: u64 = (0..stages).map(|stage| STAGE_NS * of(stage)).sum();
            let share = taken_ns as f64 / played.waits.launched_ns as f64;
            assert!((0.03..0.055).contains(&share), "{share} of the time for {stages} stages");
            assert!((1..stages).all(|stage| of(stage).abs_diff(of(0)) <= 1), "they take turns");
        }
    }

    #[test]
    fn nothing_is_too_long_until_all_times_are_known() {
        let mut played = Played::new(1);
        played.ready[0].1 = None;
        assert!((0..10_000).all(|_| played.runs(true) == CellId(1)));
    }
}

//! The slack time predictor (LazyBatching section IV-C): whether newcomers may be pushed onto a stack of batches
//! without making any of its rows late.

use paternoster_model::CellId;
use smallvec::SmallVec;

use crate::{
    Instant, Ns, ShapeClass,
    cost::{Costs, Quantile},
    graph::{SlackNs, single_input_exec_time},
    queue::first_within,
};

/// Equation 1: the part of `sla_target_ns` that remains after the wait in the queue and the request's own execution.
pub(crate) fn slack_alone(sla_target_ns: Ns, wait_ns: Ns, single_input_exec_time_ns: Ns) -> SlackNs {
    slack_batched(sla_target_ns, wait_ns, [single_input_exec_time_ns])
}

/// Equation 2: as equation 1, with the execution time of a batch estimated as the sum of its inputs' times alone.
pub(crate) fn slack_batched(
    sla_target_ns: Ns,
    wait_ns: Ns,
    single_input_exec_times_ns: impl IntoIterator<Item = Ns>,
) -> SlackNs {
    let spent_ns = single_input_exec_times_ns.into_iter().fold(wait_ns, Ns::saturating_add);
    signed(sla_target_ns).saturating_sub(signed(spent_ns))
}

fn signed(ns: Ns) -> SlackNs {
    SlackNs::try_from(ns).unwrap_or(SlackNs::MAX)
}

/// Rows of the stack (the staircase of a batch) that have progressed equally far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    /// The stage that they run next.
    pub(crate) next: CellId,
    pub(crate) rows: u32,
    /// Earliest target of its live rows; `None` if no row has a target.
    pub(crate) target: Option<Instant>,
    /// The least value of SLA_target − T_wait over its rows: the time from boarding to target. Used by
    /// [`Predictor::Paper`] only.
    pub(crate) allowance_ns: Option<Ns>,
    /// Whether its rows are known to be late, so that they have no veto.
    pub(crate) late: bool,
}

/// A queued request that might be pushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Waiting {
    pub(crate) rows: u32,
    /// Target completion time, if it has one.
    pub(crate) target: Option<Instant>,
}

/// How the slack of a request is predicted (LazyBatching section IV-C). A configuration names one of the first two.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Predictor {
    /// Equation 2: the sum of all requests' times at batch size 1; of the elapsed time, only the wait in the queue
    /// counts.
    Paper,
    /// Measured latency per stage and batch size, at the 99th percentile, corrected online.
    #[default]
    Table,
    /// Mean latency per stage and batch size, for simulations. Exact if the table is exact, as in simulation.
    Oracle,
}

/// The earliest target that a push must keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Veto {
    /// No row has a veto.
    Nobody,
    /// Some rows have a veto, but a stage's time is unknown.
    Unknown,
    /// The work must not take longer than this from now on.
    Past(Ns),
}

impl Veto {
    fn or(self, other: Self) -> Self {
        match (self, other) {
            (Self::Unknown, _) | (_, Self::Unknown) => Self::Unknown,
            (Self::Nobody, veto) | (veto, Self::Nobody) => veto,
            (Self::Past(one), Self::Past(two)) => Self::Past(one.min(two)),
        }
    }
}

/// The slack time predictor for one stack.
///
/// Rows that would be late even without a push have no veto, and neither have entries marked `late`: their veto would
/// forbid all batching. As long as a stage's time is unknown, nothing is pushed if any row of the stack or of the push
/// has a target; running the stack makes the time known.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SlackPredictor<'a> {
    pub(crate) costs: &'a Costs,
    /// Padded lengths that the rows of the stack share.
    pub(crate) class: &'a ShapeClass,
    pub(crate) predictor: Predictor,
}

impl SlackPredictor<'_> {
    /// Returns how many of the `waiting` requests, earliest target first, may be pushed as one entry at stage `next`:
    /// the longest prefix of at most `room` rows that keeps every row's slack.
    ///
    /// On an empty stack the first request always fits, whatever its slack, because waiting would not improve it.
    pub(crate) fn pushable(
        &self,
        now: Instant,
        entries: &[Entry],
        next: CellId,
        waiting: &[Waiting],
        room: u32,
    ) -> usize {
        let rows_of = |count: usize| waiting[..count].iter().map(|request| request.rows).sum();
        let most = first_within(waiting.iter().map(|request| request.rows), room);
        let targets = waiting[..most].iter().filter_map(|request| request.target);
        let veto = self.veto(now, entries, next, targets);
        // Binary search: if a prefix keeps every slack, so does each shorter one.
        let (mut kept, mut refused) = (usize::from(entries.is_empty()).min(most), most + 1);
        while refused - kept > 1 {
            let middle = kept + (refused - kept) / 2;
            if self.keeps(entries, (next, rows_of(middle)), veto) {
                kept = middle;
            } else {
                refused = middle;
            }
        }
        kept
    }

    /// Returns the veto against a push at stage `next` of requests with these targets. Only requests that would be in
    /// time without the push, or with the smallest possible push, have a veto.
    pub(crate) fn veto(
        &self,
        now: Instant,
        entries: &[Entry],
        next: CellId,
        targets: impl Iterator<Item = Instant>,
    ) -> Veto {
        let voters = entries.iter().filter(|entry| !entry.late);
        if self.predictor == Predictor::Paper {
            let allowances = voters.filter_map(|entry| entry.allowance_ns);
            let new = targets.map(|target| target.since(now));
            return earliest_kept(allowances.chain(new).map(Some), || self.single_input_exec_time());
        }
        let without = || self.run(entries, None, Quantile::Mean);
        let with_one = || self.run(entries, Some((next, 1)), Quantile::Mean);
        let left_ns = |target: Instant| target.checked_since(now);
        let stack = earliest_kept(voters.filter_map(|entry| entry.target).map(left_ns), without);
        stack.or(earliest_kept(targets.map(left_ns), with_one))
    }

    /// Whether a push of this many rows completes in time for all rows that have a veto.
    pub(crate) fn keeps(&self, entries: &[Entry], pushed: (CellId, u32), veto: Veto) -> bool {
        let left_ns = match veto {
            Veto::Nobody => return true,
            Veto::Unknown => return false,
            Veto::Past(left_ns) => left_ns,
        };
        if self.predictor == Predictor::Paper {
            let rows = entries.iter().map(|entry| entry.rows as usize).sum::<usize>() + pushed.1 as usize;
            let single = self.single_input_exec_time();
            return single.is_some_and(|ns| slack_batched(left_ns, 0, std::iter::repeat_n(ns, rows)) >= 0);
        }
        let completion = self.run(entries, Some(pushed), self.quantile());
        completion.is_some_and(|ns| slack_alone(left_ns, 0, ns) >= 0)
    }

    /// Returns the time for which a new batch of this many rows is certain to run, by the quantile of pushes; `None` if
    /// a stage's time is unknown.
    pub(crate) fn new_batch_ns(&self, next: CellId, rows: u32) -> Option<Ns> {
        self.run(&[], Some((next, rows)), self.quantile())
    }

    /// Returns when the stack is done, with `pushed` (stage and rows) on top, if any. The top catches up with the entry
    /// below, merges with it at that entry's stage, and goes on with it. All rows complete together, since by then
    /// every entry has merged into the bottom one.
    fn run(&self, entries: &[Entry], pushed: Option<(CellId, u32)>, quantile: Quantile) -> Option<Ns> {
        let steps = entries.iter().rev().map(|entry| (entry.next, entry.rows));
        self.costs.staircase(pushed.into_iter().chain(steps), self.class, quantile)
    }

    fn single_input_exec_time(&self) -> Option<Ns> {
        let stages = 0..self.costs.stages();
        let latencies = stages.map(|stage| self.costs.predict(CellId(stage), 1, self.class, Quantile::Mean));
        let nodes: Option<SmallVec<[(Ns, u32); 16]>> = latencies.map(|latency| Some((latency?, 1))).collect();
        nodes.map(single_input_exec_time)
    }

    fn quantile(&self) -> Quantile {
        match self.predictor {
            Predictor::Table => Quantile::P99,
            Predictor::Paper | Predictor::Oracle => Quantile::Mean,
        }
    }
}

/// Returns the earliest target among those that `needed_ns` of work would still meet. `left_ns` has the time left to
/// each, `None` for a target that has passed.
fn earliest_kept(left_ns: impl Iterator<Item = Option<Ns>>, needed_ns: impl FnOnce() -> Option<Ns>) -> Veto {
    let mut left_ns = left_ns.peekable();
    if left_ns.peek().is_none() {
        return Veto::Nobody;
    }
    let Some(needed_ns) = needed_ns() else { return Veto::Unknown };
    let kept = left_ns.flatten().filter(|&left_ns| slack_alone(left_ns, 0, needed_ns) >= 0);
    kept.min().map_or(Veto::Nobody, Veto::Past)
}

//! Which cell type runs next.
//!
//! A task takes a fixed time and some time for each of its rows. What rows add is spent in any order; only the fixed
//! times are shared, so they decide. While requests keep coming, a type whose tasks run `f` times a second keeps a
//! request of `k` steps for `k / f`, and the fixed times `F` of all types share the rest of the device: `Σ f · F` is
//! given. The mean latency `Σ k / f` is least where `f` is proportional to `√(k / F)`. By Little's law the rows of a
//! type are then proportional to `k / f`, thus to `√(k · F)`. So the type runs next that has the most rows in
//! proportion to `√(k · F)`: types with fewer rows wait for more of them, and nothing is configured.
//!
//! Rows of a stage, which is a single step, have all come since its last task, so that they have waited for half of the
//! time between two tasks on average. The least mean latency is where the sum of their waits equals the time for which
//! their task delays the others (the economic order quantity); this doubles `k · F`.

use paternoster_model::CellId;
use smallvec::SmallVec;

use super::{Cells, slack::Urgent};
use crate::{
    LaneId, Ns, SegmentKnobs, ShapeClass,
    cost::{Costs, Quantile, class_of},
    graph::NodeCounts,
    version::StepContext,
};

/// Number of requests over which steps are averaged.
const RECENT: u32 = 64;

/// Least part of a task's time that counts as fixed, so that types whose rows cost as much in any batch are compared.
const LEAST_FIXED: f64 = 0.01;

/// Rows that a request adds to those of its type if it would become late. The paper's veto, whatever it costs, makes
/// more requests late under load than it saves. These rows weigh much beside few requests and little beside many.
const URGENT_ROWS: f64 = 2.0;

/// The steps that requests run of each type.
#[derive(Debug)]
pub(super) struct Steps {
    /// By type: the average of recent requests; 1 before the first.
    average: Box<[f64]>,
    /// Number of requests in the average, at most [`RECENT`].
    requests: u32,
    /// Whether only stages are of the type.
    is_stage: Box<[bool]>,
    /// By type: the average number of steps of recent tasks.
    of_task: Box<[f64]>,
}

impl Steps {
    pub(super) fn new(cells: usize, segments: &[SegmentKnobs]) -> Self {
        let is_stage = |cell: CellId| {
            let is_other = |segment: &SegmentKnobs| match *segment {
                SegmentKnobs::Stage { .. } => false,
                SegmentKnobs::Steps { cell: own } | SegmentKnobs::Decode { cell: own, .. } => own == cell,
                SegmentKnobs::Tree { leaf, inner } => leaf == cell || inner == cell,
            };
            !segments.iter().any(is_other)
        };
        Self {
            average: (0..cells).map(|_| 1.0).collect(),
            requests: 0,
            is_stage: (0..cells).map(|cell| is_stage(CellId(cell as u16))).collect(),
            of_task: (0..cells).map(|_| 1.0).collect(),
        }
    }

    /// Notes the steps of a request that boards, by type.
    pub(super) fn boarded(&mut self, nodes: &NodeCounts) {
        self.requests = RECENT.min(self.requests + 1);
        for (cell, average) in (0..).map(CellId).zip(&mut self.average) {
            let steps: u32 = nodes.iter().filter(|(own, _)| *own == cell).map(|&(_, steps)| steps).sum();
            *average += (f64::from(steps.max(1)) - *average) / f64::from(self.requests);
        }
    }

    /// Notes the steps of a task of a type whose tasks run several.
    pub(super) fn ran(&mut self, cell: CellId, steps: u32) {
        let of_task = &mut self.of_task[usize::from(cell.0)];
        *of_task += (f64::from(steps) - *of_task) / f64::from(RECENT);
    }

    /// Returns the average number of steps that requests run of a type.
    pub(super) fn average(&self, cell: CellId) -> f64 {
        self.average[usize::from(cell.0)]
    }

    /// Returns the tasks of a request that count for a type.
    fn of(&self, cell: CellId) -> f64 {
        let at = usize::from(cell.0);
        (self.average[at] / self.of_task[at]).max(1.0) + f64::from(u8::from(self.is_stage[at]))
    }

    /// Returns the shape class of a usual task of a type.
    fn class(&self, cell: CellId) -> ShapeClass {
        class_of(self.of_task[usize::from(cell.0)].round() as u32)
    }
}

impl Cells {
    /// Returns the type that a lane runs next: that of a retry, or else the one with the most rows in proportion to
    /// `√(k · F)`, among equals the one that requests run last. Full batches, whose rows gain nothing by waiting, and
    /// types whose times are unknown go before; before these, a type that has waited for too long. Under `lazy`,
    /// requests that would become late count more. `waiting` is the number of requests that may board, each with at
    /// least one node of the first type; `brought` counts nodes of other versions that could share a task, by type.
    pub(super) fn choose_by_gain(
        &mut self,
        context: &StepContext<'_>,
        lane: LaneId,
        waiting: u64,
        brought: &[(CellId, u64)],
    ) -> Option<CellId> {
        if let Some(cell) = self.cells.queues.first_retry(lane) {
            return Some(cell);
        }
        self.note_waits(waiting);
        let rows = |cell: CellId| self.rows(cell, lane, waiting, brought);
        let own_rows = |cell: CellId| self.rows(cell, lane, waiting, &[]);
        let ready: SmallVec<[CellId; 4]> = self.types().filter(|cell| own_rows(*cell) > 0).collect();
        if ready.len() < 2 {
            return ready.first().copied();
        }
        let costs = &context.version.costs;
        let task_rows = |cell: CellId| rows(cell).min(u64::from(self.most_rows(cell))) as u32;
        let duration_ns = |cell| costs.predict(cell, task_rows(cell), &self.steps.class(cell), Quantile::Mean);
        let durations: SmallVec<[(CellId, Option<Ns>); 4]> =
            ready.iter().map(|&cell| (cell, duration_ns(cell))).collect();
        if let Some(overdue) = self.waits.overdue(&durations) {
            self.waits.lend(overdue);
            return Some(overdue);
        }
        let urgent = if self.knobs.lazy.is_some() {
            let longest_of_others_ns = |cell: CellId| {
                let others = ready.iter().filter(|other| **other != cell);
                let times = others
                    .map(|&other| costs.predict(other, task_rows(other), &self.steps.class(other), Quantile::P99));
                times.flatten().max().unwrap_or(0)
            };
            self.urgent(context, waiting, longest_of_others_ns)
        } else {
            Urgent::new()
        };
        let rank = |cell: CellId, duration_ns: Option<Ns>| {
            let Some(share_ns) = self.shared_ns(costs, cell, duration_ns) else { return f64::INFINITY };
            let urgent = urgent.iter().find(|(own, _)| *own == cell).map_or(0, |&(_, requests)| requests);
            if rows(cell) >= u64::from(self.most_rows(cell)) {
                return f64::INFINITY;
            }
            (rows(cell) as f64 + URGENT_ROWS * f64::from(urgent)) / share_ns.sqrt()
        };
        let ranked = durations.iter().map(|&(cell, duration_ns)| (rank(cell, duration_ns), cell));
        ranked.max_by(|one, other| one.0.total_cmp(&other.0).then(one.1.0.cmp(&other.1.0))).map(|(_, cell)| cell)
    }

    /// Notes which types wait: those with ready rows on any lane.
    fn note_waits(&mut self, waiting: u64) {
        for cell in self.types() {
            let joins = cell == self.cells.first() && waiting > 0;
            self.waits.note(cell, joins || self.cells.queues.is_ready(cell));
        }
    }

    /// Returns `k · F` of a type whose task takes `duration_ns`, or `None` as long as its times are unknown.
    fn shared_ns(&self, costs: &Costs, cell: CellId, duration_ns: Option<Ns>) -> Option<f64> {
        let least_ns = LEAST_FIXED * duration_ns? as f64;
        let fixed_ns = costs.fixed(cell, &self.steps.class(cell))? as f64;
        Some(self.steps.of(cell) * fixed_ns.max(least_ns).max(1.0))
    }

    /// Returns the number of rows of a type that a task of this lane could have now, without its limit.
    pub(super) fn rows(&self, cell: CellId, lane: LaneId, waiting: u64, brought: &[(CellId, u64)]) -> u64 {
        let joined = if cell == self.cells.first() { waiting } else { 0 };
        let brought = brought.iter().find(|(own, _)| *own == cell).map_or(0, |&(_, nodes)| nodes);
        self.cells.queues.ready(cell, lane) + joined + brought
    }
}

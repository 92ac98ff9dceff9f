//! The heart: one pure state machine per pool. `Core::step(now, event) -> actions` decides which requests run together.
//!
//! Here live the ledger, the pending queues, the batch table, the pipelines and the policies. Here must not live: a
//! clock, a thread, I/O, a payload, randomness, or anything whose order depends on a hash. Production, simulator and
//! tests run this same code.
//!
//! A request is entered in the `ledger` and waits in its group's `pending` queue, where `targets` know who must start
//! first; `urgency` is what that means for the others. When the `arbiter` has a lane for the group, its `policy`
//! decides, by `cost`, `slack` and the arrival `rate` (`monitor`), over the meta operations of the batch `table`:
//! *new*, *stretch*, *split*, or to let a batch go on. A launch takes leases of the `pipeline`'s buffers (`launching`,
//! `leasing`); what the task's rows bring decides whether they go on, end, wait for their client (`pausing`) or start
//! again in halves of a failed task (`outcomes`, `endings`). Requests of one of the `sequences` board one after the
//! other. `timers` hold queue timeouts, deadlines and when a sequence has been idle for too long; `invariants` say what
//! holds between two steps.

mod arbiter;
mod batch;
mod batches;
mod cell_outcomes;
mod cells;
mod cells_lazy;
mod cellular;
mod core;
mod cost;
mod counters;
mod event;
mod graph;
mod group;
mod ids;
mod invariants;
mod knobs;
mod launching;
mod leasing;
mod ledger;
mod lengths;
mod levels;
mod lineage;
mod list;
mod monitor;
mod outcomes;
mod pausing;
mod pending;
mod pipeline;
mod policy;
mod queue_order;
mod queue_rules;
mod rate;
mod replies;
mod sequences;
mod sharing;
mod slack;
mod table;
mod targets;
mod timers;
mod version;
mod work;

#[cfg(test)]
mod tests;

pub use self::core::Core;
pub use cost::{CostPoint, CostTable};
pub use counters::Counters;
pub use event::{
    Action, Actions, Arrival, Bucket, CellId, End, Event, LaneId, LaneKnobs, Lease, Lengths, ModelId, Next, Ns,
    Rejection, ReqId, RequestKey, RowOutcome, RowSpan, SequenceNo, ShapeClass, Task, TaskId,
};
pub use knobs::{
    AdaptiveKnobs, CellKind, CellKnobs, CellularKnobs, DiversityKnobs, InputDiversity, Knobs, LazyCellKnobs, LazyKnobs,
    LoadDiversity, OperatorDiversity, PartOrder, Policy, Predictor, QueueKnobs, QueueingKnobs, SegmentKnobs,
    SequenceKnobs, StageKnobs, TimeoutAction, WindowKnobs,
};

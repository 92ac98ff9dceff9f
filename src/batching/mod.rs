//! The heart: one pure state machine per pool. `Core::step(now, event) -> actions` decides which requests run together.
//!
//! Here live the ledger, the pending queues, the batch table, the pipelines and the policies. Here must not live: a
//! clock, a thread, I/O, a payload, randomness, or anything whose order depends on a hash. Production, simulator and
//! tests run this same code.

mod arbiter;
mod core;
mod counters;
mod endings;
mod event;
mod group;
mod invariants;
mod knobs;
mod ledger;
mod list;
mod pending;
mod pipeline;
mod policy;
mod queue_rules;
mod table;
mod timers;

#[cfg(test)]
mod tests;

pub use self::core::Core;
pub use counters::Counters;
pub use event::{
    Action, Actions, Arrival, BatchKey, Bucket, CellId, End, Event, LaneId, Lengths, ModelId, Next, Ns, Rejection,
    ReqId, RowOutcome, RowSpan, ShapeClass, Task, TaskId,
};
pub use knobs::{Knobs, Policy, QueueKnobs, TimeoutAction, WindowKnobs};

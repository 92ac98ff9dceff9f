//! The heart: one pure state machine per pool. `Core::step(now, event) -> actions` decides which requests run together.
//!
//! Here live the ledger, the pending queues, the batch table, the pipelines and the policies. Here must not live: a
//! clock, a thread, I/O, a payload, randomness, or anything whose order depends on a hash. Production, simulator and
//! tests run this same code.
//!
//! Imports go down this list only:
//!
//! - `core`: what an event does, who is offered a free lane, tasks that versions share, and the invariants that hold
//!   between two steps.
//! - `group`: one loaded version and its work. A request arrives, waits, expires and is cancelled here. `recall`:
//!   requests that leave for another core before they have boarded.
//! - `work`: whether a version's requests run as `batches` or as `cells`; the one place where these are told apart.
//! - `batches`: decisions of the policy carried out on queue and table (*new*, *stretch*, *split*), launches, outcomes,
//!   retries, leases of buffers, rows that wait for their client. `cells`: the same for graphs of cells (BatchMaker).
//! - `policy`: what happens at each boundary, one file each, and the table of policies.
//! - `table`: batches with their parts, each a staircase of steps, and the pipeline with its buffers.
//! - `replies`: the only maker of `Emit` and `Finish`. `version`: queue, order of replies, costs and counters of a
//!   loaded version, and the context in which a step changes it.
//! - `queue`: requests that wait, their order and targets, Triton's queue rules, sequences.
//! - `graph`, `cost`: what requests run through, and how long that takes. `arbiter`: which version is next on a lane.
//! - `ledger`, `timers`: every live request, every task in flight, every instant at which something is due.
//! - `knob`: knobs as configurations write them. `offer`, `row_outcomes`, `event`, `knobs`, `counters`, `ids`: plain
//!   data.

mod arbiter;
mod batches;
mod cells;
mod core;
mod cost;
mod counters;
mod event;
mod graph;
mod group;
mod ids;
pub mod knob;
mod knobs;
mod ledger;
mod offer;
mod policy;
mod queue;
mod recall;
mod replies;
mod row_outcomes;
mod table;
mod timers;
mod version;
mod work;

#[cfg(test)]
mod tests;

pub use self::core::{Core, Load};
pub use cost::{CostPoint, CostTable};
pub use counters::Counters;
pub use event::{
    Action, Actions, Arrival, Bucket, CellId, End, Event, FirstArrival, LaneId, LaneKnobs, Lease, Lengths, ModelId,
    Next, Ns, Rejection, ReqId, RequestKey, RowOutcome, RowSpan, SequenceNo, ShapeClass, Task, TaskId,
};
pub use knobs::{
    CellKind, CellKnobs, CellularKnobs, LazyCellKnobs, PartOrder, QueueKnobs, QueueingKnobs, SegmentKnobs,
    SequenceKnobs, StageKnobs, TimeoutAction,
};
pub use policy::*;
pub use version::Knobs;

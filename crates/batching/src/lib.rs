//! The scheduler: a pure state machine, one per device. `Core::step(now, event) -> actions` decides which requests run
//! together. This crate holds the ledger, the pending queues, the batch table, the stages and the policies. It must
//! not use a clock, threads, I/O, payloads or randomness, nor depend on the iteration order of a hash map.
//! Production, the simulator and the tests run this same code.
//!
//! `router` chooses the device, and so the core, of each request. `examples/driver.rs` is a complete driver,
//! `examples/policy.rs` a policy of another crate.
//!
//! Imports go down this list only:
//!
//! - `core`: handles events, offers free lanes to versions, lets versions share tasks, and checks the invariants that
//!   hold between two steps.
//! - `group`: one loaded version and its work; handles arrival, waiting, deadline and cancellation of a request.
//!   `recall`: hands requests that have not boarded to another core.
//! - `work`: runs a version's requests as `batches` or as `cells`. Only this file distinguishes the two.
//! - `batches`: carries out the policy's decisions on the queue and the batch table (*new*, *stretch*, *split*);
//!   handles launches, outcomes, retries, buffer leases and paused rows. `cells`: the same for graphs of cells
//!   (BatchMaker).
//! - `policy`: one file per policy, each deciding what happens at a stage boundary, and the table of policies.
//! - `table`: batches and their parts (each part a staircase of steps), and the stages with the buffers between them.
//! - `responses`: the only place that creates `Emit` and `Finish`. `version`: queue, response order, costs and counters
//!   of a loaded version, and the context in which a step changes it.
//! - `queue`: waiting requests, their order and deadlines, Triton's queue rules, and sequences.
//! - `rate_limiter`: resources that the cores of a pool share, behind a lock; with `router` the only state that is not
//!   a core's.
//! - `graph`, `steps`, `cost`: the stages or cells that a request runs through, how many steps it takes, and how long
//!   they take. `arbiter`: picks the version that gets a free lane.
//! - `ledger`, `timers`: every live request, every task in flight, and every pending alarm.
//! - `offer`, `event`, `knobs`, `counters`, `ids`, `time`: plain data. `hold`: the form of the invariants.
#![deny(unsafe_code)]
#![warn(missing_docs)]
// Nothing here has a clock: the same events give the same actions on every run.
#![warn(clippy::disallowed_types)]

mod arbiter;
mod batches;
mod cells;
mod core;
mod cost;
mod counters;
mod event;
mod graph;
mod group;
mod hold;
mod ids;
mod knobs;
mod ledger;
mod offer;
mod policy;
mod queue;
mod rate_limiter;
mod recall;
mod responses;
pub mod router;
mod steps;
mod table;
mod time;
mod timers;
mod version;
mod work;

#[cfg(test)]
mod tests;

pub use self::core::{Core, DeviceLoad};
pub use cost::{CostPoint, CostTable, Quantile};
pub use counters::Counters;
pub use event::{
    Action, Actions, Arrival, Bucket, End, Event, FirstArrival, LaneId, LaneKnobs, Lease, ModelId, Rejection, ReqId,
    RequestKey, RowSpan, SequenceNo, ShapeClass, SharedStateMemory, StateMemory, Task, TaskId,
};
pub use ids::{PartIx, RequestIx, SubQueueIx};
pub use knobs::{
    CellKind, CellKnobs, CellularKnobs, ChunkKnobs, LazyCellKnobs, PartOrder, QueueKnobs, QueueingKnobs, SegmentKnobs,
    SequenceKnobs, StageKnobs, TimeoutAction,
};
pub use policy::*;
pub use queue::{LengthBucketing, LengthGroups};
pub use rate_limiter::{RateLimiter, RateLimiterKnobs, Resource, ResourceAmount, ResourceDemand};
pub use time::{Instant, Ns};
pub use version::Knobs;

/// The example of the README compiles and runs.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

//! The waiting requests of a version: sub-queues of requests that may share a batch, their order and targets, Triton's
//! queue rules, the arrival rate, and sequences. `group` adds and removes requests; policies read the queue.
//!
//! This module must not know what runs, nor decide what to launch.

mod by_length;
mod lengths;
mod levels;
mod list;
mod order;
mod pending;
mod rate;
mod rules;
mod sequences;
mod targets;

pub(super) use self::{
    by_length::{BoardingOrder, ByLength},
    list::{IN_ORDER, List},
    pending::{BatchKey, Pending, SubQueue, first_within},
    rate::Rate,
    rules::QueueRules,
    sequences::{Change, Sequences},
    targets::{LatestStarts, Targets},
};
pub use self::{lengths::LengthGroups, pending::LengthBucketing};

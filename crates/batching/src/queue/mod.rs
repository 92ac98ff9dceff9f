//! The waiting requests of a version: sub-queues of requests that may share a batch, their order and targets, Triton's
//! queue rules, and sequences. `group` adds and removes requests; policies read the queue.
//!
//! This module must not know what runs, nor decide what to launch.

mod lengths;
mod levels;
mod list;
mod order;
mod pending;
mod rules;
mod sequences;
mod targets;

pub(super) use self::{
    lengths::LengthGroups,
    list::{IN_ORDER, List},
    pending::{BatchKey, LengthBucketing, Pending, SubQueue, first_within},
    rules::QueueRules,
    sequences::{Change, Sequences},
    targets::{LatestStarts, Targets},
};

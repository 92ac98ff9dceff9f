//! The requests of a version that wait: sub-queues of those that may share a batch, their order and earliest targets,
//! Triton's queue rules, and sequences whose requests take turns.
//!
//! Here must not live: what runs, or who decides that something does.

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
    list::{InOrder, List},
    pending::{BatchKey, LengthBucketing, Pending, SubQueue},
    rules::QueueRules,
    sequences::{Change, Sequences},
    targets::{LatestStarts, Targets},
};

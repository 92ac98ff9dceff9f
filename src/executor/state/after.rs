//! What a change of the state leaves to be done.

use std::sync::Arc;

use super::{Incident, Replacement};
use crate::{
    batching::{Arrival, End, Ns},
    executor::{InferError, backend::Order, cells::SequenceState, loaded::Version, record::Record},
};

/// What is left to do once the lock is free again: everything that may wake, drop or block.
#[derive(Default)]
pub(in crate::executor) struct After {
    /// What the device is to do, in order.
    pub(in crate::executor) orders: Vec<Order>,
    /// Whether there was anything.
    pub(in crate::executor) has_ordered: bool,
    pub(in crate::executor) ended: Vec<(Record, End)>,
    /// Requests that a lost device held.
    pub(in crate::executor) refused: Vec<(Record, InferError)>,
    /// Requests that leave for another device.
    pub(in crate::executor) recalled: Vec<Recalled>,
    pub(in crate::executor) dropped: Vec<Version>,
    /// State of sequences that are over.
    pub(in crate::executor) forgotten: Vec<Arc<SequenceState>>,
    pub(in crate::executor) wake_at: Option<Ns>,
    /// When to look for tasks that do not end.
    pub(in crate::executor) watch_at: Option<Ns>,
    /// When the delay of a request is over.
    pub(in crate::executor) resume_at: Option<Ns>,
    /// What happened to tasks that were told to stop.
    pub(in crate::executor) incidents: Vec<Incident>,
    /// Lanes that go on without their tasks.
    pub(in crate::executor) replacements: Vec<Replacement>,
    /// Whether the lanes' counts changed besides.
    pub(in crate::executor) lanes_changed: bool,
}

/// A request that has left the core of a device before it boarded.
pub(in crate::executor) struct Recalled {
    pub(in crate::executor) record: Record,
    pub(super) arrival: Box<Arrival>,
}

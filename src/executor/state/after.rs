//! The results of a change of the state that are carried out after the lock is released.

use std::sync::Arc;

use super::{Incident, Replacement};
use crate::{
    batching::{Arrival, End, Ns},
    executor::{InferError, backend::Order, cells::SequenceState, loaded::Version, record::Record},
};

/// Everything that may wake, drop or block, and is therefore done after the lock is released.
#[derive(Default)]
pub(in crate::executor) struct After {
    /// Orders for the device, in order.
    pub(in crate::executor) orders: Vec<Order>,
    /// Whether there were any orders.
    pub(in crate::executor) has_ordered: bool,
    pub(in crate::executor) ended: Vec<(Record, End)>,
    /// Requests that a lost device held.
    pub(in crate::executor) refused: Vec<(Record, InferError)>,
    /// Requests that move to another device.
    pub(in crate::executor) recalled: Vec<Recalled>,
    pub(in crate::executor) dropped: Vec<Version>,
    /// State of sequences that are over.
    pub(in crate::executor) forgotten: Vec<Arc<SequenceState>>,
    pub(in crate::executor) wake_at: Option<Ns>,
    /// Time of the next check for hung tasks.
    pub(in crate::executor) watch_at: Option<Ns>,
    /// Time at which the delay of a request ends.
    pub(in crate::executor) resume_at: Option<Ns>,
    /// Incidents of tasks that were asked to stop.
    pub(in crate::executor) incidents: Vec<Incident>,
    /// Lanes that continue without their tasks.
    pub(in crate::executor) replacements: Vec<Replacement>,
    /// Whether the lanes' counts changed apart from that.
    pub(in crate::executor) lanes_changed: bool,
}

/// A request that has left the core of a device before it boarded.
pub(in crate::executor) struct Recalled {
    pub(in crate::executor) record: Record,
    pub(super) arrival: Box<Arrival>,
}

impl Recalled {
    /// The card that it has to run on, by its number among those of the driver, if tensors of it lie there.
    pub(in crate::executor) fn card(&self) -> Option<u16> {
        self.record.payload.on_card.as_ref().map(|tensors| tensors.card)
    }
}

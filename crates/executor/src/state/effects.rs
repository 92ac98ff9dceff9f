//! The results of a change of the state that are carried out after the lock is released.

use std::sync::Arc;

use paternoster_batching::{Arrival, End, Ns};

use super::{Incident, Replacement};
use crate::{InferError, backend::Order, cells::SequenceState, record::Record, version::VersionState};

/// Everything that may wake, drop or block, and is therefore done after the lock is released.
#[derive(Default)]
pub(crate) struct Effects {
    /// Orders for the device, in order.
    pub(crate) orders: Vec<Order>,
    /// Whether there were any orders.
    pub(crate) has_ordered: bool,
    pub(crate) ended: Vec<(Record, End)>,
    /// Requests that a lost device held.
    pub(crate) refused: Vec<(Record, InferError)>,
    /// Requests that move to another device.
    pub(crate) recalled: Vec<Recalled>,
    pub(crate) dropped: Vec<VersionState>,
    /// State of sequences that are over.
    pub(crate) forgotten: Vec<Arc<SequenceState>>,
    pub(crate) wake_at: Option<Ns>,
    /// Time of the next check for hung tasks.
    pub(crate) watch_at: Option<Ns>,
    /// Time at which the delay of a request ends.
    pub(crate) resume_at: Option<Ns>,
    /// Shards with versions that waited for units of the rate limiter which are free now.
    pub(crate) units_freed: Vec<usize>,
    /// Incidents of tasks that were asked to stop.
    pub(crate) incidents: Vec<Incident>,
    /// Lanes that continue without their tasks.
    pub(crate) replacements: Vec<Replacement>,
    /// Whether the lanes' counts changed apart from that.
    pub(crate) lanes_changed: bool,
}

/// A request that has left the core of a device before it boarded.
pub(crate) struct Recalled {
    pub(crate) record: Record,
    pub(super) arrival: Box<Arrival>,
}

impl Recalled {
    /// The card that it has to run on, by its number among those of the driver, if tensors of it lie there.
    pub(crate) fn card(&self) -> Option<u16> {
        self.record.payload.on_card.as_ref().map(|tensors| tensors.card)
    }
}

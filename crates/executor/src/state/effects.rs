//! The results of a change of the state that are carried out after the lock is released.

use std::sync::Arc;

use paternoster_batching::{End, Instant};

use super::{Incident, Replacement, Unplaced};
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
    pub(crate) recalled: Vec<Unplaced>,
    pub(crate) dropped: Vec<VersionState>,
    /// State of sequences that are over.
    pub(crate) forgotten: Vec<Arc<SequenceState>>,
    pub(crate) wake_at: Option<Instant>,
    /// Time of the next check for hung tasks.
    pub(crate) watch_at: Option<Instant>,
    /// Time at which the delay of a request ends.
    pub(crate) resume_at: Option<Instant>,
    /// Shards with versions that waited for units of the rate limiter which are free now.
    pub(crate) units_freed: Vec<usize>,
    /// Incidents of tasks that were asked to stop.
    pub(crate) incidents: Vec<Incident>,
    /// Lanes that continue without their tasks.
    pub(crate) replacements: Vec<Replacement>,
    /// Whether the lanes' counts changed apart from that.
    pub(crate) lanes_changed: bool,
}

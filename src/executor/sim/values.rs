//! Values as requests bring them, devices hold them and replies give them; and counts.

use bytes::Bytes;

use crate::device::{Access, BufferId};

/// Bytes of a row in every arena and slot table.
pub(super) const ROW_BYTES: usize = 8;

/// What the state of a chain is before its first node.
pub(super) const START: u64 = 0;

/// How often a thing happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) tasks: u64,
    pub(super) rows: u64,
    /// Launched while another task of the lane was on the device.
    pub(super) ahead: u64,
    /// Waits for tasks of other lanes.
    pub(super) waits: u64,
    pub(super) failed: u64,
    /// Failed because one that they need did.
    pub(super) failed_by_need: u64,
    /// Rows of buckets beyond those of tasks.
    pub(super) padding: u64,
    /// Leases and slots that another request had before.
    pub(super) reused: u64,
    /// Whose outputs were lost on their way.
    pub(super) outputs_lost: u64,
    /// Completed while outputs of an earlier task were with the device.
    pub(super) completed_before_taken: u64,
}

/// A value in wire form.
pub(super) fn bytes(values: impl IntoIterator<Item = u64>) -> Bytes {
    values.into_iter().flat_map(u64::to_le_bytes).collect::<Vec<u8>>().into()
}

/// The row of this number among values in wire form.
pub(super) fn value(data: &[u8], row: usize) -> u64 {
    data.as_chunks::<8>().0.get(row).map_or(u64::MAX, |bytes| u64::from_le_bytes(*bytes))
}

/// A buffer that a task writes rows of, whatever was there.
pub(super) fn whole(buffer: BufferId, rows: u32) -> Access {
    Access::write(buffer, 0..rows)
}

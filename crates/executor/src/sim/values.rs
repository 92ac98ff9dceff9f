//! Encoding of values in requests, on devices and in replies; and event counts.

use bytes::Bytes;
use paternoster_device::{Access, BufferId};

/// Bytes of a row in every arena and slot table.
pub(super) const ROW_BYTES: usize = 8;

/// The state of a chain before its first node.
pub(super) const START: u64 = 0;

/// Event counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) tasks: u64,
    pub(super) rows: u64,
    /// Tasks launched while another task of the lane was on the device.
    pub(super) ahead: u64,
    /// Waits for tasks of other lanes.
    pub(super) waits: u64,
    pub(super) failed: u64,
    /// Tasks that failed because they depended on a failed one.
    pub(super) failed_by_need: u64,
    /// Padding rows.
    pub(super) padding: u64,
    /// Leases and slots that another request held before.
    pub(super) reused: u64,
    /// Tasks whose outputs were lost.
    pub(super) outputs_lost: u64,
    /// Tasks that completed while outputs of an earlier task were still on the device.
    pub(super) completed_before_taken: u64,
}

/// Encodes values.
pub(super) fn bytes(values: impl IntoIterator<Item = u64>) -> Bytes {
    values.into_iter().flat_map(u64::to_le_bytes).collect::<Vec<u8>>().into()
}

/// Decodes the value of a row.
pub(super) fn value(data: &[u8], row: usize) -> u64 {
    data.as_chunks::<8>().0.get(row).map_or(u64::MAX, |bytes| u64::from_le_bytes(*bytes))
}

/// Returns the access of a task that overwrites whole rows of a buffer.
pub(super) fn whole(buffer: BufferId, rows: u32) -> Access {
    Access::write(buffer, 0..rows)
}

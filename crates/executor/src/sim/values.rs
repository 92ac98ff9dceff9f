//! Encoding of values in requests, on devices and in responses.

use bytes::Bytes;
use paternoster_device::{Access, BufferId};

/// Bytes of a row in every arena and slot table.
pub(super) const ROW_BYTES: usize = 8;

/// The state of a chain before its first node.
pub(super) const START: u64 = 0;

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

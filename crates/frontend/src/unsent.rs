//! Counts responses in the backlog until their last byte has been sent.

use std::sync::Arc;

use bytes::Bytes;
use paternoster_executor::{Backlog, BacklogShare, Unread};

struct Unsent {
    bytes: Bytes,
    _held: BacklogShare,
}

impl AsRef<[u8]> for Unsent {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// Counts bytes in a connection's backlog.
pub(super) fn counted(bytes: Bytes, backlog: &Arc<Backlog>) -> Bytes {
    let held = backlog.hold(bytes.len());
    Bytes::from_owner(Unsent { bytes, _held: held })
}

/// Like [`counted`], within the limits.
///
/// # Errors
/// If too much waits in the process, and much of it for this connection.
pub(super) fn admitted(bytes: Bytes, backlog: &Arc<Backlog>) -> Result<Bytes, Unread> {
    let held = backlog.try_hold(bytes.len())?;
    Ok(Bytes::from_owner(Unsent { bytes, _held: held }))
}

//! Host memory that the card reads and writes, cut into parts that each have one owner.
#![expect(unsafe_code, reason = "parts of one allocation are lent apart")]

use std::{slice, sync::Arc};

use super::driver::{Address, Mapped};

/// A part of pinned host memory that is mapped into the card's addresses. Its owner alone looks at it
/// from the host, and does so only while nothing on the card uses it.
#[derive(Debug)]
pub struct HostMemory {
    mapped: Arc<Mapped<u8>>,
    offset: usize,
    len: usize,
}

impl HostMemory {
    /// The parts of memory, each `part_bytes` long.
    pub(super) fn parts(mapped: Mapped<u8>, part_bytes: usize, count: usize) -> Vec<Self> {
        let mapped = Arc::new(mapped);
        (0..count)
            .map(|part| Self { mapped: Arc::clone(&mapped), offset: part * part_bytes, len: part_bytes })
            .collect()
    }

    /// Where it begins, as the card sees it.
    pub fn address(&self) -> Address {
        self.mapped.address().offset(self.offset)
    }

    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        let start = self.mapped.part(self.offset, self.len).as_ptr();
        // SAFETY: parts do not overlap, each has one owner, and the card leaves it alone meanwhile, as the type asks.
        unsafe { slice::from_raw_parts(start, self.len) }
    }

    /// Its bytes.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        let start = self.mapped.part(self.offset, self.len).as_ptr();
        // SAFETY: as above.
        unsafe { slice::from_raw_parts_mut(start, self.len) }
    }
}

//! Host memory that the card reads and writes, split into parts with one owner each.
#![expect(unsafe_code, reason = "parts of one allocation are borrowed separately")]

use std::{slice, sync::Arc};

use super::driver::{Address, Mapped};

/// A part of pinned host memory that is mapped into the card's address space. Only its owner accesses it from the host,
/// and only while no work on the card uses it.
#[derive(Debug)]
pub struct HostMemory {
    mapped: Arc<Mapped<u8>>,
    offset: usize,
    len: usize,
}

impl HostMemory {
    /// Splits memory into `count` parts of `part_bytes` each.
    pub(super) fn parts(mapped: Mapped<u8>, part_bytes: usize, count: usize) -> Vec<Self> {
        let mapped = Arc::new(mapped);
        (0..count)
            .map(|part| Self { mapped: Arc::clone(&mapped), offset: part * part_bytes, len: part_bytes })
            .collect()
    }

    /// Returns its address on the card.
    pub fn address(&self) -> Address {
        self.mapped.address().offset(self.offset)
    }

    /// Returns its bytes.
    pub fn bytes(&self) -> &[u8] {
        let start = self.mapped.part(self.offset, self.len).as_ptr();
        // SAFETY: parts do not overlap, each has one owner, and no work on the card uses it meanwhile, as the type
        // requires.
        unsafe { slice::from_raw_parts(start, self.len) }
    }

    /// Returns its bytes for writing.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        let start = self.mapped.part(self.offset, self.len).as_ptr();
        // SAFETY: as above.
        unsafe { slice::from_raw_parts_mut(start, self.len) }
    }
}

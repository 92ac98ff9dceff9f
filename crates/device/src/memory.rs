//! A pool of aligned host memory for batches, with accounting.

use std::{fmt, sync::Arc};

use bytemuck::{Pod, Zeroable};
use bytes::Bytes;
use parking_lot::Mutex;

/// Alignment of every buffer: a cache line, and the widest vector register of x86-64.
pub const ALIGNMENT_BYTES: usize = 64;

/// Unit of allocation. With a larger alignment, the system allocator zeroes memory by writing to it, which would make
/// all of it resident. Buffers therefore have spare units and start at the first aligned one.
#[derive(Clone, Copy, Zeroable, Pod)]
#[repr(C, align(16))]
pub(super) struct Unit([u8; 16]);

const SPARE_UNITS: usize = ALIGNMENT_BYTES / size_of::<Unit>() - 1;

/// Number of size classes. Class `c` has buffers of 2^c times the alignment.
const CLASSES: usize = 34;

/// Maximum size of a buffer: 2^39 bytes.
pub(super) const LARGEST_BYTES: usize = ALIGNMENT_BYTES << (CLASSES - 1);

/// The system has no memory for a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no memory for {len_bytes} bytes")]
pub struct NoMemory {
    /// The wanted size.
    pub len_bytes: usize,
}

/// A pool of aligned buffers, which are reused for later batches. The memory kept for reuse is bounded here; the memory
/// in use is bounded by the number of requests in flight.
pub struct BufferPool {
    free: Mutex<Free>,
    retain_bytes: usize,
    max_output_bytes: usize,
}

struct Free {
    by_class: [Vec<Box<[Unit]>>; CLASSES],
    retained_bytes: usize,
    in_use_bytes: usize,
}

impl BufferPool {
    /// Creates a pool that keeps at most `retain_bytes` of unused buffers.
    pub fn new(retain_bytes: usize) -> Arc<Self> {
        Self::with_output_limit(retain_bytes, LARGEST_BYTES)
    }

    /// Like [`Self::new`], with a limit on the total output bytes of a run.
    pub fn with_output_limit(retain_bytes: usize, max_output_bytes: usize) -> Arc<Self> {
        let free = Free { by_class: std::array::from_fn(|_| Vec::new()), retained_bytes: 0, in_use_bytes: 0 };
        let max_output_bytes = max_output_bytes.min(LARGEST_BYTES);
        Arc::new(Self { free: Mutex::new(free), retain_bytes, max_output_bytes })
    }

    /// Returns the maximum total output bytes of a run. Enforced by the executors, not by the pool.
    pub fn max_output_bytes(&self) -> usize {
        self.max_output_bytes
    }

    /// Returns a buffer of `len_bytes`. Its contents are undefined, possibly those of another request, so the caller
    /// must write all of it.
    ///
    /// # Errors
    /// Fails if the system has no memory for it.
    pub fn take(pool: &Arc<Self>, len_bytes: usize) -> Result<Buffer, NoMemory> {
        Self::take_reused(pool, len_bytes).map(|(buffer, _)| buffer)
    }

    /// Returns a buffer of `len_bytes` zeros, for a writer that may leave parts of it unwritten.
    ///
    /// # Errors
    /// Fails if the system has no memory for it.
    pub fn take_cleared(pool: &Arc<Self>, len_bytes: usize) -> Result<Buffer, NoMemory> {
        let (mut buffer, is_reused) = Self::take_reused(pool, len_bytes)?;
        if is_reused {
            buffer.as_mut_slice().fill(0);
        }
        Ok(buffer)
    }

    /// Returns a buffer, and whether it was in use before; fresh memory is zero.
    fn take_reused(pool: &Arc<Self>, len_bytes: usize) -> Result<(Buffer, bool), NoMemory> {
        let no_memory = NoMemory { len_bytes };
        let class = class_of(len_bytes).filter(|class| *class < CLASSES).ok_or(no_memory)?;
        let class_bytes = bytes_of(class);
        let reused = {
            let mut free = pool.free.lock();
            free.in_use_bytes += class_bytes;
            let reused = free.by_class[class].pop();
            if reused.is_some() {
                free.retained_bytes -= class_bytes;
            }
            reused
        };
        let is_reused = reused.is_some();
        let units = match reused {
            Some(units) => units,
            None => bytemuck::try_zeroed_slice_box(class_bytes / size_of::<Unit>() + SPARE_UNITS).map_err(|()| {
                pool.free.lock().in_use_bytes -= class_bytes;
                no_memory
            })?,
        };
        Ok((Buffer { units, len_bytes, pool: Arc::clone(pool) }, is_reused))
    }

    /// Returns the bytes in buffers that are in use.
    pub fn in_use_bytes(&self) -> usize {
        self.free.lock().in_use_bytes
    }

    /// Returns the bytes in buffers kept for reuse.
    pub fn retained_bytes(&self) -> usize {
        self.free.lock().retained_bytes
    }

    pub(super) fn give_back(&self, units: Box<[Unit]>) {
        let class_bytes = size_of_val(&units[SPARE_UNITS..]);
        let mut free = self.free.lock();
        free.in_use_bytes -= class_bytes;
        // It has been taken, so it has a class.
        let Some(class) = class_of(class_bytes) else { return };
        if free.retained_bytes + class_bytes <= self.retain_bytes {
            free.retained_bytes += class_bytes;
            free.by_class[class].push(units);
        }
    }
}

impl fmt::Debug for BufferPool {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let free = self.free.lock();
        formatter
            .debug_struct("BufferPool")
            .field("in_use_bytes", &free.in_use_bytes)
            .field("retained_bytes", &free.retained_bytes)
            .finish_non_exhaustive()
    }
}

/// Returns the size class of a buffer; `None` if no power of two is as large.
fn class_of(len_bytes: usize) -> Option<usize> {
    let units = len_bytes.div_ceil(ALIGNMENT_BYTES).checked_next_power_of_two()?;
    Some(units.trailing_zeros() as usize)
}

/// Returns the offset of the first aligned byte.
pub(super) fn aligned(units: &[Unit]) -> usize {
    let address = units.as_ptr().addr();
    address.next_multiple_of(ALIGNMENT_BYTES) - address
}

fn bytes_of(class: usize) -> usize {
    ALIGNMENT_BYTES << class
}

/// Aligned memory that returns to its pool when dropped.
pub struct Buffer {
    units: Box<[Unit]>,
    len_bytes: usize,
    pool: Arc<BufferPool>,
}

impl Buffer {
    /// Returns the contents.
    pub fn as_slice(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.units)[aligned(&self.units)..][..self.len_bytes]
    }

    /// Returns the contents for writing.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        let start = aligned(&self.units);
        &mut bytemuck::cast_slice_mut(&mut self.units)[start..][..self.len_bytes]
    }

    /// Returns the memory itself, for an owner that returns it to the pool.
    pub(super) fn into_units(mut self) -> (Box<[Unit]>, Arc<BufferPool>) {
        (std::mem::take(&mut self.units), Arc::clone(&self.pool))
    }

    /// Shares the contents without a copy. The memory returns to the pool when the last share is dropped.
    pub fn freeze(self) -> Bytes {
        Bytes::from_owner(self)
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        self.as_slice()
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Buffer").field("len_bytes", &self.len_bytes).finish_non_exhaustive()
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let units = std::mem::take(&mut self.units);
        // After `into_units` there are none, and another owner returns them.
        if !units.is_empty() {
            self.pool.give_back(units);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_aligned_and_as_long_as_asked() {
        let pool = BufferPool::new(1 << 20);
        for len in [0, 1, 63, 64, 65, 1000, 4096, 5000] {
            let buffer = BufferPool::take(&pool, len).expect("there is memory");
            assert_eq!(buffer.as_slice().len(), len);
            assert_eq!(buffer.as_slice().as_ptr().align_offset(ALIGNMENT_BYTES), 0);
        }
    }

    #[test]
    fn a_shared_buffer_returns_with_its_last_share() {
        let pool = BufferPool::new(1 << 20);
        let shared = BufferPool::take(&pool, 100).expect("there is memory").freeze();
        let slice = shared.slice(10..20);
        drop(shared);
        assert_eq!(pool.in_use_bytes(), 128, "a slice still holds the buffer");
        drop(slice);
        assert_eq!((pool.in_use_bytes(), pool.retained_bytes()), (0, 128));
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let pool = BufferPool::new(256);
        let buffers: Vec<_> = (0..4).map(|_| BufferPool::take(&pool, 128).expect("there is memory")).collect();
        drop(buffers);
        assert_eq!(pool.retained_bytes(), 256);
    }

    #[test]
    fn a_kept_buffer_serves_the_next_of_its_size() {
        let pool = BufferPool::new(1 << 20);
        drop(BufferPool::take(&pool, 200).expect("there is memory"));
        let again = BufferPool::take(&pool, 256).expect("there is memory");
        assert_eq!((pool.in_use_bytes(), pool.retained_bytes()), (256, 0));
        drop(again);
    }

    #[test]
    fn a_cleared_buffer_holds_nothing_of_its_last_user() {
        let pool = BufferPool::new(1 << 20);
        let mut used = BufferPool::take(&pool, 200).expect("there is memory");
        used.as_mut_slice().fill(7);
        drop(used);
        assert!(
            BufferPool::take(&pool, 200).expect("there is memory").as_slice().contains(&7),
            "the pool reuses memory as it is"
        );
        assert_eq!(BufferPool::take_cleared(&pool, 200).expect("there is memory").as_slice(), [0; 200]);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn fresh_memory_becomes_resident_only_where_it_is_written() {
        let resident_pages = || -> usize {
            let statm = std::fs::read_to_string("/proc/self/statm").expect("Linux has this file");
            statm.split_whitespace().nth(1).and_then(|pages| pages.parse().ok()).expect("a number of pages")
        };
        let before = resident_pages();
        let mut buffer = BufferPool::take(&BufferPool::new(0), 2 << 30).expect("there is memory");
        buffer.as_mut_slice()[..4096].fill(1);
        let grown = resident_pages().saturating_sub(before);
        assert!(grown < (512 << 20) / 4096, "2 GiB were taken, and {grown} pages became resident");
    }

    #[test]
    fn without_memory_there_is_an_error_and_nothing_counts() {
        let pool = BufferPool::new(0);
        // More than the largest class, and more than any power of two.
        for len_bytes in [LARGEST_BYTES + 1, usize::MAX] {
            let refused = BufferPool::take(&pool, len_bytes).map(drop);
            assert_eq!(refused, Err(NoMemory { len_bytes }));
        }
        assert_eq!((pool.in_use_bytes(), pool.retained_bytes()), (0, 0));
    }
}

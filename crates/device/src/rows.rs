//! Host memory at a boundary between two stages: rows that several lanes read and write concurrently.
//!
//! Lanes access disjoint rows of one buffer at the same time, which a slice cannot express. The memory is therefore
//! accessed through guards, and the buffer records which rows are held. Tickets order the lanes (see
//! [`Device`](super::Device)); if one is missing, acquiring the guard fails, so a row is never read while it is
//! written.
#![allow(unsafe_code)]

use std::{
    cell::UnsafeCell,
    fmt,
    ops::{Deref, DerefMut, Range},
    slice,
    sync::Arc,
};

use parking_lot::Mutex;
use smallvec::SmallVec;

use super::{
    AccessKind, BufferPool, DeviceError, RowError,
    memory::{LARGEST_BYTES, Unit, aligned},
};

/// `capacity` rows of `row_bytes` each, contiguous, so that consecutive rows form one tensor with the batch as axis 0.
/// The first row is aligned to [`ALIGNMENT_BYTES`](super::ALIGNMENT_BYTES).
///
/// The memory comes from the pool. Fresh memory becomes resident only when written, so a small batch does not pay for
/// the space reserved for a full one. The memory returns to the pool with the last share or guard.
pub struct RowBuffer {
    units: Box<[UnsafeCell<Unit>]>,
    /// Offset of the first row, which is aligned.
    first_byte: usize,
    capacity: u32,
    row_bytes: usize,
    book: Mutex<Book>,
    pool: Arc<BufferPool>,
}

/// Which rows are held, and which have been written.
struct Book {
    held: SmallVec<[Held; 8]>,
    written: Box<[bool]>,
}

#[derive(Clone, PartialEq)]
struct Held {
    rows: Range<u32>,
    by: AccessKind,
}

// SAFETY: the cells are accessed only through guards, and `hold` never grants overlapping guards of which one writes;
// the lock orders what a guard wrote before what the next holder of the row reads.
unsafe impl Sync for RowBuffer {}

impl RowBuffer {
    /// Allocates rows, none of which are written yet.
    ///
    /// # Errors
    /// If the total size exceeds 2^39 bytes, or the host has no memory for it.
    pub fn new(pool: &Arc<BufferPool>, capacity: u32, row_bytes: usize) -> Result<Arc<Self>, DeviceError> {
        let len_bytes = row_bytes
            .checked_mul(capacity as usize)
            .filter(|bytes| *bytes <= LARGEST_BYTES)
            .ok_or(DeviceError::TooLarge { rows: capacity, row_bytes, most_bytes: LARGEST_BYTES })?;
        let (units, pool) = BufferPool::take(pool, len_bytes)?.into_units();
        let first_byte = aligned(&units);
        // SAFETY: `UnsafeCell<Unit>` has the layout of `Unit`, and ownership of the whole box moves.
        let units = unsafe { Box::from_raw(Box::into_raw(units) as *mut [UnsafeCell<Unit>]) };
        let book = Book { held: SmallVec::new(), written: vec![false; capacity as usize].into() };
        Ok(Arc::new(Self { units, first_byte, capacity, row_bytes, book: Mutex::new(book), pool }))
    }

    /// Returns the number of rows.
    pub fn capacity(&self) -> u32 {
        self.capacity
    }

    /// Returns the bytes of a row, which are also the distance from one row to the next.
    pub fn row_bytes(&self) -> usize {
        self.row_bytes
    }

    /// Acquires rows for reading. A row may have any number of readers.
    ///
    /// # Errors
    /// If one of the rows is being written or was never written, or the rows end beyond the buffer.
    pub fn read(self: &Arc<Self>, rows: Range<u32>) -> Result<RowsRef, RowError> {
        let rows = self.hold(rows, AccessKind::Read)?;
        Ok(RowsRef { buffer: Arc::clone(self), rows })
    }

    /// Acquires rows for writing. They count as unwritten until they are [committed](RowsMut::commit); the bytes are
    /// stale data, possibly of another request.
    ///
    /// # Errors
    /// If one of the rows is held, or the rows end beyond the buffer.
    pub fn write(self: &Arc<Self>, rows: Range<u32>) -> Result<RowsMut, RowError> {
        let rows = self.hold(rows, AccessKind::Write)?;
        Ok(RowsMut { buffer: Arc::clone(self), rows, by: AccessKind::Write })
    }

    /// Acquires rows to read and overwrite in place. They count as unwritten until they are committed.
    ///
    /// # Errors
    /// If one of the rows is held or was never written, or the rows end beyond the buffer.
    pub fn update(self: &Arc<Self>, rows: Range<u32>) -> Result<RowsMut, RowError> {
        let rows = self.hold(rows, AccessKind::Update)?;
        Ok(RowsMut { buffer: Arc::clone(self), rows, by: AccessKind::Update })
    }

    /// Marks rows as unwritten, even if they are in use.
    pub(super) fn lose(&self, rows: impl Iterator<Item = u32>) {
        let mut book = self.book.lock();
        for row in rows {
            book.written[row as usize] = false;
        }
    }

    fn hold(&self, rows: Range<u32>, by: AccessKind) -> Result<Range<u32>, RowError> {
        let rows = rows.start.min(rows.end)..rows.end;
        if rows.end > self.capacity {
            return Err(RowError::OutOfRange { end: rows.end, capacity: self.capacity });
        }
        let mut book = self.book.lock();
        let conflict = book.held.iter().find(|held| {
            let overlap = held.rows.start.max(rows.start) < held.rows.end.min(rows.end);
            overlap && (held.by.writes() || by.writes())
        });
        if let Some(held) = conflict {
            let (held, held_by) = (held.rows.clone(), held.by);
            return Err(RowError::Conflict { wanted: rows, wanted_for: by, held, held_by });
        }
        let marks = &mut book.written[as_indices(&rows)];
        if by.reads()
            && let Some(place) = marks.iter().position(|written| !written)
        {
            return Err(RowError::NotWritten { row: rows.start + place as u32 });
        }
        if by.writes() {
            marks.fill(false);
        }
        book.held.push(Held { rows: rows.clone(), by });
        Ok(rows)
    }

    fn release(&self, rows: &Range<u32>, by: AccessKind) {
        let mut book = self.book.lock();
        // Entries of readers of the same rows are equal, so it does not matter which one is removed.
        let place = book.held.iter().position(|held| held.rows == *rows && held.by == by);
        debug_assert!(place.is_some(), "a guard's rows are written down while it lives");
        if let Some(place) = place {
            book.held.swap_remove(place);
        }
    }

    /// Returns the address of the rows and their number of bytes.
    fn span(&self, rows: &Range<u32>) -> (*mut u8, usize) {
        let start = UnsafeCell::raw_get(self.units.as_ptr()).cast::<u8>();
        let range = as_indices(rows);
        // SAFETY: `hold` grants only rows below `capacity`, and from `first_byte` on the units have room for `capacity
        // * row_bytes`.
        let first = unsafe { start.add(self.first_byte + range.start * self.row_bytes) };
        (first, range.len() * self.row_bytes)
    }
}

impl Drop for RowBuffer {
    fn drop(&mut self) {
        let units = std::mem::take(&mut self.units);
        // SAFETY: the layouts agree, as in `new`, and guards keep the buffer alive, so none refers to it any more.
        let units = unsafe { Box::from_raw(Box::into_raw(units) as *mut [Unit]) };
        self.pool.give_back(units);
    }
}

impl fmt::Debug for RowBuffer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { capacity, row_bytes, .. } = self;
        write!(formatter, "RowBuffer({capacity} rows of {row_bytes} bytes)")
    }
}

/// Rows for reading, which are not written while this exists. It is a share of the buffer, so `Bytes::from_owner` can
/// turn it into a response.
pub struct RowsRef {
    buffer: Arc<RowBuffer>,
    rows: Range<u32>,
}

impl Deref for RowsRef {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let (start, len_bytes) = self.buffer.span(&self.rows);
        // SAFETY: the bytes are initialised (the pool's memory is), and they are not written while this guard exists.
        unsafe { slice::from_raw_parts(start, len_bytes) }
    }
}

impl AsRef<[u8]> for RowsRef {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl Drop for RowsRef {
    fn drop(&mut self) {
        self.buffer.release(&self.rows, AccessKind::Read);
    }
}

impl fmt::Debug for RowsRef {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "rows {:?} of {:?}, to read", self.rows, self.buffer)
    }
}

/// Rows for exclusive use. If this is dropped without [`commit`](Self::commit), the rows count as unwritten: partial
/// results of a failed writer cannot be read by mistake.
pub struct RowsMut {
    buffer: Arc<RowBuffer>,
    rows: Range<u32>,
    by: AccessKind,
}

impl RowsMut {
    /// Releases the rows and marks them as written.
    pub fn commit(self) {
        self.buffer.book.lock().written[as_indices(&self.rows)].fill(true);
    }
}

impl Deref for RowsMut {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let (start, len_bytes) = self.buffer.span(&self.rows);
        // SAFETY: the bytes are initialised, and this guard has exclusive access.
        unsafe { slice::from_raw_parts(start, len_bytes) }
    }
}

impl DerefMut for RowsMut {
    fn deref_mut(&mut self) -> &mut [u8] {
        let (start, len_bytes) = self.buffer.span(&self.rows);
        // SAFETY: the bytes are initialised, this guard has exclusive access, and the guard is borrowed mutably for as
        // long as the slice.
        unsafe { slice::from_raw_parts_mut(start, len_bytes) }
    }
}

impl Drop for RowsMut {
    fn drop(&mut self) {
        self.buffer.release(&self.rows, self.by);
    }
}

impl fmt::Debug for RowsMut {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "rows {:?} of {:?}, to write", self.rows, self.buffer)
    }
}

fn as_indices(rows: &Range<u32>) -> Range<usize> {
    rows.start as usize..rows.end as usize
}

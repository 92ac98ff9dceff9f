//! Host memory of a boundary between two stages: rows that several lanes read and write beside each other.
//!
//! Lanes touch disjoint rows of one buffer at the same time, which a slice cannot express; so the memory is handed out
//! by guards, and who holds which rows is written down. Tickets order the lanes (see [`Device`](super::Device)); where
//! one is missing, the guard is refused instead of a row being read while it is written.
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

/// `capacity` rows of `row_bytes` each, one after another without gaps, so that consecutive rows are one tensor whose
/// axis 0 is the batch. The first row is aligned to [`ALIGNMENT_BYTES`](super::ALIGNMENT_BYTES).
///
/// The memory is the pool's: fresh memory becomes resident only where it is written, so a reservation for a full batch
/// costs a small batch nothing. It goes back with the last share or guard; the pool's bound says whether it is kept.
pub struct RowBuffer {
    units: Box<[UnsafeCell<Unit>]>,
    /// Where the first row begins, which is aligned.
    first_byte: usize,
    capacity: u32,
    row_bytes: usize,
    book: Mutex<Book>,
    pool: Arc<BufferPool>,
}

/// Who uses which rows, and which rows hold something.
struct Book {
    held: SmallVec<[Held; 8]>,
    written: Box<[bool]>,
}

#[derive(Clone, PartialEq)]
struct Held {
    rows: Range<u32>,
    by: AccessKind,
}

// SAFETY: the cells are reached through guards alone, and `hold` gives no two guards of which one writes the same row
// while both live; the lock orders what a guard wrote before what the next holder of the row reads.
unsafe impl Sync for RowBuffer {}

impl RowBuffer {
    /// Reserves rows that hold nothing yet.
    ///
    /// # Errors
    /// When they are more than 2^39 bytes in all.
    pub fn new(pool: &Arc<BufferPool>, capacity: u32, row_bytes: usize) -> Result<Arc<Self>, DeviceError> {
        let len_bytes = row_bytes
            .checked_mul(capacity as usize)
            .filter(|bytes| *bytes <= LARGEST_BYTES)
            .ok_or(DeviceError::TooLarge { rows: capacity, row_bytes, most_bytes: LARGEST_BYTES })?;
        let (units, pool) = BufferPool::take(pool, len_bytes).into_units();
        let first_byte = aligned(&units);
        // SAFETY: `UnsafeCell<Unit>` has the layout of `Unit`, and the box is handed over whole.
        let units = unsafe { Box::from_raw(Box::into_raw(units) as *mut [UnsafeCell<Unit>]) };
        let book = Book { held: SmallVec::new(), written: vec![false; capacity as usize].into() };
        Ok(Arc::new(Self { units, first_byte, capacity, row_bytes, book: Mutex::new(book), pool }))
    }

    /// How many rows there are.
    pub fn capacity(&self) -> u32 {
        self.capacity
    }

    /// Bytes in each row, and from one row to the next.
    pub fn row_bytes(&self) -> usize {
        self.row_bytes
    }

    /// Rows to read. Any number of readers may hold a row.
    ///
    /// # Errors
    /// When somebody writes one of the rows, one of them holds nothing, or they end beyond the buffer.
    pub fn read(self: &Arc<Self>, rows: Range<u32>) -> Result<RowsRef, RowError> {
        let rows = self.hold(rows, AccessKind::Read)?;
        Ok(RowsRef { buffer: Arc::clone(self), rows })
    }

    /// Rows to write. They hold nothing until they are [committed](RowsMut::commit); the bytes are what was there
    /// before, of whatever request.
    ///
    /// # Errors
    /// When somebody holds one of the rows, or they end beyond the buffer.
    pub fn write(self: &Arc<Self>, rows: Range<u32>) -> Result<RowsMut, RowError> {
        let rows = self.hold(rows, AccessKind::Write)?;
        Ok(RowsMut { buffer: Arc::clone(self), rows, by: AccessKind::Write })
    }

    /// Rows to read and overwrite in place. They hold nothing until they are committed.
    ///
    /// # Errors
    /// When somebody holds one of the rows, one of them holds nothing, or they end beyond the buffer.
    pub fn update(self: &Arc<Self>, rows: Range<u32>) -> Result<RowsMut, RowError> {
        let rows = self.hold(rows, AccessKind::Update)?;
        Ok(RowsMut { buffer: Arc::clone(self), rows, by: AccessKind::Update })
    }

    /// Lets rows hold nothing, even if they are in use.
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
        // Readers of the same rows are alike: it does not matter whose entry goes.
        let place = book.held.iter().position(|held| held.rows == *rows && held.by == by);
        debug_assert!(place.is_some(), "a guard's rows are written down while it lives");
        if let Some(place) = place {
            book.held.swap_remove(place);
        }
    }

    /// Where the rows begin, and how many bytes they have.
    fn span(&self, rows: &Range<u32>) -> (*mut u8, usize) {
        let start = UnsafeCell::raw_get(self.units.as_ptr()).cast::<u8>();
        let range = as_indices(rows);
        // SAFETY: `hold` let only rows below `capacity` pass, and behind `first_byte` the units have room for
        // `capacity * row_bytes`.
        let first = unsafe { start.add(self.first_byte + range.start * self.row_bytes) };
        (first, range.len() * self.row_bytes)
    }
}

impl Drop for RowBuffer {
    fn drop(&mut self) {
        let units = std::mem::take(&mut self.units);
        // SAFETY: the layouts agree, as in `new`; without `self` there is no guard that points into them.
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

/// Rows that nobody writes while this lives. A share of the buffer: `Bytes::from_owner` makes a response of it.
pub struct RowsRef {
    buffer: Arc<RowBuffer>,
    rows: Range<u32>,
}

impl Deref for RowsRef {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let (start, len_bytes) = self.buffer.span(&self.rows);
        // SAFETY: the bytes are initialised (the pool's memory is), and nobody writes them while this guard lives.
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

/// Rows that nobody else uses while this lives. Dropped without [`commit`](Self::commit), the rows hold nothing: a
/// writer that fails half-way leaves nothing to be read by mistake.
pub struct RowsMut {
    buffer: Arc<RowBuffer>,
    rows: Range<u32>,
    by: AccessKind,
}

impl RowsMut {
    /// Gives the rows back: they hold what was written.
    pub fn commit(self) {
        self.buffer.book.lock().written[as_indices(&self.rows)].fill(true);
    }
}

impl Deref for RowsMut {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let (start, len_bytes) = self.buffer.span(&self.rows);
        // SAFETY: the bytes are initialised, and nobody else has them while this guard lives.
        unsafe { slice::from_raw_parts(start, len_bytes) }
    }
}

impl DerefMut for RowsMut {
    fn deref_mut(&mut self) -> &mut [u8] {
        let (start, len_bytes) = self.buffer.span(&self.rows);
        // SAFETY: the bytes are initialised, nobody else has them while this guard lives, and the guard is borrowed
        // mutably for as long as the slice.
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

//! The rows of buffers that an operation accesses, and how.

use std::{ops::Range, sync::Arc};

use smallvec::SmallVec;

use super::{BufferId, DeviceError};

/// Rows of one buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BufferRows {
    /// Contiguous rows, which form one tensor with the batch as axis 0 and need no gather.
    Range(Range<u32>),
    /// Rows by index (slot table), in the order in which the program reads them. Shared, because one task uses the same
    /// slots in several buffers.
    List(Arc<[u32]>),
}

impl BufferRows {
    /// Returns the number of rows.
    pub fn len(&self) -> u32 {
        match self {
            Self::Range(range) => range.end.saturating_sub(range.start),
            Self::List(list) => list.len() as u32,
        }
    }

    /// Returns whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the row at index `place` of this order.
    pub fn get(&self, place: u32) -> Option<u32> {
        match self {
            Self::Range(range) => range.start.checked_add(place).filter(|row| *row < range.end),
            Self::List(list) => list.get(place as usize).copied(),
        }
    }

    /// Iterates over the rows in order.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        let (range, list) = match self {
            Self::Range(range) => (range.clone(), &[][..]),
            Self::List(list) => (0..0, &**list),
        };
        range.chain(list.iter().copied())
    }

    /// Returns one more than the largest row; 0 if there are none.
    fn end(&self) -> u32 {
        match self {
            Self::Range(range) if range.is_empty() => 0,
            Self::Range(range) => range.end,
            Self::List(list) => list.iter().max().map_or(0, |row| row.saturating_add(1)),
        }
    }

    /// Returns a row that is in both.
    fn shared(&self, other: &Self) -> Option<u32> {
        match (self, other) {
            (Self::Range(one), Self::Range(two)) => {
                let first = one.start.max(two.start);
                (first < one.end.min(two.end)).then_some(first)
            }
            (Self::Range(range), Self::List(list)) | (Self::List(list), Self::Range(range)) => {
                list.iter().copied().find(|row| range.contains(row))
            }
            (Self::List(one), Self::List(two)) => {
                let sorted = sorted(one);
                two.iter().copied().find(|row| sorted.binary_search(row).is_ok())
            }
        }
    }

    /// Returns a row that occurs more than once.
    fn repeated(&self) -> Option<u32> {
        match self {
            Self::Range(_) => None,
            Self::List(list) => sorted(list).windows(2).find(|pair| pair[0] == pair[1]).map(|pair| pair[0]),
        }
    }
}

fn sorted(list: &[u32]) -> SmallVec<[u32; 64]> {
    let mut sorted = SmallVec::from_slice(list);
    sorted.sort_unstable();
    sorted
}

impl From<Range<u32>> for BufferRows {
    fn from(range: Range<u32>) -> Self {
        Self::Range(range)
    }
}

impl From<Arc<[u32]>> for BufferRows {
    fn from(list: Arc<[u32]>) -> Self {
        Self::List(list)
    }
}

/// Rows of a buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Region {
    /// The buffer.
    pub buffer: BufferId,
    /// Its rows.
    pub rows: BufferRows,
}

impl Region {
    /// Creates a region from rows of a buffer.
    pub fn new(buffer: BufferId, rows: impl Into<BufferRows>) -> Self {
        Self { buffer, rows: rows.into() }
    }

    /// Checks that the rows exist in a buffer of `capacity` rows.
    ///
    /// # Errors
    /// [`DeviceError::OutOfRange`] with the largest row.
    pub fn check(&self, capacity: u32) -> Result<(), DeviceError> {
        let end = self.rows.end();
        if end > capacity {
            return Err(DeviceError::OutOfRange { buffer: self.buffer, row: end - 1, capacity });
        }
        Ok(())
    }
}

/// How an operation accesses rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessKind {
    /// Reads the rows.
    Read,
    /// Overwrites all of the rows; their previous contents do not matter.
    Write,
    /// Reads and overwrites the rows in place, as a cell does with its state.
    Update,
}

impl AccessKind {
    /// Returns whether the access modifies the rows.
    pub fn writes(self) -> bool {
        self != Self::Read
    }

    /// Returns whether the rows must have been written before.
    pub fn reads(self) -> bool {
        self != Self::Write
    }

    /// Returns the word for it in messages.
    pub fn verb(self) -> &'static str {
        match self {
            Self::Read => "reads",
            Self::Write => "writes",
            Self::Update => "updates",
        }
    }
}

/// One operand of a launch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Access {
    /// The region.
    pub region: Region,
    /// How it is accessed.
    pub kind: AccessKind,
}

impl Access {
    /// Creates a read access.
    pub fn read(buffer: BufferId, rows: impl Into<BufferRows>) -> Self {
        Self { region: Region::new(buffer, rows), kind: AccessKind::Read }
    }

    /// Creates a write access.
    pub fn write(buffer: BufferId, rows: impl Into<BufferRows>) -> Self {
        Self { region: Region::new(buffer, rows), kind: AccessKind::Write }
    }

    /// Creates an in-place update access.
    pub fn update(buffer: BufferId, rows: impl Into<BufferRows>) -> Self {
        Self { region: Region::new(buffer, rows), kind: AccessKind::Update }
    }
}

/// Rejects a launch that writes a row and accesses it a second time: the operands of a program have no defined order.
///
/// # Errors
/// [`DeviceError::NamedTwice`].
pub fn check_named_once(accesses: &[Access]) -> Result<(), DeviceError> {
    for (place, Access { region, kind }) in accesses.iter().enumerate() {
        let own = if kind.writes() { region.rows.repeated() } else { None };
        let conflicts = accesses[..place]
            .iter()
            .filter(|other| other.region.buffer == region.buffer && (other.kind.writes() || kind.writes()));
        let row = own.or_else(|| conflicts.filter_map(|other| other.region.rows.shared(&region.rows)).next());
        if let Some(row) = row {
            return Err(DeviceError::NamedTwice { buffer: region.buffer, row });
        }
    }
    Ok(())
}

/// Rejects a copy between regions of different sizes, or between overlapping regions.
///
/// # Errors
/// [`DeviceError::CopySizes`] and [`DeviceError::NamedTwice`].
pub fn check_copy(from: &Region, from_row_bytes: usize, to: &Region, to_row_bytes: usize) -> Result<(), DeviceError> {
    let (from_rows, to_rows) = (from.rows.len(), to.rows.len());
    if (from_rows, from_row_bytes) != (to_rows, to_row_bytes) {
        return Err(DeviceError::CopySizes { from_rows, from_row_bytes, to_rows, to_row_bytes });
    }
    let read = Access { region: from.clone(), kind: AccessKind::Read };
    let write = Access { region: to.clone(), kind: AccessKind::Write };
    check_named_once(&[read, write])
}

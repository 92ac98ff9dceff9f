//! What an operation touches: rows of buffers, read, written or updated in place.

use std::{ops::Range, sync::Arc};

use smallvec::SmallVec;

use super::{BufferId, DeviceError};

/// Rows of one buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rows {
    /// Contiguous rows: one tensor whose axis 0 is the batch, without a copy.
    Range(Range<u32>),
    /// Rows by index, in the order in which the program takes them (slot tables). Shared, because one task names the
    /// same slots in several buffers.
    List(Arc<[u32]>),
}

impl Rows {
    /// How many rows are named.
    pub fn len(&self) -> u32 {
        match self {
            Self::Range(range) => range.end.saturating_sub(range.start),
            Self::List(list) => list.len() as u32,
        }
    }

    /// Whether no row is named.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The row at `place` in this order.
    pub fn get(&self, place: u32) -> Option<u32> {
        match self {
            Self::Range(range) => range.start.checked_add(place).filter(|row| *row < range.end),
            Self::List(list) => list.get(place as usize).copied(),
        }
    }

    /// The rows in their order.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        let (range, list) = match self {
            Self::Range(range) => (range.clone(), &[][..]),
            Self::List(list) => (0..0, &**list),
        };
        range.chain(list.iter().copied())
    }

    /// One more than the largest row; 0 where there is none.
    fn end(&self) -> u32 {
        match self {
            Self::Range(range) if range.is_empty() => 0,
            Self::Range(range) => range.end,
            Self::List(list) => list.iter().max().map_or(0, |row| row.saturating_add(1)),
        }
    }

    /// A row that both name.
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

    /// A row that is named more than once.
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

impl From<Range<u32>> for Rows {
    fn from(range: Range<u32>) -> Self {
        Self::Range(range)
    }
}

impl From<Arc<[u32]>> for Rows {
    fn from(list: Arc<[u32]>) -> Self {
        Self::List(list)
    }
}

/// Rows and the buffer they are in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Region {
    /// The buffer.
    pub buffer: BufferId,
    /// Its rows.
    pub rows: Rows,
}

impl Region {
    /// Rows of a buffer.
    pub fn new(buffer: BufferId, rows: impl Into<Rows>) -> Self {
        Self { buffer, rows: rows.into() }
    }

    pub(super) fn check(&self, capacity: u32) -> Result<(), DeviceError> {
        let end = self.rows.end();
        if end > capacity {
            return Err(DeviceError::OutOfRange { buffer: self.buffer, row: end - 1, capacity });
        }
        Ok(())
    }
}

/// What an operation does with rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessKind {
    /// Reads them.
    Read,
    /// Writes all of them; what they held is of no interest.
    Write,
    /// Reads and overwrites them in place, as a cell does with its state.
    Update,
}

impl AccessKind {
    /// Whether the rows have other contents afterwards.
    pub fn writes(self) -> bool {
        self != Self::Read
    }

    /// Whether the rows must hold something before.
    pub fn reads(self) -> bool {
        self != Self::Write
    }

    pub(super) fn verb(self) -> &'static str {
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
    /// The rows.
    pub region: Region,
    /// What happens to them.
    pub kind: AccessKind,
}

impl Access {
    /// Reads rows.
    pub fn read(buffer: BufferId, rows: impl Into<Rows>) -> Self {
        Self { region: Region::new(buffer, rows), kind: AccessKind::Read }
    }

    /// Writes rows.
    pub fn write(buffer: BufferId, rows: impl Into<Rows>) -> Self {
        Self { region: Region::new(buffer, rows), kind: AccessKind::Write }
    }

    /// Updates rows in place.
    pub fn update(buffer: BufferId, rows: impl Into<Rows>) -> Self {
        Self { region: Region::new(buffer, rows), kind: AccessKind::Update }
    }
}

/// Refuses a launch that writes a row and names it a second time: a program's operands run in no order that one could
/// rely on.
pub(super) fn check_named_once(accesses: &[Access]) -> Result<(), DeviceError> {
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

/// Refuses a copy between regions of different sizes, or onto itself.
pub(super) fn check_copy(
    from: &Region,
    from_row_bytes: usize,
    to: &Region,
    to_row_bytes: usize,
) -> Result<(), DeviceError> {
    let (from_rows, to_rows) = (from.rows.len(), to.rows.len());
    if (from_rows, from_row_bytes) != (to_rows, to_row_bytes) {
        return Err(DeviceError::CopySizes { from_rows, from_row_bytes, to_rows, to_row_bytes });
    }
    let read = Access { region: from.clone(), kind: AccessKind::Read };
    let write = Access { region: to.clone(), kind: AccessKind::Write };
    check_named_once(&[read, write])
}

//! A simulated buffer: the contents, last writer and readers of each row.

use std::ops::Range;

use paternoster_device::{AccessKind, Accessor, BufferId, BufferRows, Violation};

use super::clock::Clock;

/// Rows without bytes.
#[derive(Clone, Debug)]
pub(super) struct SymbolicBuffer {
    pub(super) row_bytes: usize,
    rows: Vec<Row>,
    /// The last reader since the row was written, by row, then by stream.
    readers: Vec<Option<Accessor>>,
    streams: usize,
}

#[derive(Clone, Copy, Debug)]
struct Row {
    holds: Holds,
    writer: Option<Accessor>,
}

/// Contents of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Holds {
    Nothing,
    Value(u64),
    /// Its writer failed.
    Lost,
    /// It was freed.
    Poison,
}

/// Returns whether the access ended before what the clock covers. The host is synchronous with everything it issues.
fn is_before(accessor: Accessor, clock: &Clock) -> bool {
    match accessor {
        Accessor::Launch { operation, .. } | Accessor::Copy(operation) => {
            clock.covers(operation.stream, operation.position)
        }
        Accessor::Host => true,
    }
}

impl SymbolicBuffer {
    pub(super) fn new(rows: u32, row_bytes: usize, streams: u16) -> Self {
        let (count, streams) = (rows as usize, usize::from(streams));
        let row = Row { holds: Holds::Nothing, writer: None };
        Self { row_bytes, rows: vec![row; count], readers: vec![None; count * streams], streams }
    }

    pub(super) fn capacity(&self) -> u32 {
        self.rows.len() as u32
    }

    pub(super) fn holds(&self, row: u32) -> Holds {
        self.rows[row as usize].holds
    }

    pub(super) fn writer(&self, row: u32) -> Option<Accessor> {
        self.rows[row as usize].writer
    }

    /// Checks whether `later`, which is ordered after everything that `clock` covers, may access the rows.
    pub(super) fn check(
        &self,
        buffer: BufferId,
        rows: &BufferRows,
        later: Accessor,
        later_kind: AccessKind,
        clock: &Clock,
    ) -> Result<(), Box<Violation>> {
        for row in rows.iter() {
            if let Some(conflict) = self.conflict(row, later_kind, clock) {
                let (earlier, earlier_kind) = conflict;
                let rows = self.alike(row, rows, later_kind, clock, conflict);
                return Err(Box::new(Violation::Race { buffer, rows, earlier, earlier_kind, later, later_kind }));
            }
            if later_kind.reads() {
                match self.holds(row) {
                    Holds::Nothing => return Err(Box::new(Violation::NeverWritten { reader: later, buffer, row })),
                    Holds::Poison => return Err(Box::new(Violation::Poisoned { reader: later, buffer, row })),
                    Holds::Value(_) | Holds::Lost => {}
                }
            }
        }
        Ok(())
    }

    /// Returns a conflicting access to a row that is not ordered before `clock`.
    fn conflict(&self, row: u32, kind: AccessKind, clock: &Clock) -> Option<(Accessor, AccessKind)> {
        let writer = self.rows[row as usize].writer.filter(|writer| !is_before(*writer, clock));
        if let Some(writer) = writer {
            return Some((writer, AccessKind::Write));
        }
        if !kind.writes() {
            return None;
        }
        let reader = self.readers_of(row).iter().flatten().find(|reader| !is_before(**reader, clock));
        reader.map(|reader| (*reader, AccessKind::Read))
    }

    /// Returns the consecutive rows from `first` on that are in `named` and have the same conflict.
    fn alike(
        &self,
        first: u32,
        named: &BufferRows,
        kind: AccessKind,
        clock: &Clock,
        conflict: (Accessor, AccessKind),
    ) -> Range<u32> {
        let is_alike =
            |row: u32| named.iter().any(|other| other == row) && self.conflict(row, kind, clock) == Some(conflict);
        let end = (first..self.capacity()).find(|row| !is_alike(*row));
        first..end.unwrap_or(self.capacity())
    }

    pub(super) fn note_read(&mut self, row: u32, stream: usize, reader: Accessor) {
        self.readers[row as usize * self.streams + stream] = Some(reader);
    }

    pub(super) fn write(&mut self, row: u32, writer: Accessor, holds: Holds) {
        self.rows[row as usize] = Row { holds, writer: Some(writer) };
        let first = row as usize * self.streams;
        // Everything ordered after this write is also ordered after these readers.
        self.readers[first..first + self.streams].fill(None);
    }

    pub(super) fn poison(&mut self, rows: &BufferRows) {
        for row in rows.iter() {
            self.rows[row as usize].holds = Holds::Poison;
        }
    }

    fn readers_of(&self, row: u32) -> &[Option<Accessor>] {
        let first = row as usize * self.streams;
        &self.readers[first..first + self.streams]
    }
}

//! Work that runs on the streams of the CPU, and the rows that it accesses.

use std::sync::Arc;

use crate::{AccessKind, BufferRows, RowBuffer, RowError, RowsMut, RowsRef, WorkFailure};

/// The work of a launch on the CPU. Any `FnMut(&mut [Operand]) -> Result<(), String>` implements it.
pub trait HostWork: Send + 'static {
    /// Runs on the stream's thread. The operands are the accesses of the launch, in order; they are released when this
    /// returns.
    ///
    /// # Errors
    /// The reason, if the rows were not written as they should be.
    fn run(&mut self, operands: &mut [Operand]) -> Result<(), String>;

    /// Called after the launch and its tickets are complete and its rows are released, on the same thread and before
    /// the stream's next operation. May issue operations, so that a lane's next task needs no thread switch. Also
    /// called, on the stream's thread, if the work was abandoned before it started.
    fn done(self, outcome: Result<(), WorkFailure>)
    where
        Self: Sized,
    {
        drop(outcome);
    }
}

impl<F> HostWork for F
where
    F: FnMut(&mut [Operand]) -> Result<(), String> + Send + 'static,
{
    fn run(&mut self, operands: &mut [Operand]) -> Result<(), String> {
        self(operands)
    }
}

/// The rows of one access, while the work runs.
#[derive(Debug)]
pub struct Operand {
    rows: Guards,
    row_bytes: usize,
}

#[derive(Debug)]
enum Guards {
    Read(RowsRef),
    Write(RowsMut),
    /// One guard per row.
    ReadEach(Vec<RowsRef>),
    WriteEach(Vec<RowsMut>),
}

impl Operand {
    /// Returns all rows as one tensor; `None` if they are listed individually.
    pub fn bytes(&self) -> Option<&[u8]> {
        match &self.rows {
            Guards::Read(rows) => Some(rows),
            Guards::Write(rows) => Some(rows),
            Guards::ReadEach(_) | Guards::WriteEach(_) => None,
        }
    }

    /// Returns all rows as one mutable tensor; `None` if they are listed individually or read-only.
    pub fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        match &mut self.rows {
            Guards::Write(rows) => Some(rows),
            Guards::Read(_) | Guards::ReadEach(_) | Guards::WriteEach(_) => None,
        }
    }

    /// Returns the row at index `place` of the access.
    pub fn row(&self, place: usize) -> Option<&[u8]> {
        match &self.rows {
            Guards::ReadEach(rows) => rows.get(place).map(|row| &**row),
            Guards::WriteEach(rows) => rows.get(place).map(|row| &**row),
            Guards::Read(_) | Guards::Write(_) => self.bytes()?.chunks_exact(self.row_bytes.max(1)).nth(place),
        }
    }

    /// Returns the row at index `place` for writing; `None` if it is read-only or does not exist.
    pub fn row_mut(&mut self, place: usize) -> Option<&mut [u8]> {
        let row_bytes = self.row_bytes.max(1);
        match &mut self.rows {
            Guards::WriteEach(rows) => rows.get_mut(place).map(|row| &mut **row),
            Guards::Write(rows) => rows.chunks_exact_mut(row_bytes).nth(place),
            Guards::Read(_) | Guards::ReadEach(_) => None,
        }
    }

    fn commit(self) {
        match self.rows {
            Guards::Read(_) | Guards::ReadEach(_) => {}
            Guards::Write(rows) => rows.commit(),
            Guards::WriteEach(rows) => rows.into_iter().for_each(RowsMut::commit),
        }
    }
}

/// An access with its buffer resolved, as queued in a stream.
pub(super) struct Held {
    pub(super) buffer: Arc<RowBuffer>,
    pub(super) rows: BufferRows,
    pub(super) kind: AccessKind,
}

impl Held {
    pub(super) fn acquire(&self) -> Result<Operand, RowError> {
        let buffer = &self.buffer;
        let each = |row: u32| row..row + 1;
        let rows = match (&self.rows, self.kind) {
            (BufferRows::Range(range), AccessKind::Read) => Guards::Read(buffer.read(range.clone())?),
            (BufferRows::Range(range), AccessKind::Write) => Guards::Write(buffer.write(range.clone())?),
            (BufferRows::Range(range), AccessKind::Update) => Guards::Write(buffer.update(range.clone())?),
            (BufferRows::List(list), AccessKind::Read) => {
                Guards::ReadEach(list.iter().map(|row| buffer.read(each(*row))).collect::<Result<_, _>>()?)
            }
            (BufferRows::List(list), AccessKind::Write) => {
                Guards::WriteEach(list.iter().map(|row| buffer.write(each(*row))).collect::<Result<_, _>>()?)
            }
            (BufferRows::List(list), AccessKind::Update) => {
                Guards::WriteEach(list.iter().map(|row| buffer.update(each(*row))).collect::<Result<_, _>>()?)
            }
        };
        Ok(Operand { rows, row_bytes: buffer.row_bytes() })
    }
}

/// Acquires the rows of every access, calls `run` with them, and releases them. On failure, all rows that should have
/// been written become unwritten.
pub(super) fn with_rows(
    accesses: &[Held],
    run: impl FnOnce(&mut [Operand]) -> Result<(), WorkFailure>,
) -> Result<(), WorkFailure> {
    let acquired: Result<smallvec::SmallVec<[Operand; 4]>, RowError> = accesses.iter().map(Held::acquire).collect();
    let outcome = acquired.map_err(WorkFailure::from).and_then(|mut operands| {
        run(&mut operands)?;
        operands.into_iter().for_each(Operand::commit);
        Ok(())
    });
    if outcome.is_err() {
        for access in accesses.iter().filter(|access| access.kind.writes()) {
            access.buffer.lose(access.rows.iter());
        }
    }
    outcome
}

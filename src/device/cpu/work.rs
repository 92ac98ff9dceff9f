//! What runs on the CPU's streams, and the rows it gets.

use std::sync::Arc;

use crate::device::{AccessKind, RowBuffer, RowError, Rows, RowsMut, RowsRef, WorkFailure};

/// What a launch on the CPU runs. Any `FnMut(&mut [Operand]) -> Result<(), String>` is such work.
pub trait HostWork: Send + 'static {
    /// Runs on the stream's thread. The operands are the launch's accesses, in their order; they go back when this
    /// returns.
    ///
    /// # Errors
    /// The reason, when the rows that should have been written are not what they should be.
    fn run(&mut self, operands: &mut [Operand]) -> Result<(), String>;

    /// The launch is complete, its tickets too, and its rows are free for others. Runs on the same thread before the
    /// stream's next operation, and may issue operations: a lane's next task needs no hand-over. Also called, on the
    /// stream's thread, when the work never began.
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

/// The rows of one access, for as long as the work runs.
#[derive(Debug)]
pub struct Operand {
    rows: Guards,
    row_bytes: usize,
}

#[derive(Debug)]
enum Guards {
    Read(RowsRef),
    Write(RowsMut),
    /// One guard a row.
    ReadEach(Vec<RowsRef>),
    WriteEach(Vec<RowsMut>),
}

impl Operand {
    /// All rows as one tensor; `None` where they are listed one by one.
    pub fn bytes(&self) -> Option<&[u8]> {
        match &self.rows {
            Guards::Read(rows) => Some(rows),
            Guards::Write(rows) => Some(rows),
            Guards::ReadEach(_) | Guards::WriteEach(_) => None,
        }
    }

    /// All rows as one tensor, to be written; `None` where they are listed one by one or only read.
    pub fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        match &mut self.rows {
            Guards::Write(rows) => Some(rows),
            Guards::Read(_) | Guards::ReadEach(_) | Guards::WriteEach(_) => None,
        }
    }

    /// The row at `place` among the access's rows.
    pub fn row(&self, place: usize) -> Option<&[u8]> {
        match &self.rows {
            Guards::ReadEach(rows) => rows.get(place).map(|row| &**row),
            Guards::WriteEach(rows) => rows.get(place).map(|row| &**row),
            Guards::Read(_) | Guards::Write(_) => self.bytes()?.chunks_exact(self.row_bytes.max(1)).nth(place),
        }
    }

    /// The row at `place`, to be written; `None` where rows are only read, too.
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

/// An access with its buffer at hand: what waits in a stream's queue.
pub(super) struct Held {
    pub(super) buffer: Arc<RowBuffer>,
    pub(super) rows: Rows,
    pub(super) kind: AccessKind,
}

impl Held {
    pub(super) fn acquire(&self) -> Result<Operand, RowError> {
        let buffer = &self.buffer;
        let each = |row: u32| row..row + 1;
        let rows = match (&self.rows, self.kind) {
            (Rows::Range(range), AccessKind::Read) => Guards::Read(buffer.read(range.clone())?),
            (Rows::Range(range), AccessKind::Write) => Guards::Write(buffer.write(range.clone())?),
            (Rows::Range(range), AccessKind::Update) => Guards::Write(buffer.update(range.clone())?),
            (Rows::List(list), AccessKind::Read) => {
                Guards::ReadEach(list.iter().map(|row| buffer.read(each(*row))).collect::<Result<_, _>>()?)
            }
            (Rows::List(list), AccessKind::Write) => {
                Guards::WriteEach(list.iter().map(|row| buffer.write(each(*row))).collect::<Result<_, _>>()?)
            }
            (Rows::List(list), AccessKind::Update) => {
                Guards::WriteEach(list.iter().map(|row| buffer.update(each(*row))).collect::<Result<_, _>>()?)
            }
        };
        Ok(Operand { rows, row_bytes: buffer.row_bytes() })
    }
}

/// Takes the rows of every access, lets `run` work on them, and gives them back. Where anything fails, all rows that
/// should have been written hold nothing.
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

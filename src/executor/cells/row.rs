//! Rows that tasks of cells read and write.

use bytes::Bytes;

use crate::model::Dims;

/// Rows of a program's inputs, by their names.
pub(in crate::executor) type ProgramInputs = Vec<(String, Row)>;

/// One row of what a task gave.
#[derive(Clone, Debug)]
pub(in crate::executor) struct Row {
    /// The row's dims.
    pub(in crate::executor) dims: Dims,
    /// All rows of the task, or this one alone.
    pub(in crate::executor) of: Bytes,
    /// Where it begins there, in bytes.
    pub(in crate::executor) at: usize,
    /// Its length in bytes.
    pub(in crate::executor) len: usize,
}

impl Row {
    /// A row that stands alone.
    pub(in crate::executor) fn alone(dims: Dims, bytes: Bytes) -> Self {
        Self { dims, len: bytes.len(), of: bytes, at: 0 }
    }

    /// The row of this number of those, so many, that it is made of along its first axis.
    pub(in crate::executor) fn part(self, number: usize, rows: usize) -> Self {
        let len = self.len / rows;
        Self { dims: Dims::from_slice(&self.dims[1..]), of: self.of, at: self.at + number * len, len }
    }

    pub(in crate::executor) fn bytes(&self) -> Bytes {
        self.of.slice(self.at..self.at + self.len)
    }

    pub(in crate::executor) fn as_slice(&self) -> &[u8] {
        &self.of[self.at..self.at + self.len]
    }

    /// The same row, which holds nothing but itself.
    pub(in crate::executor) fn copied(&self) -> Self {
        Self::alone(self.dims.clone(), Bytes::copy_from_slice(self.as_slice()))
    }
}

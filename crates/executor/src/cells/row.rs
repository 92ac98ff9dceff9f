//! Rows that tasks of cells read and write.

use bytes::Bytes;
use paternoster_model::{Dims, TensorSpec, element_count};

use crate::strings::count_strings;

/// Rows of a program's inputs, by name.
pub(crate) type ProgramInputs = Vec<(String, Row)>;

/// One row of a task's output.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    /// Dimensions of the row.
    pub(crate) dims: Dims,
    /// The memory that holds it: all rows of the task, or only this one.
    pub(crate) of: Bytes,
    /// Offset in that memory, in bytes.
    pub(crate) at: usize,
    /// Length in bytes.
    pub(crate) len: usize,
}

impl Row {
    /// Creates a row that is alone in its memory.
    pub(crate) fn alone(dims: Dims, bytes: Bytes) -> Self {
        Self { dims, len: bytes.len(), of: bytes, at: 0 }
    }

    /// Returns one of the `rows` rows that this row consists of along its first axis.
    pub(crate) fn part(self, number: usize, rows: usize) -> Self {
        let len = self.len / rows;
        Self { dims: Dims::from_slice(&self.dims[1..]), of: self.of, at: self.at + number * len, len }
    }

    /// The first so many of the rows that it is made of along its first axis, of which there are more.
    pub(crate) fn first(mut self, count: usize) -> Self {
        if let Some(rows) = self.dims.first_mut() {
            self.len = self.len / (*rows).max(1) as usize * count;
            *rows = count as i64;
        }
        self
    }

    pub(crate) fn bytes(&self) -> Bytes {
        self.of.slice(self.at..self.at + self.len)
    }

    pub(crate) fn as_slice(&self) -> &[u8] {
        &self.of[self.at..self.at + self.len]
    }

    /// Returns a copy that does not share memory with other rows.
    pub(crate) fn copied(&self) -> Self {
        Self::alone(self.dims.clone(), Bytes::copy_from_slice(self.as_slice()))
    }
}

/// Checks that a row matches a cell's input.
///
/// # Errors
/// If it does not match; the text states what was expected.
pub(crate) fn fits(spec: &TensorSpec, row: &Row) -> Result<(), String> {
    let fits = row.dims.len() == spec.dims.len()
        && spec.dims.iter().zip(&row.dims).all(|(expected, found)| *expected < 0 || expected == found);
    let count = element_count(&row.dims);
    let is_whole = match spec.datatype.size_bytes() {
        Some(size) => count.map(|count| count * size) == Some(row.len),
        None => count.is_some() && count == count_strings(row.as_slice()),
    };
    if fits && is_whole {
        return Ok(());
    }
    let (expected, found) = (spec.dims.as_slice(), row.dims.as_slice());
    Err(format!(
        "input '{}': expected {} {expected:?}, but found {found:?} in {} bytes",
        spec.name, spec.datatype, row.len
    ))
}

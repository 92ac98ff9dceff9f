//! The engine interface: what the executor hands over and takes back.

use bytes::Bytes;

use crate::{batching::RowOutcome, model::Dims};

/// One input of a batch, all rows together.
#[derive(Debug)]
pub enum BatchInput<'a> {
    /// Fixed-size elements, contiguous, row-major, aligned to 64 bytes.
    Dense {
        /// Full shape, batch axis included where the model has one.
        shape: &'a [i64],
        /// `product(shape) * size` bytes.
        data: &'a [u8],
    },
    /// BYTES elements in row-major order.
    Strings {
        /// Full shape.
        shape: &'a [i64],
        /// One slice per element.
        elements: &'a [&'a [u8]],
    },
    /// An optional input that no request of the batch brought.
    Absent,
}

/// One output of a batch, all rows together.
#[derive(Clone, Debug)]
pub enum BatchOutput {
    /// Fixed-size elements.
    Dense {
        /// Full shape, batch axis included where the model has one.
        shape: Dims,
        /// Row-major elements; cheap to slice and share.
        data: Bytes,
    },
    /// BYTES elements, each preceded by its length in four little-endian bytes.
    Strings {
        /// Full shape.
        shape: Dims,
        /// All elements in row-major order, length-prefixed.
        data: Bytes,
    },
}

/// Why a program could not be loaded or run; the text names what was wrong.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[error("{0}")]
pub struct EngineError(pub String);

/// A compiled cell, shared by all lanes.
pub trait Program: Send + Sync {
    /// Runs one batch of `rows` rows. `steps` holds, per row, how often the row ran before (for cells that rows
    /// repeat). Inputs and outputs are in the order of the model's specification.
    ///
    /// # Errors
    /// When the program fails as a whole; a row that fails alone is reported in its outcome.
    fn run(&self, rows: u32, inputs: &[BatchInput<'_>], steps: &[u32]) -> Result<Execution, EngineError>;
}

/// What one run of a program gives.
#[derive(Debug)]
pub struct Execution {
    /// Outputs in the order of the specification.
    pub outputs: Vec<BatchOutput>,
    /// One outcome per row; empty where every row goes on and none emitted.
    pub outcomes: Vec<RowOutcome>,
    /// Reasons of the rows whose outcome is `Failed`: row and text.
    pub failures: Vec<(u32, String)>,
}

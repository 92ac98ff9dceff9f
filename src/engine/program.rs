//! The engine interface: what the executor hands over and takes back.

use std::sync::Arc;

use bytes::Bytes;

use crate::{batching::RowOutcome, device::BufferPool, model::Dims};

/// One batch to run.
#[derive(Debug)]
pub struct Batch<'a> {
    /// Rows of the batch; 1 for models without a batch axis.
    pub rows: u32,
    /// Inputs in the order of the model's specification.
    pub inputs: &'a [BatchInput<'a>],
    /// Per row: how often it ran this cell before (for cells that rows repeat).
    pub steps: &'a [u32],
    /// Per output, in the order of the specification: its full shape where it follows from the batch, so that the
    /// program can write into memory from `buffers`.
    pub output_shapes: &'a [Option<Dims>],
    /// Where output memory comes from.
    pub buffers: &'a Arc<BufferPool>,
}

/// One input of a batch, all rows together.
#[derive(Debug)]
pub enum BatchInput<'a> {
    /// Fixed-size elements, contiguous, row-major, aligned to 64 bytes.
    Dense {
        /// Full shape as the graph sees it, batch axis included where the model has one.
        shape: &'a [i64],
        /// `product(shape) * size` bytes.
        data: &'a [u8],
    },
    /// BYTES elements in row-major order.
    Strings {
        /// Full shape as the graph sees it.
        shape: &'a [i64],
        /// One slice per element.
        elements: &'a [&'a [u8]],
    },
    /// An optional input that no request of the batch brought.
    Absent,
}

/// One output of a batch, all rows together.
#[derive(Clone, Debug)]
pub struct BatchOutput {
    /// Full shape as the graph gave it, batch axis included where the model has one.
    pub shape: Dims,
    /// Row-major elements, cheap to slice and share; BYTES elements are each preceded by their length in four
    /// little-endian bytes.
    pub data: Bytes,
}

/// Why a program could not be loaded or run; the text names what was wrong.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[error("{0}")]
pub struct EngineError(pub String);

/// What one run of a program gives.
#[derive(Debug, Default)]
pub struct Execution {
    /// Outputs in the order of the specification.
    pub outputs: Vec<BatchOutput>,
    /// One outcome per row; empty where every row goes on and none emitted.
    pub outcomes: Vec<RowOutcome>,
    /// Reasons of the rows whose outcome is `Failed`.
    pub failures: Vec<RowFailure>,
}

/// A row that failed alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowFailure {
    /// The row's place in the batch.
    pub row: u32,
    /// What was wrong.
    pub reason: String,
}

/// A compiled cell, shared by all lanes.
pub trait Program: Send + Sync {
    /// Runs one batch.
    ///
    /// # Errors
    /// When the program fails as a whole; a row that fails alone is reported in its outcome.
    fn run(&self, batch: &Batch<'_>) -> Result<Execution, EngineError>;

    /// Whether the work of a run follows from the shapes of its inputs alone, so that past runs tell how long the next
    /// one takes.
    fn is_steady(&self) -> bool {
        false
    }

    /// Makes runs in progress, and all later ones, fail soon: the server ends and cannot wait longer.
    fn terminate(&self) {}
}

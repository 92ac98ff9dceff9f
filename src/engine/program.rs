//! The engine interface: what the executor hands over and takes back.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;

use super::{CardProgram, StopSignal};
use crate::{
    batching::RowOutcome,
    device::BufferPool,
    model::{DataType, Dims, IndexRange, TensorSpec},
};

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
    /// Stops the run before its end.
    pub stop: &'a StopSignal,
}

/// One input of a batch, all rows together.
#[derive(Debug)]
pub enum BatchInput<'a> {
    /// Fixed-size elements, contiguous, row-major. Aligned to 64 bytes where the batch was gathered, to the element's
    /// size where it is a part of a larger buffer.
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

/// An input or output of a program, by its name in the graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProgramPort<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its element type.
    pub datatype: DataType,
}

impl<'a> From<&'a TensorSpec> for ProgramPort<'a> {
    fn from(tensor: &'a TensorSpec) -> Self {
        Self { name: &tensor.name, datatype: tensor.datatype }
    }
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
    /// Rows that run the cell again, but not at once.
    pub delays: Vec<RowDelay>,
}

/// A row that runs the same cell again after a while, in which it holds no lane. Only models of one stage have such
/// rows; all rows of a request wait together, for the first one's delay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowDelay {
    /// The row's place in the batch.
    pub row: u32,
    /// How long it waits.
    pub delay: Duration,
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
    /// When the program fails as a whole, or is stopped; a row that fails alone is reported in its outcome.
    fn run(&self, batch: &Batch<'_>) -> Result<Execution, EngineError>;

    /// Runs one batch, as [`Self::run`] does, but writes outputs into memory of the caller's: where `given` holds some
    /// for an output, the batch's `output_shapes` hold its shape, whose bytes the memory has. Such an output's `data`
    /// comes back empty. `given` may be shorter than there are outputs.
    ///
    /// # Errors
    /// As [`Self::run`]; and when an output does not have the size of the memory given for it. What is written by then
    /// is undefined.
    fn run_into(&self, batch: &Batch<'_>, given: &mut [Option<&mut [u8]>]) -> Result<Execution, EngineError> {
        let mut execution = self.run(batch)?;
        for (index, (output, given)) in execution.outputs.iter_mut().zip(given).enumerate() {
            let Some(memory) = given else { continue };
            if output.data.len() != memory.len() {
                let (has, expected) = (output.data.len(), memory.len());
                return Err(EngineError(format!("output {index} has {has} bytes, expected {expected}")));
            }
            memory.copy_from_slice(&output.data);
            output.data = Bytes::new();
        }
        Ok(execution)
    }

    /// Whether the work of a run follows from the shapes of its inputs alone, so that past runs tell how long the next
    /// one takes.
    fn is_steady(&self) -> bool {
        false
    }

    /// By input, as far as it is known: the indices that every run takes there. Any other makes it fail, whatever else
    /// it is given.
    fn index_ranges(&self) -> &[Option<IndexRange>] {
        &[]
    }

    /// Whether runs, which lanes of the CPU drive, compute on a CUDA card by other means than a
    /// [plan](Self::on_card).
    fn uses_card(&self) -> bool {
        false
    }

    /// What the program was made of: those of equal origins compute the same. `None`: nobody knows.
    fn origin(&self) -> Option<[u8; 32]> {
        None
    }

    /// What it is on a CUDA card, if it runs there.
    fn on_card(&self) -> Option<&dyn CardProgram> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gives three bytes.
    struct Three;

    impl Program for Three {
        fn run(&self, _batch: &Batch<'_>) -> Result<Execution, EngineError> {
            let output = BatchOutput { shape: Dims::from_slice(&[1, 3]), data: Bytes::from_static(&[1, 2, 3]) };
            Ok(Execution { outputs: vec![output], ..Execution::default() })
        }
    }

    fn run_into(memory: &mut [u8]) -> Result<Execution, EngineError> {
        let buffers = BufferPool::new(0);
        let stop = StopSignal::default();
        let batch = Batch { rows: 1, inputs: &[], steps: &[0], output_shapes: &[], buffers: &buffers, stop: &stop };
        Three.run_into(&batch, &mut [Some(memory)])
    }

    #[test]
    fn a_program_without_a_way_of_its_own_is_copied_from() {
        let mut memory = [0; 3];
        let execution = run_into(&mut memory).expect("the sizes agree");
        assert_eq!(memory, [1, 2, 3]);
        assert!(execution.outputs[0].data.is_empty(), "the memory has it");
        assert_eq!(execution.outputs[0].shape.as_slice(), [1, 3]);
    }

    #[test]
    fn memory_of_another_size_is_refused() {
        let error = run_into(&mut [0; 4]).expect_err("three bytes do not fill four");
        assert_eq!(error, EngineError("output 0 has 3 bytes, expected 4".to_owned()));
    }
}

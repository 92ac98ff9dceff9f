//! The interface between executor and engines.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use paternoster_device::{BufferPool, NoMemory};
use paternoster_model::{DataType, Dims, IndexRange, RowOutcome, TensorSpec};

use super::{CardProgram, StopSignal};

/// One batch to run.
#[derive(Debug)]
pub struct Batch<'a> {
    /// Rows of the batch; 1 for models without a batch axis.
    pub rows: u32,
    /// Inputs in the order of the model's specification.
    pub inputs: &'a [BatchInput<'a>],
    /// How often each row has run this cell before, for cells that rows repeat.
    pub steps: &'a [u32],
    /// Full shape of each output, in the order of the specification, if it follows from the batch; the program can then
    /// write into memory from `buffers`.
    pub output_shapes: &'a [Option<Dims>],
    /// Pool of memory for outputs.
    pub buffers: &'a Arc<BufferPool>,
    /// Stops the run early.
    pub stop: &'a StopSignal,
}

/// One input of a batch, all rows together.
#[derive(Debug)]
pub enum BatchInput<'a> {
    /// Fixed-size elements, contiguous and row-major. Aligned to 64 bytes if the batch was gathered, and to the element
    /// size if it is part of a larger buffer.
    Dense {
        /// Full shape as in the graph, including the batch axis if the model has one.
        shape: &'a [i64],
        /// `product(shape) * size` bytes.
        data: &'a [u8],
    },
    /// BYTES elements in row-major order.
    Strings {
        /// Full shape as in the graph.
        shape: &'a [i64],
        /// One slice per element.
        elements: &'a [&'a [u8]],
    },
    /// An optional input that no request of the batch has.
    Absent,
}

impl BatchInput<'_> {
    /// Returns the bytes of the elements.
    pub fn len_bytes(&self) -> usize {
        match self {
            Self::Dense { data, .. } => data.len(),
            Self::Strings { elements, .. } => elements.iter().map(|element| element.len()).sum(),
            Self::Absent => 0,
        }
    }

    /// Returns whether it is a tensor without elements.
    pub fn is_empty(&self) -> bool {
        match self {
            Self::Dense { shape, .. } | Self::Strings { shape, .. } => shape.contains(&0),
            Self::Absent => false,
        }
    }
}

/// An input or output of a program, by its name in the graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProgramPort<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its element type.
    pub datatype: DataType,
}

/// Where a tensor of a graph has the rows of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TensorBatch {
    /// Along this axis.
    Axis(usize),
    /// Nowhere: the tensor belongs to a run of one row, or is the same for all rows.
    None,
}

impl<'a> From<&'a TensorSpec> for ProgramPort<'a> {
    fn from(tensor: &'a TensorSpec) -> Self {
        Self { name: &tensor.name, datatype: tensor.datatype }
    }
}

/// One output of a batch, all rows together.
#[derive(Clone, Debug)]
pub struct BatchOutput {
    /// Full shape as the graph computed it, including the batch axis if the model has one.
    pub shape: Dims,
    /// Row-major elements, cheap to slice and share. BYTES elements are each preceded by their length in four
    /// little-endian bytes.
    pub data: Bytes,
}

/// What kind of fault an engine has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EngineErrorKind {
    /// The engine's library is missing or cannot be used.
    Missing,
    /// There is too little memory.
    Memory,
    /// An output has another shape than the memory provided for it, or than the graph declares.
    OtherShape,
    /// The run was asked to stop.
    Stopped,
    /// The engine rejects the program or its inputs, or a run failed.
    Failed,
}

/// Why a program could not be compiled or run.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[error("{message}")]
pub struct EngineError {
    /// What kind of fault it is.
    pub kind: EngineErrorKind,
    /// The reason.
    pub message: String,
}

impl EngineError {
    /// Creates the error of a program that is rejected, or of a run that failed.
    pub fn new(message: impl Into<String>) -> Self {
        Self { kind: EngineErrorKind::Failed, message: message.into() }
    }

    pub(crate) fn missing(message: impl Into<String>) -> Self {
        Self { kind: EngineErrorKind::Missing, message: message.into() }
    }

    /// Creates an error from the text of an engine. Its kind follows from the text alone: the engines have codes for
    /// none of [`WORDS`].
    pub(crate) fn of_engine(text: String) -> Self {
        let words = WORDS.iter().find(|(words, _)| text.contains(words));
        Self { kind: words.map_or(EngineErrorKind::Failed, |(_, kind)| *kind), message: text }
    }
}

/// Parts of the engines' texts that tell the kind of an error.
const WORDS: [(&str, EngineErrorKind); 8] = [
    // ONNX Runtime, in newer and older releases. When it allocates the output itself, it only logs a warning.
    ("OrtValue shape verification failed", EngineErrorKind::OtherShape),
    ("OrtValue provided for output", EngineErrorKind::OtherShape),
    ("Got invalid dimensions for output", EngineErrorKind::OtherShape),
    // OpenVINO.
    ("Could set new shape", EngineErrorKind::OtherShape),
    ("Can't set the output tensor", EngineErrorKind::OtherShape),
    ("Can not clone with new dims", EngineErrorKind::OtherShape),
    // Either of them.
    ("bad_alloc", EngineErrorKind::Memory),
    ("Failed to allocate", EngineErrorKind::Memory),
];

impl From<NoMemory> for EngineError {
    fn from(error: NoMemory) -> Self {
        Self { kind: EngineErrorKind::Memory, message: error.to_string() }
    }
}

/// The result of one run of a program.
#[derive(Debug, Default)]
pub struct Execution {
    /// Outputs in the order of the specification.
    pub outputs: Vec<BatchOutput>,
    /// One outcome per row; empty if every row continues and none emitted a response.
    pub outcomes: Vec<RowOutcome>,
    /// Reasons of the rows whose outcome is `Failed`.
    pub failures: Vec<RowFailure>,
    /// Rows that run the cell again after a delay.
    pub delays: Vec<RowDelay>,
}

/// A row that runs the same cell again after a delay, during which it holds no lane. Only models of one stage have such
/// rows. All rows of a request wait together, for the delay of the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowDelay {
    /// Index of the row in the batch.
    pub row: u32,
    /// How long the row waits.
    pub delay: Duration,
}

/// A row that failed by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowFailure {
    /// Index of the row in the batch.
    pub row: u32,
    /// What was wrong.
    pub reason: String,
}

/// A compiled cell, shared by all lanes.
pub trait Program: Send + Sync {
    /// Runs one batch.
    ///
    /// # Errors
    /// Fails if the program as a whole fails or is stopped. A row that fails by itself is reported in its outcome.
    fn run(&self, batch: &Batch<'_>) -> Result<Execution, EngineError>;

    /// Runs one batch as [`Self::run`] does, but writes outputs into the caller's memory. If `given` has memory for an
    /// output, the batch's `output_shapes` must have its shape, and the memory its size; the `data` of such an output
    /// is returned empty. `given` may be shorter than the list of outputs.
    ///
    /// # Errors
    /// As [`Self::run`]. Also fails if an output does not have the size of its memory, whose content is then undefined.
    fn run_into(&self, batch: &Batch<'_>, given: &mut [Option<&mut [u8]>]) -> Result<Execution, EngineError> {
        let mut execution = self.run(batch)?;
        for (index, (output, given)) in execution.outputs.iter_mut().zip(given).enumerate() {
            let Some(memory) = given else { continue };
            if output.data.len() != memory.len() {
                let (has, expected) = (output.data.len(), memory.len());
                return Err(EngineError::new(format!("output {index} has {has} bytes, expected {expected}")));
            }
            memory.copy_from_slice(&output.data);
            output.data = Bytes::new();
        }
        Ok(execution)
    }

    /// Returns whether the work of a run depends only on the shapes of its inputs, so that past runs predict the next
    /// one.
    fn is_steady(&self) -> bool {
        false
    }

    /// Returns the length to which the executor should extend a padded axis of this length, because a new shape is
    /// costly. Never less than `length`.
    fn preferred_length(&self, length: u32) -> u32 {
        length
    }

    /// Notes that a batch failed with an axis at this preferred length and ran at its own: the graph refuses lengths
    /// that no request has.
    fn refuse_length(&self, _length: u32) {}

    /// Returns, by input, the indices that are valid there, as far as they are known. A run with any other index fails.
    fn index_ranges(&self) -> &[Option<IndexRange>] {
        &[]
    }

    /// Returns whether a run needs an element in each input. One without any would fail.
    fn needs_elements(&self) -> bool {
        false
    }

    /// Returns whether runs, which are driven by lanes of the CPU, compute on a CUDA card without a
    /// [plan](Self::on_card).
    fn uses_card(&self) -> bool {
        false
    }

    /// Returns the hash of what the program was compiled from; programs with equal hashes compute the same. `None` if
    /// it is unknown.
    fn origin(&self) -> Option<[u8; 32]> {
        None
    }

    /// Returns its form on a CUDA card, if it has one.
    fn on_card(&self) -> Option<&dyn CardProgram> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Outputs three bytes.
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
        assert_eq!(error, EngineError::new("output 0 has 3 bytes, expected 4"));
    }

    #[test]
    fn kinds_are_recognised_by_the_words_of_the_engines() {
        for text in ["onnx runtime error: std::bad_alloc", "Failed to allocate memory for requested buffer of size 9"] {
            let error = EngineError::of_engine(text.to_owned());
            assert_eq!((error.kind, error.to_string().as_str()), (EngineErrorKind::Memory, text));
        }
        let shape = "openvino error: Can not clone with new dims. Descriptor's shape: {1,3} is incompatible";
        assert_eq!(EngineError::of_engine(shape.to_owned()).kind, EngineErrorKind::OtherShape);
        assert_eq!(EngineError::of_engine("no such operator".to_owned()).kind, EngineErrorKind::Failed);
        assert_eq!(EngineError::from(NoMemory { len_bytes: 9 }).kind, EngineErrorKind::Memory);
    }
}

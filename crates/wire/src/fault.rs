//! The faults of an inference request, one variant per fault.

use std::fmt;

use paternoster_model::{DataType, ShapeFault};

use super::{kind::Kind, shared_memory::SharedMemoryError};

/// Why a request is rejected.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub(super) enum Fault {
    #[error("invalid value type for '{key}' parameter, expected {expected}")]
    ParameterType { key: String, expected: &'static str },
    #[error("invalid value for '{key}', expected value >= 0, got {got}")]
    ParameterNegative { key: String, got: i64 },
    #[error("parameter '{key}' is reserved: of the keys that start with 'triton_' only {allowed} may be used")]
    ParameterReserved { key: String, allowed: &'static str },
    #[error("{}", of_input(.model, .input, .fault))]
    Input { model: String, input: String, fault: Box<InputFault> },
    #[error("unexpected inference input '{input}' for model '{model}'")]
    UnknownInput { model: String, input: String },
    #[error(
        "expected {expected} but got {} inputs for model '{model}'. Got input(s) {got}, but missing required \
         input(s) {missing}",
        got.0.len()
    )]
    InputCount { model: String, expected: InputCount, got: Names, missing: Names },
    #[error("unexpected inference output '{output}' for model '{model}'")]
    UnknownOutput { model: String, output: String },
    #[error("output '{output}' already exists in request")]
    DuplicateOutput { output: String },
    #[error("output '{output}' for model '{model}': {fault}")]
    Output { model: String, output: String, fault: Box<OutputFault> },
}

/// Formats a fault of an input. Some texts follow Triton's wording, because official examples compare them.
fn of_input(model: &str, input: &str, fault: &InputFault) -> String {
    match fault {
        InputFault::ContentsBesideRaw => format!("{fault} for '{input}' for model '{model}'"),
        _ => format!("input '{input}' for model '{model}': {fault}"),
    }
}

impl Fault {
    pub(super) fn kind(&self) -> Kind {
        match self {
            Self::Input { fault, .. } => match fault.as_ref() {
                InputFault::Tensor(fault) => fault.kind(),
                _ => Kind::InvalidArgument,
            },
            Self::Output { fault, .. } => match fault.as_ref() {
                OutputFault::Tensor(fault) => fault.kind(),
                _ => Kind::InvalidArgument,
            },
            _ => Kind::InvalidArgument,
        }
    }

    /// Whether the message starts with the request's id. As in Triton, a fault found by checking tensors against the
    /// model does; a fault found while reading the message or looking up a name does not.
    pub(super) fn names_request(&self) -> bool {
        match self {
            Self::Input { fault, .. } => fault.names_request(),
            Self::InputCount { .. } | Self::DuplicateOutput { .. } => true,
            Self::UnknownInput { .. }
            | Self::ParameterType { .. }
            | Self::ParameterNegative { .. }
            | Self::ParameterReserved { .. }
            | Self::UnknownOutput { .. }
            | Self::Output { .. } => false,
        }
    }
}

/// A fault of one input.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub(super) enum InputFault {
    #[error("it is given twice")]
    Duplicate,
    #[error("data-type is '{got}', but the model expects '{expected}'")]
    Datatype { expected: DataType, got: String },
    #[error(transparent)]
    Shape(#[from] ShapeFault),
    #[error("input byte size mismatch, expected {expected}, got {got}")]
    ByteSize { expected: usize, got: u64 },
    #[error("expected {expected} string elements, got {got}")]
    StringCount { expected: usize, got: usize },
    #[error("incomplete string length indicator, expecting 4 bytes but only {available} bytes available")]
    StringIndicator { available: usize },
    #[error(
        "expected {expected} string elements, got {index}: the next is cut off, expecting {length} bytes but only \
         {available} bytes available"
    )]
    StringCutOff { expected: usize, index: usize, length: usize, available: usize },
    #[error("a string of {length} bytes is longer than its length indicator can say")]
    StringTooLong { length: usize },
    #[error("unable to find data for it in the request")]
    NoData,
    #[error("contents field must not be specified when using raw_input_contents")]
    ContentsBesideRaw,
    #[error("contents field must not be specified when using shared memory")]
    ContentsBesideRegion,
    #[error("unexpected explicit tensor data of type '{got}', expected datatype '{expected}'")]
    WrongContents { expected: DataType, got: DataType },
    #[error("value {value} at index {index} does not fit datatype '{datatype}'")]
    OutOfRange { datatype: DataType, index: usize, value: i64 },
    #[error(transparent)]
    Tensor(#[from] TensorFault),
}

impl InputFault {
    fn names_request(&self) -> bool {
        !matches!(
            self,
            Self::NoData
                | Self::ContentsBesideRaw
                | Self::ContentsBesideRegion
                | Self::WrongContents { .. }
                | Self::OutOfRange { .. }
                | Self::Tensor(_)
        )
    }
}

/// A fault of one requested output.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub(super) enum OutputFault {
    #[error("invalid value for 'classification' parameter, expected value > 0, got {got}")]
    ClassCount { got: i64 },
    #[error("classification is not available for datatype '{datatype}'")]
    ClassDatatype { datatype: DataType },
    #[error("shared memory cannot be set on a classification output")]
    ClassesInRegion,
    #[error(transparent)]
    Tensor(#[from] TensorFault),
}

/// A fault of the parameters that inputs and outputs share.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub(super) enum TensorFault {
    #[error("invalid value type for '{key}' parameter, expected {expected}")]
    ParameterType { key: &'static str, expected: &'static str },
    #[error("invalid value for '{key}' parameter, expected value >= 0, got {got}")]
    ParameterNegative { key: &'static str, got: i64 },
    #[error("'{missing}' must be specified along with '{given}' parameter")]
    Incomplete { given: &'static str, missing: &'static str },
    #[error(transparent)]
    Region(#[from] SharedMemoryError),
}

impl TensorFault {
    fn kind(&self) -> Kind {
        match self {
            Self::Region(error) => error.kind(),
            Self::ParameterType { .. } | Self::ParameterNegative { .. } | Self::Incomplete { .. } => {
                Kind::InvalidArgument
            }
        }
    }
}

impl From<SharedMemoryError> for InputFault {
    fn from(error: SharedMemoryError) -> Self {
        Self::Tensor(TensorFault::Region(error))
    }
}

/// The number of inputs that a model accepts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct InputCount {
    pub(super) least: usize,
    pub(super) most: usize,
}

impl fmt::Display for InputCount {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self { least, most } if least == most => write!(formatter, "{most} inputs"),
            Self { least, most } => write!(formatter, "number of inputs between {least} and {most}"),
        }
    }
}

/// Tensor names as listed in messages: `['INPUT0','INPUT1']`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Names(pub Vec<String>);

impl fmt::Display for Names {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("[")?;
        for (position, name) in self.0.iter().enumerate() {
            let separator = if position == 0 { "" } else { "," };
            write!(formatter, "{separator}'{name}'")?;
        }
        formatter.write_str("]")
    }
}

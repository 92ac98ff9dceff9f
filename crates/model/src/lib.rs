//! Descriptions of models: datatypes, tensor specifications, the specification of a loaded version, inputs of requests
//! and the check of their shapes, and what a run says of its rows.
//!
//! Nothing here depends on the wire formats, the scheduler or devices.
#![deny(unsafe_code)]
#![warn(missing_docs)]
// Nothing here has a clock: the same input gives the same on every run.
#![warn(clippy::disallowed_types)]

mod axis_length;
mod datatype;
mod indices;
mod outcome;
mod request_shape;
mod sequence;
mod spec;
mod stages;
mod tensor;
pub mod text;
pub mod unfold;

pub use axis_length::{AxisLength, AxisLengthError};
pub use datatype::DataType;
pub use indices::IndexRange;
pub use outcome::{CellId, Lengths, Next, RowOutcome};
pub use request_shape::{RequestShape, ShapeFault, ShapeText};
pub use sequence::{CorrelationId, InSequence};
pub use spec::{ModelSpec, SymbolId};
pub use stages::{BoundaryDim, BoundaryTensor, Exit, ExitTo, InputSource, Sink, StagePlan, StageSpec};
pub use tensor::{Dims, InputTensor, TensorSpec, element_count};

/// The example of the README compiles and runs.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

//! Static descriptions of models: datatypes, tensor specifications, and the specification of a loaded version.
//!
//! Nothing here depends on the wire formats, the scheduler or devices.

mod axis_length;
mod datatype;
mod indices;
mod sequence;
mod spec;
mod stages;
mod tensor;
pub mod unfold;

pub use axis_length::{AxisLength, AxisLengthError};
pub use datatype::DataType;
pub use indices::IndexRange;
pub use sequence::{CorrelationId, InSequence};
pub use spec::{ModelSpec, SymbolId};
pub use stages::{BoundaryDim, BoundaryTensor, Exit, ExitTo, Sink, Source, StagePlan, StageSpec};
pub use tensor::{Dims, TensorSpec, element_count};

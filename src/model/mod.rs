//! What a model is, apart from time and threads: datatypes, tensor specifications, one loaded version's specification.
//!
//! Nothing here knows the wire, the scheduler or a device.

mod datatype;
mod indices;
mod sequence;
mod spec;
mod stages;
mod tensor;
pub mod unfold;

pub use datatype::DataType;
pub use indices::IndexRange;
pub use sequence::{CorrelationId, InSequence};
pub use spec::{ModelSpec, SymbolId};
pub use stages::{BoundaryDim, BoundaryTensor, Exit, ExitTo, Sink, Source, StagePlan, StageSpec};
pub use tensor::{Dims, TensorSpec, element_count};

//! The stages of a version's graph, and the sources and destinations of their tensors.

use smallvec::SmallVec;

use super::{DataType, SymbolId, TensorSpec};

/// The stages of a version, in order. An uncut version has one stage, which reads the requests' inputs and returns the
/// model's outputs.
#[derive(Clone, Debug, PartialEq)]
pub struct StagePlan {
    /// The stages; at least one.
    pub stages: Vec<StageSpec>,
    /// By boundary: the tensors that the stage with this number keeps for later ones. There is one boundary fewer than
    /// stages.
    pub boundaries: Vec<Vec<BoundaryTensor>>,
}

/// One stage: the inputs and outputs of its program, and how they connect to other stages.
#[derive(Clone, Debug, PartialEq)]
pub struct StageSpec {
    /// Inputs of the program, each with its source.
    pub inputs: Vec<(TensorSpec, InputSource)>,
    /// Outputs of the program, each with its destination.
    pub outputs: Vec<(TensorSpec, Sink)>,
    /// Exits after this stage.
    pub exits: Vec<Exit>,
}

/// Source of a stage's input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InputSource {
    /// The request's input with this number.
    Request(usize),
    /// A tensor that an earlier stage kept.
    Boundary {
        /// Number of the boundary, which is that of the stage before it.
        boundary: u16,
        /// Number of the tensor at that boundary.
        tensor: u16,
    },
}

/// Destination of a stage's output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sink {
    /// The model's output with this number.
    Reply(usize),
    /// The tensor with this number at the stage's own boundary.
    Boundary(u16),
    /// None: the output is only used by an exit.
    Exit,
}

/// A tensor that is kept between two stages.
#[derive(Clone, Debug, PartialEq)]
pub struct BoundaryTensor {
    /// Its name in the graph.
    pub name: String,
    /// Element type.
    pub datatype: DataType,
    /// Dimensions of one row, without the batch; `None` if they are unknown before a run.
    pub dims: Option<SmallVec<[BoundaryDim; 4]>>,
}

/// A dimension of a row at a boundary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BoundaryDim {
    /// A fixed length.
    Fixed(i64),
    /// The batch's padded length along this symbol.
    Symbol(SymbolId),
}

/// An early exit (DVABatch section 9.2): rows whose value meets the threshold finish or skip stages.
#[derive(Clone, Debug, PartialEq)]
pub struct Exit {
    /// Index in [`StageSpec::outputs`] of the stage's output that holds one FP32 value per row.
    pub value: usize,
    /// Threshold: rows with at least this value leave.
    pub at_least: f32,
    /// Destination of these rows.
    pub to: ExitTo,
}

/// Destination of rows that take an exit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExitTo {
    /// The rows finish. For each output of the model: index in [`StageSpec::outputs`] of the tensor that provides it;
    /// `None` if an earlier stage has already provided it.
    Done(Vec<Option<usize>>),
    /// The rows continue at this stage, which must read only tensors that stages up to this one have kept.
    Stage(u16),
}

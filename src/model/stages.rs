//! How a version's graph is cut into stages, and where their tensors come from and go to.

use smallvec::SmallVec;

use super::{DataType, SymbolId, TensorSpec};

/// The stages of one version, in order. A version that is not cut has one, which takes the requests' inputs and gives
/// the replies.
#[derive(Clone, Debug, PartialEq)]
pub struct StagePlan {
    /// At least one.
    pub stages: Vec<StageSpec>,
    /// By boundary: the tensors that the stage of that number leaves for later ones. One fewer than there are stages.
    pub boundaries: Vec<Vec<BoundaryTensor>>,
}

/// One stage: what its program takes and gives, and how that fits the others.
#[derive(Clone, Debug, PartialEq)]
pub struct StageSpec {
    /// The program's inputs, each with its source.
    pub inputs: Vec<(TensorSpec, Source)>,
    /// The program's outputs, each with where it goes.
    pub outputs: Vec<(TensorSpec, Sink)>,
    /// Where rows leave the pipeline's order behind this stage.
    pub exits: Vec<Exit>,
}

/// Where a stage's input comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The request's input of this number.
    Request(usize),
    /// A tensor that an earlier stage left.
    Boundary {
        /// The boundary's number, that of the stage before it.
        boundary: u16,
        /// The tensor's number at that boundary.
        tensor: u16,
    },
}

/// Where a stage's output goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sink {
    /// The model's output of this number.
    Reply(usize),
    /// The tensor of this number at the stage's own boundary.
    Boundary(u16),
    /// Nowhere: only an exit looks at it, or answers with it.
    Exit,
}

/// A tensor that is kept between two stages.
#[derive(Clone, Debug, PartialEq)]
pub struct BoundaryTensor {
    /// Its name in the graph.
    pub name: String,
    /// Element type.
    pub datatype: DataType,
    /// Dimensions of one row, the batch left out; `None` where they cannot be derived before a run.
    pub dims: Option<SmallVec<[BoundaryDim; 4]>>,
}

/// A dimension of a row at a boundary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BoundaryDim {
    /// Always this long.
    Fixed(i64),
    /// As long as the batch's padded length along this symbol.
    Symbol(SymbolId),
}

/// A way out of the order of stages (DVABatch section 9.2): rows whose value meets the threshold are done or skip
/// stages.
#[derive(Clone, Debug, PartialEq)]
pub struct Exit {
    /// The stage's output, by its number in [`StageSpec::outputs`], that holds one FP32 value a row.
    pub value: usize,
    /// Rows with at least this value leave.
    pub at_least: f32,
    /// Where they go.
    pub to: ExitTo,
}

/// Where rows go that leave the order of stages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExitTo {
    /// They are done. For each output of the model: the number in [`StageSpec::outputs`] of the tensor that answers for
    /// it; `None` where an earlier stage has given it already.
    Done(Vec<Option<usize>>),
    /// On to this stage, which must read only what stages up to this one have left.
    Stage(u16),
}

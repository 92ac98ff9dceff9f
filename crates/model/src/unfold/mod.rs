//! The cell graph of a recurrent version's requests (BatchMaker sections 3.1 and 4.2): cell types, the segments that
//! run one after the other, and the sources of their tensors.
//!
//! Plain data, checked by [`Unfolding::check`] when the version is loaded. [`Unfolding::unfold`] creates the graph of a
//! single request. Tensors and outputs are identified by number here. Configurations use the same types with names
//! instead (`paternoster-config`), until the programs are known; hence the type parameters.

use bytes::Bytes;
use smallvec::SmallVec;

use super::TensorSpec;

mod check;
mod expression;
mod request;
mod topology;

pub use expression::{Expression, ExpressionError, Operator};
pub use request::{MOST_STEPS, ProvidedInput, UnfoldError, Unfolded};
pub use topology::Topology;

/// How requests of a version unfold.
#[derive(Clone, Debug, PartialEq)]
pub struct Unfolding {
    /// The cell types; at least one.
    pub cells: Vec<CellSpec>,
    /// The segments that each request runs, in order; at least one.
    pub segments: Vec<Segment>,
    /// For each output of the model, in order: the tensor that provides it.
    pub outputs: Vec<Emitted>,
    /// What bounds a request, beyond its cells.
    pub limits: Vec<Limit>,
}

/// A bound on a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// An input has from 1 to `most` elements along its first axis, without the batch.
    Length {
        /// The input.
        input: usize,
        /// Its maximum length.
        most: u64,
    },
    /// A segment has at most as many steps as an input says that has one integer, if the request has it.
    Steps {
        /// The segment.
        segment: usize,
        /// The input.
        input: usize,
    },
}

/// A cell type: a program with its weights, and the batch sizes of its tasks.
#[derive(Clone, Debug, PartialEq)]
pub struct CellSpec {
    /// Its name in the configuration.
    pub name: String,
    /// Inputs of the program, without the batch; −1 for a dimension that differs between nodes and is padded to the
    /// longest of the task.
    pub inputs: Vec<TensorSpec>,
    /// Outputs of the program, likewise.
    pub outputs: Vec<TensorSpec>,
    /// Largest batch in rows, at least 1: `Bsizes.Max()` of BatchMaker's algorithm 1.
    pub max_rows: u32,
    /// Minimum rows of a follow-up task in a round: `Bsizes.Min()`.
    pub min_followup: u32,
    /// Priority among cell types; 1 is the highest.
    pub priority: u32,
}

/// One part of a request's graph.
#[derive(Clone, Debug, PartialEq)]
pub struct Segment {
    /// Its name, by which later segments refer to its emits.
    pub name: String,
    /// The types of its nodes: one, or for a tree the type of the leaves and then that of the inner nodes.
    pub types: SmallVec<[NodeType; 2]>,
    /// Its nodes.
    pub nodes: Nodes,
    /// The tensors that it emits.
    pub emits: Vec<Emit>,
    /// Whether each step returns a response of its own (decoupled models).
    pub streams: bool,
}

/// The nodes of one type in a segment.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeType {
    /// Index of their type in [`Unfolding::cells`].
    pub cell: usize,
    /// The source of each input of the cell. [`CellInputSource::Rows`] is allowed only in a stage, and then for all
    /// inputs. In a tree, [`CellInputSource::Step`] is indexed by node, and carried or grown inputs are not allowed.
    /// [`CellInputSource::Child`] is allowed only in a tree.
    pub inputs: Vec<CellInputSource>,
}

/// The nodes of a segment: their number and dependencies. `E` gives the number of steps, `T` is an input of the model,
/// and `O` an output of the cell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Nodes<E = Expression, T = usize, O = usize> {
    /// A single node.
    Stage,
    /// A chain of at least one node.
    Chain {
        /// Number of nodes.
        steps: E,
        /// Whether the cell's program runs several steps of each row at a time. What it reads by the step, and outputs
        /// that it does not carry, then have the steps as their first axis; what it carries is the value after the last
        /// of them.
        chunks: bool,
    },
    /// A chain that ends with the first node whose output meets `until`.
    Decode {
        /// Maximum number of nodes. The first one always runs.
        max_steps: E,
        /// The output, one integer per row, and the value of it that ends the chain.
        until: Option<(O, i64)>,
        /// Number of nodes that few requests exceed, until enough have ended to know.
        expected_steps: Option<u32>,
    },
    /// Nodes that each depend on their children: any directed acyclic graph, given with the request.
    Tree {
        /// The request's input that holds the children of each node, [nodes, children], with −1 for no child. Its
        /// length is the number of nodes.
        children: T,
        /// Maximum nodes of a request.
        max_nodes: u32,
    },
}

/// Source of a cell's input. `T` is a tensor of the request, `O` an output of the segment's first type (the other type
/// has one with the same name), and `R` a row that is the same for all requests.
#[derive(Clone, Debug, PartialEq)]
pub enum CellInputSource<T = Tensor, O = usize, R = Bytes> {
    /// The row of a tensor at the index of the step, or counted from the end if reversed.
    Step {
        /// The tensor.
        of: T,
        /// Whether steps go from the last row to the first.
        reversed: bool,
    },
    /// A whole tensor, the same at each step.
    Whole(T),
    /// All rows of a tensor, each as a row of the batch. The single node that reads them emits the same number of rows.
    Rows(T),
    /// Length of a tensor along its first axis, as one INT32 or INT64.
    Length(T),
    /// The number of steps that a run takes of the row, as one INT32 or INT64. Allowed only where a program runs
    /// several steps; rows with fewer are then padded. Without it, only rows with equally many share a run.
    Steps,
    /// The previous step's output; for the first step, `start`.
    Carried {
        /// The cell's output.
        output: O,
        /// Initial value.
        start: Start<T, R>,
        /// Whether the value is kept between requests of a sequence: the first step of a later request reads the output
        /// of the last step of the previous one.
        is_kept: bool,
    },
    /// A sequence flag of the request, in each element.
    Control {
        /// The flag.
        control: Control,
        /// Value if the flag is not set.
        no: R,
        /// Value if the flag is set.
        yes: R,
    },
    /// The request's correlation id, as one integer.
    CorrelationId,
    /// The outputs of all previous steps, concatenated along a new first axis, whose length is 0 at the first step.
    Grown {
        /// The cell's output.
        output: O,
    },
    /// Length of the axis of a grown input, as one INT32 or INT64: the number of previous steps.
    GrownLength,
    /// Output of a child.
    Child {
        /// Index of the child, from 0.
        child: usize,
        /// Output of the child's cell.
        output: O,
        /// Value if the node has no such child.
        none: R,
    },
}

/// Sequence flags that a model can read (Triton's control inputs).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Control {
    /// The request is the first of its sequence.
    Start,
    /// The request is the last of its sequence.
    End,
    /// The row belongs to a request. Always set, because batches have no other rows.
    Ready,
}

/// Initial value of a carried input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Start<T = Tensor, R = Bytes> {
    /// The same row for all requests.
    Row(R),
    /// A tensor.
    Tensor(T),
}

/// A tensor of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tensor {
    /// The request's input with this number.
    Input(usize),
    /// A tensor emitted by an earlier segment.
    Emitted(Emitted),
}

/// Identifies an emitted tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Emitted {
    /// Index of the segment.
    pub segment: usize,
    /// Index in [`Segment::emits`].
    pub emit: usize,
}

/// A tensor that a segment emits. `O` is an output of its first type; the other type has one with the same name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Emit<O = usize> {
    /// Its name.
    pub name: String,
    /// The output.
    pub output: O,
    /// Which nodes' values it consists of.
    pub which: EmitRange,
}

/// Which nodes' values are emitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EmitRange {
    /// The value of the last step, or of the root of a tree: `last(…)`, `root(…)`.
    Last,
    /// The values of all nodes in order, along a new first axis: `all(…)`. Reversed chains emit them in the order of
    /// the input.
    All,
}

impl Segment {
    /// Returns the sources of its nodes' inputs, over all types.
    pub fn sources(&self) -> impl Iterator<Item = &CellInputSource> {
        self.types.iter().flat_map(|nodes| &nodes.inputs)
    }

    /// Returns whether its cell's program runs several steps of each row at a time.
    pub fn runs_chunks(&self) -> bool {
        matches!(self.nodes, Nodes::Chain { chunks: true, .. })
    }

    /// Returns whether an output of its first type is carried from step to step.
    pub fn carries(&self, output: usize) -> bool {
        self.sources().any(|source| matches!(source, CellInputSource::Carried { output: own, .. } if *own == output))
    }

    /// Returns whether its steps read a tensor from the end. Its emitted values are then in the order of that tensor.
    pub fn runs_backwards(&self) -> bool {
        self.sources().any(|source| matches!(source, CellInputSource::Step { reversed: true, .. }))
    }
}

impl NodeType {
    /// Returns whether a node reads all rows of tensors and emits the same number.
    pub fn goes_over_rows(&self) -> bool {
        matches!(self.inputs.first(), Some(CellInputSource::Rows(_)))
    }
}

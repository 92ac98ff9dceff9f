//! What the requests of a recurrent version unfold into (BatchMaker sections 3.1 and 4.2): cells, the segments in which they run one after
//! the other, and where each of their tensors comes from.
//!
//! Plain data, checked when the version is loaded. A request's own graph is made of it by [`Unfolding::unfold`].

use bytes::Bytes;

use super::TensorSpec;

mod expression;
mod request;
mod topology;

pub use expression::{Expression, ExpressionError, Operator};
pub use request::{Given, UnfoldError, Unfolded};
pub use topology::Topology;

/// How requests of a version unfold.
#[derive(Clone, Debug, PartialEq)]
pub struct Unfolding {
    /// The cell types; at least one.
    pub cells: Vec<CellSpec>,
    /// What each request runs, one after the other; at least one.
    pub segments: Vec<Segment>,
    /// For each output of the model, in its order: the tensor that answers.
    pub outputs: Vec<Emitted>,
}

/// One cell type: a program with its weights inside, and how many of its nodes run together.
#[derive(Clone, Debug, PartialEq)]
pub struct CellSpec {
    /// Its name in the configuration.
    pub name: String,
    /// What the program takes, the batch left out of the dims; -1 where nodes differ and are padded to the longest of their task.
    pub inputs: Vec<TensorSpec>,
    /// What it gives, likewise.
    pub outputs: Vec<TensorSpec>,
    /// Largest batch in rows, at least 1: Bsizes.Max() of BatchMaker's algorithm 1.
    pub max_rows: u32,
    /// Least rows of a follow-up task of a round: Bsizes.Min().
    pub min_followup: u32,
    /// Which of several types goes first, 1 = highest.
    pub priority: u32,
}

/// One part of what a request runs.
#[derive(Clone, Debug, PartialEq)]
pub struct Segment {
    /// Its name, by which later ones refer to what it emits.
    pub name: String,
    /// Its nodes.
    pub nodes: Nodes,
    /// What it leaves behind.
    pub emits: Vec<Emit>,
    /// Whether each step answers a response of its own (decoupled models).
    pub streams: bool,
}

/// The nodes of a segment.
#[derive(Clone, Debug, PartialEq)]
pub enum Nodes {
    /// One after the other: `stage`, `chain` and `decode`.
    Steps(Steps),
    /// Each behind its children: `tree`.
    Tree(Tree),
}

/// Nodes that follow one another.
#[derive(Clone, Debug, PartialEq)]
pub struct Steps {
    /// Their type, by its number in [`Unfolding::cells`].
    pub cell: usize,
    /// For each input of the cell, where it comes from. Never [`Source::Child`]; [`Source::Rows`] for all of them or for none.
    pub inputs: Vec<Source>,
    /// How many there are.
    pub count: Count,
}

/// How many steps a request runs.
#[derive(Clone, Debug, PartialEq)]
pub enum Count {
    /// A single one: `stage`.
    One,
    /// As many as the expression says, at least one: `chain`.
    Exactly(Expression),
    /// At most so many; the first step whose output meets `until` is the last: `decode`.
    AtMost {
        /// Bound.
        most: Expression,
        /// The cell's output, of one integer a row, and the value that ends the loop.
        until: Option<(usize, i64)>,
    },
}

/// Nodes with children: any directed graph without cycles, given with the request.
#[derive(Clone, Debug, PartialEq)]
pub struct Tree {
    /// Nodes without children.
    pub leaf: NodeType,
    /// The others.
    pub inner: NodeType,
    /// The request's input that names each node's children, [nodes, children], -1 where there is none. It tells how many nodes there are.
    pub children: usize,
    /// Most nodes of a request.
    pub max_nodes: u32,
}

/// The nodes of a tree that are of one type.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeType {
    /// Their type.
    pub cell: usize,
    /// For each input of the cell, where it comes from. [`Source::Step`] counts nodes; never [`Source::Carried`], [`Source::Grown`] or
    /// [`Source::GrownLength`].
    pub inputs: Vec<Source>,
}

/// Where an input of a cell comes from.
#[derive(Clone, Debug, PartialEq)]
pub enum Source {
    /// The row of a tensor that has the step's number, or, reversed, that number from its end.
    Step {
        /// The tensor.
        of: Tensor,
        /// Whether the last comes first.
        reversed: bool,
    },
    /// A whole tensor, the same at each step.
    Whole(Tensor),
    /// All rows of a tensor, each a row of the batch. The single node that reads them leaves as many rows.
    Rows(Tensor),
    /// How many rows a tensor has along its first axis, as one INT32 or INT64.
    Length(Tensor),
    /// What the step before gave at this output; at the first step its start.
    Carried {
        /// The cell's output.
        output: usize,
        /// Before the first step.
        start: Start,
        /// Whether it lives on between requests of a sequence: the first step of a later one reads what the last step of the one before
        /// gave.
        is_kept: bool,
    },
    /// What the request says of its sequence, in each element.
    Control {
        /// What is asked.
        control: Control,
        /// The value for no.
        no: f64,
        /// The value for yes.
        yes: f64,
    },
    /// The request's correlation id, as one integer.
    CorrelationId,
    /// What all steps before gave at this output, one behind the other along a new first axis, which is 0 long at the first step.
    Grown {
        /// The cell's output.
        output: usize,
    },
    /// How long that axis is, as one INT32 or INT64: the number of steps before.
    GrownLength,
    /// What a child gave.
    Child {
        /// Which child, from 0.
        child: usize,
        /// Output of the child's cell: leaves and inner nodes give it under the same name.
        output: String,
    },
}

/// What a model can be told of a request's place in its sequence (Triton's control inputs).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Control {
    /// It is the first.
    Start,
    /// It is the last.
    End,
    /// The row is a request's. Batches have no other rows.
    Ready,
}

/// What is carried into the first step.
#[derive(Clone, Debug, PartialEq)]
pub enum Start {
    /// This value in each element.
    Value(f64),
    /// These elements in wire form.
    Elements(Bytes),
    /// A tensor as it is.
    Tensor(Tensor),
}

/// A tensor that a request has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tensor {
    /// Its input of this number.
    Input(usize),
    /// What an earlier segment left.
    Emitted(Emitted),
}

/// What a segment leaves: its number and that of the emit in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Emitted {
    /// The segment.
    pub segment: usize,
    /// The emit in [`Segment::emits`].
    pub emit: usize,
}

/// A tensor that a segment leaves.
#[derive(Clone, Debug, PartialEq)]
pub struct Emit {
    /// Its name.
    pub name: String,
    /// The output of the cell, under the name that it has at all types of the segment.
    pub output: String,
    /// Which of its values.
    pub which: Which,
}

/// Which nodes' values are left behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// That of the last step, or of the node that is nobody's child: `last(…)`, `root(…)`.
    Last,
    /// Those of all nodes in order, along a new first axis: `all(…)`. Reversed chains leave them in the order of the input.
    All,
}

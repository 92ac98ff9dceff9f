//! What the requests of a recurrent version unfold into (BatchMaker sections 3.1 and 4.2): cells, the segments in which
//! they run one after the other, and where each of their tensors comes from.
//!
//! Plain data, checked by [`Unfolding::check`] when the version is loaded. A request's own graph is made of it by
//! [`Unfolding::unfold`]. Tensors and outputs are numbers here. As long as programs are not known, configurations have
//! names in the same types (`repository::config::unfold`); hence their parameters.

use bytes::Bytes;
use smallvec::SmallVec;

use super::TensorSpec;

mod check;
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
    /// What the program takes, the batch left out of the dims; -1 where nodes differ and are padded to the longest of
    /// their task.
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
    /// The types of its nodes: one; of a tree that of the leaves, then that of the others.
    pub types: SmallVec<[NodeType; 2]>,
    /// Its nodes.
    pub nodes: Nodes,
    /// What it leaves behind.
    pub emits: Vec<Emit>,
    /// Whether each step answers a response of its own (decoupled models).
    pub streams: bool,
}

/// The nodes of a segment that are of one type.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeType {
    /// Their type, by its number in [`Unfolding::cells`].
    pub cell: usize,
    /// For each input of the cell, where it comes from. [`Source::Rows`] for all of them or for none, and in a stage
    /// alone. In a tree [`Source::Step`] counts nodes, and nothing is carried or grows; children are a tree's alone.
    pub inputs: Vec<Source>,
}

/// The nodes of a segment: how many there are, and which wait for which. `E` says how many steps, `T` is an input of
/// the model, and `O` an output of the cell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Nodes<E = Expression, T = usize, O = usize> {
    /// A single one.
    Stage,
    /// One after the other, at least one.
    Chain {
        /// How many.
        steps: E,
    },
    /// One after the other; the first whose output meets `until` is the last.
    Decode {
        /// The most there may be. The first is run in any case.
        max_steps: E,
        /// The output, of one integer a row, and the value that ends the loop.
        until: Option<(O, i64)>,
    },
    /// Each behind its children: any directed graph without cycles, given with the request.
    Tree {
        /// The request's input that names each node's children, [nodes, children], -1 where there is none. It tells how
        /// many nodes there are.
        children: T,
        /// Most nodes of a request.
        max_nodes: u32,
    },
}

/// Where an input of a cell comes from. `T` is a tensor of the request, `O` an output of the segment's first type,
/// which the other gives under the same name, and `R` a row that is the same for all requests.
#[derive(Clone, Debug, PartialEq)]
pub enum Source<T = Tensor, O = usize, R = Bytes> {
    /// The row of a tensor that has the step's number, or, reversed, that number from its end.
    Step {
        /// The tensor.
        of: T,
        /// Whether the last comes first.
        reversed: bool,
    },
    /// A whole tensor, the same at each step.
    Whole(T),
    /// All rows of a tensor, each a row of the batch. The single node that reads them leaves as many rows.
    Rows(T),
    /// How many rows a tensor has along its first axis, as one INT32 or INT64.
    Length(T),
    /// What the step before gave at this output; at the first step its start.
    Carried {
        /// The cell's output.
        output: O,
        /// Before the first step.
        start: Start<T, R>,
        /// Whether it lives on between requests of a sequence: the first step of a later one reads what the last step
        /// of the one before gave.
        is_kept: bool,
    },
    /// What the request says of its sequence, in each element.
    Control {
        /// What is asked.
        control: Control,
        /// What is read for no.
        no: R,
        /// What is read for yes.
        yes: R,
    },
    /// The request's correlation id, as one integer.
    CorrelationId,
    /// What all steps before gave at this output, one behind the other along a new first axis, which is 0 long at the
    /// first step.
    Grown {
        /// The cell's output.
        output: O,
    },
    /// How long that axis is, as one INT32 or INT64: the number of steps before.
    GrownLength,
    /// What a child gave.
    Child {
        /// Which child, from 0.
        child: usize,
        /// Output of the child's cell.
        output: O,
        /// What is read where there is no such child.
        none: R,
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
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Start<T = Tensor, R = Bytes> {
    /// The same row for all requests.
    Row(R),
    /// A tensor as it is.
    Tensor(T),
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

/// A tensor that a segment leaves. `O` is an output of its first type, which the other gives under the same name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Emit<O = usize> {
    /// Its name.
    pub name: String,
    /// The output.
    pub output: O,
    /// Which of its values.
    pub which: Which,
}

/// Which nodes' values are left behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// That of the last step, or of the node that is nobody's child: `last(…)`, `root(…)`.
    Last,
    /// Those of all nodes in order, along a new first axis: `all(…)`. Reversed chains leave them in the order of the
    /// input.
    All,
}

impl Segment {
    /// Where its nodes' inputs come from, of all types.
    pub fn sources(&self) -> impl Iterator<Item = &Source> {
        self.types.iter().flat_map(|nodes| &nodes.inputs)
    }

    /// Whether its steps go over a tensor from the end: what all of them leave stands in the order of that tensor.
    pub fn runs_backwards(&self) -> bool {
        self.sources().any(|source| matches!(source, Source::Step { reversed: true, .. }))
    }
}

impl NodeType {
    /// Whether a node reads all rows of tensors, and leaves as many.
    pub fn goes_over_rows(&self) -> bool {
        matches!(self.inputs.first(), Some(Source::Rows(_)))
    }
}

//! `cells` and `unfold`: the cell types of a recurrent model, and how each request unfolds into them (BatchMaker sections 3.1 and 4.2).
//! They travel in `parameters`: `cells.<cell>.<key>`, and `unfold.<n>.<key>` of the n-th segment.
//!
//! [`read`] makes them an [`UnfoldRequest`], in which programs' inputs and outputs are still names. Which of them there are only the
//! programs know: the loader reads those and calls [`UnfoldRequest::resolve`].

use std::collections::BTreeMap;

use bytes::Bytes;

use super::pb;
use crate::model::{
    TensorSpec,
    unfold::{Control, Emit},
};

pub(super) mod keys;
mod part;
mod read;
mod resolve;
mod scope;
mod segment;

pub use keys::{Kind, is_name, is_ours, known};
pub use read::read;

/// Begins the keys of cells.
pub const CELLS: &str = "cells";

/// Begins the keys of segments, which count from 0.
pub const UNFOLD: &str = "unfold";

/// Most rows of a cell's batch.
pub const MAX_ROWS: u32 = 1 << 16;

/// Most nodes of a tree, and most that a configuration may allow.
pub const MAX_NODES: u32 = 1 << 20;

/// Most cell types of a model, and most segments of a request.
pub const MAX_PARTS: usize = 64;

/// Largest batch of a cell that names no sizes.
const DEFAULT_MAX_ROWS: u32 = 64;

/// Most nodes of a tree whose configuration does not say.
const DEFAULT_MAX_NODES: u32 = 256;

/// How the requests of a version unfold, as its configuration says it.
#[derive(Clone, Debug, PartialEq)]
pub struct UnfoldRequest {
    /// The cell types, in the order in which segments first name them; at least one.
    pub cells: Vec<CellRequest>,
    /// What each request runs, one after the other; at least one.
    pub segments: Vec<SegmentRequest>,
}

impl UnfoldRequest {
    /// Rows of the largest batch of any cell.
    pub fn max_rows(&self) -> u32 {
        self.cells.iter().map(CellRequest::max_rows).max().unwrap_or(1)
    }
}

/// A cell type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CellRequest {
    /// Its name.
    pub name: String,
    /// File of its program, in the version's directory.
    pub program: String,
    /// Sizes of its batches in rows, ascending from 1; at least one.
    pub batch_sizes: Vec<u32>,
    /// Least rows of a follow-up task of a round, at most the largest batch.
    pub min_followup: u32,
    /// Which of several types goes first, 1 = highest.
    pub priority: u32,
}

impl CellRequest {
    /// Its largest batch in rows.
    pub fn max_rows(&self) -> u32 {
        self.batch_sizes.last().copied().unwrap_or(DEFAULT_MAX_ROWS)
    }
}

/// What a cell's program takes and gives, the batch left out of the dims.
#[derive(Clone, Debug, PartialEq)]
pub struct CellPorts {
    /// Its inputs, in the program's order.
    pub inputs: Vec<TensorSpec>,
    /// Its outputs, likewise.
    pub outputs: Vec<TensorSpec>,
}

/// One part of what a request runs.
#[derive(Clone, Debug, PartialEq)]
pub struct SegmentRequest {
    /// Its name; no other segment has it.
    pub name: String,
    /// Its nodes.
    pub nodes: NodesRequest,
    /// By input of its cells: where it comes from. What a stage leaves out comes from the model's input of the same name.
    pub sources: BTreeMap<String, SourceRequest>,
    /// What it leaves behind, by ascending name. Empty for a stage that leaves each output under its own name.
    pub emits: Vec<Emit>,
    /// Whether each step answers a response of its own.
    pub streams: bool,
}

/// The nodes of a segment; cells by their numbers in [`UnfoldRequest::cells`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodesRequest {
    /// A single one.
    Stage {
        /// Its type.
        cell: usize,
    },
    /// A number of them that the request tells.
    Chain {
        /// Their type.
        cell: usize,
        /// How many, as an expression; none: as many as the tensor has rows that they go over.
        steps: Option<String>,
    },
    /// Until one of them says that it was the last.
    Decode {
        /// Their type.
        cell: usize,
        /// The most there may be, as an expression.
        max_steps: String,
        /// Output, and the value by which it says so.
        until: Option<(String, i64)>,
    },
    /// Each behind its children.
    Tree {
        /// Type of those without children.
        leaf: usize,
        /// Type of the others.
        internal: usize,
        /// The model's input that names each node's children.
        children: String,
        /// The most there may be.
        max_nodes: u32,
    },
}

impl SegmentRequest {
    /// The tensors whose rows it goes over, by the cell's input.
    fn over(&self) -> impl Iterator<Item = (&str, &str)> {
        self.sources.iter().filter_map(|(input, source)| match source {
            SourceRequest::Step { of, .. } => Some((input.as_str(), of.as_str())),
            _ => None,
        })
    }
}

impl NodesRequest {
    /// The types: one, or leaf and internal.
    pub fn cells(&self) -> impl Iterator<Item = usize> + use<> {
        let (first, second) = match self {
            Self::Stage { cell } | Self::Chain { cell, .. } | Self::Decode { cell, .. } => (*cell, None),
            Self::Tree { leaf, internal, .. } => (*leaf, Some(*internal)),
        };
        std::iter::once(first).chain(second)
    }

    /// Which kind of segment it is.
    pub fn kind(&self) -> Kind {
        match self {
            Self::Stage { .. } => Kind::Stage,
            Self::Chain { .. } => Kind::Chain,
            Self::Decode { .. } => Kind::Decode,
            Self::Tree { .. } => Kind::Tree,
        }
    }
}

/// Where an input of a cell comes from. Tensors are inputs of the model, or `<segment>.<emit>` of an earlier segment.
#[derive(Clone, Debug, PartialEq)]
pub enum SourceRequest {
    /// The row of a tensor that has the step's number; in a stage, all its rows.
    Step {
        /// The tensor.
        of: String,
        /// Whether the last comes first.
        reversed: bool,
    },
    /// A whole tensor, the same at each step.
    Whole(String),
    /// How many rows a tensor has along its first axis.
    Length(String),
    /// What the step before gave.
    Carried {
        /// Output of the cell.
        output: String,
        /// Before the first step.
        start: StartRequest,
        /// Whether it lives on between requests of a sequence.
        is_kept: bool,
    },
    /// What the request says of its sequence.
    Control(ControlRequest),
    /// What all steps before gave, one behind the other.
    Grown {
        /// Output of the cell.
        output: String,
    },
    /// How long an input of the segment that grows is.
    GrownLength {
        /// That input.
        input: String,
    },
    /// What a child gave.
    Child {
        /// Which child, from 0.
        child: usize,
        /// Output of its cell.
        output: String,
    },
}

impl SourceRequest {
    /// The tensor that it reads, if it reads one.
    fn tensor(&self) -> Option<&str> {
        match self {
            Self::Step { of, .. } => Some(of),
            Self::Whole(tensor) | Self::Length(tensor) => Some(tensor),
            Self::Carried { start: StartRequest::Tensor(tensor), .. } => Some(tensor),
            Self::Carried { .. }
            | Self::Control(_)
            | Self::Grown { .. }
            | Self::GrownLength { .. }
            | Self::Child { .. } => None,
        }
    }
}

/// What a cell is told of a request's sequence.
#[derive(Clone, Debug, PartialEq)]
pub enum ControlRequest {
    /// Yes or no, by these values.
    Flag {
        /// What is asked.
        control: Control,
        /// For no.
        no: f64,
        /// For yes.
        yes: f64,
    },
    /// The correlation id.
    CorrelationId,
}

/// What is carried into the first step.
#[derive(Clone, Debug, PartialEq)]
pub enum StartRequest {
    /// This value in each element.
    Value(f64),
    /// These elements in wire form.
    Elements(Bytes),
    /// A tensor as it is.
    Tensor(String),
}

/// Whether a configuration is of a model of cells.
pub fn is_given(config: &pb::ModelConfig) -> bool {
    config.parameters.keys().any(|key| is_ours(key))
}

#[cfg(test)]
mod tests;

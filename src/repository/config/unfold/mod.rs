//! `cells` and `unfold`: the cell types of a recurrent model, and how each request unfolds into them (BatchMaker
//! sections 3.1 and 4.2).
//!
//! [`read`] makes them an [`UnfoldRequest`], in which programs' inputs and outputs are still names. Which of them there
//! are only the programs know: the loader reads those and calls [`UnfoldRequest::resolve`], for an
//! [`Unfolding`](crate::model::unfold::Unfolding). Both are of the same [`Nodes`], [`Source`]s and [`Emit`]s.

use std::collections::BTreeMap;

use bytes::Bytes;
use smallvec::SmallVec;

use crate::{
    batching::knob::LengthList,
    model::{
        TensorSpec,
        unfold::{Emit, Nodes, Source, Start},
    },
};

mod read;
mod resolve;
mod scope;
mod segment;

pub use read::read;

/// Most cell types of a model, and most segments of a request.
pub const MAX_PARTS: usize = 64;

/// Largest batch of a cell that names no sizes.
const DEFAULT_MAX_ROWS: u32 = 64;

/// How the requests of a version unfold, as its configuration says it.
#[derive(Clone, Debug, PartialEq)]
pub struct UnfoldRequest {
    /// The cell types, in the order in which segments first name them; at least one.
    pub cells: Vec<CellRequest>,
    /// What each request runs, one after the other; at least one.
    pub segments: Vec<SegmentRequest>,
    /// The lengths that cards are prepared for, by axis of its cells.
    pub lengths: BTreeMap<String, LengthList>,
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
    /// The types of its nodes, by their numbers in [`UnfoldRequest::cells`]: one; of a tree that of the leaves, then
    /// that of the others.
    pub cells: SmallVec<[usize; 2]>,
    /// Its nodes.
    pub nodes: NamedNodes,
    /// By input of its cells: where it comes from. What a stage leaves out comes from the model's input of the same
    /// name.
    pub sources: BTreeMap<String, NamedSource>,
    /// What it leaves behind, by ascending name. Empty for a stage that leaves each output under its own name.
    pub emits: Vec<Emit<String>>,
    /// Whether each step answers a response of its own.
    pub streams: bool,
}

/// The nodes of a segment, with expressions as they are written. A chain without one has as many steps as the tensor
/// has rows that it goes over.
pub type NamedNodes = Nodes<Option<String>, String, String>;

/// Where an input of a cell comes from. Tensors are inputs of the model, or `<segment>.<emit>` of an earlier segment.
pub type NamedSource = Source<String, String, Constant>;

/// A row that is the same for all requests.
#[derive(Clone, Debug, PartialEq)]
pub enum Constant {
    /// This value in each element.
    Value(f64),
    /// These elements in wire form.
    Elements(Bytes),
}

impl SegmentRequest {
    /// The tensors whose rows it goes over, by the cell's input.
    fn over(&self) -> impl Iterator<Item = (&str, &str)> {
        self.sources.iter().filter_map(|(input, source)| match source {
            Source::Step { of, .. } | Source::Rows(of) => Some((input.as_str(), of.as_str())),
            _ => None,
        })
    }

    /// Whether it is a stage.
    fn is_stage(&self) -> bool {
        matches!(self.nodes, Nodes::Stage)
    }

    /// Whether how many steps it runs is known beforehand, so that what it leaves of all of them has a known length.
    fn has_known_steps(&self) -> bool {
        !matches!(self.nodes, Nodes::Decode { .. })
    }
}

/// The tensor that a source reads, if it reads one.
fn tensor_of(source: &NamedSource) -> Option<&str> {
    match source {
        Source::Step { of, .. } | Source::Whole(of) | Source::Rows(of) | Source::Length(of) => Some(of),
        Source::Carried { start: Start::Tensor(tensor), .. } => Some(tensor),
        Source::Carried { .. }
        | Source::Control { .. }
        | Source::CorrelationId
        | Source::Grown { .. }
        | Source::GrownLength
        | Source::Child { .. } => None,
    }
}

#[cfg(test)]
mod tests;

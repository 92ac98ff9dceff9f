//! `cells` and `unfold`: the cell types of a recurrent model, and how each request unfolds into them (BatchMaker
//! sections 3.1 and 4.2).
//!
//! [`read`] checks the configuration and creates an [`UnfoldRequest`]. Its tensors are numbers already, but inputs and
//! outputs of programs are still names. Once the loader has read the programs, [`UnfoldRequest::resolve`] replaces
//! those too and returns an [`Unfolding`](crate::model::unfold::Unfolding).

use std::collections::BTreeMap;

use bytes::Bytes;
use smallvec::SmallVec;

use crate::{
    batching::knob::LengthList,
    engine::TensorBatch,
    model::{
        Dims, TensorSpec,
        unfold::{Emit, Emitted, Expression, Nodes, Source, Tensor},
    },
    repository::config::nearest::suggestion,
};

mod read;
mod resolve;
mod scope;
mod segment;

pub use read::read;

/// Maximum number of cell types of a model, and of segments of a request.
pub const MAX_PARTS: usize = 64;

/// Largest batch of a cell without `batch_sizes`, in rows.
const DEFAULT_MAX_ROWS: u32 = 64;

/// How the requests of a version unfold, according to its configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct UnfoldRequest {
    /// The cell types, in the order in which segments first name them; at least one.
    pub cells: Vec<CellRequest>,
    /// The segments that each request runs, in order; at least one.
    pub segments: Vec<SegmentRequest>,
    /// The lengths that cards are prepared for, by axis of the cells.
    pub lengths: BTreeMap<String, LengthList>,
}

impl UnfoldRequest {
    /// Returns the largest batch of any cell, in rows.
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
    /// Minimum rows of a follow-up task in a round, at most the largest batch.
    pub min_followup: u32,
    /// Priority among the cell types; 1 is the highest.
    pub priority: u32,
    /// What the configuration says of the program's tensors, by name. The batch of others is axis 0.
    pub tensors: BTreeMap<String, CellTensor>,
}

/// What the configuration says of a tensor of a cell's program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CellTensor {
    /// Where the graph has the batch.
    pub batch: TensorBatch,
    /// The dims of a row; `None` for those of the graph.
    pub dims: Option<Dims>,
}

impl CellRequest {
    /// Returns its largest batch in rows.
    pub fn max_rows(&self) -> u32 {
        self.batch_sizes.last().copied().unwrap_or(DEFAULT_MAX_ROWS)
    }
}

/// Inputs and outputs of a cell's program, with dims without the batch.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CellPorts {
    /// Its inputs, in the program's order.
    pub inputs: Vec<TensorSpec>,
    /// Its outputs, likewise.
    pub outputs: Vec<TensorSpec>,
}

/// One part of what each request runs.
#[derive(Clone, Debug, PartialEq)]
pub struct SegmentRequest {
    /// Its name, which no other segment has.
    pub name: String,
    /// The types of its nodes, as indices of [`UnfoldRequest::cells`]: one, or for a tree the type of the leaves and
    /// then that of the inner nodes.
    pub cells: SmallVec<[usize; 2]>,
    /// Its nodes, with outputs by name.
    pub nodes: NodesRequest,
    /// The source of each input that the configuration names. A stage without `over` reads other inputs from the
    /// model's inputs of the same name.
    pub sources: BTreeMap<String, SourceRequest>,
    /// The tensors that it emits.
    pub emits: Vec<Emit<String>>,
    /// Whether it is a stage without `emit`, which may emit every output of its cell under the output's own name.
    /// [`Self::emits`] then contains those that later segments name.
    pub emits_all: bool,
    /// Whether each step returns a response of its own.
    pub streams: bool,
}

/// The nodes of a segment, with outputs by name.
pub type NodesRequest = Nodes<Expression, usize, String>;

/// The source of a cell's input, with outputs by name.
pub type SourceRequest = Source<Tensor, String, Constant>;

/// A row that is the same for all requests.
#[derive(Clone, Debug, PartialEq)]
pub enum Constant {
    /// This value in each element.
    Value(f64),
    /// These elements in wire form.
    Elements(Bytes),
}

/// Finds the emit that answers an output of the model; `None` if a stage may emit it that emits all outputs of its
/// cell.
///
/// # Errors
/// Rejects an output that no segment emits, or more than one.
fn answer(segments: &[SegmentRequest], output: &str) -> Result<Option<Emitted>, String> {
    let found = segments.iter().enumerate().filter_map(|(number, segment)| {
        let emit = segment.emits.iter().position(|emit| emit.name == output)?;
        Some((Emitted { segment: number, emit }, segment))
    });
    let found: Vec<(Emitted, &SegmentRequest)> = found.collect();
    match found[..] {
        [(emitted, _)] => Ok(Some(emitted)),
        [(_, one), (_, two), ..] => {
            Err(format!("expected one segment to emit '{output}', but found '{}' and '{}'", one.name, two.name))
        }
        [] if segments.iter().any(|segment| segment.emits_all) => Ok(None),
        [] => {
            let names = segments.iter().flat_map(|segment| &segment.emits).map(|emit| emit.name.as_str());
            Err(format!("expected a segment to emit '{output}', but none does{}", suggestion(output, names)))
        }
    }
}

#[cfg(test)]
mod tests;

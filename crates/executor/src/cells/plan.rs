//! The plan of a version's cells: their programs, and which outputs are kept for later nodes.

use std::{fmt, sync::Arc};

use paternoster_batching::{CellKind, CellKnobs, ChunkKnobs, SegmentKnobs, StageKnobs};
use paternoster_engine::{Program, ProgramPort};
use paternoster_model::{
    CellId, DataType, InputTensor, ModelSpec, TensorSpec,
    unfold::{CellInputSource, CellSpec, EmitRange, Emitted, NodeType, Nodes, Segment, Tensor, Unfolding},
};
use sha2::{Digest, Sha256};
use smallvec::SmallVec;

use super::row::{ProgramInputs, Row, fits};

/// The compiled cells of a version, and how its requests unfold into them.
pub struct CellPrograms {
    pub(crate) unfolding: Unfolding,
    pub(crate) cells: Vec<Cell>,
    /// For each segment, the outputs that are read later. Precomputed, because every node that has run needs them.
    pub(crate) keeps: Vec<SmallVec<[Keep; 2]>>,
    /// For each output of the model, whether clients get its rows, which have no axis, with an axis of one element.
    pub(crate) one_element: SmallVec<[bool; 4]>,
    /// On cards: most rows that a segment leaves for steps that read one each, where nothing else says how many there
    /// may be.
    pub(crate) most_steps: u32,
}

/// As many as padded axes are long at most, by default.
const MOST_STEPS: u32 = 512;

/// A compiled cell type.
pub(crate) struct Cell {
    pub(crate) program: Arc<dyn Program>,
    /// For each input, whether nodes with different lengths may share a run, because the cell receives each length as
    /// an input, and its outputs are cut back to it.
    pub(crate) pads: SmallVec<[bool; 8]>,
    /// Nodes of cells of the same kind may share a run.
    pub(crate) kind: Option<CellKind>,
    /// How a run takes several steps of each row, if it does.
    chunks: Option<ChunkKnobs>,
}

/// An output of a segment's nodes that is read later.
pub(crate) struct Keep {
    /// Index of the output for each of the segment's types. The first type's index identifies it in the unfolding.
    pub(crate) outputs: SmallVec<[usize; 2]>,
    /// Whether the values of all nodes are needed, and not only the last one.
    pub(crate) all: bool,
    /// Whether it persists between requests of a sequence.
    pub(crate) lives_on: bool,
}

impl CellPrograms {
    /// Combines an unfolding with the programs of its cells, in order. Each program has the ports of [`Self::ports`].
    ///
    /// # Errors
    /// If the unfolding is inconsistent; the text names the segment and the tensor.
    pub fn new(spec: &ModelSpec, unfolding: Unfolding, programs: Vec<Arc<dyn Program>>) -> Result<Self, String> {
        if unfolding.cells.is_empty() || unfolding.segments.is_empty() || programs.len() != unfolding.cells.len() {
            return Err("expected at least one cell and one segment, and a program for each cell".to_owned());
        }
        unfolding.check(spec)?;
        let keeps = unfolding.segments.iter().map(|segment| keeps(&unfolding, segment));
        let keeps = keeps.collect::<Result<Vec<_>, String>>()?;
        let cells = unfolding.cells.iter().zip(programs).enumerate().map(|(number, (spec, program))| {
            let nodes =
                unfolding.segments.iter().flat_map(|segment| segment.types.iter().map(move |own| (segment, own)));
            let nodes: SmallVec<[(&Segment, &NodeType); 4]> = nodes.filter(|(_, own)| own.cell == number).collect();
            let is_of_steps = |output| nodes.iter().all(|(segment, _)| is_of_steps(segment, output));
            // Otherwise the length of an output would depend on the other nodes of the run.
            let is_cut = |(output, spec): (usize, &TensorSpec)| {
                is_cut_back(spec)
                    || (is_of_steps(output) && is_fixed_behind_the_first(spec))
                    || !has_length(&unfolding, number, output)
            };
            let is_cut = spec.outputs.iter().enumerate().all(is_cut);
            let pads = |(input, spec): (usize, &TensorSpec)| {
                is_cut && nodes.iter().all(|(segment, own)| receives_length(segment, own, input, spec))
            };
            let pads = spec.inputs.iter().enumerate().map(pads).collect();
            let chunks = nodes.iter().any(|(segment, _)| segment.runs_chunks()).then(|| ChunkKnobs {
                is_padded: nodes.iter().all(|(_, own)| own.inputs.contains(&CellInputSource::Steps)),
                most_row_steps: most_row_steps(spec),
                powers_up_to: None,
            });
            Cell::new(spec, program, pads, chunks)
        });
        let one_element = spec.outputs.iter().map(|output| output.reshape.as_ref().is_some_and(|own| own.is_empty()));
        let (cells, one_element) = (cells.collect(), one_element.collect());
        Ok(Self { cells, keeps, unfolding, one_element, most_steps: MOST_STEPS })
    }

    /// The same, of whose segments each leaves at most so many rows for steps that read one each, on cards.
    #[must_use]
    pub fn with_most_steps(self, most_steps: u32) -> Self {
        Self { most_steps, ..self }
    }

    /// Returns the inputs and outputs of a cell's program, in order.
    pub fn ports(cell: &CellSpec) -> (Vec<ProgramPort<'_>>, Vec<ProgramPort<'_>>) {
        (cell.inputs.iter().map(ProgramPort::from).collect(), cell.outputs.iter().map(ProgramPort::from).collect())
    }

    /// Converts tensors, given by input name with the dimensions of one row, to rows of the cells' inputs.
    ///
    /// # Errors
    /// If no cell has such an input, or if its size differs; the text names the input.
    pub(crate) fn rows_of(&self, given: &[(String, InputTensor)]) -> Result<ProgramInputs, String> {
        let row = |(name, tensor): &(String, InputTensor)| {
            let mut inputs = self.unfolding.cells.iter().flat_map(|cell| &cell.inputs);
            let spec = inputs.find(|input| input.name == *name);
            let spec = spec.ok_or_else(|| format!("the program has no input '{name}'"))?;
            let row = Row::alone(spec.dims.clone(), tensor.data.clone());
            if fits(spec, &row).is_err() {
                let (expected, found) = (spec.dims.as_slice(), tensor.shape.as_slice());
                return Err(format!("expected dims {expected:?} for input '{name}', but found {found:?}"));
            }
            Ok((name.clone(), row))
        };
        given.iter().map(row).collect()
    }

    /// Returns the program of a cell.
    pub fn program(&self, cell: usize) -> Option<&Arc<dyn Program>> {
        self.cells.get(cell).map(|cell| &cell.program)
    }

    /// Returns how requests unfold.
    pub fn unfolding(&self) -> &Unfolding {
        &self.unfolding
    }

    /// Returns the datatypes as which cells read the correlation id.
    pub(crate) fn correlation_types(&self) -> impl Iterator<Item = DataType> + '_ {
        let nodes = self.unfolding.segments.iter().flat_map(|segment| &segment.types);
        nodes.flat_map(|nodes| {
            let inputs = self.unfolding.cells[nodes.cell].inputs.iter().zip(&nodes.inputs);
            inputs.filter(|(_, source)| matches!(source, CellInputSource::CorrelationId)).map(|(spec, _)| spec.datatype)
        })
    }

    /// Returns the number of cell types.
    pub(crate) fn count(&self) -> usize {
        self.cells.len()
    }

    /// Returns the settings of the unfolding for the core: its cell types and its segments.
    pub fn knobs(&self) -> (Vec<CellKnobs>, Vec<SegmentKnobs>) {
        let cell = |(spec, Cell { kind, chunks, .. }): (&CellSpec, &Cell)| CellKnobs {
            max_rows: spec.max_rows.max(1),
            min_followup: spec.min_followup,
            priority: spec.priority,
            kind: *kind,
            buckets: Box::default(),
            chunks: *chunks,
        };
        let id = |nodes: &NodeType| CellId(nodes.cell as u16);
        let segments = self.unfolding.segments.iter().map(|segment| match (&segment.types[..], &segment.nodes) {
            ([leaf, inner], _) => SegmentKnobs::Tree { leaf: id(leaf), inner: id(inner) },
            (types, Nodes::Stage) => SegmentKnobs::Stage { cell: id(&types[0]) },
            (types, &Nodes::Decode { until: Some(_), expected_steps, .. }) => {
                SegmentKnobs::Decode { cell: id(&types[0]), expected_steps }
            }
            (types, _) => SegmentKnobs::Steps { cell: id(&types[0]) },
        });
        (self.unfolding.cells.iter().zip(&self.cells).map(cell).collect(), segments.collect())
    }

    /// Whether a node of one of these cells may run in a task of a cell of other programs.
    pub(crate) fn runs_as(&self, cell: usize, other: &Self, number: usize) -> bool {
        let (own, theirs) = (&self.cells[cell], &other.cells[number]);
        std::ptr::eq(own, theirs) || (own.kind.is_some() && own.kind == theirs.kind)
    }

    /// Returns stage settings for the core: one stage per cell.
    pub(crate) fn stage_knobs(&self) -> Vec<StageKnobs> {
        StageKnobs::chain(self.cells.len() as u16)
    }
}

impl Cell {
    fn new(spec: &CellSpec, program: Arc<dyn Program>, pads: SmallVec<[bool; 8]>, chunks: Option<ChunkKnobs>) -> Self {
        let kind = program.origin().map(|origin| {
            let mut hash = Sha256::new_with_prefix(origin);
            hash.update(format!("{:?} {:?} {pads:?} {chunks:?}", spec.inputs, spec.outputs));
            let digest: [u8; 32] = hash.finalize().into();
            CellKind(digest[..16].iter().fold(0, |kind, byte| kind << 8 | u128::from(*byte)))
        });
        Self { program, pads, kind, chunks }
    }
}

/// Whether an output has the values of all steps that run together.
pub(super) fn is_of_steps(segment: &Segment, output: usize) -> bool {
    segment.runs_chunks() && !segment.carries(output)
}

/// Whether a node's row of an output can be cut back to its own lengths: only its first axis varies, as an input's.
fn is_cut_back(output: &TensorSpec) -> bool {
    let symbol = output.symbols.first().copied().flatten();
    output.dims.iter().enumerate().all(|(axis, dim)| *dim >= 0 || (axis == 0 && symbol.is_some()))
}

/// Whether all axes of a tensor but the first are fixed.
fn is_fixed_behind_the_first(tensor: &TensorSpec) -> bool {
    tensor.dims.iter().skip(1).all(|dim| *dim >= 0)
}

/// Most bytes of what a run of several steps reads and writes, padding included.
pub(super) const MAX_CHUNK_BYTES: usize = 64 << 20;

/// Returns most rows times steps of a run of several steps.
fn most_row_steps(cell: &CellSpec) -> u32 {
    let step_bytes = |tensor: &TensorSpec| {
        let elements = tensor.dims.iter().fold(1_usize, |count, &dim| count.saturating_mul(dim.max(1) as usize));
        elements.saturating_mul(tensor.datatype.size_bytes().unwrap_or(1))
    };
    let bytes = cell.inputs.iter().chain(&cell.outputs).map(step_bytes).fold(1, usize::saturating_add);
    u32::try_from(MAX_CHUNK_BYTES / bytes).unwrap_or(u32::MAX)
}

/// Whether anything depends on how long an output of a cell is: a response has it, or a node reads it whole or for each
/// of its rows. Steps over it do not, because an expression says how many they are.
fn has_length(unfolding: &Unfolding, cell: usize, output: usize) -> bool {
    let reads = |own: Emitted| {
        let sources = unfolding.segments.iter().flat_map(|segment| &segment.types).flat_map(|nodes| &nodes.inputs);
        let is_read = sources.into_iter().any(|source| match source {
            CellInputSource::Whole(tensor) | CellInputSource::Rows(tensor) | CellInputSource::Length(tensor) => {
                *tensor == Tensor::Emitted(own)
            }
            _ => false,
        });
        is_read || unfolding.outputs.contains(&own)
    };
    let segments = unfolding.segments.iter().enumerate();
    segments.filter(|(_, segment)| segment.types.iter().any(|nodes| nodes.cell == cell)).any(|(number, segment)| {
        let emits = segment.emits.iter().enumerate().filter(|(_, own)| own.output == output);
        emits.map(|(emit, _)| Emitted { segment: number, emit }).any(reads)
    })
}

/// Returns the outputs of a segment's nodes that are read later.
///
/// # Errors
/// If a type lacks one of these outputs.
fn keeps(unfolding: &Unfolding, segment: &Segment) -> Result<SmallVec<[Keep; 2]>, String> {
    let of_sources = segment.sources().filter_map(|source| match *source {
        CellInputSource::Carried { output, is_kept, .. } => Some((output, false, is_kept)),
        CellInputSource::Grown { output } => Some((output, true, false)),
        CellInputSource::Child { output, .. } => Some((output, false, false)),
        _ => None,
    });
    let of_emits = segment.emits.iter().map(|emit| (emit.output, emit.which == EmitRange::All, false));
    let mut keeps: SmallVec<[Keep; 2]> = SmallVec::new();
    for (output, all, lives_on) in of_sources.chain(of_emits) {
        match keeps.iter_mut().find(|keep| keep.outputs[0] == output) {
            Some(keep) => (keep.all, keep.lives_on) = (keep.all | all, keep.lives_on | lives_on),
            None => keeps.push(Keep { outputs: unfolding.outputs_of(segment, output)?, all, lives_on }),
        }
    }
    Ok(keeps)
}

/// Whether the cell receives the length of this input.
fn receives_length(segment: &Segment, nodes: &NodeType, input: usize, spec: &TensorSpec) -> bool {
    if segment.runs_chunks() && matches!(nodes.inputs[input], CellInputSource::Step { .. }) {
        return is_fixed_behind_the_first(spec) && nodes.inputs.contains(&CellInputSource::Steps);
    }
    let grows = matches!(nodes.inputs[input], CellInputSource::Grown { .. });
    nodes.inputs.iter().any(|source| match source {
        CellInputSource::GrownLength => grows,
        CellInputSource::Length(_) => !grows,
        _ => false,
    })
}

impl fmt::Debug for CellPrograms {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("CellPrograms").field("unfolding", &self.unfolding).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use paternoster_model::SymbolId;

    #[test]
    fn rows_are_cut_back_along_their_first_axis_alone() {
        let tensor = |dims: &[i64], symbols: &[Option<SymbolId>]| TensorSpec {
            symbols: SmallVec::from_slice(symbols),
            ..TensorSpec::new("y", DataType::Fp32, dims)
        };
        let axis = Some(SymbolId(0));
        assert!(is_cut_back(&tensor(&[3, 4], &[])), "nothing varies");
        assert!(is_cut_back(&tensor(&[-1, 4], &[axis, None])));
        assert!(!is_cut_back(&tensor(&[-1, 4], &[])), "its length may follow from a padded one in another way");
        assert!(!is_cut_back(&tensor(&[4, -1], &[None, axis])));
    }
}

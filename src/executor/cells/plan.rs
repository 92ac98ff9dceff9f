//! What a version's cells read and leave behind.

mod resolve;

use std::{fmt, sync::Arc};

use bytes::Bytes;
use sha2::{Digest, Sha256};
use smallvec::SmallVec;

use self::resolve::Resolver;
use super::row::{ProgramInputs, Row};
use crate::{
    batching::{CellId, CellKind, CellKnobs, SegmentKnobs, StageKnobs},
    engine::{Program, ProgramPort},
    executor::InputTensor,
    model::{
        DataType, ModelSpec, element_count,
        unfold::{CellSpec, Control, Emitted, Nodes, Tensor, Unfolding, Which},
    },
};

/// The compiled cells of a version, and how its requests unfold into them.
pub struct CellPrograms {
    pub(super) unfolding: Unfolding,
    pub(super) cells: Vec<Cell>,
    pub(super) segments: Vec<Segment>,
    /// What lives on between requests of a sequence: the segment, and the number of its keep.
    pub(super) kept: Vec<(usize, usize)>,
}

/// A compiled cell type.
pub(super) struct Cell {
    pub(super) spec: CellSpec,
    pub(super) program: Arc<dyn Program>,
    /// By input: whether nodes with other lengths of it may share a run, because the cell is told each one's own.
    pub(super) pads: SmallVec<[bool; 8]>,
    /// Nodes of cells of one kind may share a run.
    pub(super) kind: Option<CellKind>,
}

/// A segment as tasks see it.
pub(super) struct Segment {
    /// One, or leaf and inner.
    pub(super) types: SmallVec<[Role; 2]>,
    /// Values of nodes that somebody reads later.
    pub(super) keeps: Vec<Keep>,
    /// By emit: the value that it is of.
    pub(super) emits: Vec<(usize, Which)>,
    pub(super) is_tree: bool,
    pub(super) streams: bool,
    /// Output, in each row of which this number says that it was the last.
    pub(super) until: Option<(usize, i64)>,
}

/// What nodes of one type do in a segment.
pub(super) struct Role {
    pub(super) cell: usize,
    /// By the cell's inputs.
    pub(super) inputs: Vec<From>,
    /// Whether a node reads all rows of tensors, and leaves as many.
    pub(super) by_rows: bool,
}

/// Where an input comes from.
pub(super) enum From {
    Step {
        of: Tensor,
        reversed: bool,
    },
    Whole(Tensor),
    /// All rows, each of which is a row of the run.
    Rows(Tensor),
    Length(Tensor),
    Carried {
        keep: usize,
        start: Initially,
        /// Its number in [`CellPrograms::kept`].
        kept: Option<usize>,
    },
    Control {
        control: Control,
        no: Bytes,
        yes: Bytes,
    },
    CorrelationId,
    /// Those of all steps before.
    Grown {
        keep: usize,
    },
    GrownLength,
    /// Of a child, or zeros where there is none.
    Child {
        child: usize,
        keep: usize,
        none: Bytes,
    },
}

/// What is carried into the first step.
pub(super) enum Initially {
    Row(Bytes),
    Tensor(Tensor),
}

/// A value that nodes leave.
pub(super) struct Keep {
    /// By the segment's types: the output of their cells.
    pub(super) outputs: SmallVec<[usize; 2]>,
    /// Whether all nodes' values are needed, and not the last one's alone.
    pub(super) all: bool,
    /// Whether what is left of all steps of a chain stands in the order of its input, last step first.
    pub(super) reversed: bool,
}

impl CellPrograms {
    /// The programs of an unfolding's cells, in order; each takes and gives the tensors of [`Self::ports`].
    ///
    /// # Errors
    /// When the unfolding does not fit itself: the message names the segment and the tensor.
    pub fn new(spec: &ModelSpec, unfolding: Unfolding, programs: Vec<Arc<dyn Program>>) -> Result<Self, String> {
        if unfolding.cells.is_empty() || unfolding.segments.is_empty() || programs.len() != unfolding.cells.len() {
            return Err("expected at least one cell and one segment, and a program for each cell".to_owned());
        }
        let (mut segments, mut kept) = (Vec::with_capacity(unfolding.segments.len()), Vec::new());
        for (number, segment) in unfolding.segments.iter().enumerate() {
            let resolved = Resolver { spec, unfolding: &unfolding, number }.segment(&mut kept);
            segments.push(resolved.map_err(|fault| format!("segment '{}': {fault}", segment.name))?);
        }
        if unfolding.outputs.len() != spec.outputs.len() {
            return Err(format!("expected an emit for each of {} outputs", spec.outputs.len()));
        }
        let streams =
            |emitted: &Emitted| segments.get(emitted.segment).is_some_and(|segment: &Segment| segment.streams);
        if spec.decoupled && !unfolding.outputs.iter().all(streams) {
            return Err(
                "a decoupled model answers step by step: expected all outputs from a segment that streams".to_owned()
            );
        }
        let cells = unfolding.cells.iter().zip(programs).enumerate().map(|(number, (spec, program))| {
            let roles: SmallVec<[&Role; 4]> =
                segments.iter().flat_map(|segment| &segment.types).filter(|role| role.cell == number).collect();
            let pads = (0..spec.inputs.len()).map(|input| roles.iter().all(|role| role.tells(input))).collect();
            Cell::new(spec.clone(), program, pads)
        });
        Ok(Self { cells: cells.collect(), unfolding, segments, kept })
    }

    /// What a cell's program takes and gives, in order.
    pub fn ports(cell: &CellSpec) -> (Vec<ProgramPort<'_>>, Vec<ProgramPort<'_>>) {
        (cell.inputs.iter().map(ProgramPort::from).collect(), cell.outputs.iter().map(ProgramPort::from).collect())
    }

    /// One row each for inputs of the cells, which are given by name with the row's dims.
    ///
    /// # Errors
    /// When no cell has such an input, or one of another size; with its name.
    pub(in crate::executor) fn rows_of(&self, given: &[(String, InputTensor)]) -> Result<ProgramInputs, String> {
        let row = |(name, tensor): &(String, InputTensor)| {
            let mut inputs = self.cells.iter().flat_map(|cell| &cell.spec.inputs);
            let spec = inputs.find(|input| input.name == *name);
            let spec = spec.ok_or_else(|| format!("the program has no input '{name}'"))?;
            let size = spec.datatype.size_bytes().unwrap_or(0);
            if element_count(&spec.dims).and_then(|count| count.checked_mul(size)) != Some(tensor.data.len()) {
                let (expected, found) = (spec.dims.as_slice(), tensor.shape.as_slice());
                return Err(format!("expected dims {expected:?} for input '{name}', but found {found:?}"));
            }
            Ok((name.clone(), Row::alone(spec.dims.clone(), tensor.data.clone())))
        };
        given.iter().map(row).collect()
    }

    /// How requests unfold.
    pub fn unfolding(&self) -> &Unfolding {
        &self.unfolding
    }

    /// The types as which cells read the correlation id.
    pub(super) fn correlation_types(&self) -> impl Iterator<Item = DataType> + '_ {
        let roles = self.segments.iter().flat_map(|segment| &segment.types);
        roles.flat_map(|role| {
            let inputs = self.cells[role.cell].spec.inputs.iter().zip(&role.inputs);
            inputs.filter(|(_, from)| matches!(from, From::CorrelationId)).map(|(spec, _)| spec.datatype)
        })
    }

    /// How many cell types there are.
    pub(in crate::executor) fn count(&self) -> usize {
        self.cells.len()
    }

    /// What the core has to know of the unfolding: its cell types and its segments.
    pub fn knobs(&self) -> (Vec<CellKnobs>, Vec<SegmentKnobs>) {
        let cell = |Cell { spec, kind, .. }: &Cell| CellKnobs {
            max_rows: spec.max_rows.max(1),
            min_followup: spec.min_followup,
            priority: spec.priority,
            kind: *kind,
        };
        let id = |cell: usize| CellId(cell as u16);
        let segments = self.unfolding.segments.iter().map(|segment| match &segment.nodes {
            Nodes::Steps(steps) => SegmentKnobs::Steps { cell: id(steps.cell) },
            Nodes::Tree(tree) => SegmentKnobs::Tree { leaf: id(tree.leaf.cell), inner: id(tree.inner.cell) },
        });
        (self.cells.iter().map(cell).collect(), segments.collect())
    }

    /// Whether a node of one of these cells may run in a task of a cell of other programs.
    pub(super) fn runs_as(&self, cell: usize, other: &Self, number: usize) -> bool {
        let (own, theirs) = (&self.cells[cell], &other.cells[number]);
        std::ptr::eq(own, theirs) || (own.kind.is_some() && own.kind == theirs.kind)
    }

    /// What the core has to know of the cells, which stand where a pipeline has its stages.
    pub(in crate::executor) fn stage_knobs(&self) -> Vec<StageKnobs> {
        StageKnobs::chain(self.cells.len() as u16)
    }
}

impl Cell {
    fn new(spec: CellSpec, program: Arc<dyn Program>, pads: SmallVec<[bool; 8]>) -> Self {
        let kind = program.origin().map(|origin| {
            let mut hash = Sha256::new_with_prefix(origin);
            hash.update(format!("{:?} {:?} {pads:?}", spec.inputs, spec.outputs));
            let digest: [u8; 32] = hash.finalize().into();
            CellKind(digest[..16].iter().fold(0, |kind, byte| kind << 8 | u128::from(*byte)))
        });
        Self { spec, program, pads, kind }
    }
}

impl Role {
    /// Whether the cell is told how long this input is.
    fn tells(&self, input: usize) -> bool {
        let grows = matches!(self.inputs[input], From::Grown { .. });
        self.inputs.iter().any(|from| match from {
            From::GrownLength => grows,
            From::Length(_) => !grows,
            _ => false,
        })
    }
}

impl fmt::Debug for CellPrograms {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("CellPrograms").field("unfolding", &self.unfolding).finish_non_exhaustive()
    }
}

//! What a version's cells read and leave behind, with every name made into a number.

use std::{fmt, sync::Arc};

use bytes::Bytes;
use smallvec::SmallVec;

use crate::{
    batching::{CellKnobs, SegmentKnobs, StageKnobs},
    engine::{Program, ProgramPort},
    executor::gather::pattern,
    model::{
        DataType, ModelSpec, TensorSpec, element_count,
        unfold::{CellSpec, Count, Emitted, Nodes, Source, Start, Steps, Tensor, Unfolding, Which},
    },
};

/// The compiled cells of a version, and how its requests unfold into them.
pub struct CellPrograms {
    pub(super) unfolding: Unfolding,
    pub(super) cells: Vec<Cell>,
    pub(super) segments: Vec<Segment>,
}

/// A compiled cell type.
pub(super) struct Cell {
    pub(super) spec: CellSpec,
    pub(super) program: Arc<dyn Program>,
    /// Whether nodes of other lengths may share a run: the cell is told each one's own.
    pub(super) pads: bool,
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
    },
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
    /// Whether the steps of a chain stand in the order of its input, last step first.
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
        let mut segments = Vec::with_capacity(unfolding.segments.len());
        for (number, segment) in unfolding.segments.iter().enumerate() {
            let resolved = Resolver { spec, unfolding: &unfolding, number }.segment();
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
        let tells = |cell: usize| {
            let roles = segments.iter().flat_map(|segment| &segment.types).filter(move |role| role.cell == cell);
            roles.flat_map(|role| &role.inputs).any(|input| matches!(input, From::Length(_)))
        };
        let cells = unfolding.cells.iter().zip(programs).enumerate();
        let cells = cells.map(|(number, (spec, program))| Cell { spec: spec.clone(), program, pads: tells(number) });
        Ok(Self { cells: cells.collect(), unfolding, segments })
    }

    /// What a cell's program takes and gives, in order.
    pub fn ports(cell: &CellSpec) -> (Vec<ProgramPort<'_>>, Vec<ProgramPort<'_>>) {
        (cell.inputs.iter().map(ProgramPort::from).collect(), cell.outputs.iter().map(ProgramPort::from).collect())
    }

    /// How requests unfold.
    pub fn unfolding(&self) -> &Unfolding {
        &self.unfolding
    }

    /// How many cell types there are.
    pub(in crate::executor) fn count(&self) -> usize {
        self.cells.len()
    }

    /// A cell's program.
    pub(in crate::executor) fn program(&self, cell: usize) -> Option<&dyn Program> {
        self.cells.get(cell).map(|cell| &*cell.program)
    }

    /// What the core has to know of the cells, which stand where a pipeline has its stages.
    pub(in crate::executor) fn stage_knobs(&self) -> Vec<StageKnobs> {
        StageKnobs::chain(self.cells.len() as u16)
    }
}

impl fmt::Debug for CellPrograms {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("CellPrograms").field("unfolding", &self.unfolding).finish_non_exhaustive()
    }
}

/// What the core has to know of an unfolding: its cell types and its segments.
pub fn cell_knobs(unfolding: &Unfolding) -> (Vec<CellKnobs>, Vec<SegmentKnobs>) {
    let cell = |cell: &CellSpec| CellKnobs {
        max_rows: cell.max_rows.max(1),
        min_followup: cell.min_followup,
        priority: cell.priority,
    };
    let id = |cell: usize| crate::batching::CellId(cell as u16);
    let segments = unfolding.segments.iter().map(|segment| match &segment.nodes {
        Nodes::Steps(steps) => SegmentKnobs::Steps { cell: id(steps.cell) },
        Nodes::Tree(tree) => SegmentKnobs::Tree { leaf: id(tree.leaf.cell), inner: id(tree.inner.cell) },
    });
    (unfolding.cells.iter().map(cell).collect(), segments.collect())
}

/// By the types of a segment: the cell, and where its inputs come from.
type Roles<'a> = SmallVec<[(usize, &'a [Source]); 2]>;

/// Makes the names of one segment into numbers.
struct Resolver<'a> {
    spec: &'a ModelSpec,
    unfolding: &'a Unfolding,
    number: usize,
}

impl Resolver<'_> {
    fn segment(&self) -> Result<Segment, String> {
        let segment = &self.unfolding.segments[self.number];
        let (roles, until, is_tree): (Roles<'_>, _, _) = match &segment.nodes {
            Nodes::Steps(steps) => {
                let until = match &steps.count {
                    Count::AtMost { until, .. } => *until,
                    Count::One | Count::Exactly(_) => None,
                };
                (SmallVec::from_iter([(steps.cell, &steps.inputs[..])]), until, false)
            }
            Nodes::Tree(tree) => {
                let nodes = [&tree.leaf, &tree.inner];
                (nodes.into_iter().map(|node| (node.cell, &node.inputs[..])).collect(), None, true)
            }
        };
        let mut built = Segment {
            types: SmallVec::new(),
            keeps: Vec::new(),
            emits: Vec::new(),
            is_tree,
            streams: segment.streams,
            until,
        };
        let is_single = matches!(&segment.nodes, Nodes::Steps(Steps { count: Count::One, .. }));
        let cells: SmallVec<[&CellSpec; 2]> = roles.iter().map(|(cell, _)| &self.unfolding.cells[*cell]).collect();
        for (cell, inputs) in &roles {
            let spec = &self.unfolding.cells[*cell];
            if inputs.len() != spec.inputs.len() {
                return Err(format!(
                    "expected a source for each of {} inputs of cell '{}'",
                    spec.inputs.len(),
                    spec.name
                ));
            }
            let inputs = spec.inputs.iter().zip(*inputs).map(|(input, source)| {
                self.input(&mut built.keeps, &cells, input, source)
                    .map_err(|fault| format!("input '{}': {fault}", input.name))
            });
            let inputs = inputs.collect::<Result<Vec<From>, String>>()?;
            let of_rows = inputs.iter().filter(|input| matches!(input, From::Rows(_))).count();
            if of_rows > 0 && (of_rows < inputs.len() || !is_single) {
                return Err("expected a single node, all of whose inputs are rows, or none".to_owned());
            }
            built.types.push(Role { cell: *cell, inputs, by_rows: of_rows > 0 });
        }
        for emit in &segment.emits {
            let keep = keep(&mut built.keeps, &cells, &emit.output)?;
            let reversed = matches!(&segment.nodes, Nodes::Steps(steps) if runs_backwards(&steps.inputs));
            built.keeps[keep].all |= emit.which == Which::All;
            built.keeps[keep].reversed = reversed;
            built.emits.push((keep, emit.which));
        }
        if let Some((output, _)) = until {
            let spec = cells[0].outputs.get(output).ok_or("'until' looks at no output of its cell")?;
            let is_one = element_count(&spec.dims) == Some(1);
            if !is_one || !matches!(spec.datatype, DataType::Int32 | DataType::Int64) {
                return Err(format!("'until' looks at '{}': expected one INT32 or INT64 a row", spec.name));
            }
        }
        Ok(built)
    }

    fn input(
        &self,
        keeps: &mut Vec<Keep>,
        cells: &[&CellSpec],
        input: &TensorSpec,
        source: &Source,
    ) -> Result<From, String> {
        Ok(match source {
            Source::Step { of, reversed } => From::Step { of: self.known(*of)?, reversed: *reversed },
            Source::Whole(tensor) => From::Whole(self.known(*tensor)?),
            Source::Rows(tensor) => From::Rows(self.known(*tensor)?),
            Source::Length(tensor) => {
                let is_number = matches!(input.datatype, DataType::Int32 | DataType::Int64);
                if !is_number || element_count(&input.dims) != Some(1) {
                    return Err("expected one INT32 or INT64 for a length".to_owned());
                }
                From::Length(self.known(*tensor)?)
            }
            Source::Carried { output, start } => {
                let given = cells[0].outputs.get(*output).ok_or("carries no output of its cell")?;
                agree(input, given)?;
                let name = given.name.clone();
                let start = match start {
                    Start::Tensor(tensor) => Initially::Tensor(self.known(*tensor)?),
                    Start::Value(value) => Initially::Row(filled(input, *value)?),
                };
                From::Carried { keep: keep(keeps, cells, &name)?, start }
            }
            Source::Child { child, output } => {
                for cell in cells {
                    agree(input, output_of(cell, output)?)?;
                }
                From::Child { child: *child, keep: keep(keeps, cells, output)?, none: filled(input, 0.0)? }
            }
        })
    }

    /// A tensor that is there when the segment runs.
    fn known(&self, tensor: Tensor) -> Result<Tensor, String> {
        let is_there = match tensor {
            Tensor::Input(input) => input < self.spec.inputs.len(),
            Tensor::Emitted(Emitted { segment, emit }) => {
                segment < self.number && emit < self.unfolding.segments[segment].emits.len()
            }
        };
        if is_there { Ok(tensor) } else { Err("comes from nothing that is there by then".to_owned()) }
    }
}

fn runs_backwards(inputs: &[Source]) -> bool {
    inputs.iter().any(|input| matches!(input, Source::Step { reversed: true, .. }))
}

fn output_of<'c>(cell: &'c CellSpec, name: &str) -> Result<&'c TensorSpec, String> {
    let found = cell.outputs.iter().find(|output| output.name == name);
    found.ok_or_else(|| format!("cell '{}' has no output '{name}'", cell.name))
}

/// The place of a value among those that are kept; from now on it is.
fn keep(keeps: &mut Vec<Keep>, cells: &[&CellSpec], name: &str) -> Result<usize, String> {
    let mut outputs = SmallVec::new();
    for cell in cells {
        output_of(cell, name)?;
        outputs.push(cell.outputs.iter().position(|output| output.name == name).unwrap_or_default());
    }
    let known = keeps.iter().position(|keep| keep.outputs == outputs);
    Ok(known.unwrap_or_else(|| {
        keeps.push(Keep { outputs, all: false, reversed: false });
        keeps.len() - 1
    }))
}

fn agree(input: &TensorSpec, output: &TensorSpec) -> Result<(), String> {
    let same = input.datatype == output.datatype && input.dims == output.dims;
    let shown = |tensor: &TensorSpec| format!("{} {:?}", tensor.datatype, tensor.dims.as_slice());
    if same { Ok(()) } else { Err(format!("is {}, but '{}' is {}", shown(input), output.name, shown(output))) }
}

/// A row of one value.
fn filled(input: &TensorSpec, value: f64) -> Result<Bytes, String> {
    let elements =
        element_count(&input.dims).ok_or("expected fixed dims for what is carried or comes from children")?;
    Ok(Bytes::from(pattern(input.datatype, value).repeat(elements)))
}

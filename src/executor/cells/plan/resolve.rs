//! One segment of an unfolding with every name made into a number, and checks that its tensors fit.

use bytes::Bytes;
use smallvec::SmallVec;

use super::{From, Initially, Keep, Role, Segment};
use crate::{
    executor::gather::pattern,
    model::{
        DataType, Dims, ModelSpec, TensorSpec, element_count,
        unfold::{CellSpec, Count, Emitted, Nodes, Source, Start, Steps, Tensor, Unfolding, Which},
    },
};

/// By the types of a segment: the cell, and where its inputs come from.
type Roles<'a> = SmallVec<[(usize, &'a [Source]); 2]>;

/// Makes the names of one segment into numbers.
pub(super) struct Resolver<'a> {
    pub(super) spec: &'a ModelSpec,
    pub(super) unfolding: &'a Unfolding,
    pub(super) number: usize,
}

impl Resolver<'_> {
    /// The segment. What it keeps for its sequence goes to `kept`, with its number.
    ///
    /// # Errors
    /// When it does not fit its cells, or names what is not there by then; with the input or output.
    pub(super) fn segment(&self, kept: &mut Vec<(usize, usize)>) -> Result<Segment, String> {
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
                self.input(kept, &mut built.keeps, &cells, input, source)
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
        kept: &mut Vec<(usize, usize)>,
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
                takes_length(input)?;
                From::Length(self.known(*tensor)?)
            }
            Source::Grown { output } => {
                let given = cells[0].outputs.get(*output).ok_or("grows by no output of its cell")?;
                grows_by(input, given)?;
                let keep = keep(keeps, cells, &given.name)?;
                keeps[keep].all = true;
                From::Grown { keep }
            }
            Source::GrownLength => {
                takes_length(input)?;
                From::GrownLength
            }
            Source::Control { control, no, yes } => {
                is_single(input)?;
                From::Control { control: *control, no: filled(input, *no)?, yes: filled(input, *yes)? }
            }
            Source::CorrelationId => {
                use DataType::{Int32, Int64, Uint32, Uint64};
                if !matches!(input.datatype, Int32 | Int64 | Uint32 | Uint64) {
                    return Err(format!("expected an integer for a correlation id, but it is {}", input.datatype));
                }
                is_single(input)?;
                From::CorrelationId
            }
            Source::Carried { output, start, is_kept } => {
                let given = cells[0].outputs.get(*output).ok_or("carries no output of its cell")?;
                agree(input, given)?;
                let start = match start {
                    Start::Tensor(tensor) => Initially::Tensor(self.known(*tensor)?),
                    Start::Value(value) => Initially::Row(filled(input, *value)?),
                    Start::Elements(elements) => {
                        let expected = filled(input, 0.0)?.len();
                        if elements.len() != expected {
                            return Err(format!("starts with {} bytes, expected {expected}", elements.len()));
                        }
                        Initially::Row(elements.clone())
                    }
                };
                let keep = keep(keeps, cells, &given.name)?;
                let number = kept.len();
                kept.extend(is_kept.then_some((self.number, keep)));
                From::Carried { keep, start, kept: is_kept.then_some(number) }
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

fn takes_length(input: &TensorSpec) -> Result<(), String> {
    let is_number = matches!(input.datatype, DataType::Int32 | DataType::Int64);
    if is_number && element_count(&input.dims) == Some(1) {
        return Ok(());
    }
    Err("expected one INT32 or INT64 for a length".to_owned())
}

/// Whether an input has one element a row.
fn is_single(input: &TensorSpec) -> Result<(), String> {
    if element_count(&input.dims) == Some(1) {
        return Ok(());
    }
    Err(format!("expected one element a row, but it has the dims {:?}", input.dims.as_slice()))
}

/// Whether an input can be rows of an output, one behind the other: its first axis varies, the others are the row's.
fn grows_by(input: &TensorSpec, output: &TensorSpec) -> Result<(), String> {
    let row = &output.dims;
    if element_count(row).is_none() {
        return Err(format!("expected fixed dims of what it grows by, but '{}' is {:?}", output.name, row.as_slice()));
    }
    let mut dims = Dims::from_slice(&[-1]);
    dims.extend_from_slice(row);
    if input.datatype == output.datatype && input.dims == dims {
        return Ok(());
    }
    Err(format!(
        "expected {} {:?}, rows of '{}' one behind the other, but found {} {:?}",
        output.datatype,
        dims.as_slice(),
        output.name,
        input.datatype,
        input.dims.as_slice()
    ))
}

/// A row of one value.
fn filled(input: &TensorSpec, value: f64) -> Result<Bytes, String> {
    let elements =
        element_count(&input.dims).ok_or("expected fixed dims for what is carried or comes from children")?;
    Ok(Bytes::from(pattern(input.datatype, value).repeat(elements)))
}

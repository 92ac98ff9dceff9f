//! Checks that an unfolding fits its cells, its model, and itself.

use smallvec::SmallVec;

use super::{CellInputSource, CellSpec, Emit, EmitRange, Emitted, Nodes, Segment, Start, Tensor, Unfolding};
use crate::{DataType, Dims, ModelSpec, TensorSpec, element_count};

impl Unfolding {
    /// Checks that each segment fits its cells and reads only tensors that exist when it runs, and that every output of
    /// the model is provided.
    ///
    /// # Errors
    /// A message that names the segment and the input or output at fault.
    pub fn check(&self, spec: &ModelSpec) -> Result<(), String> {
        for (number, segment) in self.segments.iter().enumerate() {
            let checked = Checker { spec, unfolding: self, number, segment }.segment();
            checked.map_err(|fault| format!("segment '{}': {fault}", segment.name))?;
        }
        self.check_chunks()?;
        if self.outputs.len() != spec.outputs.len() {
            return Err(format!("expected an emit for each of {} outputs", spec.outputs.len()));
        }
        let streams = |emitted: &Emitted| self.segments.get(emitted.segment).is_some_and(|segment| segment.streams);
        if spec.decoupled && !self.outputs.iter().all(streams) {
            return Err(
                "a decoupled model answers step by step: expected all outputs from a segment that streams".to_owned()
            );
        }
        Ok(())
    }

    /// Checks that no program that runs several steps at a time runs other nodes too.
    fn check_chunks(&self) -> Result<(), String> {
        for chunked in self.segments.iter().filter(|segment| segment.runs_chunks()) {
            let cell = chunked.types[0].cell;
            let runs = |segment: &&Segment| segment.types.iter().any(|nodes| nodes.cell == cell);
            if let Some(other) = self.segments.iter().filter(runs).find(|segment| !segment.runs_chunks()) {
                let (name, chunked, other) = (&self.cells[cell].name, &chunked.name, &other.name);
                return Err(format!(
                    "segment '{other}': cell '{name}' runs single nodes here, but several steps at a time in \
                     '{chunked}': expected a cell for each"
                ));
            }
        }
        Ok(())
    }

    /// Returns, for each type of a segment, its output with the same name as this output of the first type.
    ///
    /// # Errors
    /// If a type has no such output.
    pub fn outputs_of(&self, segment: &Segment, output: usize) -> Result<SmallVec<[usize; 2]>, String> {
        let mut cells = segment.types.iter().map(|nodes| &self.cells[nodes.cell]);
        let first = cells.next().ok_or("expected nodes of at least one type")?;
        let given = first.outputs.get(output);
        let name = &given.ok_or_else(|| format!("cell '{}' has no output {output}", first.name))?.name;
        let others = cells.map(|cell| {
            let found = cell.outputs.iter().position(|output| output.name == *name);
            found.ok_or_else(|| format!("cell '{}' has no output '{name}'", cell.name))
        });
        std::iter::once(Ok(output)).chain(others).collect()
    }
}

/// Checks one segment.
struct Checker<'a> {
    spec: &'a ModelSpec,
    unfolding: &'a Unfolding,
    number: usize,
    segment: &'a Segment,
}

impl Checker<'_> {
    fn segment(&self) -> Result<(), String> {
        let Self { unfolding, segment, .. } = self;
        let types = segment.types.len();
        if types != if matches!(segment.nodes, Nodes::Tree { .. }) { 2 } else { 1 } {
            return Err(format!("expected nodes of one type, or of two in a tree, but found {types}"));
        }
        for nodes in &segment.types {
            let cell = &unfolding.cells[nodes.cell];
            if nodes.inputs.len() != cell.inputs.len() {
                let (expected, name) = (cell.inputs.len(), &cell.name);
                return Err(format!("expected a source for each of {expected} inputs of cell '{name}'"));
            }
            for (input, source) in cell.inputs.iter().zip(&nodes.inputs) {
                self.input(input, source).map_err(|fault| format!("input '{}': {fault}", input.name))?;
            }
            let of_rows = nodes.inputs.iter().filter(|source| matches!(source, CellInputSource::Rows(_))).count();
            if of_rows > 0 && (of_rows < nodes.inputs.len() || segment.nodes != Nodes::Stage) {
                return Err("expected a single node, all of whose inputs are rows, or none".to_owned());
            }
        }
        for emit in &segment.emits {
            unfolding.outputs_of(segment, emit.output)?;
            if segment.runs_chunks() {
                self.emits_chunks(emit)?;
            }
        }
        let counts = segment.sources().filter(|source| matches!(source, CellInputSource::Steps)).count();
        if counts > 1 {
            return Err(format!("expected one input for the number of steps, but found {counts}"));
        }
        if let Nodes::Decode { until: Some((output, _)), .. } = segment.nodes {
            let given = self.first().outputs.get(output).ok_or("'until' names no output of its cell")?;
            if !is_integer(given) {
                return Err(format!("'until' reads '{}': expected one INT32 or INT64 a row", given.name));
            }
        }
        Ok(())
    }

    /// Checks that an output of a program that runs several steps at a time has what is emitted of it.
    fn emits_chunks(&self, emit: &Emit) -> Result<(), String> {
        let output = &self.first().outputs[emit.output];
        let (name, is_carried) = (&output.name, self.segment.carries(emit.output));
        match (is_carried, emit.which) {
            (true, EmitRange::Last) => Ok(()),
            (true, EmitRange::All) => Err(format!(
                "output '{name}' is carried, so that a run of several steps has only the last of its values: expected \
                 last({name})"
            )),
            (false, _) => takes_steps(output).map_err(|fault| format!("output '{name}' {fault}")),
        }
    }

    fn first(&self) -> &CellSpec {
        &self.unfolding.cells[self.segment.types[0].cell]
    }

    fn input(&self, input: &TensorSpec, source: &CellInputSource) -> Result<(), String> {
        match source {
            CellInputSource::Step { of, .. } => {
                if self.segment.runs_chunks() {
                    takes_steps(input)?;
                }
                self.is_there(*of)
            }
            CellInputSource::Whole(of) | CellInputSource::Rows(of) => self.is_there(*of),
            CellInputSource::Steps if !self.segment.runs_chunks() => {
                Err("takes a number of steps, but the program runs one at a time".to_owned())
            }
            CellInputSource::Steps => takes_length(input),
            CellInputSource::Grown { .. } | CellInputSource::GrownLength if self.segment.runs_chunks() => {
                Err("grows by the step, but the program runs several steps at a time".to_owned())
            }
            CellInputSource::Length(of) => takes_length(input).and_then(|()| self.is_there(*of)),
            CellInputSource::GrownLength => takes_length(input),
            CellInputSource::Grown { output } => {
                let given = self.first().outputs.get(*output).ok_or("grows by no output of its cell")?;
                grows_by(input, given)?;
                self.unfolding.outputs_of(self.segment, *output).map(drop)
            }
            CellInputSource::Control { no, yes, .. } => {
                is_single(input)?;
                is_row(input, "is given", no)?;
                is_row(input, "is given", yes)
            }
            CellInputSource::CorrelationId => {
                use DataType::{Bytes, Int32, Int64, Uint32, Uint64};
                if !matches!(input.datatype, Bytes | Int32 | Int64 | Uint32 | Uint64) {
                    let found = input.datatype;
                    return Err(format!("expected an integer or a string for a correlation id, but it is {found}"));
                }
                is_single(input)
            }
            CellInputSource::Carried { output, start, .. } => {
                let given = self.first().outputs.get(*output).ok_or("carries no output of its cell")?;
                agree(input, given)?;
                match start {
                    Start::Tensor(tensor) => self.is_there(*tensor)?,
                    Start::Row(row) => is_row(input, "starts with", row)?,
                }
                self.unfolding.outputs_of(self.segment, *output).map(drop)
            }
            CellInputSource::Child { output, none, .. } => {
                let outputs = self.unfolding.outputs_of(self.segment, *output)?;
                for (nodes, output) in self.segment.types.iter().zip(outputs) {
                    agree(input, &self.unfolding.cells[nodes.cell].outputs[output])?;
                }
                is_row(input, "reads", none)
            }
        }
    }

    /// Checks that a tensor exists when the segment runs.
    fn is_there(&self, tensor: Tensor) -> Result<(), String> {
        let is_there = match tensor {
            Tensor::Input(input) => input < self.spec.inputs.len(),
            Tensor::Emitted(Emitted { segment, emit }) => {
                segment < self.number && emit < self.unfolding.segments[segment].emits.len()
            }
        };
        if is_there { Ok(()) } else { Err("comes from nothing that is there by then".to_owned()) }
    }
}

fn agree(input: &TensorSpec, output: &TensorSpec) -> Result<(), String> {
    let same = input.datatype == output.datatype && input.dims == output.dims;
    let shown = |tensor: &TensorSpec| format!("{} {:?}", tensor.datatype, tensor.dims.as_slice());
    if same { Ok(()) } else { Err(format!("is {}, but '{}' is {}", shown(input), output.name, shown(output))) }
}

/// Returns whether a tensor has one INT32 or INT64 per row.
fn is_integer(tensor: &TensorSpec) -> bool {
    matches!(tensor.datatype, DataType::Int32 | DataType::Int64) && element_count(&tensor.dims) == Some(1)
}

fn takes_length(input: &TensorSpec) -> Result<(), String> {
    if is_integer(input) { Ok(()) } else { Err("expected one INT32 or INT64 for a length".to_owned()) }
}

/// Checks that a tensor of a program that runs several steps at a time has them as its first axis.
fn takes_steps(tensor: &TensorSpec) -> Result<(), String> {
    if tensor.dims.first() == Some(&-1) {
        return Ok(());
    }
    let found = tensor.dims.as_slice();
    Err(format!("has the dims {found:?} without the batch: expected steps as the first of them, which varies"))
}

/// Checks that an input has one element per row.
fn is_single(input: &TensorSpec) -> Result<(), String> {
    if element_count(&input.dims) == Some(1) {
        return Ok(());
    }
    Err(format!("expected one element a row, but it has the dims {:?}", input.dims.as_slice()))
}

/// Checks that bytes have the size of a row of an input.
fn is_row(input: &TensorSpec, what: &str, bytes: &[u8]) -> Result<(), String> {
    let elements =
        element_count(&input.dims).ok_or("expected fixed dims for what is carried or comes from children")?;
    let expected = elements.saturating_mul(input.datatype.size_bytes().unwrap_or(0));
    if bytes.len() == expected { Ok(()) } else { Err(format!("{what} {} bytes, expected {expected}", bytes.len())) }
}

/// Checks that an input can hold concatenated rows of an output: its first axis varies, and the others are those of the
/// output.
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

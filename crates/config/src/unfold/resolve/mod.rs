//! Replaces the names of programs' inputs and outputs by numbers, once the programs are known.

use std::cell::Cell;

use bytes::Bytes;
use paternoster_model::{
    DataType, ModelSpec, TensorSpec, element_count,
    unfold::{CellInputSource, CellSpec, Emit, EmitRange, NodeType, Nodes, Segment, Start, Tensor, Unfolding},
};

use super::{CellPorts, Constant, SegmentRequest, SourceRequest, UnfoldRequest, answer};
use crate::{ConfigErrorKind, SettingError, nearest::suggestion};

/// Maximum bytes of the rows of a version that are the same for all requests.
const MAX_CONSTANT_BYTES: usize = 1 << 30;

impl UnfoldRequest {
    /// Resolves all names. `cells` are the ports of the programs, in the order of [`Self::cells`]; `spec` has the
    /// inputs of the configuration in their order.
    ///
    /// # Errors
    /// Rejects an input without a source, names of ports that do not exist, and datatypes that differ. Each error names
    /// the segment or output. Dims are not checked.
    pub fn resolve(&self, spec: &ModelSpec, cells: &[CellPorts]) -> Result<Unfolding, SettingError> {
        if cells.len() != self.cells.len() {
            let message = format!("expected the ports of {} programs, but found {}", self.cells.len(), cells.len());
            return Err(SettingError::new(ConfigErrorKind::Graph, message));
        }
        // A single node reads tensors of the request as they are, and its outputs are the response.
        let is_single = matches!(&self.segments[..], [segment] if segment.nodes == Nodes::Stage
            && !segment.sources.values().any(|source| matches!(source, CellInputSource::Rows(_))));
        for (cell, ports) in self.cells.iter().zip(cells).filter(|_| !is_single) {
            let mut tensors = ports.inputs.iter().chain(&ports.outputs);
            if let Some(tensor) = tensors.find(|tensor| tensor.datatype == DataType::Bytes) {
                let message = format!("'{}' is BYTES, which cells cannot hand on", tensor.name);
                return Err(SettingError::new(ConfigErrorKind::Graph, message).at(format!("cell '{}'", cell.name)));
            }
        }
        let named: Vec<SegmentRequest> =
            self.segments.iter().map(|segment| with_answers(segment, spec, cells)).collect();
        let mut resolver = Resolver {
            request: self,
            spec,
            cells,
            named: &named,
            emitted: Vec::new(),
            left: Cell::new(MAX_CONSTANT_BYTES),
        };
        let mut segments = Vec::with_capacity(named.len());
        for segment in &named {
            let resolved = resolver.segment(segment);
            segments.push(resolved.map_err(|fault| fault.at(format!("segment '{}'", segment.name)))?);
        }
        let mut outputs = Vec::with_capacity(spec.outputs.len());
        for output in &spec.outputs {
            let answer = answer(&named, &output.name)?;
            let emitted = answer.ok_or_else(|| {
                SettingError::new(ConfigErrorKind::Graph, format!("expected a segment to emit '{}'", output.name))
            })?;
            let given = resolver.datatype(Tensor::Emitted(emitted));
            agree(output, given).map_err(|fault| fault.prefixed(format_args!("output ")))?;
            outputs.push(emitted);
        }
        let cells = self.cells.iter().zip(cells).map(|(cell, ports)| CellSpec {
            name: cell.name.clone(),
            inputs: ports.inputs.clone(),
            outputs: ports.outputs.clone(),
            max_rows: cell.max_rows(),
            min_followup: cell.min_followup(),
            priority: cell.priority,
        });
        Ok(Unfolding { cells: cells.collect(), segments, outputs, limits: self.limits.clone() })
    }
}

/// A stage without `emit` also emits the outputs of its cell that are outputs of the model.
fn with_answers(segment: &SegmentRequest, spec: &ModelSpec, cells: &[CellPorts]) -> SegmentRequest {
    let mut named = segment.clone();
    if segment.emits_all {
        let answers = cells[segment.cells[0]].outputs.iter().filter(|output| {
            let is_new = named.emits.iter().all(|emit| emit.name != output.name);
            is_new && spec.outputs.iter().any(|answered| answered.name == output.name)
        });
        let emit = |output: &TensorSpec| {
            let name = output.name.clone();
            Emit { output: name.clone(), name, which: EmitRange::Last }
        };
        let answers: Vec<Emit<String>> = answers.map(emit).collect();
        named.emits.extend(answers);
    }
    named
}

struct Resolver<'r> {
    request: &'r UnfoldRequest,
    spec: &'r ModelSpec,
    cells: &'r [CellPorts],
    /// The segments with all their emits.
    named: &'r [SegmentRequest],
    /// The datatypes of what the segments so far emit, by segment and emit.
    emitted: Vec<Vec<DataType>>,
    /// Bytes that further constants may take.
    left: Cell<usize>,
}

impl Resolver<'_> {
    fn segment(&mut self, request: &SegmentRequest) -> Result<Segment, SettingError> {
        for input in request.sources.keys() {
            if !request.cells.iter().any(|cell| self.cells[*cell].inputs.iter().any(|own| own.name == *input)) {
                return Err(self.no_port(&request.cells, "input", input));
            }
        }
        self.check_emits(request)?;
        let first = request.cells[0];
        let nodes = match request.nodes.clone() {
            Nodes::Stage => Nodes::Stage,
            Nodes::Chain { steps, chunks } => Nodes::Chain { steps, chunks },
            Nodes::Decode { max_steps, until, expected_steps } => {
                let until = until.map(|(output, value)| Ok::<_, SettingError>((self.output(first, &output)?, value)));
                Nodes::Decode { max_steps, until: until.transpose()?, expected_steps }
            }
            Nodes::Tree { children, max_nodes } => Nodes::Tree { children, max_nodes },
        };
        let types = request.cells.iter().map(|&cell| Ok(NodeType { cell, inputs: self.inputs(request, cell)? }));
        let types = types.collect::<Result<_, SettingError>>()?;
        let emits = request.emits.iter().map(|Emit { name, output, which }| {
            Ok(Emit { name: name.clone(), output: self.output(first, output)?, which: *which })
        });
        let emits = emits.collect::<Result<Vec<Emit>, SettingError>>()?;
        self.emitted.push(emits.iter().map(|emit| self.cells[first].outputs[emit.output].datatype).collect());
        Ok(Segment { name: request.name.clone(), types, nodes, emits, streams: request.streams })
    }

    /// Checks that leaves and inner nodes emit values of one datatype under one name.
    fn check_emits(&self, request: &SegmentRequest) -> Result<(), SettingError> {
        for emit in &request.emits {
            let mut given: Option<&TensorSpec> = None;
            for &cell in &request.cells {
                let output = &self.cells[cell].outputs[self.output(cell, &emit.output)?];
                if let Some(other) = given {
                    agree(other, output.datatype).map_err(|fault| format!("output {fault} of another cell"))?;
                }
                given = Some(output);
            }
        }
        Ok(())
    }

    /// Resolves the source of each input of a cell.
    fn inputs(&self, request: &SegmentRequest, cell: usize) -> Result<Vec<CellInputSource>, SettingError> {
        let inputs = self.cells[cell].inputs.iter().map(|input| match request.sources.get(&input.name) {
            Some(source) => self.source(request, cell, input, source),
            None => self.unnamed(request, cell, input),
        });
        inputs.collect()
    }

    /// Resolves the source of an input that the segment does not name: in a stage, the model's input of the same name.
    fn unnamed(
        &self,
        request: &SegmentRequest,
        cell: usize,
        input: &TensorSpec,
    ) -> Result<CellInputSource, SettingError> {
        let maps = match request.nodes {
            Nodes::Stage => "over, inputs, keep, length, control",
            Nodes::Chain { chunks: true, .. } => "over, carry, keep, hold, length, control, chunk.lengths",
            Nodes::Chain { .. } => "over, carry, keep, grow, hold, length, control",
            Nodes::Decode { .. } => "carry, feed, keep, grow, hold, length, control",
            Nodes::Tree { .. } => "over, hold, length, control, child",
        };
        let has_over = request.sources.values().any(|source| matches!(source, CellInputSource::Rows(_)));
        let takes_whole = request.nodes == Nodes::Stage && !has_over;
        let own = self.spec.inputs.iter().position(|own| takes_whole && own.name == input.name);
        let own = own.ok_or_else(|| {
            let name = &self.request.cells[cell].name;
            let message =
                format!("nothing gives the input '{}' of the cell '{name}': expected it in one of {maps}", input.name);
            SettingError::new(ConfigErrorKind::Graph, message)
        })?;
        self.read(input, Tensor::Input(own)).map(CellInputSource::Whole)
    }

    fn source(
        &self,
        request: &SegmentRequest,
        cell: usize,
        input: &TensorSpec,
        source: &SourceRequest,
    ) -> Result<CellInputSource, SettingError> {
        Ok(match source {
            CellInputSource::Step { of, reversed } => {
                CellInputSource::Step { of: self.read(input, *of)?, reversed: *reversed }
            }
            CellInputSource::Rows(of) => CellInputSource::Rows(self.read(input, *of)?),
            CellInputSource::Whole(tensor) => CellInputSource::Whole(self.read(input, *tensor)?),
            CellInputSource::Length(tensor) => CellInputSource::Length(*tensor),
            CellInputSource::Steps => CellInputSource::Steps,
            CellInputSource::Carried { output, start, is_kept } => {
                let output = self.handed_on(cell, input, output)?;
                let start = match start {
                    Start::Row(constant) => Start::Row(self.row(input, constant)?),
                    Start::Tensor(tensor) => Start::Tensor(self.read(input, *tensor)?),
                };
                CellInputSource::Carried { output, start, is_kept: *is_kept }
            }
            CellInputSource::Control { control, no, yes } => {
                CellInputSource::Control { control: *control, no: self.row(input, no)?, yes: self.row(input, yes)? }
            }
            CellInputSource::CorrelationId => CellInputSource::CorrelationId,
            CellInputSource::Grown { output } => {
                CellInputSource::Grown { output: self.handed_on(cell, input, output)? }
            }
            CellInputSource::GrownLength => CellInputSource::GrownLength,
            CellInputSource::Child { child, output, none } => {
                for &cell in &request.cells {
                    self.handed_on(cell, input, output)?;
                }
                let output = self.output(request.cells[0], output)?;
                CellInputSource::Child { child: *child, output, none: self.row(input, none)? }
            }
        })
    }

    /// Creates the row of an input from a constant. If the input's dims vary, the row is empty, and
    /// [`Unfolding::check`] rejects it.
    fn row(&self, input: &TensorSpec, constant: &Constant) -> Result<Bytes, SettingError> {
        let value = match constant {
            Constant::Elements(elements) => return Ok(elements.clone()),
            Constant::Value(value) => *value,
        };
        let (element, count) = (input.datatype.element(value), element_count(&input.dims).unwrap_or(0));
        let left = count.checked_mul(element.len()).and_then(|bytes| self.left.get().checked_sub(bytes));
        self.left.set(left.ok_or_else(|| {
            let TensorSpec { name, datatype, dims, .. } = input;
            format!(
                "input '{name}': expected at most {MAX_CONSTANT_BYTES} bytes for all starts, controls and missing \
                 children together, but with {datatype} {:?} it is more",
                dims.as_slice()
            )
        })?);
        Ok(element.repeat(count).into())
    }

    /// Checks that a tensor has the datatype of the input that reads it.
    fn read(&self, input: &TensorSpec, tensor: Tensor) -> Result<Tensor, SettingError> {
        agree(input, self.datatype(tensor)).map_err(|fault| format!("input {fault} of '{}'", self.name(tensor)))?;
        Ok(tensor)
    }

    fn name(&self, tensor: Tensor) -> String {
        match tensor {
            Tensor::Input(input) => self.spec.inputs[input].name.clone(),
            Tensor::Emitted(emitted) => {
                let segment = &self.named[emitted.segment];
                format!("{}.{}", segment.name, segment.emits[emitted.emit].name)
            }
        }
    }

    fn datatype(&self, tensor: Tensor) -> DataType {
        match tensor {
            Tensor::Input(input) => self.spec.inputs[input].datatype,
            Tensor::Emitted(emitted) => self.emitted[emitted.segment][emitted.emit],
        }
    }

    /// Finds an output that an input of a later node reads.
    fn handed_on(&self, cell: usize, input: &TensorSpec, name: &str) -> Result<usize, SettingError> {
        let output = self.output(cell, name)?;
        agree(input, self.cells[cell].outputs[output].datatype)
            .map_err(|fault| fault.prefixed(format_args!("input ")))?;
        Ok(output)
    }

    fn output(&self, cell: usize, name: &str) -> Result<usize, SettingError> {
        let found = self.cells[cell].outputs.iter().position(|output| output.name == name);
        found.ok_or_else(|| self.no_port(&[cell], "output", name))
    }

    /// The error about a name that is none of the inputs or outputs of some cells.
    fn no_port(&self, cells: &[usize], what: &str, name: &str) -> SettingError {
        let mut known: Vec<&str> = Vec::new();
        let mut names: Vec<String> = Vec::new();
        for &cell in cells {
            let ports = &self.cells[cell];
            let ports = if what == "input" { &ports.inputs } else { &ports.outputs };
            known.extend(ports.iter().map(|port| port.name.as_str()));
            names.push(format!("'{}'", self.request.cells[cell].name));
        }
        let hint = suggestion(name, known.iter().copied());
        let what = format!("an {what} of {}: {}", names.join(" or "), known.join(", "));
        let fault = SettingError::expected(&what, format_args!("'{name}'{hint}"));
        SettingError { kind: ConfigErrorKind::Unknown, ..fault }
    }
}

fn agree(tensor: &TensorSpec, given: DataType) -> Result<(), SettingError> {
    if tensor.datatype == given {
        return Ok(());
    }
    let message = format!("'{}' is {}, but gets {given}", tensor.name, tensor.datatype);
    Err(SettingError::new(ConfigErrorKind::Graph, message))
}

#[cfg(test)]
pub(crate) mod tests;

//! An ONNX graph compiled by OpenVINO for the CPU.

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};

use bytes::Bytes;
use paternoster_model::{DataType, Dims, IndexRange, element_count};
use paternoster_onnx::{SealedModel, index_ranges, wide_integer};
use sha2::{Digest, Sha256};
use smallvec::SmallVec;

use super::{
    compiled::{Compiled, GraphPort, hint},
    graph::{CompiledGraph, Source},
    library::OpenVino,
    requests::Taken,
    tensor::{Tensor, element_type},
};
use crate::{
    Batch, BatchInput, BatchOutput, EngineError, EngineErrorKind, Execution, Precision, Program, ProgramPort,
    SMALL_MODEL_BYTES,
    sessions::Origin,
    target::{InPlace, Target, handed_on},
};

/// Lengths are rounded up to multiples of this. OpenVINO generates code for each new shape, which takes longer than
/// several runs. With at most 512 tokens, there are then 64 lengths.
const LENGTH_STEP: u32 = 8;

/// A compiled graph, shared by all lanes and by all programs of the same graph and precision.
pub struct OpenVinoProgram {
    graph: Arc<CompiledGraph>,
    /// In the order of the program; `None` for an input that the graph does not use.
    inputs: Vec<(Port, Option<usize>)>,
    outputs: Vec<Output>,
    /// Why no run can succeed, if the program was compiled without inputs that the graph has.
    missing_input: Option<EngineError>,
    /// Range of valid indices, by input; `None` for an input that indexes nothing.
    index_ranges: Vec<Option<IndexRange>>,
    steady: bool,
    /// The least preferred length that the graph has refused; `u32::MAX` if it has refused none.
    refused_length: AtomicU32,
    origin: Origin,
}

struct Port {
    name: String,
    datatype: DataType,
}

struct Output {
    port: Port,
    /// Its place among the graph's ports.
    index: usize,
    /// The program's input that it is, if OpenVINO passes one on. Nothing may be bound to it then: OpenVINO would take
    /// that for the input.
    passed_on: Option<usize>,
    in_place: InPlace,
    /// Its shape, if it is the same in every run.
    fixed: Option<Dims>,
}

impl OpenVinoProgram {
    /// Compiles a whole model or one stage with these inputs and outputs, in this order. If the processor does not
    /// support the precision, OpenVINO computes in fp32 and a warning is logged.
    ///
    /// # Errors
    /// Fails if the library is missing, if OpenVINO rejects the model (the message names the operator), if its external
    /// weights cannot be read or make it too large, if a tensor has an unsupported type, if a constant has more bits
    /// than OpenVINO computes with, if the model lacks one of the inputs or outputs or has it with another type, or if
    /// it needs an input that is not among them.
    pub fn compile_sealed(
        openvino: &OpenVino,
        precision: Precision,
        model: &SealedModel,
        inputs: &[ProgramPort<'_>],
        outputs: &[ProgramPort<'_>],
    ) -> Result<Self, EngineError> {
        let loaded = openvino.loaded()?;
        for (kind, ports) in [("input", inputs), ("output", outputs)] {
            let refused = |port: &ProgramPort<'_>| refusal(port.datatype).map(|reason| (port.name.to_owned(), reason));
            if let Some((name, reason)) = ports.iter().find_map(refused) {
                return Err(EngineError::new(format!("{kind} '{name}' holds {reason}")));
            }
        }
        if let Some((name, value)) = wide_integer(model.model()) {
            return Err(EngineError::new(format!(
                "the constant '{name}' has the element {value}, which the engine openvino would cut to 32 bits"
            )));
        }
        let graph = model.to_whole_bytes().map_err(|error| EngineError::new(error.to_string()))?;
        // The hash identifies everything that the compiled graph depends on, so that programs with equal hashes share
        // it.
        let mut hash = Sha256::new();
        hash.update(b"openvino");
        hash.update(hint(precision).to_bytes_with_nul());
        hash.update(&graph);
        let origin = hash.finalize().into();
        let known = index_ranges(&graph);
        let source = Source { graph: &graph, precision, threads: openvino.threads(), lanes: openvino.lanes() };
        let compiled = loaded.graphs.of(origin, || CompiledGraph::new(&loaded.core, &loaded.running, &source))?;
        let graph_ports = compiled.ports();
        let Compiled { inputs: taken, outputs: given, .. } = graph_ports;
        let (declared, made) = (model.inputs(), model.outputs());
        let places = graph_ports.places_of(&declared)?;
        let in_graph = |&port: &ProgramPort<'_>| {
            let at = declared.iter().position(|input| input.name == port.name);
            let at =
                at.ok_or_else(|| lacks("input", port.name, &declared.iter().map(|it| it.name).collect::<Vec<_>>()))?;
            match places[at] {
                Some(index) => fits("input", &port, &taken[index]).map(|()| (Port::new(port), Some(index))),
                None if declared[at].has_default => Err(EngineError::new(format!(
                    "input '{}' has a default in the graph, which the engine openvino takes for a constant",
                    port.name
                ))),
                None => Ok((Port::new(port), None)),
            }
        };
        let own_inputs: Vec<(Port, Option<usize>)> = inputs.iter().map(in_graph).collect::<Result<_, _>>()?;
        let fed = |index: usize| own_inputs.iter().position(|(_, own)| *own == Some(index));
        let missing_input = (0..taken.len()).find(|index| fed(*index).is_none()).map(|missing| {
            let at = places.iter().position(|place| *place == Some(missing));
            let name = at.map_or(taken[missing].name.as_str(), |at| declared[at].name);
            EngineError::new(format!("input '{name}' of the graph is not among those of the model"))
        });
        // Without any inputs, the graph is compiled to find out whether it can be.
        if let Some(missing) = missing_input.clone().filter(|_| !inputs.is_empty()) {
            return Err(missing);
        }
        let of_graph = |&port: &ProgramPort<'_>| {
            let at = made.iter().position(|output| *output == port.name);
            let index = at.map(|at| graph_ports.output(port.name, at, made.len())).transpose()?.flatten();
            let index = index.ok_or_else(|| lacks("output", port.name, &made))?;
            fits("output", &port, &given[index])?;
            let passed_on = graph_ports.passed_on(index)?.and_then(fed);
            let in_place = if passed_on.is_some() { InPlace::never() } else { InPlace::proven() };
            Ok(Output { port: Port::new(port), index, passed_on, in_place, fixed: given[index].fixed.clone() })
        };
        Ok(Self {
            outputs: outputs.iter().map(of_graph).collect::<Result<_, EngineError>>()?,
            inputs: own_inputs,
            missing_input,
            index_ranges: inputs.iter().map(|port| accepted(port, known.get(port.name).copied())).collect(),
            steady: graph.len() <= SMALL_MODEL_BYTES && model.model().is_straight_line(),
            refused_length: AtomicU32::new(u32::MAX),
            graph: compiled,
            origin,
        })
    }
}

impl Port {
    fn new(port: ProgramPort<'_>) -> Self {
        Self { name: port.name.to_owned(), datatype: port.datatype }
    }
}

/// Returns why this engine does not accept a datatype, if it does not. On the CPU, OpenVINO computes integers in 32
/// bits and floats in at most fp32. INT64 is accepted nonetheless: most models use it for indices and lengths, which
/// fit.
fn refusal(datatype: DataType) -> Option<&'static str> {
    match datatype {
        DataType::Bytes => Some("strings, which the engine openvino does not take"),
        DataType::Fp64 => Some("FP64, which the engine openvino would compute in fp32"),
        DataType::Uint32 => Some("UINT32, which the engine openvino would compute in INT32"),
        DataType::Uint64 => Some("UINT64, which the engine openvino would compute in INT32"),
        _ => None,
    }
}

/// Returns the range of the elements that an input may have. `indices` is that of its indices, if it indexes tables.
fn accepted(port: &ProgramPort<'_>, indices: Option<IndexRange>) -> Option<IndexRange> {
    match port.datatype {
        DataType::Int64 => Some(indices.map_or(IndexRange::INT32, |indices| indices.meet(IndexRange::INT32))),
        _ => indices,
    }
}

fn lacks(kind: &str, name: &str, has: &[&str]) -> EngineError {
    EngineError::new(format!("the graph has no {kind} '{name}', it has {has:?}"))
}

fn fits(kind: &str, port: &ProgramPort<'_>, graph: &GraphPort) -> Result<(), EngineError> {
    if element_type(port.datatype) == Some(graph.element) {
        return Ok(());
    }
    let found = DataType::ALL.into_iter().find(|datatype| element_type(*datatype) == Some(graph.element));
    let found = found.map_or_else(|| format!("of element type {}", graph.element), |datatype| datatype.to_string());
    let (name, wanted) = (port.name, port.datatype);
    Err(EngineError::new(format!("{kind} '{name}' is {wanted} in the configuration but {found} in the graph")))
}

impl Program for OpenVinoProgram {
    fn run(&self, batch: &Batch<'_>) -> Result<Execution, EngineError> {
        self.run_into(batch, &mut [])
    }

    fn run_into(&self, batch: &Batch<'_>, given: &mut [Option<&mut [u8]>]) -> Result<Execution, EngineError> {
        if let Some(missing) = &self.missing_input {
            return Err(missing.clone());
        }
        let api = self.graph.api();
        let mut inputs: SmallVec<[(usize, Tensor<'_>); 8]> = SmallVec::new();
        for ((port, index), input) in self.inputs.iter().zip(batch.inputs) {
            let Some(index) = *index else { continue };
            let BatchInput::Dense { shape, data } = input else {
                let name = &port.name;
                return Err(EngineError::new(format!(
                    "input '{name}' is left out, which the engine openvino does not allow"
                )));
            };
            // Admission checks the requests' elements; these may also be another program's.
            if port.datatype == DataType::Int64
                && let Some((_, found)) = IndexRange::INT32.first_outside(port.datatype, data)
            {
                let name = &port.name;
                return Err(EngineError::new(format!(
                    "input '{name}' has the element {found}, which the engine openvino would cut to 32 bits"
                )));
            }
            inputs.push((index, Tensor::over(api, port.datatype, shape, data)?));
        }
        let mut targets: SmallVec<[Target<'_>; 4]> = SmallVec::new();
        let mut given = given.iter_mut();
        for (Output { port, in_place, fixed, .. }, shape) in self.outputs.iter().zip(batch.output_shapes) {
            let memory = given.next().and_then(Option::as_deref_mut);
            if let (Some(_), Some(fixed), Some(expected)) = (&memory, fixed, shape)
                && fixed != expected
            {
                return Err(other_shape(&port.name, fixed, expected));
            }
            let shape = fixed.as_ref().or(shape.as_ref());
            targets.push(Target::of((&port.name, port.datatype), in_place, shape, memory, batch)?);
        }
        // Everything above needs no infer request, so it is done before a stream is occupied.
        let (mut request, run) = self.graph.begin_run(batch.stop)?;
        for (index, tensor) in &inputs {
            request.bind_input(*index, tensor)?;
        }
        let outputs = match self.execute(&mut request, &mut targets, batch)? {
            Some(outputs) => outputs,
            None => self.execute_undeclared(&mut request, &mut targets, batch)?,
        };
        // Returns the infer request before the outputs are handed on, so that the next run can start.
        drop((request, run));
        Ok(Execution { outputs, ..Execution::default() })
    }

    fn index_ranges(&self) -> &[Option<IndexRange>] {
        &self.index_ranges
    }

    fn is_steady(&self) -> bool {
        self.steady
    }

    fn preferred_length(&self, length: u32) -> u32 {
        let preferred = length.checked_next_multiple_of(LENGTH_STEP).unwrap_or(length);
        if preferred < self.refused_length.load(Ordering::Relaxed) { preferred } else { length }
    }

    fn refuse_length(&self, length: u32) {
        self.refused_length.fetch_min(length, Ordering::Relaxed);
    }

    fn origin(&self) -> Option<[u8; 32]> {
        Some(self.origin)
    }
}

impl OpenVinoProgram {
    /// Runs with the bound inputs. Returns `None` if an output in the pool's memory has another shape than expected.
    fn execute(
        &self,
        request: &mut Taken<'_>,
        targets: &mut SmallVec<[Target<'_>; 4]>,
        batch: &Batch<'_>,
    ) -> Result<Option<Vec<BatchOutput>>, EngineError> {
        let api = self.graph.api();
        let can_go_on = targets.iter().any(|target| matches!(target, Target::Ours(..)));
        let mut owned: SmallVec<[Option<Tensor<'static>>; 4]> = SmallVec::new();
        let mut over: SmallVec<[Option<Tensor<'_>>; 4]> = SmallVec::new();
        for (Output { port, passed_on, .. }, target) in self.outputs.iter().zip(targets.iter_mut()) {
            let memory = match target {
                Target::Given(shape, memory) => Some((&*shape, &mut **memory)),
                Target::Ours(shape, buffer) => Some((&*shape, buffer.as_mut_slice())),
                Target::Engine { .. } => None,
            };
            let is_owned = memory.is_none() && passed_on.is_none();
            owned.push(is_owned.then(|| Tensor::empty(api, port.datatype)).transpose()?);
            let tensor = memory.map(|(shape, memory)| Tensor::over_mut(api, port.datatype, shape, memory));
            over.push(tensor.transpose()?);
        }
        let tensors = || over.iter().zip(&owned).map(|(over, owned)| over.as_ref().or(owned.as_ref()));
        let bound = self.outputs.iter().zip(tensors());
        let bound = bound.filter_map(|(output, tensor)| Some(request.bind_output(output.index, tensor?)));
        let bound = bound.collect::<Result<(), _>>();
        // SAFETY: the inputs' tensors live in the caller and the outputs' here. All ports are bound: no input of the
        // graph is missing, and an output without a tensor is an input.
        let ran = bound.and_then(|()| unsafe { request.run(batch.stop) });
        match ran {
            Err(error) if can_go_on && error.kind == EngineErrorKind::OtherShape => return Ok(None),
            ran => ran?,
        }
        let shapes = tensors().map(|tensor| tensor.map(Tensor::shape).transpose());
        let shapes = shapes.collect::<Result<SmallVec<[Option<Dims>; 4]>, _>>()?;
        // Ends the borrows of the output memory, which moves into the results below.
        drop(over);
        for ((output, target), shape) in self.outputs.iter().zip(targets.iter()).zip(&shapes) {
            match (target, shape) {
                (Target::Ours(declared, _), Some(shape)) if declared != shape => return Ok(None),
                (Target::Given(declared, _), Some(shape)) if declared != shape => {
                    return Err(other_shape(&output.port.name, shape, declared));
                }
                _ => {}
            }
        }
        let outputs = self.outputs.iter().zip(targets.drain(..)).zip(owned).zip(shapes);
        let outputs = outputs.map(|(((output, target), owned), shape)| {
            let (expected, copied_to) = match target {
                Target::Given(shape, _) => return Ok(BatchOutput { shape, data: Bytes::new() }),
                Target::Ours(shape, buffer) => return Ok(BatchOutput { shape, data: buffer.freeze() }),
                Target::Engine { expected, copied_to } => (expected, copied_to),
            };
            let made = output.made(owned.zip(shape), batch)?;
            output.in_place.learn(expected.as_ref(), &made, output.passed_on.is_some());
            handed_on(&output.port.name, made, expected.as_ref(), copied_to)
        });
        outputs.collect::<Result<_, EngineError>>().map(Some)
    }

    /// Runs again with outputs that OpenVINO allocates, after a run whose outputs did not have the declared shapes.
    fn execute_undeclared(
        &self,
        request: &mut Taken<'_>,
        targets: &mut SmallVec<[Target<'_>; 4]>,
        batch: &Batch<'_>,
    ) -> Result<Vec<BatchOutput>, EngineError> {
        for (output, target) in self.outputs.iter().zip(targets.iter_mut()) {
            if output.fixed.is_none() {
                target.leave_to_engine();
            }
        }
        let outputs = self.execute(request, targets, batch)?;
        outputs.ok_or_else(|| EngineError::new("the outputs have no shape"))
    }
}

impl Output {
    /// Takes over an output that OpenVINO allocated or passed on.
    fn made(&self, allocated: Option<(Tensor<'static>, Dims)>, batch: &Batch<'_>) -> Result<BatchOutput, EngineError> {
        let name = &self.port.name;
        if let Some((tensor, shape)) = allocated {
            let bytes = element_count(&shape).and_then(|count| count.checked_mul(self.port.datatype.size_bytes()?));
            let bytes = bytes.ok_or_else(|| EngineError::new(format!("output '{name}' has the shape {shape:?}")))?;
            return Ok(BatchOutput { shape, data: tensor.into_bytes(bytes)? });
        }
        match self.passed_on.and_then(|input| batch.inputs.get(input)) {
            Some(BatchInput::Dense { shape, data }) => {
                Ok(BatchOutput { shape: Dims::from_slice(shape), data: Bytes::copy_from_slice(data) })
            }
            _ => Err(EngineError::new(format!("the graph did not compute output '{name}'"))),
        }
    }
}

fn other_shape(name: &str, found: &Dims, expected: &Dims) -> EngineError {
    EngineError::new(format!("output '{name}' has the shape {found:?}, expected {expected:?}"))
}

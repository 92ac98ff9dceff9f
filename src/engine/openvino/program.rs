//! An ONNX graph compiled by OpenVINO for the CPU.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU32, Ordering},
};

use bytes::Bytes;
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
    engine::{
        Batch, BatchInput, BatchOutput, EngineError, Execution, Precision, Program, ProgramPort, SMALL_MODEL_BYTES,
        sessions::Origin, target::Target,
    },
    model::{DataType, Dims, IndexRange, element_count},
    onnx::{SealedModel, index_ranges},
};

/// Lengths are rounded up to multiples of this. OpenVINO generates code for each new shape, which takes longer than
/// several runs. With at most 512 tokens, there are then 64 lengths.
const LENGTH_STEP: u32 = 8;

/// A compiled graph, shared by all lanes and by all programs of the same graph and precision.
pub struct OpenVinoProgram {
    graph: Arc<CompiledGraph>,
    /// In the order of the program; `None` for an input that the graph does not use.
    inputs: Vec<(Port, Option<usize>)>,
    outputs: Vec<(Port, usize)>,
    /// An input of the graph that is not an input of the program, so that no run can succeed.
    missing_input: Option<String>,
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
    /// Whether a run gave the output another shape than declared. From then on, OpenVINO allocates it.
    differs: AtomicBool,
}

impl OpenVinoProgram {
    /// Compiles a whole model or one stage with these inputs and outputs, in this order. If the processor does not
    /// support the precision, OpenVINO computes in fp32 and a warning is logged.
    ///
    /// # Errors
    /// Fails if the library is missing, if OpenVINO rejects the model (the message names the operator), if its external
    /// weights cannot be read or make it too large, if a tensor has an unsupported type, or if the model lacks one of
    /// the inputs or outputs or has it with another type.
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
                return Err(EngineError(format!("{kind} '{name}' holds {reason}")));
            }
        }
        let graph = model.to_whole_bytes().map_err(|error| EngineError(error.to_string()))?;
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
        let in_graph = |&port: &ProgramPort<'_>| {
            let at = declared.iter().position(|input| input.name == port.name);
            let Some(index) = graph_ports.input(port.name, at)? else {
                return match declared.iter().find(|input| input.name == port.name) {
                    Some(input) if input.has_default => Err(EngineError(format!(
                        "input '{}' has a default in the graph, which the engine openvino takes for a constant",
                        port.name
                    ))),
                    Some(_) => Ok((Port::new(port), None)),
                    None => Err(lacks("input", port.name, &declared.iter().map(|it| it.name).collect::<Vec<_>>())),
                };
            };
            fits("input", &port, &taken[index]).map(|()| (Port::new(port), Some(index)))
        };
        let of_graph = |&port: &ProgramPort<'_>| {
            let at = made.iter().position(|output| *output == port.name);
            let index = graph_ports.output(port.name, at)?;
            let index = index.ok_or_else(|| lacks("output", port.name, &made))?;
            fits("output", &port, &given[index]).map(|()| (Port::new(port), index))
        };
        // OpenVINO removes inputs that nothing reads, so an input of the graph may have no port.
        let own_inputs: Vec<(Port, Option<usize>)> = inputs.iter().map(in_graph).collect::<Result<_, _>>()?;
        let is_fed = |index: usize| own_inputs.iter().any(|(_, own)| *own == Some(index));
        let missing_input = (0..taken.len()).find(|index| !is_fed(*index)).map(|index| taken[index].name.clone());
        Ok(Self {
            inputs: own_inputs,
            outputs: outputs.iter().map(of_graph).collect::<Result<_, _>>()?,
            missing_input,
            index_ranges: inputs.iter().map(|port| known.get(port.name).copied()).collect(),
            steady: graph.len() <= SMALL_MODEL_BYTES && model.model().is_straight_line(),
            refused_length: AtomicU32::new(u32::MAX),
            graph: compiled,
            origin,
        })
    }
}

impl Port {
    fn new(port: ProgramPort<'_>) -> Self {
        Self { name: port.name.to_owned(), datatype: port.datatype, differs: AtomicBool::new(false) }
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

fn lacks(kind: &str, name: &str, has: &[&str]) -> EngineError {
    EngineError(format!("the graph has no {kind} '{name}', it has {has:?}"))
}

fn fits(kind: &str, port: &ProgramPort<'_>, graph: &GraphPort) -> Result<(), EngineError> {
    if element_type(port.datatype) == Some(graph.element) {
        return Ok(());
    }
    let found = DataType::ALL.into_iter().find(|datatype| element_type(*datatype) == Some(graph.element));
    let found = found.map_or_else(|| format!("of element type {}", graph.element), |datatype| datatype.to_string());
    let (name, wanted) = (port.name, port.datatype);
    Err(EngineError(format!("{kind} '{name}' is {wanted} in the configuration but {found} in the graph")))
}

/// Returns whether a run failed because an output does not have the shape of the memory provided.
fn is_other_shape(error: &EngineError) -> bool {
    ["Could set new shape", "Can't set the output tensor"].iter().any(|text| error.0.contains(text))
}

impl Program for OpenVinoProgram {
    fn run(&self, batch: &Batch<'_>) -> Result<Execution, EngineError> {
        self.run_into(batch, &mut [])
    }

    fn run_into(&self, batch: &Batch<'_>, given: &mut [Option<&mut [u8]>]) -> Result<Execution, EngineError> {
        if let Some(input) = &self.missing_input {
            return Err(EngineError(format!("input '{input}' of the graph is not among those of the model")));
        }
        let api = self.graph.api();
        let mut inputs: SmallVec<[(usize, Tensor<'_>); 8]> = SmallVec::new();
        for ((port, index), input) in self.inputs.iter().zip(batch.inputs) {
            let Some(index) = *index else { continue };
            let BatchInput::Dense { shape, data } = input else {
                let name = &port.name;
                return Err(EngineError(format!(
                    "input '{name}' is left out, which the engine openvino does not allow"
                )));
            };
            inputs.push((index, Tensor::over(api, port.datatype, shape, data)?));
        }
        let mut targets: SmallVec<[Target<'_>; 4]> = SmallVec::new();
        let mut given = given.iter_mut();
        for ((port, _), shape) in self.outputs.iter().zip(batch.output_shapes) {
            let memory = given.next().and_then(Option::as_deref_mut);
            let differs = port.differs.load(Ordering::Relaxed);
            targets.push(Target::of((&port.name, port.datatype), differs, shape.as_ref(), memory, batch)?);
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
        targets: &mut [Target<'_>],
        batch: &Batch<'_>,
    ) -> Result<Option<Vec<BatchOutput>>, EngineError> {
        let api = self.graph.api();
        let can_go_on = targets.iter().any(|target| matches!(target, Target::Ours(..)));
        let mut owned: SmallVec<[Option<Tensor<'static>>; 4]> = SmallVec::new();
        let mut over: SmallVec<[Option<Tensor<'_>>; 4]> = SmallVec::new();
        for ((port, _), target) in self.outputs.iter().zip(targets.iter_mut()) {
            let memory = match target {
                Target::Given(shape, memory) if !memory.is_empty() => Some((&*shape, &mut **memory)),
                Target::Ours(shape, buffer) => Some((&*shape, buffer.as_mut_slice())),
                Target::Given(..) | Target::Engine => None,
            };
            owned.push(memory.is_none().then(|| Tensor::empty(api, port.datatype)).transpose()?);
            let tensor = memory.map(|(shape, memory)| Tensor::over_mut(api, port.datatype, shape, memory));
            over.push(tensor.transpose()?);
        }
        let tensors = || over.iter().zip(&owned).filter_map(|(over, owned)| over.as_ref().or(owned.as_ref()));
        let bound = self.outputs.iter().zip(tensors());
        let bound = bound.map(|((_, index), tensor)| request.bind_output(*index, tensor));
        let bound = bound.collect::<Result<(), _>>();
        // SAFETY: the inputs' tensors live in the caller and the outputs' here. All ports are bound, since no input of
        // the graph is missing.
        let ran = bound.and_then(|()| unsafe { request.run(batch.stop) });
        match ran {
            Err(error) if can_go_on && is_other_shape(&error) => return Ok(None),
            ran => ran?,
        }
        let shapes = tensors().map(Tensor::shape).collect::<Result<SmallVec<[Dims; 4]>, _>>()?;
        // Ends the borrows of the output memory, which moves into the results below.
        drop(over);
        for (((port, _), target), shape) in self.outputs.iter().zip(targets.iter()).zip(&shapes) {
            match target {
                Target::Ours(declared, _) if declared != shape => return Ok(None),
                Target::Given(declared, _) if declared != shape => {
                    let name = &port.name;
                    return Err(EngineError(format!("output '{name}' has the shape {shape:?}, expected {declared:?}")));
                }
                _ => {}
            }
        }
        let taken = targets.iter_mut().map(|target| std::mem::replace(target, Target::Engine));
        let outputs = self.outputs.iter().zip(taken).zip(owned).zip(shapes);
        let outputs = outputs.map(|((((port, _), target), owned), shape)| {
            let data = match (target, owned) {
                (Target::Ours(_, buffer), _) => buffer.freeze(),
                (Target::Engine, Some(tensor)) => {
                    let bytes = element_count(&shape).and_then(|count| count.checked_mul(port.datatype.size_bytes()?));
                    let named = || EngineError(format!("output '{}' has the shape {shape:?}", port.name));
                    tensor.into_bytes(bytes.ok_or_else(named)?)?
                }
                (Target::Given(..) | Target::Engine, _) => Bytes::new(),
            };
            Ok(BatchOutput { shape, data })
        });
        outputs.collect::<Result<_, EngineError>>().map(Some)
    }

    /// Runs again with outputs that OpenVINO allocates, after a run whose outputs did not have the declared shapes, and
    /// records which outputs differ.
    fn execute_undeclared(
        &self,
        request: &mut Taken<'_>,
        targets: &mut [Target<'_>],
        batch: &Batch<'_>,
    ) -> Result<Vec<BatchOutput>, EngineError> {
        let declared: SmallVec<[Option<Dims>; 4]> = targets.iter_mut().map(Target::leave_to_engine).collect();
        let outputs = self.execute(request, targets, batch)?;
        let outputs = outputs.ok_or_else(|| EngineError("the outputs have no shape".to_owned()))?;
        for (((port, _), declared), output) in self.outputs.iter().zip(declared).zip(&outputs) {
            if declared.is_some_and(|declared| declared != output.shape) {
                // Concurrent runs that have not seen the flag retry in the same way.
                port.differs.store(true, Ordering::Relaxed);
            }
        }
        Ok(outputs)
    }
}

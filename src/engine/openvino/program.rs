//! An ONNX graph compiled by OpenVINO for the CPU.

use std::{
    ffi::{CStr, c_char},
    ptr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use bytes::Bytes;
use sha2::{Digest, Sha256};
use smallvec::SmallVec;
use tracing::warn;

use super::{
    api::{self, Api},
    library::{Core, DEVICE, Loaded, OpenVino, c_string},
    requests::{Requests, Taken},
    tensor::{Tensor, element_type},
};
use crate::{
    engine::{
        Batch, BatchInput, BatchOutput, EngineError, Execution, Precision, Program, ProgramPort, SMALL_MODEL_BYTES,
        StopSignal,
        running::{MAX_COPIED_BYTES, RunInProgress, RunsInProgress},
        sessions::Origin,
        target::Target,
    },
    model::{DataType, Dims, IndexRange, element_count},
    onnx::{SealedModel, index_ranges},
};

/// Length to whose multiples batches are padded. OpenVINO generates code for each new shape, which takes longer than
/// several runs. With the usual 512 tokens, lengths then make 64 shapes.
const PADDED_TO: u32 = 8;

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
    origin: Origin,
}

struct Port {
    name: String,
    datatype: DataType,
    /// Whether a run gave the output another shape than declared. From then on, OpenVINO allocates it.
    differs: AtomicBool,
}

/// A graph compiled for one run at a time on all threads, and for a run on each thread.
pub(super) struct CompiledGraph {
    all_threads: Streams,
    /// `None` if there is one thread, or if the graph is too large to be kept twice.
    one_thread: Option<Streams>,
    running: Arc<RunsInProgress>,
}

/// A compiled graph and its infer requests, one for each stream.
struct Streams {
    // Dropped before the graph that they belong to.
    requests: Arc<Requests>,
    compiled: Compiled,
}

/// OpenVINO's compiled model and its ports. Inputs that nothing reads have been removed.
pub(super) struct Compiled {
    core: Arc<Core>,
    compiled: *mut api::CompiledModel,
    inputs: Vec<GraphPort>,
    outputs: Vec<GraphPort>,
}

#[derive(PartialEq)]
struct GraphPort {
    /// One of the port's names. A tensor also has the names of nodes that pass it on unchanged.
    name: String,
    element: u32,
}

/// Finds a port by any of its names.
type ByName = unsafe extern "C" fn(*const api::CompiledModel, *const c_char, *mut *mut api::Port) -> api::Status;

// SAFETY: several threads may use a compiled model at once; here it is only read.
unsafe impl Send for Compiled {}
// SAFETY: as above.
unsafe impl Sync for Compiled {}

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
        let compiled =
            loaded.graphs.of(origin, || CompiledGraph::new(loaded, openvino.threads(), precision, &graph))?;
        let graph_ports = &compiled.all_threads.compiled;
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

/// Returns OpenVINO's name of a precision. It is always set, since OpenVINO's default is BF16 where the processor
/// supports it.
fn hint(precision: Precision) -> &'static CStr {
    match precision {
        // CPUs have no units for TF32.
        Precision::Ieee | Precision::Tf32 => c"f32",
        Precision::Bf16 => c"bf16",
        Precision::Fp16 => c"f16",
    }
}

impl CompiledGraph {
    fn new(loaded: &Loaded, threads: usize, precision: Precision, graph: &[u8]) -> Result<Self, EngineError> {
        let all_threads = Streams::new(&loaded.core, 1, threads, precision, graph)?;
        let used = all_threads.compiled.property(c"INFERENCE_PRECISION_HINT")?;
        let asked = hint(precision).to_string_lossy();
        if used != asked {
            warn!(requested = &*asked, used, "the CPU lacks the requested precision; OpenVINO uses another");
        }
        let one_thread = (threads > 1 && graph.len() <= MAX_COPIED_BYTES)
            .then(|| Streams::new(&loaded.core, threads, threads, precision, graph))
            .transpose()?
            // Programs find their tensors by the ports' places, which are those of `all_threads`.
            .filter(|streams| streams.compiled.has_ports_of(&all_threads.compiled));
        Ok(Self { all_threads, one_thread, running: Arc::clone(&loaded.running) })
    }

    fn api(&self) -> &'static Api {
        self.all_threads.compiled.api()
    }

    /// Takes an infer request for a run that starts now. Both are held until the run ends.
    ///
    /// # Errors
    /// If the run is stopped while it waits for a request.
    fn begin_run(&self, stop: &StopSignal) -> Result<(Taken<'_>, RunInProgress<'_>), EngineError> {
        let (run, shares_cores) = self.running.begin();
        let streams = self.one_thread.as_ref().filter(|_| shares_cores).unwrap_or(&self.all_threads);
        Ok((streams.requests.take(stop)?, run))
    }
}

impl Streams {
    fn new(
        core: &Arc<Core>,
        streams: usize,
        threads: usize,
        precision: Precision,
        graph: &[u8],
    ) -> Result<Self, EngineError> {
        let compiled = Compiled::new(core, (streams, threads), precision, graph)?;
        let requests = Arc::new(Requests::new(&compiled, streams)?);
        Ok(Self { requests, compiled })
    }
}

impl Compiled {
    fn new(
        core: &Arc<Core>,
        (streams, threads): (usize, usize),
        precision: Precision,
        graph: &[u8],
    ) -> Result<Self, EngineError> {
        let api = core.api;
        let mut model = ptr::null_mut();
        // SAFETY: the graph is valid for its length, and no separate weights are given; `model` receives the new
        // object.
        api.check(unsafe {
            let text = graph.as_ptr().cast();
            (api.ov_core_read_model_from_memory_buffer)(core.as_ptr(), text, graph.len(), ptr::null(), &mut model)
        })?;
        let (streams, threads) = (c_string(&streams.to_string())?, c_string(&threads.to_string())?);
        let mut compiled = ptr::null_mut();
        // SAFETY: ten strings follow, as announced, which the call copies; the model is released once, after its last
        // use.
        let done = unsafe {
            let done = (api.ov_core_compile_model)(
                core.as_ptr(),
                model,
                DEVICE.as_ptr(),
                10,
                &mut compiled,
                c"INFERENCE_PRECISION_HINT".as_ptr(),
                hint(precision).as_ptr(),
                c"NUM_STREAMS".as_ptr(),
                streams.as_ptr(),
                c"INFERENCE_NUM_THREADS".as_ptr(),
                threads.as_ptr(),
                // Pinned threads would share cores with ONNX Runtime's threads while other cores are idle.
                c"ENABLE_CPU_PINNING".as_ptr(),
                c"NO".as_ptr(),
                // With integer weights, OpenVINO would otherwise quantize activations to eight bits.
                c"DYNAMIC_QUANTIZATION_GROUP_SIZE".as_ptr(),
                c"0".as_ptr(),
            );
            (api.ov_model_free)(model);
            done
        };
        api.check(done)?;
        let mut compiled = Self { core: Arc::clone(core), compiled, inputs: Vec::new(), outputs: Vec::new() };
        compiled.inputs = compiled.ports(api.ov_compiled_model_inputs_size, api.ov_compiled_model_input_by_index)?;
        compiled.outputs = compiled.ports(api.ov_compiled_model_outputs_size, api.ov_compiled_model_output_by_index)?;
        Ok(compiled)
    }

    fn ports(
        &self,
        count: unsafe extern "C" fn(*const api::CompiledModel, *mut usize) -> api::Status,
        by_index: unsafe extern "C" fn(*const api::CompiledModel, usize, *mut *mut api::Port) -> api::Status,
    ) -> Result<Vec<GraphPort>, EngineError> {
        let (api, mut ports) = (self.core.api, 0);
        // SAFETY: the compiled model is live.
        api.check(unsafe { count(self.compiled, &mut ports) })?;
        let port = |index| {
            let mut port = ptr::null_mut();
            // SAFETY: the index is below the count; the new port has no other owner.
            unsafe {
                api.check(by_index(self.compiled, index, &mut port))?;
                self.describe(port)
            }
        };
        (0..ports).map(port).collect()
    }

    /// Reads and releases a port.
    ///
    /// # Safety
    /// The port is live and owned by the caller.
    unsafe fn describe(&self, port: *mut api::Port) -> Result<GraphPort, EngineError> {
        let (api, mut name, mut element) = (self.core.api, ptr::null_mut::<c_char>(), 0);
        // SAFETY: the port is live until it is released, once; the name is copied and freed.
        unsafe {
            let named = api.check((api.ov_port_get_any_name)(port, &mut name));
            let typed = api.check((api.ov_port_get_element_type)(port, &mut element));
            (api.ov_output_const_port_free)(port);
            let name = api.owned(name);
            named.and(typed)?;
            Ok(GraphPort { name, element })
        }
    }

    fn has_ports_of(&self, other: &Self) -> bool {
        self.inputs == other.inputs && self.outputs == other.outputs
    }

    /// Returns the index of the input that has this name among its names. `at` is its index in the graph.
    fn input(&self, name: &str, at: Option<usize>) -> Result<Option<usize>, EngineError> {
        self.place(&self.inputs, self.core.api.ov_compiled_model_input_by_name, name, at)
    }

    /// Returns the index of an output, as [`Self::input`].
    fn output(&self, name: &str, at: Option<usize>) -> Result<Option<usize>, EngineError> {
        self.place(&self.outputs, self.core.api.ov_compiled_model_output_by_name, name, at)
    }

    fn place(
        &self,
        ports: &[GraphPort],
        by_name: ByName,
        name: &str,
        at: Option<usize>,
    ) -> Result<Option<usize>, EngineError> {
        let (name, mut port) = (c_string(name)?, ptr::null_mut());
        // SAFETY: the compiled model is live and the name zero-terminated; a port that is found is released.
        let found = unsafe {
            if by_name(self.compiled, name.as_ptr(), &mut port) != 0 {
                return Ok(None);
            }
            self.describe(port)?
        };
        // Several outputs may be the same tensor; then the one at the graph's own index is meant.
        let is_it = |at: &usize| ports.get(*at).is_some_and(|port| port.name == found.name);
        Ok(at.filter(is_it).or_else(|| (0..ports.len()).find(is_it)))
    }

    fn property(&self, name: &CStr) -> Result<String, EngineError> {
        let (api, mut value) = (self.core.api, ptr::null_mut::<c_char>());
        // SAFETY: the compiled model is live, the name is zero-terminated, and the value belongs to the caller.
        unsafe {
            api.check((api.ov_compiled_model_get_property)(self.compiled, name.as_ptr(), &mut value))?;
            Ok(api.owned(value))
        }
    }

    pub(super) fn api(&self) -> &'static Api {
        self.core.api
    }

    pub(super) fn as_ptr(&self) -> *const api::CompiledModel {
        self.compiled
    }
}

impl Drop for Compiled {
    fn drop(&mut self) {
        // SAFETY: created by `new`, released once.
        unsafe { (self.core.api.ov_compiled_model_free)(self.compiled) }
    }
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

    fn pads_to(&self) -> u32 {
        PADDED_TO
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

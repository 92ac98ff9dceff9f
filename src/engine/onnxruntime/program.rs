//! An ONNX graph compiled by ONNX Runtime.

use std::{
    ffi::CString,
    ptr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use bytes::Bytes;
use ort::{AsPointer, sys, value::ValueType};
use sha2::{Digest, Sha256};
use smallvec::SmallVec;

use super::{
    compiled::CompiledGraph,
    cuda_provider::CudaProvider,
    library::{GivesBack, Runtime},
    status::check,
    value::{HostMemory, Tensor, element_type},
    weights::Weights,
};
use crate::{
    engine::{
        Batch, BatchInput, BatchOutput, EngineError, Execution, Program, ProgramPort, SMALL_MODEL_BYTES, StopSignal,
        sessions::Origin, target::Target,
    },
    model::{DataType, Dims, IndexRange, ModelSpec, element_count},
    onnx::{ExternalFiles, PortDim, SealedModel, index_ranges},
};

/// A session, shared by all lanes and by all programs of the same graph, since ONNX Runtime allows concurrent runs.
/// Each lane has its own run options, so that stopping one run does not stop others.
pub struct OnnxProgram {
    graph: Arc<CompiledGraph>,
    host: HostMemory,
    inputs: Vec<Port>,
    outputs: Vec<Port>,
    /// Range of valid indices, by input; `None` for an input that indexes nothing.
    index_ranges: Vec<Option<IndexRange>>,
    steady: bool,
    /// Whether it runs on a CUDA card.
    uses_card: bool,
    origin: Origin,
    _runtime: GivesBack,
}

struct Port {
    name: CString,
    datatype: DataType,
    /// Whether a run gave the output another shape than declared. From then on, ONNX Runtime allocates it.
    differs: AtomicBool,
}

/// Parts of ONNX Runtime's errors when an output's shape differs from that of the memory provided, or the memory's
/// shape from the graph's declaration. When ONNX Runtime allocates the output itself, it only logs a warning.
const OTHER_SHAPE: [&str; 2] = ["OrtValue shape verification failed", "Got invalid dimensions for output"];

impl OnnxProgram {
    /// Compiles a serialized model as a whole, with the inputs and outputs of its specification.
    ///
    /// # Errors
    /// As [`Self::compile_ports`].
    pub fn compile(runtime: &Runtime, model: &[u8], spec: &ModelSpec) -> Result<Self, EngineError> {
        let (inputs, outputs) = Self::ports_of(spec);
        Self::compile_ports(runtime, &spec.name, model, &inputs, &outputs)
    }

    /// Returns the inputs and outputs of a specification.
    pub fn ports_of(spec: &ModelSpec) -> (Vec<ProgramPort<'_>>, Vec<ProgramPort<'_>>) {
        (spec.inputs.iter().map(ProgramPort::from).collect(), spec.outputs.iter().map(ProgramPort::from).collect())
    }

    /// Compiles a serialized model with these inputs and outputs, in this order. `name` appears in error messages.
    ///
    /// # Errors
    /// As [`Self::compile_sealed`]. Also fails if the model cannot be sealed: it needs other files or exceeds a limit.
    pub fn compile_ports(
        runtime: &Runtime,
        name: &str,
        model: &[u8],
        inputs: &[ProgramPort<'_>],
        outputs: &[ProgramPort<'_>],
    ) -> Result<Self, EngineError> {
        let sealed = SealedModel::new(name, Bytes::copy_from_slice(model), &ExternalFiles::None);
        Self::compile_sealed(runtime, &sealed.map_err(|error| EngineError(error.to_string()))?, inputs, outputs)
    }

    /// Compiles a whole model or one stage with these inputs and outputs, in this order.
    ///
    /// # Errors
    /// Fails if ONNX Runtime rejects the model (the message names the operator), if its external weights cannot be
    /// read, or if it lacks one of the inputs or outputs or has it with another type.
    pub fn compile_sealed(
        runtime: &Runtime,
        model: &SealedModel,
        inputs: &[ProgramPort<'_>],
        outputs: &[ProgramPort<'_>],
    ) -> Result<Self, EngineError> {
        Self::compile_for(runtime, model, (inputs, outputs), None)
    }

    /// As [`Self::compile_sealed`], but runs the operators that the provider supports on a card. Inputs and outputs
    /// stay on the host.
    ///
    /// # Errors
    /// As [`Self::compile_sealed`]. Also fails if the provider or its card cannot be used.
    pub fn compile_on_card(
        runtime: &Runtime,
        model: &SealedModel,
        inputs: &[ProgramPort<'_>],
        outputs: &[ProgramPort<'_>],
        provider: CudaProvider,
    ) -> Result<Self, EngineError> {
        Self::compile_for(runtime, model, (inputs, outputs), Some(provider))
    }

    fn compile_for(
        runtime: &Runtime,
        model: &SealedModel,
        (inputs, outputs): (&[ProgramPort<'_>], &[ProgramPort<'_>]),
        provider: Option<CudaProvider>,
    ) -> Result<Self, EngineError> {
        // The hash identifies everything that the session depends on, so that programs with equal hashes share it.
        let graph = model.to_bytes();
        let mut hash = Sha256::new();
        if let Some(provider) = provider {
            hash.update(provider.origin());
        }
        hash.update((graph.len() as u64).to_le_bytes());
        hash.update(&graph);
        let known = index_ranges(&graph);
        let index_ranges = inputs.iter().map(|port| known.get(port.name).copied()).collect();
        let weights = Weights::read(model, &mut hash)?;
        let origin = hash.finalize().into();
        let compiled = runtime.sessions().of(origin, || CompiledGraph::new(runtime, &graph, weights, provider))?;
        let inputs = ports("input", inputs, &compiled.inputs())?;
        let outputs = ports("output", outputs, &compiled.outputs())?;
        Ok(Self {
            steady: provider.is_none() && graph.len() <= SMALL_MODEL_BYTES && model.model().is_straight_line(),
            uses_card: provider.is_some(),
            graph: compiled,
            origin,
            host: HostMemory::new()?,
            inputs,
            outputs,
            index_ranges,
            _runtime: GivesBack(runtime.clone()),
        })
    }
}

/// Matches the requested tensors with those of the graph.
fn ports(kind: &str, wanted: &[ProgramPort<'_>], graph: &[(String, ValueType)]) -> Result<Vec<Port>, EngineError> {
    wanted
        .iter()
        .map(|&ProgramPort { name, datatype }| {
            let (_, given) = graph.iter().find(|(own, _)| own == name).ok_or_else(|| {
                let names: Vec<&str> = graph.iter().map(|(own, _)| own.as_str()).collect();
                EngineError(format!("the graph has no {kind} '{name}', it has {names:?}"))
            })?;
            let element = given.tensor_type().map(sys::ONNXTensorElementDataType::from);
            if element != Some(element_type(datatype)) {
                return Err(EngineError(format!(
                    "{kind} '{name}' is {datatype} in the configuration but {given} in the graph"
                )));
            }
            let name = CString::new(name)
                .map_err(|_| EngineError(format!("{kind} name '{}' holds a zero byte", name.escape_debug())))?;
            Ok(Port { name, datatype, differs: AtomicBool::new(false) })
        })
        .collect()
}

impl Program for OnnxProgram {
    fn run(&self, batch: &Batch<'_>) -> Result<Execution, EngineError> {
        self.run_into(batch, &mut [])
    }

    fn run_into(&self, batch: &Batch<'_>, given: &mut [Option<&mut [u8]>]) -> Result<Execution, EngineError> {
        let mut names: SmallVec<[_; 8]> = SmallVec::new();
        let mut tensors: SmallVec<[Tensor<'_>; 8]> = SmallVec::new();
        for (port, input) in self.inputs.iter().zip(batch.inputs) {
            let tensor = match input {
                BatchInput::Dense { shape, data } => Tensor::over(&self.host, port.datatype, shape, data)?,
                BatchInput::Strings { shape, elements } => Tensor::strings(shape, elements)?,
                BatchInput::Absent => continue,
            };
            names.push(port.name.as_ptr());
            tensors.push(tensor);
        }
        let mut targets: SmallVec<[Target<'_>; 4]> = SmallVec::new();
        let mut given = given.iter_mut();
        for (port, shape) in self.outputs.iter().zip(batch.output_shapes) {
            let memory = given.next().and_then(Option::as_deref_mut);
            let (name, differs) = (port.name.to_string_lossy(), port.differs.load(Ordering::Relaxed));
            targets.push(Target::of((&name, port.datatype), differs, shape.as_ref(), memory, batch)?);
        }
        let outputs = match self.execute(&names, &tensors, &mut targets, batch.stop) {
            Err(error) if OTHER_SHAPE.iter().any(|text| error.0.contains(text)) => {
                self.execute_undeclared(&names, &tensors, targets, batch.stop, error)?
            }
            outputs => outputs?,
        };
        Ok(Execution { outputs, ..Execution::default() })
    }

    fn index_ranges(&self) -> &[Option<IndexRange>] {
        &self.index_ranges
    }

    fn is_steady(&self) -> bool {
        self.steady
    }

    fn uses_card(&self) -> bool {
        self.uses_card
    }

    fn origin(&self) -> Option<[u8; 32]> {
        Some(self.origin)
    }
}

impl OnnxProgram {
    /// Returns the shape of an output of the graph as ONNX Runtime infers it; `None` if it does not know the rank.
    pub fn output_dims(&self, name: &str) -> Option<Vec<PortDim>> {
        self.graph.output_dims(name)
    }

    /// Runs again with outputs that ONNX Runtime allocates, after a run whose outputs did not have the declared shapes,
    /// and records which outputs differ.
    fn execute_undeclared(
        &self,
        names: &[*const std::ffi::c_char],
        inputs: &[Tensor<'_>],
        mut targets: SmallVec<[Target<'_>; 4]>,
        stop: &StopSignal,
        error: EngineError,
    ) -> Result<Vec<BatchOutput>, EngineError> {
        let declared: SmallVec<[Option<Dims>; 4]> = targets.iter_mut().map(Target::leave_to_engine).collect();
        // No output used the memory of the pool, so a second run would fail in the same way.
        if declared.iter().all(Option::is_none) {
            return Err(error);
        }
        let outputs = self.execute(names, inputs, &mut targets, stop)?;
        for ((port, declared), output) in self.outputs.iter().zip(declared).zip(&outputs) {
            if declared.is_some_and(|declared| declared != output.shape) {
                // Concurrent runs that have not seen the flag retry in the same way.
                port.differs.store(true, Ordering::Relaxed);
            }
        }
        Ok(outputs)
    }

    fn execute(
        &self,
        names: &[*const std::ffi::c_char],
        inputs: &[Tensor<'_>],
        targets: &mut SmallVec<[Target<'_>; 4]>,
        stop: &StopSignal,
    ) -> Result<Vec<BatchOutput>, EngineError> {
        let mut ours: SmallVec<[Option<Tensor<'_>>; 4]> = SmallVec::new();
        for (port, target) in self.outputs.iter().zip(targets.iter_mut()) {
            ours.push(match target {
                Target::Given(shape, memory) => Some(Tensor::over_mut(&self.host, port.datatype, shape, memory)?),
                Target::Ours(shape, buffer) => {
                    Some(Tensor::over_mut(&self.host, port.datatype, shape, buffer.as_mut_slice())?)
                }
                Target::Engine => None,
            });
        }
        let options = stop.run_options()?;
        let output_names: SmallVec<[_; 4]> = self.outputs.iter().map(|port| port.name.as_ptr()).collect();
        let input_values: SmallVec<[*const sys::OrtValue; 8]> =
            inputs.iter().map(|tensor| tensor.as_ptr().cast_const()).collect();
        let mut output_values: SmallVec<[*mut sys::OrtValue; 4]> =
            ours.iter().map(|tensor| tensor.as_ref().map_or(ptr::null_mut(), Tensor::as_ptr)).collect();
        let (session, run) = self.graph.begin_run();
        // SAFETY: all arrays have the lengths given, and names and values outlive the call. ONNX Runtime permits
        // concurrent runs of one session. The call allocates outputs that are null.
        let ran = check(unsafe {
            (ort::api().Run)(
                session.ptr().cast_mut(),
                options.ptr(),
                names.as_ptr(),
                input_values.as_ptr(),
                input_values.len(),
                output_names.as_ptr(),
                output_names.len(),
                output_values.as_mut_ptr(),
            )
        });
        drop(run);
        // Before the status is checked: a failed run may have allocated outputs, which must be freed.
        let allocated: SmallVec<[Option<Tensor<'static>>; 4]> = ours
            .iter()
            .zip(&output_values)
            .map(|(mine, &value)| {
                // SAFETY: values that were null before the call and are not null now belong to this code.
                (mine.is_none() && !value.is_null()).then(|| unsafe { Tensor::from_run(value) })
            })
            .collect();
        // Ends the borrows of the output memory, which moves into the results below.
        drop(ours);
        ran?;
        self.outputs
            .iter()
            .zip(targets.drain(..))
            .zip(allocated)
            .map(|((port, target), allocated)| match target {
                Target::Given(shape, _) => Ok(BatchOutput { shape, data: Bytes::new() }),
                Target::Ours(shape, buffer) => Ok(BatchOutput { shape, data: buffer.freeze() }),
                Target::Engine => read_back(port, allocated),
            })
            .collect()
    }
}

/// Takes over an output that ONNX Runtime allocated.
fn read_back(port: &Port, allocated: Option<Tensor<'static>>) -> Result<BatchOutput, EngineError> {
    let name = port.name.to_string_lossy();
    let tensor = allocated.ok_or_else(|| EngineError(format!("the graph did not compute output '{name}'")))?;
    let shape = tensor.shape()?;
    let count = element_count(&shape).ok_or_else(|| EngineError(format!("output '{name}' has the shape {shape:?}")))?;
    let data = match port.datatype.size_bytes() {
        Some(size) => tensor.into_bytes(count * size)?,
        None => tensor.prefixed_strings(count)?,
    };
    Ok(BatchOutput { shape, data })
}

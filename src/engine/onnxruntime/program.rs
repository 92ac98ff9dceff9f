//! An ONNX graph compiled by ONNX Runtime for the CPU.

use std::{ffi::CString, ptr, sync::Arc};

use bytes::Bytes;
use ort::{
    AsPointer,
    session::{RunOptions, Session, builder::GraphOptimizationLevel},
    sys,
};
use sha2::{Digest, Sha256};
use smallvec::SmallVec;

use super::{
    library::Runtime,
    sessions::Origin,
    status::check,
    value::{HostMemory, Tensor, element_type},
};
use crate::{
    device::{Buffer, BufferPool},
    engine::{Batch, BatchInput, BatchOutput, EngineError, Execution, Program, ProgramPort},
    model::{DataType, Dims, ModelSpec, element_count},
    onnx::Model,
};

/// A session shared by all lanes, and by all programs of the same graph: ONNX Runtime allows concurrent runs. Options are each program's
/// own, so that one that is told to stop leaves the others alone.
pub struct OnnxProgram {
    session: Arc<Session>,
    options: RunOptions,
    host: HostMemory,
    inputs: Vec<Port>,
    outputs: Vec<Port>,
    steady: bool,
    origin: Origin,
    _runtime: Runtime,
}

/// Larger models are not looked into for loops; none of them runs in microseconds.
const SMALL_MODEL_BYTES: usize = 1 << 20;

struct Port {
    name: CString,
    datatype: DataType,
}

impl OnnxProgram {
    /// Compiles a serialized model as a whole, with the inputs and outputs of its specification.
    ///
    /// # Errors
    /// As [`Self::compile_ports`].
    pub fn compile(runtime: &Runtime, model: &[u8], spec: &ModelSpec) -> Result<Self, EngineError> {
        let inputs: Vec<ProgramPort<'_>> = spec.inputs.iter().map(ProgramPort::from).collect();
        let outputs: Vec<ProgramPort<'_>> = spec.outputs.iter().map(ProgramPort::from).collect();
        Self::compile_ports(runtime, &spec.name, model, &inputs, &outputs)
    }

    /// Compiles a serialized model that takes and gives the tensors named, in this order: a stage of a larger one. `name`
    /// is for messages.
    ///
    /// # Errors
    /// When ONNX Runtime refuses it (the text names the operator), or when it lacks an input or output that is named, or
    /// has it with another type.
    pub fn compile_ports(
        runtime: &Runtime,
        name: &str,
        model: &[u8],
        inputs: &[ProgramPort<'_>],
        outputs: &[ProgramPort<'_>],
    ) -> Result<Self, EngineError> {
        let origin = Sha256::digest(model).into();
        let session = runtime.sessions().of(origin, || compile_session(runtime, model))?;
        let inputs = ports("input", inputs, session.inputs())?;
        let outputs = ports("output", outputs, session.outputs())?;
        let small = (model.len() <= SMALL_MODEL_BYTES).then(|| Model::from_bytes(name, Bytes::copy_from_slice(model)));
        Ok(Self {
            steady: small.is_some_and(|model| model.is_ok_and(|model| model.is_straight_line())),
            session,
            origin,
            options: RunOptions::new().map_err(refused)?,
            host: HostMemory::new()?,
            inputs,
            outputs,
            _runtime: runtime.clone(),
        })
    }
}

fn compile_session(runtime: &Runtime, model: &[u8]) -> Result<Session, EngineError> {
    Session::builder(runtime.environment())
        .and_then(|builder| builder.with_optimization_level(GraphOptimizationLevel::All).map_err(ort::Error::from))
        .and_then(|mut builder| builder.commit_from_memory(model))
        .map_err(refused)
}

fn refused(error: ort::Error) -> EngineError {
    EngineError(format!("onnx runtime error: {}", error.message()))
}

/// Matches the tensors that are wanted with those of the graph.
fn ports(kind: &str, wanted: &[ProgramPort<'_>], graph: &[ort::value::Outlet]) -> Result<Vec<Port>, EngineError> {
    wanted
        .iter()
        .map(|&ProgramPort { name, datatype }| {
            let found = graph.iter().find(|outlet| outlet.name() == name).ok_or_else(|| {
                let names: Vec<&str> = graph.iter().map(ort::value::Outlet::name).collect();
                EngineError(format!("the graph has no {kind} '{name}', it has {names:?}"))
            })?;
            let element = found.dtype().tensor_type().map(sys::ONNXTensorElementDataType::from);
            if element != Some(element_type(datatype)) {
                let given = found.dtype();
                return Err(EngineError(format!(
                    "{kind} '{name}' is {datatype} in the configuration but {given} in the graph"
                )));
            }
            let name = CString::new(name)
                .map_err(|_| EngineError(format!("{kind} name '{}' holds a zero byte", name.escape_debug())))?;
            Ok(Port { name, datatype })
        })
        .collect()
}

/// Memory of one output of a run.
enum Target<'a> {
    /// The caller's.
    Given(Dims, &'a mut [u8]),
    /// The pool's: the shape was known.
    Ours(Dims, Buffer),
    /// Whatever ONNX Runtime allocates.
    Runtime,
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
            targets.push(target(port, shape.as_ref(), memory, batch)?);
        }
        self.execute(&names, &tensors, &mut targets).map(|outputs| Execution { outputs, ..Execution::default() })
    }

    fn is_steady(&self) -> bool {
        self.steady
    }

    fn origin(&self) -> Option<[u8; 32]> {
        Some(self.origin)
    }

    fn terminate(&self) {
        // A failure to set the flag leaves the run to end by itself.
        let _ = self.options.terminate();
    }

    fn resume(&self) {
        // A failure to clear the flag makes later runs fail by name.
        let _ = self.options.unterminate();
    }
}

impl OnnxProgram {
    fn execute(
        &self,
        names: &[*const std::ffi::c_char],
        inputs: &[Tensor<'_>],
        targets: &mut SmallVec<[Target<'_>; 4]>,
    ) -> Result<Vec<BatchOutput>, EngineError> {
        let mut ours: SmallVec<[Option<Tensor<'_>>; 4]> = SmallVec::new();
        for (port, target) in self.outputs.iter().zip(targets.iter_mut()) {
            ours.push(match target {
                Target::Given(shape, memory) => Some(Tensor::over_mut(&self.host, port.datatype, shape, memory)?),
                Target::Ours(shape, buffer) => {
                    Some(Tensor::over_mut(&self.host, port.datatype, shape, buffer.as_mut_slice())?)
                }
                Target::Runtime => None,
            });
        }
        let output_names: SmallVec<[_; 4]> = self.outputs.iter().map(|port| port.name.as_ptr()).collect();
        let input_values: SmallVec<[*const sys::OrtValue; 8]> =
            inputs.iter().map(|tensor| tensor.as_ptr().cast_const()).collect();
        let mut output_values: SmallVec<[*mut sys::OrtValue; 4]> =
            ours.iter().map(|tensor| tensor.as_ref().map_or(ptr::null_mut(), Tensor::as_ptr)).collect();
        // SAFETY: all arrays have the lengths given; names and values outlive the call; ONNX Runtime permits
        // concurrent runs of one session. Null outputs are allocated by the call.
        let ran = check(unsafe {
            (ort::api().Run)(
                self.session.ptr().cast_mut(),
                self.options.ptr(),
                names.as_ptr(),
                input_values.as_ptr(),
                input_values.len(),
                output_names.as_ptr(),
                output_names.len(),
                output_values.as_mut_ptr(),
            )
        });
        let allocated: SmallVec<[Option<Tensor<'static>>; 4]> = ours
            .iter()
            .zip(&output_values)
            .map(|(mine, &value)| {
                // SAFETY: values that were null before the call and are not now belong to us.
                (mine.is_none() && !value.is_null()).then(|| unsafe { Tensor::from_run(value) })
            })
            .collect();
        drop(ours);
        ran?;
        self.outputs
            .iter()
            .zip(targets.drain(..))
            .zip(allocated)
            .map(|((port, target), allocated)| match target {
                Target::Given(shape, _) => Ok(BatchOutput { shape, data: Bytes::new() }),
                Target::Ours(shape, buffer) => Ok(BatchOutput { shape, data: buffer.freeze() }),
                Target::Runtime => read_back(port, allocated),
            })
            .collect()
    }
}

/// Memory for one output: the caller's, or the pool's where the shape follows from the batch.
fn target<'a>(
    port: &Port,
    shape: Option<&Dims>,
    given: Option<&'a mut [u8]>,
    batch: &Batch<'_>,
) -> Result<Target<'a>, EngineError> {
    let sized = shape.and_then(|shape| {
        let len_bytes = element_count(shape)?.checked_mul(port.datatype.size_bytes()?)?;
        Some((shape.clone(), len_bytes))
    });
    match (sized, given) {
        (Some((shape, len_bytes)), Some(memory)) if memory.len() == len_bytes => Ok(Target::Given(shape, memory)),
        (_, Some(memory)) => {
            let (name, has) = (port.name.to_string_lossy(), memory.len());
            Err(EngineError(format!("{has} bytes are given for output '{name}' of the shape {shape:?}")))
        }
        (Some((shape, len_bytes)), None) if len_bytes > 0 => {
            Ok(Target::Ours(shape, BufferPool::take(batch.buffers, len_bytes)))
        }
        _ => Ok(Target::Runtime),
    }
}

/// Takes an output that ONNX Runtime allocated.
fn read_back(port: &Port, allocated: Option<Tensor<'static>>) -> Result<BatchOutput, EngineError> {
    let name = port.name.to_string_lossy();
    let tensor = allocated.ok_or_else(|| EngineError(format!("the graph left output '{name}' out")))?;
    let shape = tensor.shape()?;
    let count = element_count(&shape).ok_or_else(|| EngineError(format!("output '{name}' has the shape {shape:?}")))?;
    let data = match port.datatype.size_bytes() {
        Some(size) => tensor.into_bytes(count * size)?,
        None => tensor.prefixed_strings(count)?,
    };
    Ok(BatchOutput { shape, data })
}

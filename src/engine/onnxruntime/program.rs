//! An ONNX graph compiled by ONNX Runtime for the CPU.

use std::{ffi::CString, ptr, sync::Arc};

use bytes::Bytes;
use ort::{
    AsPointer,
    session::{RunOptions, Session, SharedSessionInner, builder::GraphOptimizationLevel},
    sys,
};
use smallvec::SmallVec;

use super::{
    library::Runtime,
    status::check,
    value::{HostMemory, Tensor, element_type},
};
use crate::{
    device::{Buffer, BufferPool},
    engine::{Batch, BatchInput, BatchOutput, EngineError, Execution, Program},
    model::{DataType, Dims, ModelSpec, TensorSpec, element_count},
    onnx::Model,
};

/// A session shared by all lanes; ONNX Runtime allows concurrent runs.
pub struct OnnxProgram {
    session: Arc<SharedSessionInner>,
    options: RunOptions,
    host: HostMemory,
    inputs: Vec<Port>,
    outputs: Vec<Port>,
    steady: bool,
    _runtime: Runtime,
}

/// Larger models are not looked into for loops; none of them runs in microseconds.
const SMALL_MODEL_BYTES: usize = 1 << 20;

struct Port {
    name: CString,
    datatype: DataType,
}

impl OnnxProgram {
    /// Compiles a serialized model.
    ///
    /// # Errors
    /// When ONNX Runtime refuses it (the text names the operator), or when it lacks an input or output that `spec`
    /// names, or has it with another type.
    pub fn compile(runtime: &Runtime, model: &[u8], spec: &ModelSpec) -> Result<Self, EngineError> {
        let session = Session::builder(runtime.environment())
            .and_then(|builder| builder.with_optimization_level(GraphOptimizationLevel::All).map_err(ort::Error::from))
            .and_then(|mut builder| builder.commit_from_memory(model))
            .map_err(refused)?;
        let inputs = ports("input", &spec.inputs, session.inputs())?;
        let outputs = ports("output", &spec.outputs, session.outputs())?;
        let small =
            (model.len() <= SMALL_MODEL_BYTES).then(|| Model::from_bytes(&spec.name, Bytes::copy_from_slice(model)));
        Ok(Self {
            steady: small.is_some_and(|model| model.is_ok_and(|model| model.is_straight_line())),
            session: session.inner(),
            options: RunOptions::new().map_err(refused)?,
            host: HostMemory::new()?,
            inputs,
            outputs,
            _runtime: runtime.clone(),
        })
    }
}

fn refused(error: ort::Error) -> EngineError {
    EngineError(format!("onnx runtime error: {}", error.message()))
}

/// Matches the tensors of a specification with those of the graph.
fn ports(kind: &str, specs: &[TensorSpec], graph: &[ort::value::Outlet]) -> Result<Vec<Port>, EngineError> {
    specs
        .iter()
        .map(|spec| {
            let found = graph.iter().find(|outlet| outlet.name() == spec.name).ok_or_else(|| {
                let names: Vec<&str> = graph.iter().map(ort::value::Outlet::name).collect();
                EngineError(format!("the graph has no {kind} '{}', it has {names:?}", spec.name))
            })?;
            let element = found.dtype().tensor_type().map(sys::ONNXTensorElementDataType::from);
            if element != Some(element_type(spec.datatype)) {
                return Err(EngineError(format!(
                    "{kind} '{}' is {} in the configuration but {} in the graph",
                    spec.name,
                    spec.datatype,
                    found.dtype()
                )));
            }
            let name = CString::new(spec.name.as_str())
                .map_err(|_| EngineError(format!("{kind} name '{}' holds a zero byte", spec.name.escape_debug())))?;
            Ok(Port { name, datatype: spec.datatype })
        })
        .collect()
}

/// Memory of one output of a run: ours where the shape was known, else whatever ONNX Runtime allocates.
enum Target {
    Ours(Dims, Buffer),
    Runtime,
}

impl Program for OnnxProgram {
    fn run(&self, batch: &Batch<'_>) -> Result<Execution, EngineError> {
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
        let mut targets: SmallVec<[Target; 4]> =
            self.outputs.iter().zip(batch.output_shapes).map(|(port, shape)| target(port, shape, batch)).collect();
        self.execute(&names, &tensors, &mut targets).map(|outputs| Execution { outputs, ..Execution::default() })
    }

    fn is_steady(&self) -> bool {
        self.steady
    }

    fn terminate(&self) {
        // A failure to set the flag leaves the run to end by itself.
        let _ = self.options.terminate();
    }
}

impl OnnxProgram {
    fn execute(
        &self,
        names: &[*const std::ffi::c_char],
        inputs: &[Tensor<'_>],
        targets: &mut SmallVec<[Target; 4]>,
    ) -> Result<Vec<BatchOutput>, EngineError> {
        let mut ours: SmallVec<[Option<Tensor<'_>>; 4]> = SmallVec::new();
        for (port, target) in self.outputs.iter().zip(targets.iter_mut()) {
            ours.push(match target {
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
                Target::Ours(shape, buffer) => Ok(BatchOutput { shape, data: buffer.freeze() }),
                Target::Runtime => read_back(port, allocated),
            })
            .collect()
    }
}

/// Output memory from the pool where the shape follows from the batch.
fn target(port: &Port, shape: &Option<Dims>, batch: &Batch<'_>) -> Target {
    let known = shape.as_ref().and_then(|shape| {
        let len_bytes = element_count(shape)?.checked_mul(port.datatype.size_bytes()?)?;
        (len_bytes > 0).then(|| (shape.clone(), BufferPool::take(batch.buffers, len_bytes)))
    });
    known.map_or(Target::Runtime, |(shape, buffer)| Target::Ours(shape, buffer))
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

//! An ONNX graph compiled by ONNX Runtime.

use std::{collections::HashSet, ffi::CString, ptr, sync::Arc};

use bytes::Bytes;
use ort::{AsPointer, sys, value::ValueType};
use paternoster_model::{DataType, IndexRange, ModelSpec, element_count};
use paternoster_onnx::{ExternalFiles, PortDim, SealedModel, index_ranges};
use smallvec::SmallVec;

use super::{
    compiled::CompiledGraph,
    cuda_provider::CudaProvider,
    library::{Runtime, ShrinkOnDrop},
    session::origin_of,
    status::check,
    value::{HostMemory, Tensor, element_type},
    weights::Weights,
};
use crate::{
    Batch, BatchInput, BatchOutput, EngineError, EngineErrorKind, Execution, Program, ProgramPort, SMALL_MODEL_BYTES,
    sessions::Origin,
    target::{InPlace, Target, handed_on},
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
    /// Whether the graph has an operator of [`NEED_ELEMENTS`].
    needs_elements: bool,
    /// Whether it runs on a CUDA card.
    uses_card: bool,
    origin: Origin,
    // Dropped after the graph: it has the environment, and gives back what the graph took.
    _runtime: ShrinkOnDrop,
}

struct Port {
    name: CString,
    datatype: DataType,
    /// Whether ONNX Runtime writes an output into memory that it is given.
    in_place: InPlace,
}

/// Operators that end the process, in ONNX Runtime 1.32, if they have no row or no step.
const NEED_ELEMENTS: [&str; 3] = ["Scan", "LSTM", "GRU"];

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
        Self::compile_sealed(runtime, &sealed.map_err(|error| EngineError::new(error.to_string()))?, inputs, outputs)
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
        Self::compile_for(runtime, model, inputs, outputs, None)
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
        Self::compile_for(runtime, model, inputs, outputs, Some(provider))
    }

    fn compile_for(
        runtime: &Runtime,
        model: &SealedModel,
        inputs: &[ProgramPort<'_>],
        outputs: &[ProgramPort<'_>],
        provider: Option<CudaProvider>,
    ) -> Result<Self, EngineError> {
        let graph = model.to_bytes();
        let known = index_ranges(&graph);
        let index_ranges = inputs.iter().map(|port| known.get(port.name).copied()).collect();
        let weights = Weights::read(model)?;
        let origin = origin_of(&graph, &weights, model.operators(), provider)?;
        let new = || CompiledGraph::new(runtime.context(), (model, &graph, weights), origin, provider);
        let compiled = runtime.sessions().of(origin, new)?;
        let inputs = ports("input", inputs, &compiled.inputs(), InPlace::never)?;
        let mut outputs = ports("output", outputs, &compiled.outputs(), InPlace::unproven)?;
        // ONNX Runtime passes such an input on instead of writing an output, if a run has the input.
        let model_inputs: HashSet<&str> = model.inputs().iter().map(|input| input.name).collect();
        for port in outputs.iter_mut().filter(|port| model_inputs.contains(&*port.name.to_string_lossy())) {
            port.in_place = InPlace::never();
        }
        Ok(Self {
            steady: provider.is_none() && graph.len() <= SMALL_MODEL_BYTES && model.model().is_straight_line(),
            needs_elements: NEED_ELEMENTS.iter().any(|operator| model.model().has_operator(operator)),
            uses_card: provider.is_some(),
            graph: compiled,
            origin,
            host: HostMemory::new()?,
            inputs,
            outputs,
            index_ranges,
            _runtime: ShrinkOnDrop(runtime.clone()),
        })
    }
}

/// Matches the requested tensors with those of the graph.
fn ports(
    kind: &str,
    wanted: &[ProgramPort<'_>],
    graph: &[(String, ValueType)],
    in_place: fn() -> InPlace,
) -> Result<Vec<Port>, EngineError> {
    wanted
        .iter()
        .map(|&ProgramPort { name, datatype }| {
            let (_, given) = graph.iter().find(|(own, _)| own == name).ok_or_else(|| {
                let names: Vec<&str> = graph.iter().map(|(own, _)| own.as_str()).collect();
                EngineError::new(format!("the graph has no {kind} '{name}', it has {names:?}"))
            })?;
            let element = given.tensor_type().map(sys::ONNXTensorElementDataType::from);
            if element != Some(element_type(datatype)) {
                return Err(EngineError::new(format!(
                    "{kind} '{name}' is {datatype} in the configuration but {given} in the graph"
                )));
            }
            let name = CString::new(name)
                .map_err(|_| EngineError::new(format!("{kind} name '{}' holds a zero byte", name.escape_debug())))?;
            Ok(Port { name, datatype, in_place: in_place() })
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
            if self.needs_elements && input.is_empty() {
                let name = port.name.to_string_lossy();
                return Err(EngineError::new(format!(
                    "input '{name}' has no element, which the graph's recurrent layers cannot run over"
                )));
            }
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
            let name = port.name.to_string_lossy();
            targets.push(Target::of((&name, port.datatype), &port.in_place, shape.as_ref(), memory, batch)?);
        }
        let mut outputs = self.execute(&names, &tensors, &mut targets, batch);
        // The shapes of outputs are not the declared ones. The run is repeated with outputs that ONNX Runtime
        // allocates, unless none of them used the memory of the pool: it would fail in the same way.
        if outputs.as_ref().is_err_and(|error| error.kind == EngineErrorKind::OtherShape)
            && targets.iter_mut().fold(false, |any, target| target.leave_to_engine() | any)
        {
            outputs = self.execute(&names, &tensors, &mut targets, batch);
        }
        let outputs = outputs?;
        Ok(Execution { outputs, ..Execution::default() })
    }

    fn index_ranges(&self) -> &[Option<IndexRange>] {
        &self.index_ranges
    }

    fn needs_elements(&self) -> bool {
        self.needs_elements
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

    /// Returns whether the graph has been compiled for runs on the calling thread too.
    pub fn is_compiled_for_one_thread(&self) -> bool {
        self.graph.is_compiled_for_one_thread()
    }

    fn execute(
        &self,
        names: &[*const std::ffi::c_char],
        inputs: &[Tensor<'_>],
        targets: &mut SmallVec<[Target<'_>; 4]>,
        batch: &Batch<'_>,
    ) -> Result<Vec<BatchOutput>, EngineError> {
        let mut ours: SmallVec<[Option<Tensor<'_>>; 4]> = SmallVec::new();
        for (port, target) in self.outputs.iter().zip(targets.iter_mut()) {
            ours.push(match target {
                Target::Given(shape, memory) => Some(Tensor::over_mut(&self.host, port.datatype, shape, memory)?),
                Target::Ours(shape, buffer) => {
                    Some(Tensor::over_mut(&self.host, port.datatype, shape, buffer.as_mut_slice())?)
                }
                Target::Engine { .. } => None,
            });
        }
        let options = batch.stop.run_options()?;
        let output_names: SmallVec<[_; 4]> = self.outputs.iter().map(|port| port.name.as_ptr()).collect();
        let input_values: SmallVec<[*const sys::OrtValue; 8]> =
            inputs.iter().map(|tensor| tensor.as_ptr().cast_const()).collect();
        let mut output_values: SmallVec<[*mut sys::OrtValue; 4]> =
            ours.iter().map(|tensor| tensor.as_ref().map_or(ptr::null_mut(), Tensor::as_ptr)).collect();
        let run = self.graph.begin_run(batch.inputs.iter().map(BatchInput::len_bytes).sum());
        // SAFETY: all arrays have the lengths given, and names and values outlive the call. ONNX Runtime permits
        // concurrent runs of one session. The call allocates outputs that are null.
        let ran = check(unsafe {
            (ort::api().Run)(
                run.session().ptr().cast_mut(),
                options.ptr(),
                names.as_ptr(),
                input_values.as_ptr(),
                input_values.len(),
                output_names.as_ptr(),
                output_names.len(),
                output_values.as_mut_ptr(),
            )
        });
        run.end(ran.is_ok());
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
                Target::Engine { expected, copied_to } => {
                    let (output, is_input) = read_back(port, allocated, batch.inputs)?;
                    port.in_place.learn(expected.as_ref(), &output, is_input);
                    handed_on(&port.name.to_string_lossy(), output, expected.as_ref(), copied_to)
                }
            })
            .collect()
    }
}

/// Takes over an output that ONNX Runtime allocated. Returns also whether it is one of the inputs, which ONNX Runtime
/// passes on as they are. It is copied then, because the memory of the inputs serves other requests after the run.
fn read_back(
    port: &Port,
    allocated: Option<Tensor<'static>>,
    inputs: &[BatchInput<'_>],
) -> Result<(BatchOutput, bool), EngineError> {
    let name = port.name.to_string_lossy();
    let missing = || EngineError::new(format!("the graph did not compute output '{name}'"));
    let tensor = allocated.ok_or_else(missing)?;
    // An operator may declare an output that it does not compute.
    if !tensor.has_value()? {
        return Err(missing());
    }
    let shape = tensor.shape()?;
    let count =
        element_count(&shape).ok_or_else(|| EngineError::new(format!("output '{name}' has the shape {shape:?}")))?;
    let Some(size) = port.datatype.size_bytes() else {
        return Ok((BatchOutput { shape, data: tensor.prefixed_strings(count)? }, false));
    };
    let data = tensor.into_bytes(count * size)?;
    let is_input = inputs.iter().any(|input| match input {
        BatchInput::Dense { data: input, .. } => input.as_ptr_range().contains(&data.as_ptr()),
        BatchInput::Strings { .. } | BatchInput::Absent => false,
    });
    let data = if is_input { Bytes::copy_from_slice(&data) } else { data };
    Ok((BatchOutput { shape, data }, is_input))
}

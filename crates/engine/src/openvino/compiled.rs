//! A graph as OpenVINO has compiled it, with its ports.

use std::{
    ffi::{CStr, c_char},
    ptr,
    sync::Arc,
};

use paternoster_model::Dims;
use paternoster_onnx::SealedInput;

use super::{
    api::{self, Api},
    core::{Core, DEVICE, c_string},
    tensor::taken_shape,
};
use crate::{EngineError, Precision};

/// OpenVINO's compiled model and its ports. Inputs that nothing reads have been removed.
pub(super) struct Compiled {
    core: Arc<Core>,
    compiled: *mut api::CompiledModel,
    pub(super) inputs: Vec<GraphPort>,
    pub(super) outputs: Vec<GraphPort>,
}

/// An input or output of a compiled model.
#[derive(PartialEq)]
pub(super) struct GraphPort {
    /// One of the port's names. A tensor also has the names of nodes that pass it on unchanged.
    pub(super) name: String,
    pub(super) element: u32,
    /// The shape, if it is the same in every run. OpenVINO accepts memory of no other shape then.
    pub(super) fixed: Option<Dims>,
}

/// Finds a port by any of its names.
type ByName = unsafe extern "C" fn(*const api::CompiledModel, *const c_char, *mut *mut api::Port) -> api::Status;

// SAFETY: several threads may use a compiled model at once; here it is only read.
unsafe impl Send for Compiled {}
// SAFETY: as above.
unsafe impl Sync for Compiled {}

/// Returns OpenVINO's name of a precision. It is always set, since OpenVINO's default is BF16 where the processor
/// supports it.
pub(super) fn hint(precision: Precision) -> &'static CStr {
    match precision {
        // CPUs have no units for TF32.
        Precision::Ieee | Precision::Tf32 => c"f32",
        Precision::Bf16 => c"bf16",
        Precision::Fp16 => c"f16",
    }
}

impl Compiled {
    /// Compiles a graph for `streams` runs at a time, which share `threads` threads.
    ///
    /// # Errors
    /// Fails if OpenVINO rejects the graph; the message names the operator.
    pub(super) fn new(
        core: &Arc<Core>,
        streams: usize,
        threads: usize,
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
        let mut shape = api::Shape { rank: 0, dims: ptr::null_mut() };
        // SAFETY: the port is live until it is released, once; name and shape are copied and freed.
        unsafe {
            let named = api.check((api.ov_port_get_any_name)(port, &mut name));
            let typed = api.check((api.ov_port_get_element_type)(port, &mut element));
            // Fails if a dimension varies.
            let is_fixed = (api.ov_const_port_get_shape)(port, &mut shape) == 0;
            let fixed = is_fixed.then(|| taken_shape(api, &mut shape));
            (api.ov_output_const_port_free)(port);
            let name = api.owned(name);
            named.and(typed)?;
            Ok(GraphPort { name, element, fixed })
        }
    }

    /// Returns whether both have the same ports at the same places.
    pub(super) fn has_ports_of(&self, other: &Self) -> bool {
        self.inputs == other.inputs && self.outputs == other.outputs
    }

    /// Returns, for each of the graph's inputs, the index of its port: `None` for an input that nothing reads, which
    /// OpenVINO removes, and for one with a default, which it takes for a constant.
    ///
    /// # Errors
    /// Fails if the ports cannot be matched with the graph's inputs.
    pub(super) fn places_of(&self, declared: &[SealedInput<'_>]) -> Result<Vec<Option<usize>>, EngineError> {
        let named = declared.iter().enumerate().map(|(at, input)| self.input(input.name, Some(at)));
        let mut places = named.collect::<Result<Vec<_>, _>>()?;
        // An operator that does nothing leaves its input with the name of its output alone. Such ports are still in the
        // order of the graph.
        let other: Vec<usize> = (0..self.inputs.len()).filter(|port| !places.contains(&Some(*port))).collect();
        if other.is_empty() {
            return Ok(places);
        }
        let is_open = |at: &usize| places[*at].is_none() && declared[*at].is_read && !declared[*at].has_default;
        let open: Vec<usize> = (0..declared.len()).filter(is_open).collect();
        if open.len() != other.len() {
            let [open, other] = [
                open.iter().map(|at| declared[*at].name).collect::<Vec<_>>(),
                other.iter().map(|port| self.inputs[*port].name.as_str()).collect(),
            ];
            return Err(EngineError::new(format!(
                "the engine openvino names the inputs {open:?} of the graph {other:?}, which does not tell them apart"
            )));
        }
        open.into_iter().zip(other).for_each(|(at, port)| places[at] = Some(port));
        Ok(places)
    }

    /// Returns the index of the input that an output is, if OpenVINO passes one on as it is. The memory of such an
    /// output is that of the input, whatever else is bound to it.
    ///
    /// # Errors
    /// Fails if OpenVINO cannot describe a port.
    pub(super) fn passed_on(&self, output: usize) -> Result<Option<usize>, EngineError> {
        self.input(&self.outputs[output].name, None)
    }

    /// Returns the index of the input that has this name among its names. `at` is its index in the graph.
    fn input(&self, name: &str, at: Option<usize>) -> Result<Option<usize>, EngineError> {
        self.place(&self.inputs, self.core.api.ov_compiled_model_input_by_name, name, at)
    }

    /// Returns the index of the output with this name, which is the graph's output `at` of `count`.
    ///
    /// # Errors
    /// Fails if OpenVINO cannot describe the output.
    pub(super) fn output(&self, name: &str, at: usize, count: usize) -> Result<Option<usize>, EngineError> {
        let named = self.place(&self.outputs, self.core.api.ov_compiled_model_output_by_name, name, Some(at))?;
        // If the name was lost, as that of an input may be, the place is left: OpenVINO removes no output.
        Ok(named.or((count == self.outputs.len()).then_some(at)))
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

    /// Returns a property of the compiled model.
    ///
    /// # Errors
    /// Fails if it has no such property.
    pub(super) fn property(&self, name: &CStr) -> Result<String, EngineError> {
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

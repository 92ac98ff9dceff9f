//! Completion: fills in missing settings from the graph and from Triton's defaults, as Triton's ModelConfig shows them.

use std::collections::BTreeMap;

use paternoster_batching::PolicyKind;
use paternoster_model::AxisLength;
use paternoster_onnx::{Port, PortDim, Signature};

use super::{
    ConfigError, ConfigErrorKind, Origin, SettingError,
    model::PolicyName,
    model_config::{datatype_to_pb, sequence_batching, tensors},
    pb::{
        self, model_config::SchedulingChoice, model_instance_group::Kind,
        model_optimization_policy::PinnedMemoryBuffer, model_version_policy as version_policy,
    },
    pipeline::{self, ENSEMBLE},
    sequences,
    settings::{Axes, ONNX_FILENAME, ONNX_PLATFORM, ONNXRUNTIME, OPENVINO, OwnSettings, Pad, Settings},
    values::{Parsed, Symbol},
};

/// Default largest batch, in rows, of a model that can batch; Triton's. The command line can change it.
pub const DEFAULT_MAX_BATCH_SIZE: i32 = 4;
/// Default number of instances of an ONNX model.
const DEFAULT_INSTANCES: i32 = 2;

/// Fills in settings that need no graph: name, backend, platform, file name, version policy, instances, pinned memory.
pub fn defaults(settings: &mut Settings, model: &str) {
    let (has_cells, names_cells) = (settings.has_cells(), settings.names_cells());
    let is_pipeline = pipeline::is_pipeline(settings);
    let config = &mut settings.config;
    if config.name.is_empty() {
        model.clone_into(&mut config.name);
    }
    if config.version_policy.as_ref().is_none_or(|policy| policy.policy_choice.is_none()) {
        let latest = version_policy::Latest { num_versions: 1 };
        let choice = version_policy::PolicyChoice::Latest(latest);
        config.version_policy = Some(pb::ModelVersionPolicy { policy_choice: Some(choice) });
    }
    let optimization = config.optimization.get_or_insert_default();
    optimization.input_pinned_memory.get_or_insert(PinnedMemoryBuffer { enable: true });
    optimization.output_pinned_memory.get_or_insert(PinnedMemoryBuffer { enable: true });
    if is_pipeline {
        ENSEMBLE.clone_into(&mut config.platform);
        return;
    }
    if config.backend.is_empty() {
        ONNXRUNTIME.clone_into(&mut config.backend);
    }
    let onnx = [ONNXRUNTIME, OPENVINO].contains(&config.backend.as_str());
    if onnx {
        // Triton names no platform for models of OpenVINO.
        if config.backend == ONNXRUNTIME {
            ONNX_PLATFORM.clone_into(&mut config.platform);
        }
        // Cells have programs of their own.
        if config.default_model_filename.is_empty() && !names_cells {
            ONNX_FILENAME.clone_into(&mut config.default_model_filename);
        }
    }

    // Lanes of a CPU share its cores, so two tasks with half of the nodes each take longer than one with all.
    let count = if onnx && !has_cells { DEFAULT_INSTANCES } else { 1 };
    if config.instance_group.is_empty() {
        let name = config.name.clone();
        config.instance_group.push(pb::ModelInstanceGroup { name, ..Default::default() });
    }
    for (number, group) in config.instance_group.iter_mut().enumerate() {
        if group.name.is_empty() {
            group.name = format!("{}_{number}", config.name);
        }
        if group.count == 0 {
            group.count = count;
        }
    }
}

/// Puts instances whose device the server chooses on the CPU if there are no cards.
pub fn kinds(config: &mut pb::ModelConfig, has_cards: bool) {
    for group in config.instance_group.iter_mut().filter(|group| !has_cards && group.kind == i32::from(Kind::Auto)) {
        group.kind = Kind::Cpu.into();
    }
}

/// Fills in missing tensors, largest batch and scheduler from the graph. As in Triton, the largest batch and the
/// scheduler are completed only if inputs or outputs are missing. With a `default_max_batch_size` of 0, a model without
/// its own keeps no batch axis.
///
/// # Errors
/// Fails if a tensor to complete has a datatype that the protocol does not have.
pub fn from_graph(
    settings: &mut Settings,
    signature: &Signature,
    default_max_batch_size: i32,
    origin: &Origin,
) -> Result<(), ConfigError> {
    let says_serial = settings.policy() == Some(&PolicyName::Of(PolicyKind::Serial));
    let config = &mut settings.config;
    if config.input.is_empty() || config.output.is_empty() {
        batch_size(config, says_serial, signature, default_max_batch_size);
    }
    let batched = config.max_batch_size > 0;
    if config.input.is_empty() {
        let own: Vec<&str> = sequences::inputs(config).collect();
        let ports = signature.inputs.iter().filter(|port| !own.contains(&port.name.as_str()));
        let tensors = ports.map(|port| pb::ModelInput { name: port.name.clone(), ..Default::default() });
        config.input = tensors.collect();
    }
    if config.output.is_empty() {
        let own: Vec<&str> = sequences::outputs(config).collect();
        let outputs = signature.outputs.iter().filter(|port| !own.contains(&port.name.as_str()));
        let tensors = outputs.map(|port| pb::ModelOutput { name: port.name.clone(), ..Default::default() });
        config.output = tensors.collect();
    }
    let has_sequences = sequence_batching(config).is_some();
    let is_scalar = |port: &Port| port.dims.as_ref().is_some_and(Vec::is_empty);
    for (number, tensor) in config.input.iter_mut().enumerate() {
        let fields = (&mut tensor.data_type, &mut tensor.dims, &mut tensor.reshape);
        let Some(port) = signature.all_inputs().find(|port| port.name == tensor.name) else { continue };
        fill(fields, port, batched && !(has_sequences && is_scalar(port)))
            .map_err(|fault| origin.error(&format!("input[{number}]"), fault))?;
    }
    for (number, tensor) in config.output.iter_mut().enumerate() {
        let Some(port) = signature.outputs.iter().find(|port| port.name == tensor.name) else { continue };
        // Where neither the file nor the engine knows the rank, responses say it.
        if port.dims.is_none() && tensor.dims.is_empty() && !batched {
            tensor.dims = vec![-1];
        }
        let fields = (&mut tensor.data_type, &mut tensor.dims, &mut tensor.reshape);
        fill(fields, port, batched).map_err(|fault| origin.error(&format!("output[{number}]"), fault))?;
    }
    Ok(())
}

/// Whether completion needs the shape of an output that the signature does not have.
pub fn lacks_shapes(config: &pb::ModelConfig, signature: &Signature) -> bool {
    let lists_all = !config.input.is_empty() && !config.output.is_empty();
    let mut unknown = signature.outputs.iter().filter(|port| port.dims.is_none() && port.datatype.is_some());
    unknown.any(|port| {
        let listed = config.output.iter().find(|tensor| tensor.name == port.name);
        !lists_all || listed.is_some_and(|tensor| tensor.dims.is_empty())
    })
}

/// Whether axis 0 of every input and output varies, and is not tied to another length.
pub fn can_batch(signature: &Signature) -> bool {
    let mut ports = signature.inputs.iter().chain(&signature.outputs).peekable();
    !signature.needs_square
        && ports.peek().is_some()
        && ports.all(|port| port.dims.as_ref().is_some_and(|dims| leads_with_batch(dims)))
}

/// Whether axis 0 of a shape can be the batch.
pub(super) fn leads_with_batch(dims: &[PortDim]) -> bool {
    dims.first().is_some_and(|dim| dim.size() == -1)
}

fn batch_size(config: &mut pb::ModelConfig, says_serial: bool, signature: &Signature, default_max_batch_size: i32) {
    if !can_batch(signature) {
        return;
    }
    if config.max_batch_size == 0 {
        config.max_batch_size = default_max_batch_size;
    }
    if config.max_batch_size > 1 && config.scheduling_choice.is_none() && !says_serial {
        config.scheduling_choice = Some(SchedulingChoice::DynamicBatching(pb::ModelDynamicBatching::default()));
    }
}

type Fields<'a> = (&'a mut i32, &'a mut Vec<i64>, &'a mut Option<pb::ModelTensorReshape>);

fn fill((data_type, dims, reshape): Fields<'_>, port: &Port, batched: bool) -> Result<(), SettingError> {
    if *data_type == i32::from(pb::DataType::TypeInvalid) {
        let Some(datatype) = port.datatype else {
            return Err(SettingError::new(ConfigErrorKind::Graph, port.refusal()));
        };
        *data_type = datatype_to_pb(datatype).into();
    }
    if dims.is_empty() {
        let Some(shape) = &port.dims else {
            let message = format!("the graph does not say the shape of '{}': give its dims", port.name);
            return Err(SettingError::new(ConfigErrorKind::Graph, message));
        };
        *dims = shape.iter().skip(usize::from(batched)).map(PortDim::size).collect();
        // `dims` cannot express a scalar, so it becomes one dimension of size 1. Behind a batch axis `reshape` removes
        // it; without one, Triton shows no reshape.
        if dims.is_empty() && reshape.is_none() {
            *dims = vec![1];
            *reshape = batched.then(pb::ModelTensorReshape::default);
        }
    }
    Ok(())
}

/// Declares the axis of a text's tokens: requests of different lengths share a batch, since the program tells padding
/// from tokens. Inputs that the configuration pads stay as they are.
pub fn tokens_axis(settings: &mut Settings, pad_token: i64) {
    const TOKENS: &str = "tokens";
    let Settings { config, own } = settings;
    if !own.pad.is_empty() {
        return;
    }
    for input in config.input.iter().filter(|input| input.dims == [-1]) {
        let value = if input.name == "input_ids" { pad_token as f64 } else { 0.0 };
        let axes = Axes(vec![Some(TOKENS.to_owned())]);
        own.pad.insert(input.name.clone(), Parsed(Pad { symbols: vec![TOKENS.to_owned()], value }));
        own.axes.insert(input.name.clone(), Parsed(axes));
    }
}

/// Names the axes of a padded model as the graph does, unless the configuration names them. From then on the
/// configuration alone determines what is padded and cut back.
///
/// An axis of an output that has no input's name is named by its length as inferred from the nodes, such as
/// `(T + 1)//2`, or by its own name if that is such an expression of padded axes. Otherwise it stays without a name,
/// since it may depend on padded axes.
pub fn name_axes(settings: &mut Settings, signature: &Signature) {
    let Settings { config, own } = settings;
    if own.pad.is_empty() {
        return;
    }
    let batched = usize::from(config.max_batch_size > 0);
    // The configuration may have given the inputs' axes other names than the graph.
    let mut renamed: BTreeMap<&str, String> = BTreeMap::new();
    for tensor in tensors(config) {
        let port = tensor.ports(signature).into_iter().find(|port| port.name == tensor.name);
        let shape = port.and_then(|port| port.dims.as_ref());
        let Some(shape) = shape.filter(|shape| shape.len() == tensor.dims.len() + batched) else { continue };
        let is_input = tensor.what == "input";
        let axes = tensor.dims.iter().zip(shape.iter().skip(batched)).enumerate().map(|(axis, (size, dim))| {
            let name = match dim {
                PortDim::Symbol(name) => Some(name.as_str()),
                PortDim::Fixed(_) | PortDim::Unknown => None,
            };
            let name = if is_input {
                name.map(str::to_owned)
            } else {
                output_axis(own, signature, (tensor.name, axis + batched), name, &renamed)
            };
            name.filter(|name| *size == -1 && Symbol::is(name))
        });
        let axes: Vec<Option<String>> = axes.collect();
        if axes.iter().any(Option::is_some) {
            own.axes.entry(tensor.name.to_owned()).or_insert(Parsed(Axes(axes)));
        }
        if let (true, Some(named)) = (is_input, own.axes.get(tensor.name)) {
            for (dim, name) in shape.iter().skip(batched).zip(&named.0.0) {
                if let (PortDim::Symbol(dim), Some(name)) = (dim, name) {
                    renamed.insert(dim, name.clone());
                }
            }
        }
    }
}

/// Returns the name of an output's axis, whose name in the graph is `name`.
fn output_axis(
    own: &OwnSettings,
    signature: &Signature,
    (output, axis): (&str, usize),
    name: Option<&str>,
    renamed: &BTreeMap<&str, String>,
) -> Option<String> {
    let rename = |name: &str| renamed.get(name).map_or(name, String::as_str).to_owned();
    if let Some(name) = name.filter(|name| signature.is_of_input(name)) {
        return Some(rename(name));
    }
    let inferred = signature.inferred_lengths.get(output).and_then(|lengths| lengths.get(axis)?.as_deref());
    match inferred {
        // The length does not vary, whatever its name.
        Some(length) if length.parse::<u64>().is_ok() => name.map(str::to_owned),
        Some(length) => {
            let mut text = rename(length);
            if text == length {
                text = length.split_inclusive(|letter| !AxisLength::is_in_word(letter)).fold(
                    String::new(),
                    |text, part| {
                        let word = part.trim_end_matches(|letter| !AxisLength::is_in_word(letter));
                        text + &rename(word) + &part[word.len()..]
                    },
                );
            }
            Some(text)
        }
        None => name.filter(|name| own.axis_length(name).is_ok_and(|length| length.is_some())).map(str::to_owned),
    }
}

/// Fills in the scheduler once the largest batch is known. `auto` and the policies without a window batch if the model
/// can. If the policy has a window and no preferred sizes, the largest batch is the preferred one, as Triton's
/// ModelConfig shows it. Models of cells need no scheduler, nor do recurrent layers that are served by cells.
pub fn scheduler(settings: &mut Settings) {
    if settings.has_cells() || settings.asks_for_cells() {
        return;
    }
    let named = settings.policy().cloned();
    let config = &mut settings.config;
    let batches =
        named.as_ref().is_some_and(|name| !matches!(name, PolicyName::Of(PolicyKind::Serial | PolicyKind::Window)));
    if batches && config.max_batch_size > 0 && config.scheduling_choice.is_none() {
        config.scheduling_choice = Some(SchedulingChoice::DynamicBatching(pb::ModelDynamicBatching::default()));
    }
    let largest = config.max_batch_size;
    if named.is_none_or(|name| name.has_window())
        && let Some(SchedulingChoice::DynamicBatching(batching)) = &mut config.scheduling_choice
        && batching.preferred_batch_size.is_empty()
        && largest > 0
    {
        batching.preferred_batch_size.push(largest);
    }
}

#[cfg(test)]
pub(crate) mod tests;

//! Which fields are honoured at all.

use super::{is_file_name, stays_inside};
use crate::{
    observe::FIRST_RESPONSE_HISTOGRAM,
    repository::config::{
        ConfigError, Origin,
        complete::{ONNX_PLATFORM, ONNXRUNTIME, OPENVINO, REPEAT},
        pb::{
            self, model_config::SchedulingChoice, model_input::Format, model_instance_group::Kind,
            model_sequence_batching::StrategyChoice, model_version_policy::PolicyChoice,
        },
        sequences,
    },
};

/// Parameters of the ONNX Runtime backend that Triton knows and we do not act on.
const ONNXRUNTIME_PARAMETERS: &str = "\
    arena_extend_strategy cudnn_conv_algo_search cudnn_conv_use_max_workspace do_copy_in_default_stream \
    enable_cuda_graph enable_mem_arena enable_mem_pattern execution_mode gpu_mem_limit inter_op_thread_count \
    intra_op_thread_count memory.enable_memory_arena_shrinkage model_namespace \
    optimization.graph_optimization_level use_device_allocator_for_initializers use_global_thread_pool \
    use_ort_model_bytes_directly";

/// A field without effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hint {
    /// The key in `ModelConfig`.
    pub key: String,
    /// Why it has none.
    pub text: String,
}

/// Refuses what this server cannot honour: to be called before completion.
///
/// # Errors
/// Names the first field that changes results and is not supported.
pub fn supported(config: &pb::ModelConfig, model: &str, origin: &Origin) -> Result<(), ConfigError> {
    let (name, backend, platform) = (&config.name, config.backend.as_str(), config.platform.as_str());
    let has_platform = ["", ONNXRUNTIME].contains(&backend);
    let operators = config.model_operations.as_ref().map(|operations| &operations.op_library_filename);
    let agents = config.model_repository_agents.as_ref().map(|agents| &agents.agents);
    let latest = match config.version_policy.as_ref().and_then(|policy| policy.policy_choice.as_ref()) {
        Some(PolicyChoice::Latest(latest)) => latest.num_versions,
        _ => 1,
    };
    let program = &config.default_model_filename;
    origin.refuse_first([
        (
            !name.is_empty() && name != model,
            "name",
            format!("expected the directory's name '{model}', but found '{name}'"),
        ),
        (
            matches!(config.scheduling_choice, Some(SchedulingChoice::EnsembleScheduling(_))),
            "ensemble_scheduling",
            "ensembles are not supported".to_owned(),
        ),
        (
            !["", ONNXRUNTIME, OPENVINO, REPEAT].contains(&backend),
            "backend",
            format!("the backend '{backend}' is not supported; expected {ONNXRUNTIME}, {OPENVINO} or {REPEAT}"),
        ),
        (
            !platform.is_empty() && (platform != ONNX_PLATFORM || !has_platform),
            "platform",
            format!("the platform '{platform}' is not supported; expected {ONNX_PLATFORM}"),
        ),
        (!config.batch_input.is_empty(), "batch_input", "batch inputs are not supported".to_owned()),
        (!config.batch_output.is_empty(), "batch_output", "batch outputs are not supported".to_owned()),
        (
            operators.is_some_and(|operators| !operators.is_empty()),
            "model_operations",
            "libraries of custom operators are not supported".to_owned(),
        ),
        (
            agents.is_some_and(|agents| !agents.is_empty()),
            "model_repository_agents",
            "repository agents are not supported".to_owned(),
        ),
        (latest == 0, "version_policy.latest.num_versions", "expected at least 1, but found 0".to_owned()),
        (
            !program.is_empty() && !is_file_name(program),
            "default_model_filename",
            format!("expected the name of a file in the version's directory, but found '{program}'"),
        ),
    ])?;
    tensors(config, origin)?;
    for (number, group) in config.instance_group.iter().enumerate() {
        let path = |key: &str| format!("instance_group[{number}].{key}");
        let off_gpu = [Kind::Cpu, Kind::Model].into_iter().find(|kind| group.kind == i32::from(*kind));
        let kind = off_gpu.map_or("", |kind| kind.as_str_name());
        origin.refuse_first([
            (group.count < 0, path("count"), format!("expected a positive number, but found {}", group.count)),
            (
                off_gpu.is_some() && !group.gpus.is_empty(),
                path("gpus"),
                format!("expected none, since the kind is {kind}, but found {:?}", group.gpus),
            ),
            (!group.profile.is_empty(), path("profile"), "profiles are TensorRT's".to_owned()),
        ])?;
    }
    let caches = config.response_cache.as_ref().is_some_and(|cache| cache.enable);
    let decoupled = config.model_transaction_policy.as_ref().is_some_and(|policy| policy.decoupled);
    let without_cache = [(sequences::given(config).is_some(), "sequence_batching"), (decoupled, "a decoupled model")];
    origin.refuse_first(without_cache.map(|(is_there, what)| {
        (caches && is_there, "response_cache", format!("a response cache does not go with {what}"))
    }))
}

fn tensors(config: &pb::ModelConfig, origin: &Origin) -> Result<(), ConfigError> {
    for (number, input) in config.input.iter().enumerate() {
        let unsupported = [
            (input.is_shape_tensor, "is_shape_tensor", "shape tensors"),
            (input.allow_ragged_batch, "allow_ragged_batch", "ragged batches"),
            (input.is_non_linear_format_io, "is_non_linear_format_io", "non-linear tensor formats"),
        ];
        origin.refuse_first(unsupported.map(|(is_there, key, what)| {
            let message = format!("{what} are not supported (input '{}')", input.name);
            (is_there, format!("input[{number}].{key}"), message)
        }))?;
    }
    for (number, output) in config.output.iter().enumerate() {
        let unsupported = [
            (output.is_shape_tensor, "is_shape_tensor", "shape tensors"),
            (output.is_non_linear_format_io, "is_non_linear_format_io", "non-linear tensor formats"),
        ];
        origin.refuse_first(unsupported.map(|(is_there, key, what)| {
            let message = format!("{what} are not supported (output '{}')", output.name);
            (is_there, format!("output[{number}].{key}"), message)
        }))?;
        let labels = &output.label_filename;
        let message = format!("expected a file in the model's directory, but found '{labels}'");
        let strays = !labels.is_empty() && !stays_inside(labels);
        origin.refuse_first([(strays, format!("output[{number}].label_filename"), message)])?;
    }
    Ok(())
}

/// Fields that stay visible but have no effect.
pub fn hints(config: &pb::ModelConfig) -> Vec<Hint> {
    let mut found = Vec::new();
    let mut hint = |given: bool, key: &str, text: &str| {
        if given {
            found.push(Hint { key: key.to_owned(), text: text.to_owned() });
        }
    };
    hint(!config.runtime.is_empty(), "runtime", "the server has its own");
    hint(!config.cc_model_filenames.is_empty(), "cc_model_filenames", "default_model_filename is served");
    hint(!config.metric_tags.is_empty(), "metric_tags", "metrics carry model and version only");
    let metrics = config.model_metrics.iter().flat_map(|metrics| &metrics.metric_control);
    let mut families = metrics.filter_map(|control| control.metric_identifier.as_ref());
    let names_others = families.any(|metric| metric.family != FIRST_RESPONSE_HISTOGRAM);
    hint(names_others, "model_metrics", "of the histograms, only that of first responses takes buckets");
    let caches = config.response_cache.as_ref().is_some_and(|cache| cache.enable);
    hint(caches, "response_cache", "responses are not cached");
    if let Some(optimization) = &config.optimization {
        let text = "optimization is left to the engine";
        hint(optimization.graph.is_some(), "optimization.graph", text);
        hint(optimization.priority != 0, "optimization.priority", "all models have the same priority");
        hint(optimization.cuda.is_some(), "optimization.cuda", "what runs on a card is a captured graph in any case");
        let accelerators = "there are none; half precision on cards is asked for by instance.precision";
        hint(optimization.execution_accelerators.is_some(), "optimization.execution_accelerators", accelerators);
        hint(optimization.gather_kernel_buffer_threshold != 0, "optimization.gather_kernel_buffer_threshold", text);
        hint(optimization.eager_batching, "optimization.eager_batching", text);
    }
    for (number, group) in config.instance_group.iter().enumerate() {
        let key = |name: &str| format!("instance_group[{number}].{name}");
        hint(group.kind == i32::from(Kind::Model), &key("kind"), "the server decides, as with KIND_AUTO");
        let unnamed = group.kind == i32::from(Kind::Auto) && !group.gpus.is_empty();
        hint(unnamed, &key("gpus"), "they count with KIND_GPU alone");
        hint(group.rate_limiter.is_some(), &key("rate_limiter"), "there is no rate limiter");
        hint(!group.host_policy.is_empty(), &key("host_policy"), "there are no host policies");
        hint(!group.secondary_devices.is_empty(), &key("secondary_devices"), "there are none");
        hint(group.passive, &key("passive"), "its instances take requests");
    }
    for (number, input) in config.input.iter().enumerate() {
        let formatted = input.format != i32::from(Format::None);
        hint(formatted, &format!("input[{number}].format"), "the tensor is passed on as it comes");
    }
    if let Some(batching) = sequences::given(config) {
        let text = "a row runs as soon as a lane is free";
        let (delay, preferred, ordering) = match &batching.strategy_choice {
            Some(StrategyChoice::Direct(direct)) => {
                let waits = direct.max_queue_delay_microseconds > 0 || direct.minimum_slot_utilization > 0.0;
                (waits.then_some("direct"), false, false)
            }
            Some(StrategyChoice::Oldest(oldest)) => {
                let waits = oldest.max_queue_delay_microseconds > 0;
                (waits.then_some("oldest"), !oldest.preferred_batch_size.is_empty(), oldest.preserve_ordering)
            }
            None => (None, false, false),
        };
        if let Some(strategy) = delay {
            hint(true, &format!("sequence_batching.{strategy}.max_queue_delay_microseconds"), text);
        }
        hint(preferred, "sequence_batching.oldest.preferred_batch_size", text);
        let text = "each sequence is in order, and waits for no other";
        hint(ordering, "sequence_batching.oldest.preserve_ordering", text);
    }
    for key in config.parameters.keys() {
        let onnx = ONNXRUNTIME_PARAMETERS.split_whitespace().any(|known| known == key);
        hint(onnx, &format!("parameters[{key}]"), "ONNX Runtime runs with the server's settings");
    }
    found
}

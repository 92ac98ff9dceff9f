//! Which fields are honoured at all.

use super::stays_inside;
use crate::{
    observe::FIRST_RESPONSE_HISTOGRAM,
    repository::config::{
        ConfigError, Origin,
        complete::{ONNX_PLATFORM, ONNXRUNTIME, OPENVINO, REPEAT},
        params::{self, Meaning},
        pb::{
            self, model_config::SchedulingChoice, model_input::Format, model_instance_group::Kind,
            model_sequence_batching::StrategyChoice, model_version_policy::PolicyChoice,
        },
        sequences,
    },
};

/// A field without effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hint {
    /// The key in `ModelConfig`.
    pub key: String,
    /// Why it has none.
    pub text: String,
}

pub(super) fn supported(config: &pb::ModelConfig, model: &str, origin: &Origin) -> Result<(), ConfigError> {
    let refuse = |key: &str, message: String| Err(origin.error(key, message));
    if !config.name.is_empty() && config.name != model {
        return refuse("name", format!("expected the directory's name '{model}', but found '{}'", config.name));
    }
    match config.scheduling_choice {
        Some(SchedulingChoice::EnsembleScheduling(_)) => {
            return refuse("ensemble_scheduling", "ensembles are not supported".to_owned());
        }
        Some(SchedulingChoice::SequenceBatching(_) | SchedulingChoice::DynamicBatching(_)) | None => {}
    }
    if !["", ONNXRUNTIME, OPENVINO, REPEAT].contains(&config.backend.as_str()) {
        let message = format!(
            "the backend '{}' is not supported; expected {ONNXRUNTIME}, {OPENVINO} or {REPEAT}",
            config.backend
        );
        return refuse("backend", message);
    }
    let has_platform = ["", ONNXRUNTIME].contains(&config.backend.as_str());
    let fits = config.platform.is_empty() || config.platform == ONNX_PLATFORM && has_platform;
    if !fits {
        let message = format!("the platform '{}' is not supported; expected {ONNX_PLATFORM}", config.platform);
        return refuse("platform", message);
    }
    if !config.batch_input.is_empty() {
        return refuse("batch_input", "batch inputs are not supported".to_owned());
    }
    if !config.batch_output.is_empty() {
        return refuse("batch_output", "batch outputs are not supported".to_owned());
    }
    if config.model_operations.as_ref().is_some_and(|operations| !operations.op_library_filename.is_empty()) {
        return refuse("model_operations", "libraries of custom operators are not supported".to_owned());
    }
    if config.model_repository_agents.as_ref().is_some_and(|agents| !agents.agents.is_empty()) {
        return refuse("model_repository_agents", "repository agents are not supported".to_owned());
    }
    if let Some(policy) = &config.version_policy
        && let Some(PolicyChoice::Latest(latest)) = &policy.policy_choice
        && latest.num_versions == 0
    {
        return refuse("version_policy.latest.num_versions", "expected at least 1, but found 0".to_owned());
    }
    let program = &config.default_model_filename;
    if !program.is_empty() && (!stays_inside(program) || program.contains(['/', '\\'])) {
        let message = format!("expected the name of a file in the version's directory, but found '{program}'");
        return refuse("default_model_filename", message);
    }
    tensors(config, origin)?;
    for (number, group) in config.instance_group.iter().enumerate() {
        if group.count < 0 {
            let message = format!("expected a positive number, but found {}", group.count);
            return refuse(&format!("instance_group[{number}].count"), message);
        }
        let off_gpu = [Kind::Cpu, Kind::Model].into_iter().find(|kind| group.kind == i32::from(*kind));
        if let Some(kind) = off_gpu.filter(|_| !group.gpus.is_empty()) {
            let message =
                format!("expected none, since the kind is {}, but found {:?}", kind.as_str_name(), group.gpus);
            return refuse(&format!("instance_group[{number}].gpus"), message);
        }
        if !group.profile.is_empty() {
            return refuse(&format!("instance_group[{number}].profile"), "profiles are TensorRT's".to_owned());
        }
    }
    if config.response_cache.as_ref().is_some_and(|cache| cache.enable) {
        let decoupled = config.model_transaction_policy.as_ref().is_some_and(|policy| policy.decoupled);
        let what = match () {
            () if sequences::given(config).is_some() => "sequence_batching",
            () if decoupled => "a decoupled model",
            () => return Ok(()),
        };
        return refuse("response_cache", format!("a response cache does not go with {what}"));
    }
    Ok(())
}

fn tensors(config: &pb::ModelConfig, origin: &Origin) -> Result<(), ConfigError> {
    for (number, input) in config.input.iter().enumerate() {
        let refuse = |key: &str, what: &str| {
            let message = format!("{what} are not supported (input '{}')", input.name);
            Err(origin.error(&format!("input[{number}].{key}"), message))
        };
        if input.is_shape_tensor {
            return refuse("is_shape_tensor", "shape tensors");
        }
        if input.allow_ragged_batch {
            return refuse("allow_ragged_batch", "ragged batches");
        }
        if input.is_non_linear_format_io {
            return refuse("is_non_linear_format_io", "non-linear tensor formats");
        }
    }
    for (number, output) in config.output.iter().enumerate() {
        let refuse = |key: &str, what: &str| {
            let message = format!("{what} are not supported (output '{}')", output.name);
            Err(origin.error(&format!("output[{number}].{key}"), message))
        };
        if output.is_shape_tensor {
            return refuse("is_shape_tensor", "shape tensors");
        }
        if output.is_non_linear_format_io {
            return refuse("is_non_linear_format_io", "non-linear tensor formats");
        }
        if !output.label_filename.is_empty() && !stays_inside(&output.label_filename) {
            let path = format!("output[{number}].label_filename");
            let message = format!("expected a file in the model's directory, but found '{}'", output.label_filename);
            return Err(origin.error(&path, message));
        }
    }
    Ok(())
}

pub(super) fn hints(config: &pb::ModelConfig) -> Vec<Hint> {
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
        let onnx = params::meaning(config, key) == Meaning::OnnxRuntime;
        hint(onnx, &format!("parameters[{key}]"), "ONNX Runtime runs with the server's settings");
    }
    found
}

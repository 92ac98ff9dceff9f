//! Which fields of `ModelConfig` the server supports at all.

use paternoster_observe::FIRST_RESPONSE_HISTOGRAM;

use crate::{
    ConfigError, Origin, model_config,
    pb::{
        self, model_instance_group::Kind, model_metrics::metric_control::MetricOptions,
        model_version_policy::PolicyChoice,
    },
    pipeline::ENSEMBLE,
    rate_limiter,
    settings::{ONNX_PLATFORM, ONNXRUNTIME, OPENVINO, REPEAT},
    values::{is_file_name, stays_inside},
};

/// Fields that would change results and that the server does not support, and what they ask for.
pub(super) const UNSUPPORTED: [(&str, &str); 9] = [
    ("ModelConfig.batch_input", "batch inputs"),
    ("ModelConfig.batch_output", "batch outputs"),
    ("ModelRepositoryAgents.agents", "repository agents"),
    ("ModelInput.allow_ragged_batch", "ragged batches"),
    ("ModelInput.is_shape_tensor", "shape tensors"),
    ("ModelInput.is_non_linear_format_io", "non-linear tensor formats"),
    ("ModelOutput.is_shape_tensor", "shape tensors"),
    ("ModelOutput.is_non_linear_format_io", "non-linear tensor formats"),
    ("ModelSequenceBatching.iterative_sequence", "iterative sequences"),
];

/// Fields that the server accepts and ignores, and why they have no effect.
pub(super) const WITHOUT_EFFECT: [(&str, &str); 15] = [
    ("ModelConfig.runtime", "the server has its own"),
    ("ModelConfig.cc_model_filenames", "default_model_filename is served"),
    ("ModelConfig.metric_tags", "metrics carry model and version only"),
    ("ModelOptimizationPolicy.graph", LEFT_TO_ENGINE),
    ("ModelOptimizationPolicy.priority", "all models have the same priority"),
    ("ModelOptimizationPolicy.cuda", "on a card every model runs as a captured graph"),
    (
        "ModelOptimizationPolicy.execution_accelerators",
        "there are none; instance.precision selects half precision on cards",
    ),
    ("ModelOptimizationPolicy.gather_kernel_buffer_threshold", LEFT_TO_ENGINE),
    ("ModelOptimizationPolicy.eager_batching", LEFT_TO_ENGINE),
    ("ModelInstanceGroup.host_policy", "there are no host policies"),
    ("ModelInstanceGroup.secondary_devices", "there are none"),
    ("ModelInstanceGroup.passive", "its instances take requests"),
    ("ModelInput.format", "the tensor is passed on as it is"),
    ("ModelEnsembling.max_inflight_requests", "what waits between steps is bounded by --max-pending-bytes"),
    (
        "ModelSequenceBatching.StrategyOldest.preserve_ordering",
        "requests of one sequence keep their order, and sequences do not wait for each other",
    ),
];
const LEFT_TO_ENGINE: &str = "optimization is left to the engine";

/// Parameters of Triton's ONNX Runtime backend, which have no effect here.
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
    /// Why it has no effect.
    pub text: String,
}

impl Hint {
    /// Of a model that asks for a response cache on a server that has none.
    pub fn without_cache() -> Self {
        Self { key: "response_cache".to_owned(), text: "the server has no cache (--cache-config)".to_owned() }
    }
}

/// Checks that the server supports everything that a configuration asks for. Call it before completion.
///
/// # Errors
/// Returns the first field that would change results and is not supported.
pub fn supported(config: &pb::ModelConfig, model: &str, origin: &Origin) -> Result<(), ConfigError> {
    let (name, backend, platform) = (&config.name, config.backend.as_str(), config.platform.as_str());
    let latest = match config.version_policy.as_ref().and_then(|policy| policy.policy_choice.as_ref()) {
        Some(PolicyChoice::Latest(latest)) => latest.num_versions,
        _ => 1,
    };
    let message = format!("expected the directory's name '{model}', but found '{name}'");
    origin.refuse_if(!name.is_empty() && name != model, "name", message)?;
    let message = format!(
        "the backend '{backend}' is not supported; expected {ONNXRUNTIME}, {OPENVINO} or {REPEAT}: {}",
        instead_of(backend)
    );
    origin.refuse_if(!["", ONNXRUNTIME, OPENVINO, REPEAT].contains(&backend), "backend", message)?;
    let is_onnx = platform == ONNX_PLATFORM && ["", ONNXRUNTIME].contains(&backend);
    let message = format!(
        "the platform '{platform}' is not supported; expected {ONNX_PLATFORM} or {ENSEMBLE}: {}",
        instead_of(platform)
    );
    origin.refuse_if(!platform.is_empty() && !is_onnx && platform != ENSEMBLE, "platform", message)?;
    origin.refuse_if(latest == 0, "version_policy.latest.num_versions", "expected at least 1, but found 0")?;
    let program = &config.default_model_filename;
    let message = format!("expected the name of a file in the version's directory, but found '{program}'");
    origin.refuse_if(!program.is_empty() && !is_file_name(program), "default_model_filename", message)?;
    for field in model_config::set_fields(config).map_err(|fault| origin.error("", fault))? {
        if let Some((_, what)) = UNSUPPORTED.iter().find(|(name, _)| *name == field.name) {
            return Err(origin.error(&field.path, format!("{what} are not supported")));
        }
    }
    for (number, output) in config.output.iter().enumerate() {
        let labels = &output.label_filename;
        let message = format!("expected a file in the model's directory, but found '{labels}'");
        let strays = !labels.is_empty() && !stays_inside(labels);
        origin.refuse_if(strays, &format!("output[{number}].label_filename"), message)?;
    }
    for (number, group) in config.instance_group.iter().enumerate() {
        let path = |key: &str| format!("instance_group[{number}].{key}");
        let message = format!("expected a positive number, but found {}", group.count);
        origin.refuse_if(group.count < 0, &path("count"), message)?;
        let kind = group.kind();
        let has_stray_gpus = matches!(kind, Kind::Cpu | Kind::Model) && !group.gpus.is_empty();
        let message = format!("expected none, since the kind is {}, but found {:?}", kind.as_str_name(), group.gpus);
        origin.refuse_if(has_stray_gpus, &path("gpus"), message)?;
        origin.refuse_if(!group.profile.is_empty(), &path("profile"), "profiles are TensorRT's")?;
    }
    rate_limiter::check(config, origin)?;
    metrics(config, origin)?;
    let decoupled = config.model_transaction_policy.as_ref().is_some_and(|policy| policy.decoupled);
    for (applies, what) in
        [(model_config::sequence_batching(config).is_some(), "sequence_batching"), (decoupled, "a decoupled model")]
    {
        if applies {
            no_cache(config, what, origin)?;
        }
    }
    Ok(())
}

/// Returns what to do with a model of a backend or platform of Triton's that is not supported.
fn instead_of(backend: &str) -> &'static str {
    match backend {
        "python" => {
            "built-in steps of pipelines replace Python around texts (docs/pipelines.md); export other models to ONNX"
        }
        _ => "export the model to ONNX (docs/moving-from-triton.md)",
    }
}

/// Refuses a response cache in a model whose responses cannot be cached.
///
/// # Errors
/// If the configuration asks for one.
pub fn no_cache(config: &pb::ModelConfig, what: &str, origin: &Origin) -> Result<(), ConfigError> {
    origin.refuse_if(has_cache(config), "response_cache", format!("a response cache does not go with {what}"))
}

/// Refuses metric controls that lack a part, as Triton does.
fn metrics(config: &pb::ModelConfig, origin: &Origin) -> Result<(), ConfigError> {
    let controls = config.model_metrics.iter().flat_map(|metrics| &metrics.metric_control);
    for (number, control) in controls.enumerate() {
        let family = control.metric_identifier.as_ref().map(|identifier| identifier.family.as_str());
        let buckets = control.metric_options.as_ref().map(|MetricOptions::HistogramOptions(options)| &options.buckets);
        let missing = match (family, buckets) {
            (None, _) => "metric control must specify 'metric_identifier'",
            (Some(""), _) => "metric identifier must specify non-empty 'family'",
            (_, None) => "metric control must specify 'histogram_options'",
            (_, Some(buckets)) if buckets.is_empty() => "histogram options must specify non-empty 'buckets'",
            _ => continue,
        };
        return Err(origin.error(&format!("model_metrics.metric_control[{number}]"), missing));
    }
    Ok(())
}

/// Whether a configuration asks for a response cache.
pub fn has_cache(config: &pb::ModelConfig) -> bool {
    config.response_cache.as_ref().is_some_and(|cache| cache.enable)
}

/// Lists the fields that are set and have no effect.
pub fn hints(config: &pb::ModelConfig) -> Vec<Hint> {
    let hint = |key: &str, text: &str| Hint { key: key.to_owned(), text: text.to_owned() };
    // Reading the configuration has found the schema.
    let fields = model_config::set_fields(config).unwrap_or_default();
    let ignored = fields.iter().filter_map(|field| {
        let (_, text) = WITHOUT_EFFECT.iter().find(|(name, _)| *name == field.name)?;
        Some(hint(&field.path, text))
    });
    let mut found: Vec<Hint> = ignored.collect();
    let metrics = config.model_metrics.iter().flat_map(|metrics| &metrics.metric_control);
    let mut families = metrics.filter_map(|control| control.metric_identifier.as_ref());
    if families.any(|metric| metric.family != FIRST_RESPONSE_HISTOGRAM) {
        found.push(hint("model_metrics", "only the histogram of first responses takes buckets"));
    }
    for (number, group) in config.instance_group.iter().enumerate() {
        let path = format!("instance_group[{number}]");
        if group.kind == i32::from(Kind::Model) {
            found.push(hint(&format!("{path}.kind"), "the server decides, as with KIND_AUTO"));
        } else if group.kind == i32::from(Kind::Auto) && !group.gpus.is_empty() {
            found.push(hint(&format!("{path}.gpus"), "they count with KIND_GPU alone"));
        }
    }
    for key in config.parameters.keys() {
        if ONNXRUNTIME_PARAMETERS.split_whitespace().any(|known| known == key) {
            found.push(hint(&format!("parameters[{key}]"), "ONNX Runtime runs with the server's settings"));
        }
    }
    found
}

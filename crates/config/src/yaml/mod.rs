//! `model.yaml`: this server's own form of a model's configuration. It is read as a [`ModelSettings`] and converted to
//! the same [`Settings`] as a `config.pbtxt`.

use std::{collections::BTreeMap, marker::PhantomData};

use paternoster_batching::PolicyKind;

use super::{
    ConfigError, ConfigErrorKind, CustomPolicies, Origin, SettingError, bounds,
    knobs::{QueueSettings, QueueingSettings, TimeoutActionName, given},
    model::{
        Batching, Cells, DeviceSelector, Input, Instance, ModelSettings, Output, PadSection, PolicyName,
        RateLimiterSettings, ReshapeDims, SampleData, SampleInput, Sequences, SomeVersions, VersionWord, Versions,
        WarmUpSettings,
    },
    model_config::datatype_to_pb,
    parameters,
    pb::{
        self,
        model_config::SchedulingChoice,
        model_instance_group::Kind,
        model_queue_policy::TimeoutAction as PbAction,
        model_rate_limiter::Resource,
        model_sequence_batching::{StrategyChoice, StrategyDirect, StrategyOldest},
        model_version_policy as version_policy,
        model_warmup::input::InputDataType,
    },
    pipeline::{self, ENSEMBLE},
    settings::{Axes, OwnSettings, POLICY, Pad, Settings},
    tree::{self, unknown_key},
    values::{DataTypeName, Dim, NonEmpty, Parsed},
};

/// Paths of `ModelConfig` and the keys that replace them here.
const NAMES: [(&str, &str); 10] = [
    ("ensemble_scheduling.step", "pipeline"),
    ("input", "inputs"),
    ("output", "outputs"),
    ("default_model_filename", "program"),
    ("model_transaction_policy", "decoupled"),
    ("instance_group", "instance"),
    ("model_warmup", "warmup"),
    ("sequence_batching.oldest.max_candidate_sequences", "sequence_batching.max_candidate_sequences"),
    ("batching.sequences", "sequence_batching.queue"),
    ("dynamic_batching.max_queue_delay_microseconds", "batching.window.max_queue_delay_us"),
];

/// Reads a `model.yaml`. `file` is the name that errors carry.
///
/// # Errors
/// Rejects text that is too large or not YAML, unknown and repeated keys, and values of a wrong kind; with file, line,
/// column, key and what was expected.
pub fn parse(file: &str, bytes: &[u8]) -> Result<(Settings, Origin), ConfigError> {
    parse_with(file, bytes, &CustomPolicies::default())
}

/// Reads a `model.yaml`, which may name policies of other crates.
///
/// # Errors
/// As [`parse`] does.
pub fn parse_with(file: &str, bytes: &[u8], policies: &CustomPolicies) -> Result<(Settings, Origin), ConfigError> {
    let refuse = |position, fault: SettingError| ConfigError::of_text(file, position, fault);
    bounds::text(bytes.len(), bounds::MAX_YAML_BYTES).map_err(|fault| refuse(None, fault))?;
    let text = std::str::from_utf8(bytes).map_err(|fault| {
        let message = format!("expected UTF-8 text, but byte {} is not", fault.valid_up_to());
        refuse(None, SettingError::new(ConfigErrorKind::Syntax, message))
    })?;
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let root = tree::yaml(text).map_err(|refusal| refuse(refusal.position, refusal.fault))?;
    let model = tree::typed(PhantomData::<ModelSettings>, &root);
    let mut origin = Origin::of_yaml(file, text, root);
    origin.refuse_duplicate_keys()?;
    let model = model.map_err(|fault| origin.error("", fault))?;
    for (path, key) in NAMES {
        origin.name(path, key);
    }
    let settings = settings(model, policies, &mut origin)?;
    Ok((settings, origin))
}

fn settings(model: ModelSettings, policies: &CustomPolicies, origin: &mut Origin) -> Result<Settings, ConfigError> {
    let mut batching = model.batching.unwrap_or_default();
    batching.find_policy(policies).map_err(|fault| origin.error(POLICY, fault))?;
    if let Some(key) = given(&batching).iter().find(|key| ["bucket_width", "sequences"].contains(&key.as_str())) {
        return Err(origin.error(&format!("batching.{key}"), unknown_key(key, [])));
    }
    let mut config = pb::ModelConfig {
        name: model.name.unwrap_or_default(),
        backend: model.backend.unwrap_or_default(),
        default_model_filename: model.program.unwrap_or_default(),
        version_policy: model.version_policy.map(versions),
        model_transaction_policy: model.decoupled.map(|decoupled| pb::ModelTransactionPolicy { decoupled }),
        response_cache: model.response_cache.map(|enable| pb::ModelResponseCache { enable }),
        ..Default::default()
    };
    // Each request of a model of cells unfolds by itself, as a batch of one.
    let batch_size = model.max_batch_size.map(|size| size.0);
    if batch_size == Some(0) && model.text.is_some() {
        let message = "a model that takes texts has a batch axis: expected 1 or more, but found 0";
        return Err(origin.error("max_batch_size", message));
    }
    let unfolds = matches!(model.cells, Some(Cells::Types(_))) || model.generate.is_some();
    config.max_batch_size = batch_size.unwrap_or(i32::from(unfolds));
    let mut own = OwnSettings {
        engine: model.engine,
        pin: model.pin,
        rollout: model.rollout,
        stages: model.stages,
        exits: model.exits,
        cells: model.cells.map(Into::into).unwrap_or_default(),
        unfold: model.unfold.map(|segments| segments.0).unwrap_or_default(),
        batching,
        text: model.text,
        generate: model.generate,
        ..OwnSettings::default()
    };
    for (number, input) in model.inputs.into_iter().enumerate() {
        config.input.push(self::input(number, input, &mut own, origin)?);
    }
    for (number, output) in model.outputs.into_iter().enumerate() {
        config.output.push(self::output(number, output, &mut own, origin));
    }
    if let Some(instance) = model.instance {
        config.instance_group = instance_groups(&instance);
        for group in 0..config.instance_group.len() {
            origin.name(format!("instance_group[{group}].rate_limiter"), "instance.rate_limiter");
        }
        own.instance.lengths = instance.lengths;
        own.instance.precision = instance.precision;
    }
    for (number, sample) in model.warmup.into_iter().enumerate() {
        config.model_warmup.push(self::sample(number, sample, origin)?);
    }
    for (key, string_value) in model.parameters {
        if parameters::is_ours(&key) {
            let message = "expected as a key of its own in model.yaml: pad and dims of a tensor, engine, pin, rollout, \
                           instance, batching, stages, exits, cells, unfold, pipeline, text or generate";
            return Err(origin.error(&format!("parameters.{key}"), message));
        }
        config.parameters.insert(key, pb::ModelParameter { string_value });
    }
    if let Some(NonEmpty(steps)) = model.pipeline {
        ENSEMBLE.clone_into(&mut config.platform);
        match pipeline::as_ensemble(&steps) {
            Some(ensemble) => config.scheduling_choice = Some(SchedulingChoice::EnsembleScheduling(ensemble)),
            None => own.pipeline = steps,
        }
    }
    own.name_over(origin)?;
    if let Some(sequences) = model.sequence_batching {
        let batching = sequence_batching(&sequences);
        config.scheduling_choice = Some(SchedulingChoice::SequenceBatching(batching));
        own.batching.sequences = sequences.queue;
    }
    let mut settings = Settings { config, own };
    if !pipeline::is_pipeline(&settings) {
        policy(&mut settings, origin)?;
    }
    Ok(settings)
}

fn versions(versions: Versions) -> pb::ModelVersionPolicy {
    use version_policy::{All, Latest, PolicyChoice, Specific};
    let choice = match versions {
        Versions::Word(VersionWord::All) => PolicyChoice::All(All {}),
        Versions::Word(VersionWord::Latest) => PolicyChoice::Latest(Latest { num_versions: 1 }),
        Versions::Some(SomeVersions::Latest(count)) => PolicyChoice::Latest(Latest { num_versions: count.0 }),
        Versions::Some(SomeVersions::Specific(versions)) => {
            PolicyChoice::Specific(Specific { versions: versions.into_iter().map(|version| version.0).collect() })
        }
    };
    pb::ModelVersionPolicy { policy_choice: Some(choice) }
}

fn input(
    number: usize,
    input: Input,
    own: &mut OwnSettings,
    origin: &mut Origin,
) -> Result<pb::ModelInput, ConfigError> {
    let Input { name, dtype, dims, reshape, optional, pad } = input;
    let key = format!("inputs[{number}]");
    origin.name(format!("input[{number}].data_type"), format!("{key}.dtype"));
    if let Some(given) = pad {
        origin.name(format!("pad.{name}"), format!("{key}.pad"));
        let pad = self::pad(given).map_err(|fault| origin.error(&format!("{key}.pad"), fault))?;
        own.pad.insert(name.clone(), Parsed(pad));
    }
    let dims = sizes(&name, dims, &key, own, origin);
    let (data_type, reshape) = (data_type(dtype), reshape.map(self::reshape));
    Ok(pb::ModelInput { name, data_type, dims, reshape, optional, ..Default::default() })
}

fn pad(given: PadSection) -> Result<Pad, SettingError> {
    let axes = match (given.axis, given.axes) {
        (Some(axis), None) => vec![axis],
        (None, Some(axes)) if !axes.is_empty() => axes,
        (None, Some(_)) => return Err("expected at least one axis".into()),
        _ => return Err("expected either 'axis' (a name) or 'axes' (a list of names)".into()),
    };
    let symbols = axes.into_iter().map(|axis| match axis {
        Dim::Axis(symbol) => Ok(symbol.0),
        Dim::Size(size) => {
            let found = format_args!("{}: give it a name in dims", size.0);
            Err(SettingError::expected("the name of an axis", found))
        }
    });
    Ok(Pad { symbols: symbols.collect::<Result<_, _>>()?, value: given.value.unwrap_or(0.0) })
}

fn output(number: usize, output: Output, own: &mut OwnSettings, origin: &mut Origin) -> pb::ModelOutput {
    let Output { name, dtype, dims, reshape, labels } = output;
    let key = format!("outputs[{number}]");
    origin.name(format!("output[{number}].data_type"), format!("{key}.dtype"));
    origin.name(format!("output[{number}].label_filename"), format!("{key}.labels"));
    let dims = sizes(&name, dims, &key, own, origin);
    let (data_type, reshape) = (data_type(dtype), reshape.map(self::reshape));
    let label_filename = labels.unwrap_or_default();
    pb::ModelOutput { name, data_type, dims, reshape, label_filename, ..Default::default() }
}

fn data_type(dtype: Option<Parsed<DataTypeName>>) -> i32 {
    dtype.map_or(0, |dtype| datatype_to_pb(dtype.0.0).into())
}

fn reshape(shape: ReshapeDims) -> pb::ModelTensorReshape {
    pb::ModelTensorReshape { shape: shape.into_iter().map(|size| size.0).collect() }
}

/// Returns the sizes of a tensor, and stores the names of its dimensions among its axes.
fn sizes(tensor: &str, dims: Vec<Dim>, key: &str, own: &mut OwnSettings, origin: &mut Origin) -> Vec<i64> {
    let split = dims.into_iter().map(|dim| match dim {
        Dim::Size(size) => (size.0, None),
        Dim::Axis(name) => (-1, Some(name.0)),
    });
    let (sizes, names): (Vec<i64>, Vec<Option<String>>) = split.unzip();
    if names.iter().any(Option::is_some) {
        origin.name(format!("axes.{tensor}"), format!("{key}.dims"));
        own.axes.insert(tensor.to_owned(), Parsed(Axes(names)));
    }
    sizes
}

fn instance_groups(instance: &Instance) -> Vec<pb::ModelInstanceGroup> {
    let count = instance.count.map_or(0, |count| count.0);
    let rate_limiter = instance.rate_limiter.as_ref().map(rate_limiter);
    let group = |kind: Kind| pb::ModelInstanceGroup {
        kind: kind.into(),
        count,
        rate_limiter: rate_limiter.clone(),
        ..pb::ModelInstanceGroup::default()
    };
    let Some(devices) = &instance.devices else { return vec![group(Kind::Auto)] };
    let mut groups: Vec<pb::ModelInstanceGroup> = Vec::new();
    for Parsed(device) in devices {
        let (kind, gpu) = match device {
            DeviceSelector::Cpu => (Kind::Cpu, None),
            DeviceSelector::Cards => (Kind::Gpu, None),
            DeviceSelector::Card(number) => (Kind::Gpu, Some(*number)),
        };
        match groups.iter_mut().find(|group| group.kind == i32::from(kind)) {
            Some(group) => group.gpus.extend(gpu),
            None => groups.push(pb::ModelInstanceGroup { gpus: gpu.into_iter().collect(), ..group(kind) }),
        }
    }
    groups
}

fn rate_limiter(given: &RateLimiterSettings) -> pb::ModelRateLimiter {
    let resources = given.resources.iter().map(|resource| Resource {
        name: resource.name.clone(),
        global: resource.global,
        count: resource.count.0,
    });
    pb::ModelRateLimiter { resources: resources.collect(), priority: given.priority.map_or(0, |priority| priority.0) }
}

fn sample(number: usize, sample: WarmUpSettings, origin: &Origin) -> Result<pb::ModelWarmup, ConfigError> {
    let mut inputs = BTreeMap::new();
    for (name, SampleInput { dtype, dims, data, file }) in sample.inputs {
        let data = match (data, file) {
            (None | Some(SampleData::Zero), None) => InputDataType::ZeroData(true),
            (Some(SampleData::Random), None) => InputDataType::RandomData(true),
            (None, Some(file)) => InputDataType::InputDataFile(file),
            (Some(_), Some(_)) => {
                let path = format!("warmup[{number}].inputs[{name}].file");
                return Err(origin.error(&path, "expected either 'data' or 'file', but found both"));
            }
        };
        let input = pb::model_warmup::Input {
            data_type: datatype_to_pb(dtype.0.0).into(),
            dims: dims.into_iter().map(|size| size.0).collect(),
            input_data_type: Some(data),
        };
        inputs.insert(name, input);
    }
    Ok(pb::ModelWarmup {
        name: sample.name.unwrap_or_else(|| format!("warmup {number}")),
        batch_size: sample.batch_size.map_or(1, |size| size.0),
        count: sample.count.map_or(0, |count| count.0),
        inputs,
    })
}

fn sequence_batching(sequences: &Sequences) -> pb::ModelSequenceBatching {
    pb::ModelSequenceBatching {
        max_sequence_idle_microseconds: sequences.max_sequence_idle_us.map_or(0, |idle| idle.0),
        strategy_choice: Some(match sequences.max_candidate_sequences {
            Some(candidates) => StrategyChoice::Oldest(StrategyOldest {
                max_candidate_sequences: candidates.0,
                ..StrategyOldest::default()
            }),
            None => StrategyChoice::Direct(StrategyDirect::default()),
        }),
        ..pb::ModelSequenceBatching::default()
    }
}

/// Fills in the scheduler, and removes the knobs of policies that are not chosen. Without `batching` the policy is
/// `auto`; `complete` decides whether `auto` batches once the largest batch is known.
fn policy(settings: &mut Settings, origin: &mut Origin) -> Result<(), ConfigError> {
    origin.implies_policy = settings.own.batching.policy.is_none();
    settings.refuse_stray_knobs(origin)?;
    let (has_sequences, unfolds) = (settings.has_sequences(), settings.runs_cells());
    let batching = &mut settings.own.batching;
    let Parsed(chosen) = batching.policy.get_or_insert(Parsed(PolicyName::Auto)).clone();
    // The window's section may have the queue's keys, and its place is the queue's.
    batching.keep_chosen(|kind| kind == PolicyKind::Window || chosen.has_knobs_of(kind, unfolds));
    if has_sequences {
        let message = "a model with sequences has its queue in sequence_batching: move or remove this";
        origin.refuse_if(batching.queueing.is_some(), "batching.queueing", message)?;
        return origin.refuse_if(batching.window.is_some(), "batching.window", message);
    }
    let scheduler = scheduler(batching, &chosen, origin)?;
    settings.config.scheduling_choice = scheduler.map(SchedulingChoice::DynamicBatching);
    Ok(())
}

/// Removes the queue and the window from the knobs, and returns the scheduler of the chosen policy. The keys of the
/// queue are in `queueing`, for every policy, or in `window`.
fn scheduler(
    batching: &mut Batching,
    chosen: &PolicyName,
    origin: &mut Origin,
) -> Result<Option<pb::ModelDynamicBatching>, ConfigError> {
    let is_serial = *chosen == PolicyName::Of(PolicyKind::Serial);
    batching.serial = None;
    let queueing = batching.queueing.take();
    let width = queueing.as_ref().and_then(|queueing| queueing.bucket_width);
    let message = "requests share no batch under the policy 'serial': remove this";
    origin.refuse_if(is_serial && width.is_some(), "batching.queueing.bucket_width", message)?;
    let is_of_window = |key: &String| ["max_queue_delay_us", "preferred_batch_sizes"].contains(&key.as_str());
    if let Some(key) = queueing.as_ref().and_then(|queueing| given(queueing).into_iter().find(is_of_window)) {
        return Err(origin.error(&format!("batching.queueing.{key}"), unknown_key(&key, [])));
    }
    let window = batching.window.take();
    let stray = window.as_ref().and_then(|window| given(window).into_iter().find(|key| !is_of_window(key)));
    if let (Some(_), Some(key)) = (&queueing, stray) {
        let message = format!("expected '{key}' in batching.queueing, with the queue's other keys");
        return Err(origin.error(&format!("batching.window.{key}"), message));
    }
    let is_window = *chosen == PolicyName::Of(PolicyKind::Window);
    let window = window.filter(|_| is_window);
    let (place, queue) = match (&queueing, &window) {
        (Some(queueing), _) => ("batching.queueing", Some(queueing)),
        (None, Some(window)) => ("batching.window", Some(window)),
        (None, None) => ("batching", None),
    };
    name_places(place, origin);
    if queue.is_none() && (is_serial || *chosen == PolicyName::Auto) {
        return Ok(None);
    }
    batching.bucket_width = queue.and_then(|queue| queue.bucket_width);
    let mut scheduler = queue.map(dynamic_batching).unwrap_or_default();
    if let Some(window) = &window {
        scheduler.max_queue_delay_microseconds = window.max_queue_delay_us.map_or(0, |delay| delay.0);
        scheduler.preferred_batch_size = window.preferred_batch_sizes.iter().flatten().map(|size| size.0).collect();
    }
    Ok(Some(scheduler))
}

/// Records where the fields of `dynamic_batching` are. `place` has the keys of the queue.
fn name_places(place: &str, origin: &mut Origin) {
    origin.name("dynamic_batching", place);
    origin.name("dynamic_batching.preferred_batch_size", "batching.window.preferred_batch_sizes");
    origin.name("dynamic_batching.default_queue_policy", format!("{place}.queue"));
    origin.name("dynamic_batching.priority_queue_policy", format!("{place}.priority_queues"));
    origin.name("batching.bucket_width", format!("{place}.bucket_width"));
}

fn dynamic_batching(queueing: &QueueingSettings) -> pb::ModelDynamicBatching {
    let queues = queueing.priority_queues.iter().flatten().map(|(level, queue)| (level.0, queue_policy(queue)));
    pb::ModelDynamicBatching {
        preserve_ordering: queueing.preserve_ordering.unwrap_or(false),
        priority_levels: queueing.priority_levels.map_or(0, |levels| levels.0),
        default_priority_level: queueing.default_priority_level.map_or(0, |level| level.0),
        default_queue_policy: queueing.queue.as_ref().map(queue_policy),
        priority_queue_policy: queues.collect(),
        ..pb::ModelDynamicBatching::default()
    }
}

fn queue_policy(queue: &QueueSettings) -> pb::ModelQueuePolicy {
    let action = match queue.timeout_action {
        Some(TimeoutActionName::Delay) => PbAction::Delay,
        Some(TimeoutActionName::Reject) | None => PbAction::Reject,
    };
    pb::ModelQueuePolicy {
        timeout_action: action.into(),
        default_timeout_microseconds: queue.default_timeout_us.map_or(0, |timeout| timeout.0),
        allow_timeout_override: queue.allow_timeout_override.unwrap_or(false),
        max_queue_size: queue.max_queue_size.map_or(0, |size| size.0),
    }
}

#[cfg(test)]
pub(crate) mod tests;

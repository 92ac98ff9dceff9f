//! Converts [`Settings`] to what admission and batching need: [`ModelSpec`], [`Knobs`] and [`StageRequest`]. The
//! configuration must be complete and checked. Values that still do not fit are errors; none is guessed.

use std::collections::BTreeMap;

use paternoster_batching::{Knobs, Policy, QueueKnobs, QueueingKnobs, StageKnobs, TimeoutAction};
use paternoster_model::{AxisLength, Dims, ModelSpec, SymbolId, TensorSpec};
use paternoster_onnx::{Port, Signature};
use smallvec::SmallVec;

use super::{
    ConfigError, Origin,
    knobs::{Milliseconds, from_us},
    model_config::{datatype, is_scalar, tensors},
    pb::{self, model_config::SchedulingChoice, model_queue_policy::TimeoutAction as PbAction},
    policies::{self, instances},
    rate_limiter, sequences,
    settings::{OwnSettings, Settings},
    stages::{self, StageRequest},
    unfold::{self, UnfoldRequest},
};

/// Returns the specification, the knobs and the stages of one version. `labels` contains the labels of outputs with a
/// label file, by output.
///
/// The knobs have a single stage, because the number of stages is known only after the graph is cut. For a model of
/// cells they have one stage for each cell, and the policy's cells and segments stay empty until the programs are
/// known.
///
/// # Errors
/// Fails if the configuration is incomplete or contradicts itself.
pub fn model(
    settings: &Settings,
    version: i64,
    labels: &BTreeMap<String, Vec<String>>,
    origin: &Origin,
) -> Result<(ModelSpec, Knobs, StageRequest), ConfigError> {
    let spec = spec(settings, version, labels, origin)?;
    let stages = stages::read(settings, origin)?;
    let knobs = knobs(settings, spec.max_batch_size, &stages, origin)?;
    Ok((spec, knobs, stages))
}

/// Returns the specification of one version.
///
/// # Errors
/// As [`model`].
pub fn spec(
    settings: &Settings,
    version: i64,
    labels: &BTreeMap<String, Vec<String>>,
    origin: &Origin,
) -> Result<ModelSpec, ConfigError> {
    let Settings { config, own } = settings;
    let max_batch_size = u32::try_from(config.max_batch_size)
        .map_err(|_| origin.error("max_batch_size", format!("{} is negative", config.max_batch_size)))?;
    let symbols: Vec<String> = own.padded_axes().into_iter().map(str::to_owned).collect();
    if symbols.len() > usize::from(u16::MAX) {
        return Err(origin.error("parameters", format!("{} padded axes are more than {}", symbols.len(), u16::MAX)));
    }

    let (mut inputs, mut outputs) = (Vec::new(), Vec::new());
    for tensor in tensors(config) {
        let name = tensor.name;
        let datatype = datatype(tensor.data_type)
            .ok_or_else(|| origin.error(&tensor.path, format!("expected a data_type for '{name}'")))?;
        let mut spec = TensorSpec::new(name, datatype, tensor.dims);
        spec.reshape = tensor.reshape.map(Dims::from_slice);
        spec.symbols = padded_axes(own, &spec, &symbols);
        spec.optional = tensor.optional;
        if tensor.what == "input" {
            spec.pad_value = own.pad.get(name).map_or(0.0, |pad| pad.0.value);
            inputs.push(spec);
        } else {
            spec.computed = computed_axes(own, &spec);
            spec.labels = labels.get(name).map_or_else(Default::default, |labels| labels.as_slice().into());
            outputs.push(spec);
        }
    }
    let decoupled = settings.is_decoupled();
    Ok(ModelSpec { name: config.name.clone(), version, max_batch_size, inputs, outputs, symbols, decoupled })
}

/// Marks the tensors that are scalars in the graph, so that the engine gets and gives them without dimensions.
pub fn scalars(spec: &mut ModelSpec, config: &pb::ModelConfig, signature: &Signature) {
    let mark = |tensors: &mut [TensorSpec], ports: &mut dyn Iterator<Item = &Port>| {
        for port in ports.filter(|port| is_scalar(config, port)) {
            for tensor in tensors.iter_mut().filter(|tensor| tensor.name == port.name) {
                tensor.reshape = Some(Dims::new());
            }
        }
    };
    mark(&mut spec.inputs, &mut signature.all_inputs());
    mark(&mut spec.outputs, &mut signature.outputs.iter());
}

fn padded_axes(own: &OwnSettings, tensor: &TensorSpec, symbols: &[String]) -> SmallVec<[Option<SymbolId>; 4]> {
    let Some(axes) = own.axes.get(&tensor.name) else { return SmallVec::new() };
    let ids = axes.0.0.iter().map(|axis| {
        let index = symbols.binary_search(axis.as_ref()?).ok()?;
        u16::try_from(index).ok().map(SymbolId)
    });
    let ids: SmallVec<[Option<SymbolId>; 4]> = ids.collect();
    if ids.iter().any(Option::is_some) { ids } else { SmallVec::new() }
}

/// Returns the axes of an output that are named by an expression of padded axes, with that.
fn computed_axes(own: &OwnSettings, output: &TensorSpec) -> Vec<(usize, AxisLength)> {
    let Some(axes) = own.axes.get(&output.name) else { return Vec::new() };
    let is_other = |axis: usize| output.symbols.get(axis).copied().flatten().is_none();
    let named = axes.0.0.iter().enumerate().filter(|(axis, _)| is_other(*axis));
    named.filter_map(|(axis, name)| Some((axis, own.axis_length(name.as_ref()?).ok()??))).collect()
}

fn knobs(
    settings: &Settings,
    max_batch_size: u32,
    stages: &StageRequest,
    origin: &Origin,
) -> Result<Knobs, ConfigError> {
    let Settings { config, own } = settings;
    let policy = policies::read(settings, stages, origin)?;
    let queueing = match (&policy, &config.scheduling_choice) {
        (Policy::Serial, None) => QueueingKnobs::default(),
        // Requests that share no batch need not have similar lengths.
        (Policy::Serial, Some(SchedulingChoice::DynamicBatching(batching))) => {
            QueueingKnobs { bucket_width: None, ..queueing(own, batching) }
        }
        (_, Some(SchedulingChoice::DynamicBatching(batching))) => queueing(own, batching),
        (_, Some(SchedulingChoice::SequenceBatching(_))) => {
            QueueingKnobs { default_queue: sequences::queue(own), ..QueueingKnobs::default() }
        }
        (_, _) => queueing(own, &pb::ModelDynamicBatching::default()),
    };
    let default = Knobs::default();
    let unfold = unfold::read(settings, origin)?;
    let cells = unfold.as_ref().and_then(|unfold| u16::try_from(unfold.cells.len()).ok());
    let batching = &own.batching;
    Ok(Knobs {
        max_batch_rows: unfold.as_ref().map_or(max_batch_size.max(1), UnfoldRequest::max_rows),
        mergeable: max_batch_size > 0 || unfold.is_some(),
        parts_requests: default.parts_requests,
        max_in_flight: instances(config),
        stages: cells.map_or(default.stages, StageKnobs::chain),
        buffer_pairs: batching.buffer_pairs.map_or(default.buffer_pairs, |pairs| pairs.0),
        objective_ns: batching.latency_objective_ms.map(Milliseconds::ns),
        latencies: None,
        weight: batching.weight.map_or(default.weight, |weight| weight.0),
        rate_limiter: rate_limiter::read(config),
        queueing,
        policy,
        stays: false,
    })
}

fn queueing(own: &OwnSettings, batching: &pb::ModelDynamicBatching) -> QueueingKnobs {
    let level_queues = batching.priority_queue_policy.iter().map(|(level, policy)| (*level, queue(policy)));
    QueueingKnobs {
        preserve_ordering: batching.preserve_ordering,
        priority_levels: batching.priority_levels,
        default_priority_level: batching.default_priority_level,
        default_queue: batching.default_queue_policy.as_ref().map(queue).unwrap_or_default(),
        level_queues: level_queues.collect(),
        bucket_width: own.batching.bucket_width.map(|width| width.0),
        hold_until_waiting: 0,
        hold_until_backlog: 0,
    }
}

fn queue(policy: &pb::ModelQueuePolicy) -> QueueKnobs {
    let delay = policy.timeout_action == i32::from(PbAction::Delay);
    QueueKnobs {
        timeout_action: if delay { TimeoutAction::Delay } else { TimeoutAction::Reject },
        default_timeout_ns: from_us(policy.default_timeout_microseconds),
        allow_timeout_override: policy.allow_timeout_override,
        max_queue_size: policy.max_queue_size,
    }
}

#[cfg(test)]
mod tests;

//! `ModelConfig` → what admission and batching need: [`ModelSpec`] and [`Knobs`]. The configuration is complete and
//! checked by then; whatever still does not fit is refused, never guessed.

use std::collections::BTreeMap;

use smallvec::SmallVec;

use super::{
    ConfigError, Origin,
    knobs::{self, InConfig, from_ms, from_us, narrow},
    params,
    pb::{self, model_config::SchedulingChoice, model_queue_policy::TimeoutAction as PbAction},
    policies::{self, instances},
    sequences,
    stages::{self, StageRequest},
    unfold::{self, UnfoldRequest},
};
use crate::{
    batching::{Knobs, Policy, QueueKnobs, QueueingKnobs, StageKnobs, TimeoutAction},
    model::{DataType, Dims, ModelSpec, SymbolId, TensorSpec},
};

/// The datatype of a configuration's enumeration; `None` for `TYPE_INVALID` and numbers it has not.
pub fn datatype(number: i32) -> Option<DataType> {
    let index = usize::try_from(number).ok()?.checked_sub(1)?;
    DataType::ALL.get(index).copied()
}

/// The value of the configuration's enumeration for a datatype.
pub fn datatype_to_pb(datatype: DataType) -> pb::DataType {
    match datatype {
        DataType::Bool => pb::DataType::TypeBool,
        DataType::Uint8 => pb::DataType::TypeUint8,
        DataType::Uint16 => pb::DataType::TypeUint16,
        DataType::Uint32 => pb::DataType::TypeUint32,
        DataType::Uint64 => pb::DataType::TypeUint64,
        DataType::Int8 => pb::DataType::TypeInt8,
        DataType::Int16 => pb::DataType::TypeInt16,
        DataType::Int32 => pb::DataType::TypeInt32,
        DataType::Int64 => pb::DataType::TypeInt64,
        DataType::Fp16 => pb::DataType::TypeFp16,
        DataType::Fp32 => pb::DataType::TypeFp32,
        DataType::Fp64 => pb::DataType::TypeFp64,
        DataType::Bytes => pb::DataType::TypeString,
        DataType::Bf16 => pb::DataType::TypeBf16,
    }
}

/// The datatype of a name as people write it: `FP32`, `TYPE_FP32`, `BYTES` or `STRING`.
pub fn datatype_from_name(name: &str) -> Option<DataType> {
    match name.strip_prefix("TYPE_").unwrap_or(name) {
        "STRING" => Some(DataType::Bytes),
        wire => DataType::from_wire(wire),
    }
}

/// Makes the specification, the batching knobs and the stages asked for of one version. The knobs have one stage: how
/// many there are is known once the graph is cut. Those of a model of cells have one for each cell, and their policy's
/// cells and segments are empty until the programs are known. `labels` holds the labels of each output that has a label
/// file, by output name.
///
/// # Errors
/// When the configuration is not complete or contradicts itself.
pub fn model(
    config: &pb::ModelConfig,
    version: i64,
    labels: &BTreeMap<String, Vec<String>>,
    origin: &Origin,
) -> Result<(ModelSpec, Knobs, StageRequest), ConfigError> {
    let max_batch_size = u32::try_from(config.max_batch_size)
        .map_err(|_| origin.error("max_batch_size", format!("{} is negative", config.max_batch_size)))?;
    let mut pads = BTreeMap::new();
    let mut symbols: Vec<String> = Vec::new();
    for input in &config.input {
        let path = format!("parameters[{}{}]", params::PAD, input.name);
        if let Some(pad) = params::pad(config, &input.name).map_err(|fault| origin.error(&path, fault))? {
            symbols.extend(pad.symbols.iter().cloned());
            pads.insert(input.name.as_str(), pad.value);
        }
    }
    symbols.sort();
    symbols.dedup();
    if symbols.len() > usize::from(u16::MAX) {
        return Err(origin.error("parameters", format!("{} padded axes are more than {}", symbols.len(), u16::MAX)));
    }

    let mut inputs = Vec::with_capacity(config.input.len());
    for (number, tensor) in config.input.iter().enumerate() {
        let path = format!("input[{number}]");
        let mut spec = tensor_spec(&tensor.name, tensor.data_type, &tensor.dims, tensor.reshape.as_ref())
            .map_err(|fault| origin.error(&path, fault))?;
        spec.optional = tensor.optional;
        spec.pad_value = pads.get(tensor.name.as_str()).copied().unwrap_or(0.0);
        spec.symbols = padded_axes(config, &spec, &symbols, origin)?;
        inputs.push(spec);
    }
    let mut outputs = Vec::with_capacity(config.output.len());
    for (number, tensor) in config.output.iter().enumerate() {
        let path = format!("output[{number}]");
        let mut spec = tensor_spec(&tensor.name, tensor.data_type, &tensor.dims, tensor.reshape.as_ref())
            .map_err(|fault| origin.error(&path, fault))?;
        spec.labels = labels.get(&tensor.name).cloned().unwrap_or_default();
        spec.symbols = padded_axes(config, &spec, &symbols, origin)?;
        outputs.push(spec);
    }

    let decoupled = config.model_transaction_policy.as_ref().is_some_and(|policy| policy.decoupled);
    let spec = ModelSpec { name: config.name.clone(), version, max_batch_size, inputs, outputs, symbols, decoupled };
    let stages = stages::read(config, origin)?;
    let knobs = knobs(config, max_batch_size, &stages, origin)?;
    Ok((spec, knobs, stages))
}

fn tensor_spec(
    name: &str,
    data_type: i32,
    dims: &[i64],
    reshape: Option<&pb::ModelTensorReshape>,
) -> Result<TensorSpec, String> {
    let Some(datatype) = datatype(data_type) else { return Err(format!("expected a data_type for '{name}'")) };
    let mut spec = TensorSpec::new(name, datatype, dims);
    spec.reshape = reshape.map(|reshape| Dims::from_slice(&reshape.shape));
    Ok(spec)
}

fn padded_axes(
    config: &pb::ModelConfig,
    tensor: &TensorSpec,
    symbols: &[String],
    origin: &Origin,
) -> Result<SmallVec<[Option<SymbolId>; 4]>, ConfigError> {
    let path = format!("parameters[{}{}]", params::AXES, tensor.name);
    let axes = params::axes(config, &tensor.name).map_err(|fault| origin.error(&path, fault))?;
    let Some(axes) = axes else { return Ok(SmallVec::new()) };
    let ids = axes.iter().map(|axis| {
        let index = symbols.binary_search(axis.as_ref()?).ok()?;
        u16::try_from(index).ok().map(SymbolId)
    });
    let ids: SmallVec<[Option<SymbolId>; 4]> = ids.collect();
    Ok(if ids.iter().any(Option::is_some) { ids } else { SmallVec::new() })
}

fn knobs(
    config: &pb::ModelConfig,
    max_batch_size: u32,
    stages: &StageRequest,
    origin: &Origin,
) -> Result<Knobs, ConfigError> {
    let policy = policies::read(config, stages, origin)?;
    let queueing = match (&policy, &config.scheduling_choice) {
        (Policy::Serial, _) => QueueingKnobs::default(),
        (_, Some(SchedulingChoice::DynamicBatching(batching))) => queueing(config, batching, origin)?,
        (_, Some(SchedulingChoice::SequenceBatching(_))) => {
            QueueingKnobs { default_queue: queue(&sequences::queue(config, origin)?), ..QueueingKnobs::default() }
        }
        (_, _) => queueing(config, &pb::ModelDynamicBatching::default(), origin)?,
    };
    let default = Knobs::default();
    let unfold = unfold::read(config, origin)?;
    let cells = unfold.as_ref().and_then(|unfold| u16::try_from(unfold.cells.len()).ok());
    let pairs = knobs::BUFFER_PAIRS.read(config, origin)?.and_then(|pairs| u16::try_from(pairs).ok());
    Ok(Knobs {
        max_batch_rows: unfold.as_ref().map_or(max_batch_size.max(1), UnfoldRequest::max_rows),
        mergeable: max_batch_size > 0 || unfold.is_some(),
        max_in_flight: instances(config),
        stages: cells.map_or(default.stages, StageKnobs::chain),
        buffer_pairs: pairs.unwrap_or(default.buffer_pairs),
        objective_ns: knobs::LATENCY_OBJECTIVE.read(config, origin)?.map(from_ms),
        latencies: None,
        weight: knobs::WEIGHT.read(config, origin)?.map_or(default.weight, narrow),
        queueing,
        policy,
        stays: false,
    })
}

fn queueing(
    config: &pb::ModelConfig,
    batching: &pb::ModelDynamicBatching,
    origin: &Origin,
) -> Result<QueueingKnobs, ConfigError> {
    let level_queues = batching.priority_queue_policy.iter().map(|(level, policy)| (*level, queue(policy)));
    Ok(QueueingKnobs {
        preserve_ordering: batching.preserve_ordering,
        priority_levels: batching.priority_levels,
        default_priority_level: batching.default_priority_level,
        default_queue: batching.default_queue_policy.as_ref().map(queue).unwrap_or_default(),
        level_queues: level_queues.collect(),
        bucket_width: knobs::BUCKET_WIDTH.read(config, origin)?.map_or(0, narrow),
        hold_until_waiting: 0,
    })
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

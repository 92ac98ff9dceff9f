//! `sequence_batching`: models whose requests belong to sequences. A model of cells declares its state in its segments.
//! Any other model runs as a single cell, its program, and Triton's `state` and `control_input` declare what the
//! program reads in addition to the model's inputs.

use std::collections::BTreeMap;

use bytes::Bytes;
use paternoster_batching::{QueueKnobs, SequenceKnobs, TimeoutAction, WindowKnobs};
use paternoster_engine::TensorBatch;
use paternoster_model::{
    DataType, Dims,
    unfold::{CellInputSource, Control, Emit, EmitRange, Nodes, Start, Tensor},
};
use paternoster_onnx::{Port, PortDim, Signature};
use smallvec::smallvec;

use super::{
    ConfigError, Origin, SettingError,
    knobs::{Long, from_us},
    model_config::{self, is_scalar, sequence_batching},
    pb::{
        self,
        model_sequence_batching::{
            Control as PbControl, InitialState, StrategyChoice, control::Kind, initial_state::StateData,
        },
    },
    settings::{OwnSettings, Settings},
    unfold::{CellRequest, CellTensor, Constant, SegmentRequest, SourceRequest, UnfoldRequest},
};

/// Triton's default of `max_sequence_idle_microseconds`.
const DEFAULT_IDLE_US: u64 = 1_000_000;

/// The subdirectory of a model that contains the `data_file`s of initial states.
pub const INITIAL_STATE: &str = "initial_state";

/// The name of the single cell of a model without `cells`.
const PROGRAM: &str = "program";

/// Iterates over the program's inputs that are not inputs of the model: state and controls.
pub fn inputs(config: &pb::ModelConfig) -> impl Iterator<Item = &str> {
    let batching = sequence_batching(config).into_iter();
    batching.flat_map(|batching| {
        let states = batching.state.iter().map(|state| state.input_name.as_str());
        states.chain(batching.control_input.iter().map(|control| control.name.as_str()))
    })
}

/// Returns the datatype of one of [`inputs`].
pub fn datatype_of(config: &pb::ModelConfig, input: &str) -> Option<DataType> {
    let batching = sequence_batching(config)?;
    let state = batching.state.iter().find(|state| state.input_name == input);
    if let Some(state) = state {
        return model_config::datatype(state.data_type);
    }
    let control = batching.control_input.iter().find(|control| control.name == input)?.control.first()?;
    values(control).map_or_else(|| model_config::datatype(control.data_type), |(datatype, ..)| Some(datatype))
}

/// Iterates over the program's outputs that are state. They are outputs of the model only if it lists them.
pub fn outputs(config: &pb::ModelConfig) -> impl Iterator<Item = &str> {
    sequence_batching(config)
        .into_iter()
        .flat_map(|batching| batching.state.iter().map(|state| state.output_name.as_str()))
}

/// Returns the limits of sequences. `rows` is the largest batch.
pub fn limits(config: &pb::ModelConfig, rows: u32, instances: u32) -> Option<SequenceKnobs> {
    let batching = sequence_batching(config)?;
    let idle_us = match batching.max_sequence_idle_microseconds {
        0 => DEFAULT_IDLE_US,
        idle_us => idle_us,
    };
    let candidates = match &batching.strategy_choice {
        Some(StrategyChoice::Oldest(oldest)) => u32::try_from(oldest.max_candidate_sequences).ok(),
        Some(StrategyChoice::Direct(_)) | None => None,
    };
    // Each row of each instance's batch is a slot.
    let slots = candidates.filter(|candidates| *candidates > 0).unwrap_or(rows.saturating_mul(instances));
    Some(SequenceKnobs { max_sequences: slots.max(1), max_idle_ns: from_us(idle_us) })
}

/// Returns how long requests wait for a fuller batch; `None` if they do not. `rows` is the largest batch.
pub fn window(config: &pb::ModelConfig, rows: u32) -> Option<WindowKnobs> {
    let (preferred_batch_sizes, delay_us) = match &sequence_batching(config)?.strategy_choice {
        Some(StrategyChoice::Oldest(oldest)) => {
            let sizes = oldest.preferred_batch_size.iter().filter_map(|size| u32::try_from(*size).ok());
            (sizes.collect(), oldest.max_queue_delay_microseconds)
        }
        // A share of the slots starts a run, as does the delay.
        Some(StrategyChoice::Direct(direct)) if direct.minimum_slot_utilization > 0.0 => {
            let enough = (f64::from(direct.minimum_slot_utilization) * f64::from(rows)).ceil() as u32;
            ((enough.max(1)..=rows).collect(), direct.max_queue_delay_microseconds)
        }
        Some(StrategyChoice::Direct(_)) | None => return None,
    };
    let knobs = WindowKnobs { preferred_batch_sizes, max_queue_delay_ns: from_us(delay_us) };
    (knobs != WindowKnobs::default()).then_some(knobs)
}

/// Returns the limits of the queue of requests that wait for their turn. Triton's sequence batcher has no fields for
/// it.
pub fn queue(own: &OwnSettings) -> QueueKnobs {
    let queue = own.batching.sequences.clone().unwrap_or_default();
    QueueKnobs {
        timeout_action: queue.timeout_action.map(TimeoutAction::from).unwrap_or_default(),
        default_timeout_ns: queue.default_timeout_us.map_or(0, Long::us),
        allow_timeout_override: queue.allow_timeout_override.unwrap_or(true),
        max_queue_size: queue.max_queue_size.map_or(0, |size| size.0),
    }
}

/// Iterates over initial states from files: the state's input and the file.
pub fn files(config: &pb::ModelConfig) -> impl Iterator<Item = (&str, &str)> {
    let states = sequence_batching(config).into_iter().flat_map(|batching| &batching.state);
    states.filter_map(|state| match state.initial_state.first()?.state_data.as_ref()? {
        StateData::DataFile(file) => Some((state.input_name.as_str(), file.as_str())),
        StateData::ZeroData(_) => None,
    })
}

/// Represents a checked model with sequences and without `cells` as a model of a single cell, its program. Returns
/// `None` for any other model. `initial` contains the bytes of [`files`], by input. The cell's [`tensors`] are still
/// missing.
///
/// # Errors
/// Fails if the size of an initial state does not match its dims.
pub fn as_cells(
    settings: &Settings,
    initial: &BTreeMap<String, Bytes>,
    origin: &Origin,
) -> Result<Option<UnfoldRequest>, ConfigError> {
    let config = &settings.config;
    let Some(batching) = sequence_batching(config).filter(|_| !settings.has_cells()) else { return Ok(None) };
    let max_rows = u32::try_from(config.max_batch_size).unwrap_or(0).max(1);
    let mut sources: BTreeMap<String, SourceRequest> = BTreeMap::new();
    for (number, input) in config.input.iter().enumerate() {
        sources.insert(input.name.clone(), CellInputSource::Whole(Tensor::Input(number)));
    }
    for (number, state) in batching.state.iter().enumerate() {
        let start = match (initial.get(&state.input_name), state.initial_state.first()) {
            (Some(bytes), Some(given)) => {
                let path = format!("sequence_batching.state[{number}].initial_state");
                elements(given, bytes).map_err(|fault| origin.error(&path, fault))?
            }
            _ => Constant::Value(0.0),
        };
        let output = state.output_name.clone();
        let source = CellInputSource::Carried { output, start: Start::Row(start), is_kept: true };
        sources.insert(state.input_name.clone(), source);
    }
    for input in &batching.control_input {
        if let Some(source) = input.control.first().and_then(control) {
            sources.insert(input.name.clone(), source);
        }
    }
    let emit = |output: &pb::ModelOutput| {
        let name = output.name.clone();
        Emit { output: name.clone(), name, which: EmitRange::Last }
    };
    let cell = CellRequest {
        name: PROGRAM.to_owned(),
        program: config.default_model_filename.clone(),
        batch_sizes: Some(vec![max_rows]),
        min_followup: None,
        priority: 1,
        tensors: BTreeMap::new(),
    };
    let segment = SegmentRequest {
        name: PROGRAM.to_owned(),
        cells: smallvec![0],
        nodes: Nodes::Stage,
        sources,
        emits: config.output.iter().map(emit).collect(),
        emits_all: false,
        streams: false,
    };
    let lengths = settings.own.instance.lengths.clone();
    Ok(Some(UnfoldRequest { cells: vec![cell], segments: vec![segment], lengths, limits: Vec::new() }))
}

fn elements(state: &InitialState, bytes: &Bytes) -> Result<Constant, SettingError> {
    let size = model_config::datatype(state.data_type).and_then(DataType::size_bytes);
    let count = state.dims.iter().try_fold(1_usize, |count, dim| count.checked_mul(usize::try_from(*dim).ok()?));
    let expected = size.zip(count).and_then(|(size, count)| size.checked_mul(count));
    if expected == Some(bytes.len()) {
        return Ok(Constant::Elements(bytes.clone()));
    }
    let expected = expected.map_or("fixed dims of numbers".to_owned(), |expected| format!("{expected} bytes"));
    Err(format!("expected {expected}, but the file has {} bytes", bytes.len()).into())
}

/// Returns the source of a control input; `None` if the control is not valid.
pub fn control(control: &PbControl) -> Option<SourceRequest> {
    let kind = match Kind::try_from(control.kind).ok()? {
        Kind::ControlSequenceCorrid => return Some(CellInputSource::CorrelationId),
        Kind::ControlSequenceStart => Control::Start,
        Kind::ControlSequenceEnd => Control::End,
        Kind::ControlSequenceReady => Control::Ready,
    };
    let (_, no, yes) = values(control)?;
    Some(CellInputSource::Control { control: kind, no: Constant::Value(no), yes: Constant::Value(yes) })
}

/// Returns the datatype of a flag and its values for no and yes; `None` unless exactly one pair is given.
pub fn values(control: &PbControl) -> Option<(DataType, f64, f64)> {
    let number = |flag: &bool| f64::from(u8::from(*flag));
    let pairs = [
        (DataType::Int32, control.int32_false_true.iter().map(|value| f64::from(*value)).collect::<Vec<_>>()),
        (DataType::Fp32, control.fp32_false_true.iter().map(|value| f64::from(*value)).collect()),
        (DataType::Bool, control.bool_false_true.iter().map(number).collect()),
    ];
    let mut given = pairs.into_iter().filter(|(_, values)| !values.is_empty());
    let (datatype, values) = given.next().filter(|_| given.next().is_none())?;
    match values[..] {
        [no, yes] => Some((datatype, no, yes)),
        _ => None,
    }
}

/// Returns the tensors of the program whose rows or dims are not as usual, by name. Without a batch axis these are all.
pub fn tensors(config: &pb::ModelConfig, signature: &Signature) -> BTreeMap<String, CellTensor> {
    let batched = config.max_batch_size > 0;
    let ports = signature.all_inputs().chain(&signature.outputs);
    let without_batch = ports.filter(|port| !batched || is_scalar(config, port));
    let tensor = |port: &Port| (port.name.clone(), CellTensor { batch: TensorBatch::None, dims: None });
    let mut tensors: BTreeMap<String, CellTensor> = without_batch.map(tensor).collect();
    for state in sequence_batching(config).iter().flat_map(|batching| &batching.state) {
        let input = signature.all_inputs().find(|port| port.name == state.input_name);
        let axis = input.and_then(|port| state_axis(port, &state.dims)).unwrap_or(0);
        let batch = if batched { TensorBatch::Axis(axis) } else { TensorBatch::None };
        for name in [&state.input_name, &state.output_name] {
            let batch = tensors.get(name).map_or(batch, |tensor| tensor.batch);
            let dims = Some(Dims::from_slice(&state.dims));
            tensors.insert(name.clone(), CellTensor { batch, dims });
        }
    }
    tensors
}

/// Returns the axis along which a state has the batch: one that varies, and without which the graph has the dims of the
/// configuration. Axis 0 comes before others. `None` if there is no such axis.
pub fn state_axis(port: &Port, dims: &[i64]) -> Option<usize> {
    let graph = port.dims.as_ref()?;
    let fits = |axis: &usize| {
        let row = graph.iter().enumerate().filter(|(own, _)| own != axis).map(|(_, dim)| dim.size());
        graph[*axis].size() == -1
            && graph.len() == dims.len() + 1
            && row.zip(dims).all(|(graph, given)| graph == -1 || graph == *given)
    };
    (0..graph.len()).find(fits)
}

/// Returns a port with an axis before all others.
pub fn with_first(port: &Port, axis: usize) -> Port {
    let mut port = port.clone();
    if let Some(axes) = port.dims.as_mut().and_then(|dims: &mut Vec<PortDim>| dims.get_mut(..=axis)) {
        axes.rotate_right(1);
    }
    port
}

#[cfg(test)]
pub(crate) mod tests;

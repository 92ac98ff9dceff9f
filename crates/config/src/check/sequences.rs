//! Checks `sequence_batching`: its limits, states and control inputs, and whether they fit the graph.

use std::collections::{BTreeMap, BTreeSet};

use paternoster_model::DataType;
use paternoster_onnx::{Port, Signature};

use super::tensors;
use crate::{
    ConfigError, Origin,
    knobs::{DAY_US, given},
    model_config::{self, Tensor},
    pb::{
        self,
        model_sequence_batching::{Control, State, StrategyChoice, control::Kind},
    },
    sequences,
    settings::{REPEAT, Settings},
    values::stays_inside,
};

pub(super) fn check(settings: &Settings, origin: &Origin) -> Result<(), ConfigError> {
    let config = &settings.config;
    let Some(batching) = model_config::sequence_batching(config) else { return without_sequences(settings, origin) };
    let refuse = |key: &str, message: String| Err(origin.error(&format!("sequence_batching{key}"), message));
    let candidates = match &batching.strategy_choice {
        Some(StrategyChoice::Oldest(oldest)) => oldest.max_candidate_sequences,
        _ => 1,
    };
    let timeout = settings.own.batching.sequences.as_ref().and_then(|queue| queue.default_timeout_us);
    let timeout_us = timeout.map_or(0, |timeout| timeout.0);
    let message = format!("the backend '{REPEAT}' has no sequences");
    origin.refuse_if(config.backend == REPEAT, "sequence_batching", message)?;
    let message = format!("expected at least 1, but found {candidates}");
    origin.refuse_if(candidates < 1, "sequence_batching.oldest.max_candidate_sequences", message)?;
    let message = format!("expected a whole number from 0 to {DAY_US}, but found {timeout_us}");
    origin.refuse_if(timeout_us > DAY_US, "batching.sequences.default_timeout_us", message)?;
    batches(settings, batching, origin)?;
    if settings.has_cells() {
        let message = "a model of cells declares this in its segments: expected their keys 'keep' and 'control'";
        origin.refuse_if(!batching.state.is_empty(), "sequence_batching.state", message)?;
        return origin.refuse_if(!batching.control_input.is_empty(), "sequence_batching.control_input", message);
    }
    let decoupled = "a decoupled model with sequences needs 'cells' and 'unfold'";
    origin.refuse_if(settings.is_decoupled(), "model_transaction_policy", decoupled)?;
    whole_requests(settings, origin)?;
    let mut names: BTreeSet<&str> = config.input.iter().map(|input| input.name.as_str()).collect();
    for (number, name) in sequences::inputs(config).enumerate() {
        let key = match number.checked_sub(batching.state.len()) {
            None => format!(".state[{number}].input_name"),
            Some(control) => format!(".control_input[{control}].name"),
        };
        let message = match name {
            "" => "expected the name of an input of the program".to_owned(),
            name if !names.insert(name) => format!("the input '{name}' is given twice"),
            _ => continue,
        };
        return refuse(&key, message);
    }
    for (number, state) in batching.state.iter().enumerate() {
        if let Some((key, message)) = state_fault(state) {
            return refuse(&format!(".state[{number}].{key}"), message);
        }
    }
    let mut kinds = BTreeMap::new();
    for (number, input) in batching.control_input.iter().enumerate() {
        let refuse = |message: String| refuse(&format!(".control_input[{number}].control"), message);
        let [control] = &input.control[..] else {
            return refuse(format!("expected one control for '{}', but found {}", input.name, input.control.len()));
        };
        if let Some(message) = control_fault(control) {
            return refuse(message);
        }
        if let Some(first) = kinds.insert(control.kind, &input.name) {
            let kind = control.kind().as_str_name();
            return refuse(format!("expected one input of the kind {kind}, but '{first}' is one too"));
        }
    }
    Ok(())
}

/// Rejects impossible batch sizes and delays.
fn batches(settings: &Settings, batching: &pb::ModelSequenceBatching, origin: &Origin) -> Result<(), ConfigError> {
    let (strategy, delay_us) = match &batching.strategy_choice {
        Some(StrategyChoice::Oldest(oldest)) => ("oldest", oldest.max_queue_delay_microseconds),
        Some(StrategyChoice::Direct(direct)) => ("direct", direct.max_queue_delay_microseconds),
        None => return Ok(()),
    };
    let path = format!("sequence_batching.{strategy}.max_queue_delay_microseconds");
    let message = format!("expected at most a day, {DAY_US}, but found {delay_us}");
    origin.refuse_if(delay_us > DAY_US, &path, message)?;
    match &batching.strategy_choice {
        Some(StrategyChoice::Oldest(oldest)) if !settings.has_cells() => {
            let largest = settings.config.max_batch_size;
            let Some(size) = oldest.preferred_batch_size.iter().find(|size| !(1..=largest).contains(*size)) else {
                return Ok(());
            };
            let message = format!("expected sizes from 1 to max_batch_size {largest}, but found {size}");
            Err(origin.error("sequence_batching.oldest.preferred_batch_size", message))
        }
        Some(StrategyChoice::Direct(direct)) if !(0.0..=1.0).contains(&direct.minimum_slot_utilization) => {
            let message = format!("expected a share from 0 to 1, but found {}", direct.minimum_slot_utilization);
            Err(origin.error("sequence_batching.direct.minimum_slot_utilization", message))
        }
        _ => Ok(()),
    }
}

/// Rejects settings that only models with sequences have.
fn without_sequences(settings: &Settings, origin: &Origin) -> Result<(), ConfigError> {
    match settings.own.batching.sequences.as_ref().and_then(|queue| given(queue).into_iter().next()) {
        Some(key) => {
            let path = format!("batching.sequences.{key}");
            Err(origin.error(&path, "this belongs to 'sequence_batching', which is missing"))
        }
        None => Ok(()),
    }
}

/// Rejects settings that do not go with requests that run as a single cell.
fn whole_requests(settings: &Settings, origin: &Origin) -> Result<(), ConfigError> {
    let Settings { config, own } = settings;
    let width = own.batching.bucket_width.map(|_| "batching.bucket_width".to_owned());
    let stages = || own.stages_key().map(str::to_owned);
    let pad = || own.pad.keys().next().map(|input| format!("pad.{input}"));
    if let Some(key) = width.or_else(stages).or_else(pad) {
        let message = "requests of sequences are neither cut into stages nor padded: remove this";
        return Err(origin.error(&key, message));
    }
    for Tensor { path, name, reshape, optional, .. } in model_config::tensors(config) {
        let refuse_if = |applies, fault: &str| {
            origin.refuse_if(applies, &path, format!("'{name}' of a model with sequences {fault}"))
        };
        refuse_if(reshape.is_some(), "cannot be reshaped")?;
        refuse_if(optional, "cannot be left out")?;
    }
    Ok(())
}

/// Checks a state. Returns the key at fault and the reason.
fn state_fault(state: &State) -> Option<(&'static str, String)> {
    let name = &state.input_name;
    if state.output_name.is_empty() {
        return Some(("output_name", "expected the name of an output of the program".to_owned()));
    }
    if model_config::datatype(state.data_type).is_none_or(|datatype| datatype == DataType::Bytes) {
        return Some(("data_type", format!("expected a data_type of numbers for '{name}'")));
    }
    if state.dims.iter().any(|dim| *dim < 1) {
        return Some(("dims", format!("expected fixed dims for '{name}', but found {:?}", state.dims)));
    }
    match &state.initial_state[..] {
        [] => None,
        [initial] if initial.data_type != state.data_type || initial.dims != state.dims => {
            Some(("initial_state", format!("expected the data_type and the dims of '{name}', {:?}", state.dims)))
        }
        [_] => None,
        more => Some(("initial_state", format!("expected one initial state for '{name}', but found {}", more.len()))),
    }
}

fn control_fault(control: &Control) -> Option<String> {
    let Ok(kind) = Kind::try_from(control.kind) else { return Some(format!("there is no kind {}", control.kind)) };
    if kind == Kind::ControlSequenceCorrid {
        let datatype = model_config::datatype(control.data_type);
        let is_id = datatype.is_some_and(|datatype| {
            use DataType::{Bytes, Int32, Int64, Uint32, Uint64};
            matches!(datatype, Bytes | Int32 | Int64 | Uint32 | Uint64)
        });
        let found = datatype.map_or("none", DataType::as_str);
        return (!is_id)
            .then(|| format!("expected an integer or a string as data_type of a correlation id, but found {found}"));
    }
    let message =
        "expected two values, for false and true, in one of int32_false_true, fp32_false_true and bool_false_true";
    sequences::values(control).is_none().then(|| message.to_owned())
}

/// Checks that files of initial states are in the model's directory.
pub(super) fn files(config: &pb::ModelConfig, origin: &Origin) -> Result<(), ConfigError> {
    match sequences::files(config).find(|(_, file)| !stays_inside(file)) {
        Some((input, file)) => {
            let message = format!(
                "expected a file in the directory '{}' of the model for '{input}', but found '{file}'",
                sequences::INITIAL_STATE
            );
            Err(origin.error("sequence_batching.state", message))
        }
        None => Ok(()),
    }
}

/// Checks states and control inputs against the graph.
pub(super) fn fits(config: &pb::ModelConfig, signature: &Signature, origin: &Origin) -> Result<(), ConfigError> {
    let Some(batching) = model_config::sequence_batching(config) else { return Ok(()) };
    let (inputs, outputs): (Vec<&Port>, Vec<&Port>) =
        (signature.all_inputs().collect(), signature.outputs.iter().collect());
    for (number, state) in batching.state.iter().enumerate() {
        let path = format!("sequence_batching.state[{number}]");
        let input = tensors::find(&inputs, &state.input_name, "input", &path, origin)?;
        let output = tensors::find(&outputs, &state.output_name, "output", &path, origin)?;
        let axis = sequences::state_axis(input, &state.dims).filter(|_| config.max_batch_size > 0).unwrap_or(0);
        for port in [input, output] {
            let port = sequences::with_first(port, axis);
            tensors::fits(config, &port, state.data_type, &state.dims, &path, origin)?;
        }
    }
    for (number, input) in batching.control_input.iter().enumerate() {
        let path = format!("sequence_batching.control_input[{number}]");
        let port = tensors::find(&inputs, &input.name, "input", &path, origin)?;
        let Some(control) = input.control.first() else { continue };
        let datatype = sequences::values(control)
            .map_or_else(|| model_config::datatype(control.data_type), |(datatype, ..)| Some(datatype));
        if datatype != port.datatype {
            let expected = port.datatype.map_or("none", DataType::as_str);
            let found = datatype.map_or("none", DataType::as_str);
            let message =
                format!("the graph has the datatype {expected} for '{}', but the control {found}", input.name);
            return Err(origin.error(&path, message));
        }
    }
    Ok(())
}

//! `sequence_batching`: its limits, states and control inputs by themselves, and against the graph.

use std::collections::{BTreeMap, BTreeSet};

use super::{graph, stays_inside};
use crate::{
    model::DataType,
    onnx::Signature,
    repository::config::{
        ConfigError, Origin,
        complete::REPEAT,
        convert, knobs, params, pb,
        pb::model_sequence_batching::{Control, State, StrategyChoice, control::Kind},
        sequences, stages, unfold,
    },
};

pub(super) fn check(config: &pb::ModelConfig, origin: &Origin) -> Result<(), ConfigError> {
    let Some(batching) = sequences::given(config) else { return without_sequences(config, origin) };
    let refuse = |key: &str, message: String| Err(origin.error(&format!("sequence_batching{key}"), message));
    if batching.iterative_sequence {
        return refuse(".iterative_sequence", "iterative sequences are not supported".to_owned());
    }
    if config.backend == REPEAT {
        return refuse("", format!("the backend '{REPEAT}' has no sequences"));
    }
    if let Some(StrategyChoice::Oldest(oldest)) = &batching.strategy_choice
        && oldest.max_candidate_sequences < 1
    {
        let message = format!("expected at least 1, but found {}", oldest.max_candidate_sequences);
        return refuse(".oldest.max_candidate_sequences", message);
    }
    batches(config, batching, origin)?;
    sequences::queue(config, origin)?;
    if unfold::is_given(config) {
        let own = if batching.state.is_empty() { ".control_input" } else { ".state" };
        if !batching.state.is_empty() || !batching.control_input.is_empty() {
            return refuse(
                own,
                "the segments of a model of cells say this: expected their keys 'keep' and 'control'".to_owned(),
            );
        }
        return Ok(());
    }
    if config.max_batch_size == 0 {
        return refuse("", "sequences need a max_batch_size of at least 1, but it is 0".to_owned());
    }
    if config.model_transaction_policy.as_ref().is_some_and(|policy| policy.decoupled) {
        let message = "a decoupled model with sequences needs 'cells' and 'unfold'";
        return Err(origin.error("model_transaction_policy", message));
    }
    whole_requests(config, origin)?;
    let mut names: BTreeSet<&str> = config.input.iter().map(|input| input.name.as_str()).collect();
    for (number, name) in sequences::inputs(config).enumerate() {
        let key = match number.checked_sub(batching.state.len()) {
            None => format!(".state[{number}].input_name"),
            Some(control) => format!(".control_input[{control}].name"),
        };
        if name.is_empty() {
            return refuse(&key, "expected the name of an input of the program".to_owned());
        }
        if !names.insert(name) {
            return refuse(&key, format!("the input '{name}' is there twice"));
        }
    }
    for (number, state) in batching.state.iter().enumerate() {
        let fault = state_fault(state);
        fault.map_or(Ok(()), |(key, message)| refuse(&format!(".state[{number}].{key}"), message))?;
    }
    for (number, input) in batching.control_input.iter().enumerate() {
        let fault = match &input.control[..] {
            [control] => control_fault(control),
            controls => Some(format!("expected one control for '{}', but found {}", input.name, controls.len())),
        };
        fault.map_or(Ok(()), |message| refuse(&format!(".control_input[{number}].control"), message))?;
    }
    let mut kinds = BTreeMap::new();
    for (number, input) in batching.control_input.iter().enumerate() {
        let Some(kind) = input.control.first().and_then(|control| Kind::try_from(control.kind).ok()) else { continue };
        if let Some(first) = kinds.insert(kind as i32, &input.name) {
            let message = format!("expected one input of the kind {}, but '{first}' is one too", kind.as_str_name());
            return refuse(&format!(".control_input[{number}].control"), message);
        }
    }
    Ok(())
}

/// Refuses sizes of batches that cannot be, as Triton does, although rows wait for none.
fn batches(config: &pb::ModelConfig, batching: &pb::ModelSequenceBatching, origin: &Origin) -> Result<(), ConfigError> {
    match &batching.strategy_choice {
        Some(StrategyChoice::Oldest(oldest)) if !unfold::is_given(config) => {
            let largest = config.max_batch_size;
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

/// Refuses what only sequences have.
fn without_sequences(config: &pb::ModelConfig, origin: &Origin) -> Result<(), ConfigError> {
    let given = knobs::OF_SEQUENCES.into_iter().find(|key| config.parameters.contains_key(*key));
    match given {
        Some(key) => Err(origin.error(&format!("parameters[{key}]"), "expected 'sequence_batching', which this is of")),
        None => Ok(()),
    }
}

/// Refuses what a request that runs through one cell cannot have.
fn whole_requests(config: &pb::ModelConfig, origin: &Origin) -> Result<(), ConfigError> {
    let refused =
        |key: &&String| stages::is_ours(key) || key.starts_with(params::PAD) || *key == knobs::BUCKET_WIDTH.key;
    if let Some(key) = config.parameters.keys().filter(refused).min() {
        let message = "requests of sequences are neither cut into stages nor padded: remove this";
        return Err(origin.error(&format!("parameters[{key}]"), message));
    }
    let inputs =
        config.input.iter().map(|input| (&input.name, input.data_type, input.reshape.is_some(), input.optional));
    let outputs = config.output.iter().map(|output| (&output.name, output.data_type, output.reshape.is_some(), false));
    let inputs = inputs.enumerate().map(|(number, tensor)| (format!("input[{number}]"), tensor));
    let outputs = outputs.enumerate().map(|(number, tensor)| (format!("output[{number}]"), tensor));
    for (path, (name, data_type, is_reshaped, is_optional)) in inputs.chain(outputs) {
        let fault = match () {
            () if convert::datatype(data_type) == Some(DataType::Bytes) => "cannot be BYTES",
            () if is_reshaped => "cannot be reshaped",
            () if is_optional => "cannot be left out",
            () => continue,
        };
        return Err(origin.error(&path, format!("'{name}' of a model with sequences {fault}")));
    }
    Ok(())
}

/// What is wrong with a state: its key, and the reason.
fn state_fault(state: &State) -> Option<(&'static str, String)> {
    let name = &state.input_name;
    if state.output_name.is_empty() {
        return Some(("output_name", "expected the name of an output of the program".to_owned()));
    }
    if convert::datatype(state.data_type).is_none_or(|datatype| datatype == DataType::Bytes) {
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
        let datatype = convert::datatype(control.data_type);
        let is_number = datatype.is_some_and(|datatype| {
            matches!(datatype, DataType::Int32 | DataType::Int64 | DataType::Uint32 | DataType::Uint64)
        });
        let found = datatype.map_or("none", DataType::as_str);
        return (!is_number)
            .then(|| format!("expected an integer as data_type of a correlation id, but found {found}"));
    }
    let message =
        "expected two values, for false and true, in one of int32_false_true, fp32_false_true and bool_false_true";
    sequences::values(control).is_none().then(|| message.to_owned())
}

/// Initial states are files of the model's directory.
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
    let Some(batching) = sequences::given(config) else { return Ok(()) };
    for (number, state) in batching.state.iter().enumerate() {
        let path = format!("sequence_batching.state[{number}]");
        for (ports, name, what) in
            [(&signature.inputs, &state.input_name, "input"), (&signature.outputs, &state.output_name, "output")]
        {
            let port = graph::find(ports, name, what, &path, origin)?;
            graph::fits(config, port, state.data_type, &state.dims, &path, origin)?;
        }
    }
    for (number, input) in batching.control_input.iter().enumerate() {
        let path = format!("sequence_batching.control_input[{number}]");
        let port = graph::find(&signature.inputs, &input.name, "input", &path, origin)?;
        let Some(control) = input.control.first() else { continue };
        let datatype = sequences::values(control)
            .map_or_else(|| convert::datatype(control.data_type), |(datatype, ..)| Some(datatype));
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

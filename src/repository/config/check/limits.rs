//! Numbers that must agree: batch sizes, priorities, parameters, warm-up.

use super::{sequences, stays_inside};
use crate::repository::config::{
    ConfigError, Origin, knobs, latencies,
    params::{self, Meaning, PolicyName},
    pb::{self, model_config::SchedulingChoice, model_warmup::input::InputDataType},
    policies, stages, unfold,
};

/// More levels than anyone needs, few enough to keep a queue for each.
const MAX_PRIORITY_LEVELS: u64 = 65_536;

pub(super) fn check(config: &pb::ModelConfig, origin: &Origin) -> Result<(), ConfigError> {
    if config.max_batch_size < 0 {
        let message = format!("expected 0 or more, but found {}", config.max_batch_size);
        return Err(origin.error("max_batch_size", message));
    }
    parameters(config, origin)?;
    if let Some(SchedulingChoice::DynamicBatching(batching)) = &config.scheduling_choice {
        dynamic_batching(config, batching, origin)?;
    }
    sequences::check(config, origin)?;
    sequences::files(config, origin)?;
    unfold::read(config, origin)?;
    let stages = stages::read(config, origin)?;
    policies::read(config, &stages, origin)?;
    warmup(config, origin)
}

fn parameters(config: &pb::ModelConfig, origin: &Origin) -> Result<(), ConfigError> {
    for key in config.parameters.keys() {
        if let Meaning::Unknown(message) = params::meaning(config, key) {
            return Err(origin.error(&format!("parameters[{key}]"), message));
        }
    }
    let at = |key: &str| format!("parameters[{key}]");
    knobs::check(config, origin)?;
    if let Some(latencies::Place::File(name)) = latencies::place(config)
        && !stays_inside(name)
    {
        let message = format!("expected a file in the model's directory, but found '{name}'");
        return Err(origin.error(&knobs::LATENCIES.path(), message));
    }
    let policy = params::policy(config).map_err(|fault| origin.error(&at(params::POLICY), fault))?;
    match (policy, &config.scheduling_choice) {
        (Some(PolicyName::Serial), Some(SchedulingChoice::DynamicBatching(_))) => {
            let message = "the policy 'serial' contradicts dynamic_batching";
            Err(origin.error(&at(params::POLICY), message))
        }
        (Some(PolicyName::Window), None) if !unfold::is_given(config) => {
            let message = "the policy 'window' needs dynamic_batching and a max_batch_size";
            Err(origin.error(&at(params::POLICY), message))
        }
        _ => Ok(()),
    }
}

fn dynamic_batching(
    config: &pb::ModelConfig,
    batching: &pb::ModelDynamicBatching,
    origin: &Origin,
) -> Result<(), ConfigError> {
    let refuse = |key: &str, message: String| Err(origin.error(key, message));
    let largest = config.max_batch_size;
    let has_cells = unfold::is_given(config);
    if largest == 0 && !has_cells {
        let message = "batching needs a max_batch_size of at least 1, but it is 0".to_owned();
        return refuse("dynamic_batching", message);
    }
    let outside = batching.preferred_batch_size.iter().find(|size| **size < 1 || **size > largest);
    // A model of cells has none at all, as its policy will say.
    if let Some(size) = outside.filter(|_| !has_cells) {
        let message = format!("expected sizes from 1 to max_batch_size {largest}, but found {size}");
        return refuse("dynamic_batching.preferred_batch_size", message);
    }
    let levels = batching.priority_levels;
    if levels > MAX_PRIORITY_LEVELS {
        let message = format!("expected at most {MAX_PRIORITY_LEVELS} levels, but found {levels}");
        return refuse("dynamic_batching.priority_levels", message);
    }
    let default = batching.default_priority_level;
    if levels > 0 && !(1..=levels).contains(&default) {
        let message = format!("expected a level from 1 to priority_levels {levels}, but found {default}");
        return refuse("dynamic_batching.default_priority_level", message);
    }
    if levels == 0 && default > 0 {
        let message = format!("expected priority_levels to be given, but only the default level {default} is");
        return refuse("dynamic_batching.default_priority_level", message);
    }
    if let Some(level) = batching.priority_queue_policy.keys().find(|level| !(1..=levels).contains(level)) {
        let message = format!("expected a level from 1 to priority_levels {levels}, but found {level}");
        return refuse(&format!("dynamic_batching.priority_queue_policy[{level}]"), message);
    }
    Ok(())
}

fn warmup(config: &pb::ModelConfig, origin: &Origin) -> Result<(), ConfigError> {
    for (number, sample) in config.model_warmup.iter().enumerate() {
        let path = format!("model_warmup[{number}]");
        let largest = u32::try_from(config.max_batch_size).unwrap_or(0).max(1);
        if sample.batch_size > largest {
            let message = format!("expected at most {largest} rows, but found {}", sample.batch_size);
            return Err(origin.error(&format!("{path}.batch_size"), message));
        }
        for (name, input) in &sample.inputs {
            let path = format!("{path}.inputs[{name}]");
            let Some(declared) = config.input.iter().find(|tensor| tensor.name == *name) else {
                return Err(origin.error(&path, format!("the model has no input '{name}'")));
            };
            if input.data_type != declared.data_type {
                let expected = type_name(declared.data_type);
                let message = format!("expected the datatype {expected}, but found {}", type_name(input.data_type));
                return Err(origin.error(&path, message));
            }
            let same_rank = input.dims.len() == declared.dims.len();
            let fits =
                input.dims.iter().zip(&declared.dims).all(|(given, dim)| *given >= 0 && (*dim == -1 || dim == given));
            if !same_rank || !fits {
                let message = format!("expected dims that fit {:?}, but found {:?}", declared.dims, input.dims);
                return Err(origin.error(&path, message));
            }
            if let Some(InputDataType::InputDataFile(file)) = &input.input_data_type
                && !stays_inside(file)
            {
                let message = format!("expected a file in the model's warmup directory, but found '{file}'");
                return Err(origin.error(&path, message));
            }
        }
        let missing = config.input.iter().find(|input| !input.optional && !sample.inputs.contains_key(&input.name));
        if let Some(missing) = missing {
            return Err(origin.error(&path, format!("the sample lacks the input '{}'", missing.name)));
        }
    }
    Ok(())
}

fn type_name(number: i32) -> &'static str {
    pb::DataType::try_from(number).map_or("none", |datatype| datatype.as_str_name())
}

//! Checks that numbers agree: batch sizes, priorities, parameters, warm-up.

use paternoster_batching::PolicyKind;

use crate::{
    ConfigError, Origin,
    model::{LatencySettings, PolicyName},
    model_config,
    nearest::suggestion,
    pb::{self, model_config::SchedulingChoice, model_queue_policy::TimeoutAction, model_warmup::input::InputDataType},
    policies, sequences,
    settings::{POLICY, Settings},
    stages, unfold,
    values::stays_inside,
};

pub(super) fn check(settings: &Settings, origin: &Origin) -> Result<(), ConfigError> {
    let config = &settings.config;
    if config.max_batch_size < 0 {
        let message = format!("expected 0 or more, but found {}", config.max_batch_size);
        return Err(origin.error("max_batch_size", message));
    }
    own(settings, origin)?;
    if let Some(SchedulingChoice::DynamicBatching(batching)) = &config.scheduling_choice {
        dynamic_batching(settings, batching, origin)?;
    }
    super::sequences::check(settings, origin)?;
    super::sequences::files(config, origin)?;
    unfold::read(settings, origin)?;
    let stages = stages::read(settings, origin)?;
    policies::read(settings, &stages, origin)?;
    warmup(config, origin)
}

/// Checks settings that `ModelConfig` has no fields for: their tensors and axes exist, and the policy goes with the
/// scheduler.
fn own(settings: &Settings, origin: &Origin) -> Result<(), ConfigError> {
    let Settings { config, own } = settings;
    let inputs = config.input.iter().map(|tensor| tensor.name.as_str());
    let outputs = config.output.iter().map(|tensor| tensor.name.as_str());
    let tensors: Vec<&str> = inputs.clone().chain(outputs).collect();
    let inputs: Vec<&str> = inputs.collect();
    let padded: Vec<&str> = own.pad.values().flat_map(|pad| &pad.0.symbols).map(String::as_str).collect();
    // The axes of cells are known only from their programs.
    let lengths = own.instance.lengths.keys().filter(|_| !settings.has_cells());
    let pads = own.pad.keys().map(|name| ("pad", "input", name, &inputs));
    let axes = own.axes.keys().map(|name| ("axes", "input or output", name, &tensors));
    let lengths = lengths.map(|name| ("instance.lengths", "padded axis", name, &padded));
    for (key, what, name, known) in pads.chain(axes).chain(lengths) {
        if !known.contains(&name.as_str()) {
            let hint = suggestion(name, known.iter().copied());
            return Err(origin.error(&format!("{key}.{name}"), format!("the model has no {what} '{name}'{hint}")));
        }
    }
    if let Some(LatencySettings::File(name)) = &own.batching.latencies
        && !stays_inside(name)
    {
        let message = format!("expected a file in the model's directory, but found '{name}'");
        return Err(origin.error("batching.latencies", message));
    }
    let is_window = settings.policy() == Some(&PolicyName::Of(PolicyKind::Window));
    let lacks_window = is_window && config.scheduling_choice.is_none() && !settings.has_cells();
    origin.refuse_if(lacks_window, POLICY, "the policy 'window' needs dynamic_batching")
}

fn dynamic_batching(
    settings: &Settings,
    batching: &pb::ModelDynamicBatching,
    origin: &Origin,
) -> Result<(), ConfigError> {
    let refuse = |key: &str, message: String| Err(origin.error(key, message));
    let largest = settings.config.max_batch_size;
    let has_cells = settings.has_cells();
    let outside = batching.preferred_batch_size.iter().find(|size| **size < 1 || **size > largest);
    // The policy of a model of cells rejects preferred sizes altogether.
    if let Some(size) = outside.filter(|_| !has_cells) {
        let message = format!("expected sizes from 1 to max_batch_size {largest}, but found {size}");
        return refuse("dynamic_batching.preferred_batch_size", message);
    }
    let levels = batching.priority_levels;
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
    if batching.preserve_ordering { ordered(batching, origin) } else { Ok(()) }
}

/// Rejects settings that would change the order that `preserve_ordering` keeps, as Triton does.
fn ordered(batching: &pb::ModelDynamicBatching, origin: &Origin) -> Result<(), ConfigError> {
    let levels = batching.priority_levels;
    let message = format!("expected one level, since preserve_ordering is true, but found {levels}");
    origin.refuse_if(levels > 1, "dynamic_batching.priority_levels", message)?;
    let default = batching.default_queue_policy.iter().map(|policy| ("default_queue_policy".to_owned(), policy));
    let own = batching.priority_queue_policy.iter();
    let own = own.map(|(level, policy)| (format!("priority_queue_policy[{level}]"), policy));
    for (key, policy) in default.chain(own) {
        let delays = policy.timeout_action == i32::from(TimeoutAction::Delay);
        let path = format!("dynamic_batching.{key}.timeout_action");
        let message = "expected REJECT, since preserve_ordering is true, but found DELAY";
        origin.refuse_if(delays && policy.default_timeout_microseconds > 0, &path, message)?;
    }
    Ok(())
}

/// Most runs of all warm-up samples together.
const MAX_WARMUP_RUNS: u64 = 10_000;

fn warmup(config: &pb::ModelConfig, origin: &Origin) -> Result<(), ConfigError> {
    let mut runs = 0;
    for (number, sample) in config.model_warmup.iter().enumerate() {
        let path = format!("model_warmup[{number}]");
        // A count of 0 is one run.
        runs += u64::from(sample.count.max(1));
        if runs > MAX_WARMUP_RUNS {
            let message = format!("expected at most {MAX_WARMUP_RUNS} runs of all samples together, but found {runs}");
            return Err(origin.error(&format!("{path}.count"), message));
        }
        let largest = u32::try_from(config.max_batch_size).unwrap_or(0).max(1);
        if sample.batch_size > largest {
            let message = format!("expected at most {largest} rows, but found {}", sample.batch_size);
            return Err(origin.error(&format!("{path}.batch_size"), message));
        }
        for (name, input) in &sample.inputs {
            let path = format!("{path}.inputs[{name}]");
            let declared = config.input.iter().find(|tensor| tensor.name == *name);
            // Samples may contain controls and states, which are inputs of the program. The graph has their dims.
            let of_program =
                sequences::datatype_of(config, name).map(|datatype| model_config::datatype_to_pb(datatype).into());
            let Some(data_type) = declared.map(|tensor| tensor.data_type).or(of_program) else {
                return Err(origin.error(&path, format!("the model has no input '{name}'")));
            };
            if input.data_type != data_type {
                let (expected, found) = (type_name(data_type), type_name(input.data_type));
                return Err(origin.error(&path, format!("expected the datatype {expected}, but found {found}")));
            }
            if let Some(dim) = input.dims.iter().find(|dim| **dim < 0) {
                return Err(origin.error(&path, format!("expected fixed dims, but found {dim}")));
            }
            let fits = |dims: &[i64]| {
                let mut pairs = dims.iter().zip(&input.dims);
                dims.len() == input.dims.len() && pairs.all(|(dim, given)| *dim == -1 || dim == given)
            };
            if let Some(declared) = declared.filter(|tensor| !fits(&tensor.dims)) {
                let message = format!("expected dims that fit {:?}, but found {:?}", declared.dims, input.dims);
                return Err(origin.error(&path, message));
            }
            if input.input_data_type.is_none() {
                return Err(origin.error(&path, "expected zero_data, random_data or input_data_file"));
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

//! `batching` of a `model.yaml`: the policy by name, and one section of knobs per policy.

use super::read::{Reader, Value};
use crate::repository::config::{
    ConfigError,
    params::{self, PolicyName},
    pb::{self, model_config::SchedulingChoice, model_queue_policy::TimeoutAction},
};

const WINDOW: [&str; 8] = [
    "max_queue_delay_us",
    "preferred_batch_sizes",
    "preserve_ordering",
    "bucket_width",
    "priority_levels",
    "default_priority_level",
    "queue",
    "priority_queues",
];

const QUEUE: [&str; 4] = ["timeout_action", "default_timeout_us", "allow_timeout_override", "max_queue_size"];

/// Fills in the scheduler. Without `batching` the policy is `auto`; whether `auto` batches is decided when the largest
/// batch is known (`complete`).
pub(super) fn policy(
    reader: &mut Reader<'_>,
    value: Option<&Value<'_>>,
    config: &mut pb::ModelConfig,
) -> Result<(), ConfigError> {
    let mut chosen = PolicyName::Auto;
    let mut window = None;
    if let Some(value) = value {
        let later = ["adaptive", "lazy", "diversity", "cellular", "latency_objective_ms"];
        let section = reader.section(value, &["policy", "serial", "window"], &later)?;
        if let Some(name) = section.get("policy") {
            let text = reader.text(name)?;
            chosen = PolicyName::from_name(&text).map_err(|message| reader.error(name, message))?;
            reader.note(format!("parameters[{}]", params::POLICY), name);
        }
        if let Some(serial) = section.get("serial") {
            reader.section(serial, &[], &[])?;
        }
        reader.note("dynamic_batching", value);
        if let Some(knobs) = section.get("window") {
            if chosen == PolicyName::Auto {
                return Err(reader.error(knobs, "these knobs need 'policy: window'; auto has none"));
            }
            // Checked even where another policy is chosen, so that a switch brings no surprise.
            window = Some((window_knobs(reader, knobs, config, chosen)?, knobs.clone()));
        }
    }
    let string_value = chosen.as_str().to_owned();
    config.parameters.insert(params::POLICY.to_owned(), pb::ModelParameter { string_value });
    if chosen == PolicyName::Window {
        let (knobs, place) = window.unzip();
        if let Some(place) = place {
            reader.note("dynamic_batching", &place);
        }
        config.scheduling_choice = Some(SchedulingChoice::DynamicBatching(knobs.unwrap_or_default()));
    }
    Ok(())
}

fn window_knobs(
    reader: &mut Reader<'_>,
    value: &Value<'_>,
    config: &mut pb::ModelConfig,
    chosen: PolicyName,
) -> Result<pb::ModelDynamicBatching, ConfigError> {
    let section = reader.section(value, &WINDOW, &[])?;
    let mut knobs = pb::ModelDynamicBatching::default();
    let count = 0..=i128::from(u32::MAX);
    if let Some(delay) = section.get("max_queue_delay_us") {
        knobs.max_queue_delay_microseconds = reader.int(delay, 0..=i128::from(u64::MAX))?;
    }
    if let Some(sizes) = section.get("preferred_batch_sizes") {
        let sizes_read = reader.list(sizes)?;
        let sizes_read = sizes_read.iter().map(|size| reader.int(size, 1..=i128::from(i32::MAX)));
        knobs.preferred_batch_size = sizes_read.collect::<Result<_, _>>()?;
        reader.note("dynamic_batching.preferred_batch_size", sizes);
    }
    if let Some(flag) = section.get("preserve_ordering") {
        knobs.preserve_ordering = reader.flag(flag)?;
    }
    if let Some(levels) = section.get("priority_levels") {
        knobs.priority_levels = reader.int(levels, count.clone())?;
        reader.note("dynamic_batching.priority_levels", levels);
    }
    if let Some(level) = section.get("default_priority_level") {
        knobs.default_priority_level = reader.int(level, count.clone())?;
        reader.note("dynamic_batching.default_priority_level", level);
    }
    if let Some(queue) = section.get("queue") {
        knobs.default_queue_policy = Some(queue_policy(reader, queue)?);
    }
    if let Some(queues) = section.get("priority_queues") {
        for (level, entry) in reader.mapping(queues)?.entries() {
            let Ok(number) = level.parse() else {
                return Err(reader.error(entry, format!("expected a priority level as key, but found '{level}'")));
            };
            knobs.priority_queue_policy.insert(number, queue_policy(reader, entry)?);
            reader.note(format!("dynamic_batching.priority_queue_policy[{level}]"), entry);
        }
    }
    if let Some(width) = section.get("bucket_width") {
        let string_value = reader.int::<u32>(width, count)?.to_string();
        if chosen == PolicyName::Window {
            reader.note(format!("parameters[{}]", params::BUCKET_WIDTH), width);
            config.parameters.insert(params::BUCKET_WIDTH.to_owned(), pb::ModelParameter { string_value });
        }
    }
    Ok(knobs)
}

fn queue_policy(reader: &Reader<'_>, value: &Value<'_>) -> Result<pb::ModelQueuePolicy, ConfigError> {
    let section = reader.section(value, &QUEUE, &[])?;
    let mut queue = pb::ModelQueuePolicy::default();
    if let Some(action) = section.get("timeout_action") {
        queue.timeout_action = match reader.text(action)?.as_str() {
            "reject" => TimeoutAction::Reject.into(),
            "delay" => TimeoutAction::Delay.into(),
            other => return Err(reader.error(action, format!("expected reject or delay, but found '{other}'"))),
        };
    }
    if let Some(timeout) = section.get("default_timeout_us") {
        queue.default_timeout_microseconds = reader.int(timeout, 0..=i128::from(u64::MAX))?;
    }
    if let Some(flag) = section.get("allow_timeout_override") {
        queue.allow_timeout_override = reader.flag(flag)?;
    }
    if let Some(size) = section.get("max_queue_size") {
        queue.max_queue_size = reader.int(size, 0..=i128::from(u32::MAX))?;
    }
    Ok(queue)
}

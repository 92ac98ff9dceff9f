//! The queue of a batching policy: order, priorities, limits and length buckets. It becomes Triton's
//! `dynamic_batching`.

use super::read::{Reader, Section, Value};
use crate::repository::config::{
    ConfigError, knobs,
    pb::{self, model_queue_policy::TimeoutAction},
};

/// The queue's keys.
pub(super) const KEYS: [&str; 6] =
    ["preserve_ordering", "bucket_width", "priority_levels", "default_priority_level", "queue", "priority_queues"];

/// The keys of a queue's limits.
pub(super) const QUEUE: [&str; 4] =
    ["timeout_action", "default_timeout_us", "allow_timeout_override", "max_queue_size"];

/// What a section says of the queue.
#[derive(Debug, Default)]
pub(super) struct Queueing {
    batching: pb::ModelDynamicBatching,
    bucket_width: Option<u32>,
}

impl Queueing {
    /// Puts it into the configuration.
    pub(super) fn give(self, config: &mut pb::ModelConfig, batching: &mut pb::ModelDynamicBatching) {
        batching.preserve_ordering = self.batching.preserve_ordering;
        batching.priority_levels = self.batching.priority_levels;
        batching.default_priority_level = self.batching.default_priority_level;
        batching.default_queue_policy = self.batching.default_queue_policy;
        batching.priority_queue_policy = self.batching.priority_queue_policy;
        if let Some(width) = self.bucket_width {
            let string_value = width.to_string();
            config.parameters.insert(knobs::BUCKET_WIDTH.key.to_owned(), pb::ModelParameter { string_value });
        }
    }
}

/// Reads the queue's keys of a section; notes where they stand if their policy is `chosen`.
pub(super) fn read(reader: &mut Reader<'_>, section: &Section<'_>, chosen: bool) -> Result<Queueing, ConfigError> {
    let mut queue = pb::ModelDynamicBatching::default();
    let mut places: Vec<(String, &Value<'_>)> = Vec::new();
    let level_range = 0..=i128::from(u64::MAX);
    if let Some(flag) = section.get("preserve_ordering") {
        queue.preserve_ordering = reader.flag(flag)?;
    }
    if let Some(levels) = section.get("priority_levels") {
        queue.priority_levels = reader.int(levels, level_range.clone())?;
        places.push(("dynamic_batching.priority_levels".to_owned(), levels));
    }
    if let Some(level) = section.get("default_priority_level") {
        queue.default_priority_level = reader.int(level, level_range)?;
        places.push(("dynamic_batching.default_priority_level".to_owned(), level));
    }
    if let Some(policy) = section.get("queue") {
        queue.default_queue_policy = Some(queue_policy(reader, policy)?);
    }
    if let Some(queues) = section.get("priority_queues") {
        let queues = reader.mapping(queues)?;
        for (level, entry) in queues.entries() {
            let Ok(number) = level.parse() else {
                return Err(reader.error(entry, format!("expected a priority level as key, but found '{level}'")));
            };
            queue.priority_queue_policy.insert(number, queue_policy(reader, entry)?);
            if chosen {
                reader.note(format!("dynamic_batching.priority_queue_policy[{level}]"), entry);
            }
        }
    }
    let mut bucket_width = None;
    if let Some(width) = section.get("bucket_width") {
        bucket_width = Some(reader.int(width, 0..=i128::from(u32::MAX))?);
        places.push((knobs::BUCKET_WIDTH.path(), width));
    }
    for (path, value) in places.into_iter().filter(|_| chosen) {
        reader.note(path, value);
    }
    Ok(Queueing { batching: queue, bucket_width })
}

/// A queue's limits.
pub(super) fn queue_policy(reader: &Reader<'_>, value: &Value<'_>) -> Result<pb::ModelQueuePolicy, ConfigError> {
    let section = reader.section(value, &QUEUE)?;
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

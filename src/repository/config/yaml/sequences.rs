//! `sequence_batching` of a `model.yaml`. Its queue becomes parameters: Triton's sequence batcher has none.

use super::{
    put, queueing,
    read::{Reader, Value},
};
use crate::repository::config::{
    ConfigError, knobs,
    pb::{
        self,
        model_config::SchedulingChoice,
        model_queue_policy::TimeoutAction,
        model_sequence_batching::{StrategyChoice, StrategyDirect, StrategyOldest},
    },
};

const KEYS: [&str; 3] = ["max_candidate_sequences", "max_sequence_idle_us", "queue"];

/// Reads `sequence_batching`, a mapping.
pub(super) fn batching(
    reader: &mut Reader<'_>,
    value: &Value<'_>,
    config: &mut pb::ModelConfig,
) -> Result<(), ConfigError> {
    let section = reader.section(value, &KEYS)?;
    reader.note("sequence_batching", value);
    let mut batching = pb::ModelSequenceBatching::default();
    if let Some(idle) = section.get("max_sequence_idle_us") {
        batching.max_sequence_idle_microseconds = reader.int(idle, 1..=i128::from(u64::MAX))?;
    }
    let candidates = section.get("max_candidate_sequences");
    batching.strategy_choice = Some(match candidates {
        Some(candidates) => {
            reader.note("sequence_batching.oldest.max_candidate_sequences", candidates);
            let max_candidate_sequences = reader.int(candidates, 1..=i128::from(i32::MAX))?;
            StrategyChoice::Oldest(StrategyOldest { max_candidate_sequences, ..Default::default() })
        }
        None => StrategyChoice::Direct(StrategyDirect::default()),
    });
    if let Some(given) = section.get("queue") {
        let policy = queueing::queue_policy(reader, given)?;
        let section = reader.section(given, &queueing::QUEUE)?;
        let action = if policy.timeout_action == i32::from(TimeoutAction::Delay) { "delay" } else { "reject" };
        for (name, entry) in section.entries() {
            let (key, text) = match *name {
                "timeout_action" => (knobs::SEQUENCE_ACTION.key, action.to_owned()),
                "default_timeout_us" => (knobs::SEQUENCE_TIMEOUT.key, policy.default_timeout_microseconds.to_string()),
                "allow_timeout_override" => (knobs::SEQUENCE_OVERRIDE.key, policy.allow_timeout_override.to_string()),
                _ => (knobs::SEQUENCE_QUEUE.key, policy.max_queue_size.to_string()),
            };
            put(reader, config, key.to_owned(), text, entry);
        }
    }
    config.scheduling_choice = Some(SchedulingChoice::SequenceBatching(batching));
    Ok(())
}

//! The knobs of batching, which travel as strings in `parameters`: one table of keys, each with what its value may be.
//! `model.yaml` writes through it, and the check and the conversion read through it, so that both forms of a
//! configuration say the same.

use super::{ConfigError, Origin, nearest::suggestion, params, pb};
pub use crate::batching::knob::{Form, Knob, LATENCY_OBJECTIVE, from_ms, from_us, narrow};
use crate::batching::{
    PolicyKind,
    knob::{DAY_MS, DAY_US, FromText, KnobEntry},
};

/// Most stages of a model.
pub const MAX_STAGES: u16 = 256;

/// Width of the length buckets of padded requests; 0 or absent: any lengths share a batch.
pub const BUCKET_WIDTH: Knob<u64> = Knob::whole("batching.bucket_width", 0, u32::MAX as u64);
/// Share of the device against other models.
pub const WEIGHT: Knob<u64> = Knob::whole("batching.weight", 1, 1_000);
/// Buffers at each boundary between two stages.
pub const BUFFER_PAIRS: Knob<u64> = Knob::whole("batching.buffer_pairs", 1, 16);
/// How long a task may run before it is told to stop, in milliseconds; 0: as long as it likes; absent: the server's
/// limit.
pub const TASK_TIME_LIMIT: Knob<f64> =
    Knob::new("batching.task_time_limit_ms", Form::Number { least: 0.0, most: DAY_MS });
/// The latency table: a file's name, or the table itself.
pub const LATENCIES: Knob<String> = Knob::new("batching.latencies", Form::Text);

/// Slots for the state of requests that have boarded.
pub const CELLULAR_SLOTS: Knob<u64> = Knob::whole("batching.cellular.slots", 1, 1 << 24);
/// Most tasks of one type that a lane is given in a row.
pub const CELLULAR_TASKS: Knob<u64> = Knob::whole("batching.cellular.max_tasks", 1, 1_000);
/// Whether inner nodes of a tree wait for their own children alone.
pub const CELLULAR_FRONTIER: Knob<bool> = Knob::new("batching.cellular.frontier", Form::Flag);
/// Most requests whose graphs are merged.
pub const CELLULAR_MERGE: Knob<u64> = Knob::whole("batching.cellular.merge_requests", 1, 1 << 16);

/// What happens to requests of sequences whose queue timeout passes.
pub const SEQUENCE_ACTION: Knob<&str> = Knob::new("batching.sequences.timeout_action", ACTION);
/// Queue timeout of requests of sequences that bring none, in microseconds; 0: none.
pub const SEQUENCE_TIMEOUT: Knob<u64> = Knob::whole("batching.sequences.default_timeout_us", 0, DAY_US);
/// Whether a request's own timeout counts.
pub const SEQUENCE_OVERRIDE: Knob<bool> = Knob::new("batching.sequences.allow_timeout_override", Form::Flag);
/// Most requests that wait, those behind others of their sequence included; 0: no limit.
pub const SEQUENCE_QUEUE: Knob<u64> = Knob::whole("batching.sequences.max_queue_size", 0, u32::MAX as u64);

/// The knobs that only models with sequences have.
pub const OF_SEQUENCES: [&str; 4] =
    [SEQUENCE_ACTION.key, SEQUENCE_TIMEOUT.key, SEQUENCE_OVERRIDE.key, SEQUENCE_QUEUE.key];

const ACTION: Form = Form::Word { words: &["reject", "delay"], refused: None };

/// The knobs that do not belong to one policy over batches, with the forms of their values.
const COMMON: [KnobEntry; 15] = [
    BUCKET_WIDTH.entry(),
    LATENCY_OBJECTIVE.entry(),
    WEIGHT.entry(),
    BUFFER_PAIRS.entry(),
    TASK_TIME_LIMIT.entry(),
    LATENCIES.entry(),
    CELLULAR_SLOTS.entry(),
    CELLULAR_TASKS.entry(),
    CELLULAR_FRONTIER.entry(),
    CELLULAR_MERGE.entry(),
    SEQUENCE_ACTION.entry(),
    SEQUENCE_TIMEOUT.entry(),
    SEQUENCE_OVERRIDE.entry(),
    SEQUENCE_QUEUE.entry(),
    (params::POLICY, Form::Text),
];

/// Every knob, with the form of its value.
pub fn all() -> impl Iterator<Item = KnobEntry> {
    COMMON.into_iter().chain(PolicyKind::ALL.iter().flat_map(|kind| kind.knobs().iter().copied()))
}

/// Knobs in a configuration.
pub trait InConfig<T> {
    /// Whether the configuration gives the knob.
    fn is_given(&self, config: &pb::ModelConfig) -> bool;

    /// The value that the configuration gives, if it gives any.
    ///
    /// # Errors
    /// When it is not of the knob's form.
    fn read(&self, config: &pb::ModelConfig, origin: &Origin) -> Result<Option<T>, ConfigError>;
}

impl<T: FromText> InConfig<T> for Knob<T> {
    fn is_given(&self, config: &pb::ModelConfig) -> bool {
        config.parameters.contains_key(self.key)
    }

    fn read(&self, config: &pb::ModelConfig, origin: &Origin) -> Result<Option<T>, ConfigError> {
        let Some(parameter) = config.parameters.get(self.key) else { return Ok(None) };
        self.parse(&parameter.string_value).map(Some).map_err(|message| origin.error(&self.path(), message))
    }
}

/// Checks a key that begins with `batching.`.
///
/// # Errors
/// When there is no such knob; with the nearest one.
pub fn known(key: &str) -> Result<(), String> {
    let keys = || all().map(|(known, _)| known);
    if keys().any(|known| known == key) { Ok(()) } else { Err(format!("no such knob{}", suggestion(key, keys()))) }
}

/// The knobs of a section, such as `batching.lazy`: their names within it, and the forms of their values.
pub fn within(section: &str) -> impl Iterator<Item = (&'static str, Form)> {
    all().filter_map(move |(key, form)| {
        let name = key.strip_prefix(section)?.strip_prefix('.')?;
        (!name.contains('.')).then_some((name, form))
    })
}

/// Checks the form of every knob that is given, whether its policy is chosen or not.
///
/// # Errors
/// Names the first value that is not of its knob's form.
pub fn check(config: &pb::ModelConfig, origin: &Origin) -> Result<(), ConfigError> {
    for (key, form) in all() {
        let Some(parameter) = config.parameters.get(key) else { continue };
        form.check(&parameter.string_value).map_err(|fault| origin.error(&format!("parameters[{key}]"), fault))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_outside_of_their_form_are_refused_with_what_is_expected() {
        let refusal = |key: &str, text: &str| {
            let (_, form) = all().find(|(known, _)| *known == key).expect("the knob is there");
            form.check(text).expect_err("it should be refused")
        };
        let objective = LATENCY_OBJECTIVE.key;
        assert_eq!(refusal(objective, "0"), "expected a number above 0, at most 86400000, but found '0'");
        for text in ["-1", "NaN", "inf", "1e9", "", "ten"] {
            assert!(refusal(objective, text).starts_with("expected a number above 0"), "{text}");
        }
        assert_eq!(refusal(BUFFER_PAIRS.key, "0"), "expected a whole number from 1 to 16, but found '0'");
        assert_eq!(refusal("batching.adaptive.headroom", "-0.1"), "expected a number from 0 to 10, but found '-0.1'");
        assert_eq!(refusal("batching.adaptive.mode", "fast"), "expected default or paper, but found 'fast'");
        assert_eq!(refusal("batching.lazy.reject_late", "yes"), "expected true or false, but found 'yes'");
        assert_eq!(
            refusal("batching.lazy.predictor", "oracle"),
            "the predictor 'oracle' is for simulation only, where latencies are known exactly; expected table or paper"
        );
        for text in ["64,32", "8,8", "0,8", "", "8,x", "8,"] {
            let expected = format!("expected ascending lengths from 1, at most 64 of them, but found '{text}'");
            assert_eq!(refusal("batching.diversity.input.bounds", text), expected);
        }
        let many: Vec<String> = (1..=65).map(|length: u32| length.to_string()).collect();
        assert!(refusal("batching.diversity.input.bounds", &many.join(",")).contains("at most 64"));
    }

    #[test]
    fn keys_are_known_once_and_others_get_a_hint() {
        let mut keys: Vec<&str> = all().map(|(key, _)| key).collect();
        keys.sort_unstable();
        assert!(keys.is_sorted_by(|left, right| left < right), "no key is there twice");
        assert_eq!(known("batching.adaptive.headroom"), Ok(()));
        assert_eq!(
            known("batching.adaptive.headrom").unwrap_err(),
            "no such knob; did you mean 'batching.adaptive.headroom'?"
        );
    }

    #[test]
    fn the_documentation_names_every_knob() {
        let text = include_str!("../../../docs/model-configuration.md");
        for (key, _) in all() {
            let sections = PolicyKind::ALL.iter().map(|kind| kind.name()).chain(["sequences"]);
            let sections = sections.map(|name| format!("batching.{name}.")).chain(["batching.".to_owned()]);
            let name = sections.filter_map(|section| key.strip_prefix(&section)).next();
            let name = name.expect("every key begins with 'batching.'");
            assert!(text.contains(&format!("`{name}`")) || key == params::POLICY, "'{key}' is not documented");
        }
    }

    #[test]
    fn a_section_has_its_own_keys_only() {
        let names = |section: &str| within(section).map(|(name, _)| name).collect::<Vec<_>>();
        assert_eq!(names("batching.lazy"), ["predictor", "max_depth", "max_catch_up_ms", "reject_late"]);
        assert_eq!(names("batching.diversity"), ["input", "operator", "load"]);
        assert_eq!(names("batching.diversity.load"), ["max_age_ms", "max_stage", "mode"]);
    }
}

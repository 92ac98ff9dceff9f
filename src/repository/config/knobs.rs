//! The knobs of batching, which travel as strings in `parameters`: one table of keys, each with what its value may be.
//! `model.yaml` writes through it, and the check and the conversion read through it, so that both forms of a
//! configuration say the same.

use std::{fmt, marker::PhantomData};

use super::{ConfigError, Origin, nearest::suggestion, params, pb};

/// Longest time that a knob may name: a day.
const DAY_MS: f64 = 86_400_000.0;
const DAY_US: u64 = 86_400_000_000;

/// Most groups of length.
const MAX_GROUPS: usize = 64;

/// Most stages of a model.
pub const MAX_STAGES: u16 = 256;

/// Width of the length buckets of padded requests; 0 or absent: any lengths share a batch.
pub const BUCKET_WIDTH: Knob<u64> = Knob::whole("batching.bucket_width", 0, u32::MAX as u64);
/// The latency that requests are to stay within, in milliseconds.
pub const LATENCY_OBJECTIVE: Knob<f64> = Knob::positive("batching.latency_objective_ms", DAY_MS);
/// Share of the device against other models.
pub const WEIGHT: Knob<u64> = Knob::whole("batching.weight", 1, 1_000);
/// Buffers at each boundary between two stages.
pub const BUFFER_PAIRS: Knob<u64> = Knob::whole("batching.buffer_pairs", 1, 16);
/// How long a task may run before it is told to stop, in milliseconds; 0: as long as it likes; absent: the server's limit.
pub const TASK_TIME_LIMIT: Knob<f64> =
    Knob::new("batching.task_time_limit_ms", Form::Number { least: 0.0, most: DAY_MS });
/// The latency table: a file's name, or the table itself.
pub const LATENCIES: Knob<String> = Knob::new("batching.latencies", Form::Text);

/// Surplus over the measured rate that the preferred batch size carries.
pub const ADAPTIVE_HEADROOM: Knob<f64> =
    Knob::new("batching.adaptive.headroom", Form::Number { least: 0.0, most: 10.0 });
/// Time over which the rate is averaged, in milliseconds.
pub const ADAPTIVE_AVERAGE: Knob<f64> = Knob::positive("batching.adaptive.average_ms", DAY_MS);
/// Longest wait of a partial batch, in microseconds.
pub const ADAPTIVE_DELAY: Knob<u64> = Knob::whole("batching.adaptive.max_queue_delay_us", 0, DAY_US);
/// `default` or the paper's own rules.
pub const ADAPTIVE_MODE: Knob<&str> = Knob::new("batching.adaptive.mode", MODE);

/// How remaining times are predicted.
pub const LAZY_PREDICTOR: Knob<&str> = Knob::new("batching.lazy.predictor", PREDICTOR);
/// Most entries of the batch table's stack.
pub const LAZY_DEPTH: Knob<u64> = Knob::whole("batching.lazy.max_depth", 1, 64);
/// Longest time in all that an entry waits for later ones, in milliseconds.
pub const LAZY_CATCH_UP: Knob<f64> = Knob::positive("batching.lazy.max_catch_up_ms", DAY_MS);
/// Whether requests that are late are rejected.
pub const LAZY_REJECT: Knob<bool> = Knob::new("batching.lazy.reject_late", Form::Flag);

/// Policy I on or off.
pub const INPUT: Knob<bool> = Knob::new("batching.diversity.input", Form::Flag);
/// Most groups where their bounds are chosen.
pub const INPUT_GROUPS: Knob<u64> = Knob::whole("batching.diversity.input.groups", 1, MAX_GROUPS as u64);
/// Upper ends of the groups.
pub const INPUT_BOUNDS: Knob<Vec<u32>> = Knob::new("batching.diversity.input.bounds", Form::Lengths);
/// How long a group may wait for more, in microseconds.
pub const INPUT_WINDOW: Knob<u64> = Knob::whole("batching.diversity.input.window_us", 0, DAY_US);
/// `default` or the paper's own rule.
pub const INPUT_MODE: Knob<&str> = Knob::new("batching.diversity.input.mode", MODE);
/// Policy II on or off.
pub const OPERATOR: Knob<bool> = Knob::new("batching.diversity.operator", Form::Flag);
/// Factor on the parts' times when a split is weighed.
pub const OPERATOR_THRESHOLD: Knob<f64> = Knob::positive("batching.diversity.operator.threshold", 10.0);
/// In which order the parts run.
pub const OPERATOR_ORDER: Knob<&str> = Knob::new("batching.diversity.operator.order", ORDER);
/// `default` or the paper's own rule.
pub const OPERATOR_MODE: Knob<&str> = Knob::new("batching.diversity.operator.mode", MODE);
/// Policy III on or off.
pub const LOAD: Knob<bool> = Knob::new("batching.diversity.load", Form::Flag);
/// Age above which a batch is not stretched, in milliseconds.
pub const LOAD_AGE: Knob<f64> = Knob::positive("batching.diversity.load.max_age_ms", DAY_MS);
/// Last stage at which a batch is stretched.
pub const LOAD_STAGE: Knob<u64> = Knob::whole("batching.diversity.load.max_stage", 0, MAX_STAGES as u64 - 1);
/// `default` or the paper's own rule.
pub const LOAD_MODE: Knob<&str> = Knob::new("batching.diversity.load.mode", MODE);

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
const MODE: Form = Form::Word { words: &["default", "paper"], refused: None };
const ORDER: Form = Form::Word { words: &["depth-first", "pipelined"], refused: None };
const PREDICTOR: Form = Form::Word {
    words: &["table", "paper"],
    refused: Some(("oracle", "the predictor 'oracle' is for simulation only, where latencies are known exactly")),
};

/// Every knob but the policy's name, with the form of its value.
pub const ALL: [(&str, Form); 36] = [
    BUCKET_WIDTH.entry(),
    LATENCY_OBJECTIVE.entry(),
    WEIGHT.entry(),
    BUFFER_PAIRS.entry(),
    TASK_TIME_LIMIT.entry(),
    LATENCIES.entry(),
    ADAPTIVE_HEADROOM.entry(),
    ADAPTIVE_AVERAGE.entry(),
    ADAPTIVE_DELAY.entry(),
    ADAPTIVE_MODE.entry(),
    LAZY_PREDICTOR.entry(),
    LAZY_DEPTH.entry(),
    LAZY_CATCH_UP.entry(),
    LAZY_REJECT.entry(),
    INPUT.entry(),
    INPUT_GROUPS.entry(),
    INPUT_BOUNDS.entry(),
    INPUT_WINDOW.entry(),
    INPUT_MODE.entry(),
    OPERATOR.entry(),
    OPERATOR_THRESHOLD.entry(),
    OPERATOR_ORDER.entry(),
    OPERATOR_MODE.entry(),
    LOAD.entry(),
    LOAD_AGE.entry(),
    LOAD_STAGE.entry(),
    LOAD_MODE.entry(),
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

/// One knob: its key, and the form of its value, which is read as a `T`.
#[derive(Debug)]
pub struct Knob<T> {
    /// The key in `parameters`.
    pub key: &'static str,
    form: Form,
    value: PhantomData<fn() -> T>,
}

impl<T> Knob<T> {
    const fn new(key: &'static str, form: Form) -> Self {
        Self { key, form, value: PhantomData }
    }

    const fn entry(&self) -> (&'static str, Form) {
        (self.key, self.form)
    }

    /// The knob's path in the configuration, for errors.
    pub fn path(&self) -> String {
        format!("parameters[{}]", self.key)
    }

    /// Whether the configuration gives the knob.
    pub fn is_given(&self, config: &pb::ModelConfig) -> bool {
        config.parameters.contains_key(self.key)
    }
}

impl Knob<u64> {
    const fn whole(key: &'static str, least: u64, most: u64) -> Self {
        Self::new(key, Form::Whole { least, most })
    }
}

impl Knob<f64> {
    const fn positive(key: &'static str, most: f64) -> Self {
        Self::new(key, Form::Positive { most })
    }
}

impl<T: FromText> Knob<T> {
    /// The value that the configuration gives, if it gives any.
    ///
    /// # Errors
    /// When it is not of the knob's form.
    pub fn read(&self, config: &pb::ModelConfig, origin: &Origin) -> Result<Option<T>, ConfigError> {
        let Some(parameter) = config.parameters.get(self.key) else { return Ok(None) };
        let value = T::from_text(&self.form, parameter.string_value.trim());
        value.map(Some).ok_or_else(|| origin.error(&self.path(), self.form.refusal(&parameter.string_value)))
    }
}

/// What the value of a knob may be; displayed as what is expected.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Form {
    /// On or off.
    Flag,
    /// A whole number within bounds.
    Whole {
        /// Smallest.
        least: u64,
        /// Largest.
        most: u64,
    },
    /// A number within bounds.
    Number {
        /// Smallest.
        least: f64,
        /// Largest.
        most: f64,
    },
    /// A number above 0.
    Positive {
        /// Largest.
        most: f64,
    },
    /// One of some words.
    Word {
        /// The words.
        words: &'static [&'static str],
        /// A word that is known but refused, with the reason.
        refused: Option<(&'static str, &'static str)>,
    },
    /// Ascending lengths, separated by commas.
    Lengths,
    /// Anything: whoever reads it says more.
    Text,
}

impl Form {
    /// Checks a value's text.
    ///
    /// # Errors
    /// With what was expected.
    pub fn check(&self, text: &str) -> Result<(), String> {
        let text = text.trim();
        let fits = match self {
            Self::Flag => bool::from_text(self, text).is_some(),
            Self::Whole { .. } => u64::from_text(self, text).is_some(),
            Self::Number { .. } | Self::Positive { .. } => f64::from_text(self, text).is_some(),
            Self::Word { .. } => <&str>::from_text(self, text).is_some(),
            Self::Lengths => <Vec<u32>>::from_text(self, text).is_some(),
            Self::Text => true,
        };
        if fits { Ok(()) } else { Err(self.refusal(text)) }
    }

    fn refusal(&self, text: &str) -> String {
        if let Self::Word { refused: Some((word, reason)), .. } = self
            && *word == text.trim()
        {
            return format!("{reason}; expected {self}");
        }
        format!("expected {self}, but found '{}'", text.escape_debug())
    }
}

impl fmt::Display for Form {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag => formatter.write_str("true or false"),
            Self::Whole { least, most } => write!(formatter, "a whole number from {least} to {most}"),
            Self::Number { least, most } => write!(formatter, "a number from {least} to {most}"),
            Self::Positive { most } => write!(formatter, "a number above 0, at most {most}"),
            Self::Word { words, .. } => formatter.write_str(&words.join(" or ")),
            Self::Lengths => write!(formatter, "ascending lengths from 1, at most {MAX_GROUPS} of them"),
            Self::Text => formatter.write_str("a text"),
        }
    }
}

/// Values that a knob's text is read as, according to its form.
pub trait FromText: Sized {
    /// The value, if the text is of the form.
    fn from_text(form: &Form, text: &str) -> Option<Self>;
}

impl FromText for bool {
    fn from_text(_: &Form, text: &str) -> Option<Self> {
        text.parse().ok()
    }
}

impl FromText for u64 {
    fn from_text(form: &Form, text: &str) -> Option<Self> {
        let Form::Whole { least, most } = form else { return None };
        text.parse().ok().filter(|number| (least..=most).contains(&number))
    }
}

impl FromText for f64 {
    fn from_text(form: &Form, text: &str) -> Option<Self> {
        let number: f64 = text.parse().ok()?;
        let fits = match form {
            Form::Number { least, most } => (*least..=*most).contains(&number),
            Form::Positive { most } => number > 0.0 && number <= *most,
            _ => false,
        };
        fits.then_some(number)
    }
}

impl FromText for &'static str {
    fn from_text(form: &Form, text: &str) -> Option<Self> {
        let Form::Word { words, .. } = form else { return None };
        words.iter().find(|word| **word == text).copied()
    }
}

impl FromText for Vec<u32> {
    fn from_text(_: &Form, text: &str) -> Option<Self> {
        let lengths: Self = text.split(',').map(|length| length.trim().parse().ok()).collect::<Option<_>>()?;
        let ascending = lengths[0] > 0 && lengths.is_sorted_by(|left, right| left < right);
        (ascending && lengths.len() <= MAX_GROUPS).then_some(lengths)
    }
}

impl FromText for String {
    fn from_text(_: &Form, text: &str) -> Option<Self> {
        Some(text.to_owned())
    }
}

/// Checks a key that begins with `batching.`.
///
/// # Errors
/// When there is no such knob; with the nearest one.
pub fn known(key: &str) -> Result<(), String> {
    let keys = ALL.map(|(known, _)| known);
    if keys.contains(&key) { Ok(()) } else { Err(format!("no such knob{}", suggestion(key, keys))) }
}

/// The knobs of a section, such as `batching.lazy`: their names within it, and the forms of their values.
pub fn within(section: &str) -> impl Iterator<Item = (&'static str, Form)> {
    ALL.into_iter().filter_map(move |(key, form)| {
        let name = key.strip_prefix(section)?.strip_prefix('.')?;
        (!name.contains('.')).then_some((name, form))
    })
}

/// Checks the form of every knob that is given, whether its policy is chosen or not.
///
/// # Errors
/// Names the first value that is not of its knob's form.
pub fn check(config: &pb::ModelConfig, origin: &Origin) -> Result<(), ConfigError> {
    for (key, form) in ALL {
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
            let (_, form) = ALL.into_iter().find(|(known, _)| *known == key).expect("the knob is there");
            form.check(text).expect_err("it should be refused")
        };
        let objective = LATENCY_OBJECTIVE.key;
        assert_eq!(refusal(objective, "0"), "expected a number above 0, at most 86400000, but found '0'");
        for text in ["-1", "NaN", "inf", "1e9", "", "ten"] {
            assert!(refusal(objective, text).starts_with("expected a number above 0"), "{text}");
        }
        assert_eq!(refusal(BUFFER_PAIRS.key, "0"), "expected a whole number from 1 to 16, but found '0'");
        assert_eq!(refusal(ADAPTIVE_HEADROOM.key, "-0.1"), "expected a number from 0 to 10, but found '-0.1'");
        assert_eq!(refusal(ADAPTIVE_MODE.key, "fast"), "expected default or paper, but found 'fast'");
        assert_eq!(refusal(LAZY_REJECT.key, "yes"), "expected true or false, but found 'yes'");
        assert_eq!(
            refusal(LAZY_PREDICTOR.key, "oracle"),
            "the predictor 'oracle' is for simulation only, where latencies are known exactly; expected table or paper"
        );
        for text in ["64,32", "8,8", "0,8", "", "8,x", "8,"] {
            let expected = format!("expected ascending lengths from 1, at most 64 of them, but found '{text}'");
            assert_eq!(refusal(INPUT_BOUNDS.key, text), expected);
        }
        let many: Vec<String> = (1..=65).map(|length: u32| length.to_string()).collect();
        assert!(refusal(INPUT_BOUNDS.key, &many.join(",")).contains("at most 64"));
    }

    #[test]
    fn keys_are_known_once_and_others_get_a_hint() {
        let mut keys = ALL.map(|(key, _)| key);
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
        for (key, _) in ALL {
            let name = [
                "batching.adaptive.",
                "batching.lazy.",
                "batching.diversity.",
                "batching.cellular.",
                "batching.sequences.",
                "batching.",
            ]
            .iter()
            .find_map(|section| key.strip_prefix(section));
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

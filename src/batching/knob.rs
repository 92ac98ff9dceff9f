//! Settings ("knobs") as a configuration writes them: keys, forms of values, and the reader that a policy uses.

use std::{fmt, marker::PhantomData};

use super::Ns;

/// Longest time that a knob accepts, one day, in milliseconds.
pub const DAY_MS: f64 = 86_400_000.0;
/// The same in microseconds.
pub const DAY_US: u64 = 86_400_000_000;

/// Maximum number of lengths in a list.
const MAX_LENGTHS: usize = 64;

/// Maximum delay: 292 years, which can be added to any clock without overflow.
const MAX_DELAY_NS: Ns = i64::MAX as Ns;

/// The mode of a policy: `default`, or the paper's own rules.
pub const MODE: Form = Form::Word { words: &["default", "paper"], refused: None };

/// Key of the policy's name.
pub const POLICY: &str = "batching.policy";

/// Latency objective of requests, in milliseconds.
pub const LATENCY_OBJECTIVE: Knob<f64> = Knob::positive("batching.latency_objective_ms", DAY_MS);

/// Key and form of a knob.
pub type KnobEntry = (&'static str, Form);

/// The source of a policy's knobs: the texts of a configuration, and the properties of the model that affect them.
#[derive(Clone, Copy)]
pub struct GivenKnobs<'c> {
    /// Returns the text of a key, if the configuration sets it.
    pub text: &'c dyn Fn(&str) -> Option<&'c str>,
    /// Number of stages of the model, at least 1.
    pub stages: u16,
    /// Whether any input axis is padded.
    pub is_padded: bool,
    /// Whether requests have a latency objective.
    pub has_objective: bool,
}

/// Why a knob was rejected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnobRefusal {
    /// The key to change.
    pub key: String,
    /// What was wrong and what was expected.
    pub message: String,
}

impl KnobRefusal {
    /// Creates a rejection of the value at a key.
    pub fn new(key: impl Into<String>, message: impl Into<String>) -> Self {
        Self { key: key.into(), message: message.into() }
    }
}

impl GivenKnobs<'_> {
    /// No knobs, for a model of one stage; every reader returns defaults.
    pub const NONE: Self = Self { text: &|_| None, stages: 1, is_padded: false, has_objective: false };

    /// Returns the value, if the configuration sets it.
    ///
    /// # Errors
    /// If the value does not have the knob's form.
    pub fn read<T: FromText>(&self, knob: &Knob<T>) -> Result<Option<T>, KnobRefusal> {
        let Some(text) = (self.text)(knob.key) else { return Ok(None) };
        knob.parse(text).map(Some).map_err(|message| KnobRefusal::new(knob.key, message))
    }

    /// Whether the mode is `paper`. That mode fixes all `others`, so none of them may be set.
    ///
    /// # Errors
    /// If the mode is unknown, or if `paper` is combined with another knob.
    pub fn read_paper(&self, mode: &Knob<&'static str>, others: &[KnobEntry]) -> Result<bool, KnobRefusal> {
        let is_paper = self.read(mode)? == Some("paper");
        match others.iter().find(|(key, _)| is_paper && self.is_given(key)) {
            Some((key, _)) => {
                let message = "the mode 'paper' has its own: remove this, or choose the mode 'default'";
                Err(KnobRefusal::new(*key, message))
            }
            None => Ok(is_paper),
        }
    }

    /// Whether the configuration sets a key.
    pub fn is_given(&self, key: &str) -> bool {
        (self.text)(key).is_some()
    }
}

/// Converts a bounded number to `u32`.
pub fn narrow(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

/// Converts microseconds to nanoseconds.
pub fn from_us(microseconds: u64) -> Ns {
    microseconds.saturating_mul(1000).min(MAX_DELAY_NS)
}

/// Converts a positive number of milliseconds to nanoseconds, at least 1.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
pub fn from_ms(milliseconds: f64) -> Ns {
    ((milliseconds * 1e6).round() as Ns).clamp(1, MAX_DELAY_NS)
}

/// One knob: its key and the form of its value, which is read as a `T`.
#[derive(Debug)]
pub struct Knob<T> {
    /// The key in `parameters`.
    pub key: &'static str,
    form: Form,
    value: PhantomData<fn() -> T>,
}

impl<T> Knob<T> {
    /// Creates a knob.
    pub const fn new(key: &'static str, form: Form) -> Self {
        Self { key, form, value: PhantomData }
    }

    /// Returns the knob's entry in a list of knobs.
    pub const fn entry(&self) -> (&'static str, Form) {
        (self.key, self.form)
    }

    /// Returns the knob's path in the configuration, for errors.
    pub fn path(&self) -> String {
        format!("parameters[{}]", self.key)
    }
}

impl Knob<u64> {
    /// Creates a knob for a whole number within bounds.
    pub const fn whole(key: &'static str, least: u64, most: u64) -> Self {
        Self::new(key, Form::Whole { least, most })
    }
}

impl Knob<f64> {
    /// Creates a knob for a number above 0.
    pub const fn positive(key: &'static str, most: f64) -> Self {
        Self::new(key, Form::Positive { most })
    }
}

impl<T: FromText> Knob<T> {
    /// Parses a value.
    ///
    /// # Errors
    /// If it does not have the knob's form; the text states what was expected.
    pub fn parse(&self, text: &str) -> Result<T, String> {
        T::from_text(&self.form, text.trim()).ok_or_else(|| self.form.refusal(text))
    }
}

/// Form of a knob's value. Displayed as the expectation in an error.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Form {
    /// True or false.
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
    /// One of several words.
    Word {
        /// The words.
        words: &'static [&'static str],
        /// A known word that is rejected, with the reason.
        refused: Option<(&'static str, &'static str)>,
    },
    /// Ascending lengths, separated by commas.
    Lengths,
    /// Any text; the knob's reader checks it further.
    Text,
}

impl Form {
    /// Checks a value.
    ///
    /// # Errors
    /// States what was expected.
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
            Self::Lengths => write!(formatter, "ascending lengths from 1, at most {MAX_LENGTHS} of them"),
            Self::Text => formatter.write_str("a text"),
        }
    }
}

/// Types that a knob's value is parsed into, according to its form.
pub trait FromText: Sized {
    /// Parses the text, if it has the form.
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
        (ascending && lengths.len() <= MAX_LENGTHS).then_some(lengths)
    }
}

impl FromText for String {
    fn from_text(_: &Form, text: &str) -> Option<Self> {
        Some(text.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endless_delays_fit_any_clock() {
        assert_eq!(from_us(u64::MAX), MAX_DELAY_NS);
        assert!(MAX_DELAY_NS.checked_add(MAX_DELAY_NS).is_some());
        assert_eq!(from_ms(f64::MAX), MAX_DELAY_NS);
        assert_eq!(from_ms(1e-9), 1, "no positive time is none");
    }
}

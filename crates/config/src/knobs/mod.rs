//! Settings ("knobs") as a configuration writes them: the types of their values, with units, and for each policy the
//! section of its knobs, from which those of `paternoster-batching` are read.

mod adaptive;
mod cellular;
mod deferred;
mod diversity;
mod lazy;
mod queueing;

use std::{borrow::Cow, fmt};

use paternoster_batching::Ns;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{
    Deserialize, Deserializer, Serialize,
    de::{self, Unexpected, Visitor},
};

use super::SettingError;

pub use self::{adaptive::*, cellular::*, deferred::*, diversity::*, lazy::*, queueing::*};

/// Longest time that a knob accepts, one day, in milliseconds.
pub const DAY_MS: i64 = 86_400_000;
/// The same in microseconds.
pub const DAY_US: u64 = 86_400_000_000;

/// Maximum number of lengths in a list.
const MAX_LENGTHS: usize = 64;

/// Maximum delay: 292 years, which can be added to any clock without overflow.
const MAX_DELAY_NS: Ns = i64::MAX as Ns;

/// Properties of a model that decide which knobs it can have.
#[derive(Clone, Copy, Debug)]
pub struct ModelTraits {
    /// Number of stages of the model, at least 1.
    pub stages: u16,
    /// Whether any input axis is padded.
    pub is_padded: bool,
    /// Whether requests have a latency objective.
    pub has_objective: bool,
}

impl ModelTraits {
    /// A model of one stage.
    pub const PLAIN: Self = Self { stages: 1, is_padded: false, has_objective: false };
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

/// The knobs of a policy over batches, as they are read from its section of a configuration.
pub trait FromSettings: Sized {
    /// The section. Its types say what a value may be, and its doc comments are what the JSON schema says of each key.
    type Settings: Clone + fmt::Debug + Default + PartialEq + Serialize + de::DeserializeOwned + JsonSchema;

    /// Reads the knobs.
    ///
    /// # Errors
    /// If a knob contradicts another or the model; with its key below `batching`.
    fn read(settings: &Self::Settings, model: ModelTraits) -> Result<Self, SettingError>;
}

/// The rules of a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Those of this server.
    Default,
    /// The paper's own.
    Paper,
}

impl Mode {
    /// Whether the mode is `paper`. That mode fixes others, so none of those that are `given` at a key may be set.
    ///
    /// # Errors
    /// If one of them is.
    pub fn is_paper(mode: Option<Self>, others: &[(&str, bool)]) -> Result<bool, SettingError> {
        let is_paper = mode == Some(Self::Paper);
        match others.iter().find(|(_, is_given)| is_paper && *is_given) {
            Some((key, _)) => {
                let message = "the mode 'paper' has its own: remove this, or choose the mode 'default'";
                Err(SettingError::from(message).at(*key))
            }
            None => Ok(is_paper),
        }
    }
}

/// The keys that settings give, in alphabetical order; first `""`, which is the value of a switch itself.
pub fn given(settings: &impl Serialize) -> Vec<String> {
    // Settings are plain data with text keys, which always serialise.
    let keys = serde_json::to_value(settings).unwrap_or_default();
    let keys = keys.as_object().into_iter().flatten().filter(|(_, value)| !value.is_null());
    keys.map(|(key, _)| key.clone()).collect()
}

/// A whole number within bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub struct Whole<T, const LEAST: i128, const MOST: i128>(pub T);

/// A whole number of 32 bits, from 0.
pub type Count = Whole<u32, 0, { u32::MAX as i128 }>;
/// A whole number of 32 bits, from 1.
pub type Positive = Whole<u32, 1, { u32::MAX as i128 }>;
/// A positive number in a signed 32-bit field of Triton's `ModelConfig`.
pub type PositiveInt = Whole<i32, 1, { i32::MAX as i128 }>;
/// Any whole number of 64 bits.
pub type Long = Whole<u64, 0, { u64::MAX as i128 }>;
/// A time of at most a day, in microseconds.
pub type Microseconds = Whole<u64, 0, { DAY_US as i128 }>;

impl<const LEAST: i128, const MOST: i128> Whole<u64, LEAST, MOST> {
    /// A number of microseconds, in nanoseconds.
    pub fn us(self) -> Ns {
        from_us(self.0)
    }
}

impl<'de, T: TryFrom<i128>, const LEAST: i128, const MOST: i128> Deserialize<'de> for Whole<T, LEAST, MOST> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let expected = format!("a whole number from {LEAST} to {MOST}");
        let number = deserializer.deserialize_i128(NumberVisitor { expected: &expected })?;
        let found = |number: &Number| number.whole.filter(|whole| (LEAST..=MOST).contains(whole));
        let value = found(&number).and_then(|whole| T::try_from(whole).ok()).map(Self);
        value.ok_or_else(|| number.refusal(&expected))
    }
}

impl<T, const LEAST: i128, const MOST: i128> JsonSchema for Whole<T, LEAST, MOST> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        format!("Whole_{LEAST}_{MOST}").into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let bound = serde_json::Number::from_i128;
        json_schema!({ "type": "integer", "minimum": bound(LEAST), "maximum": bound(MOST) })
    }
}

/// A number within bounds; the lower one is none of them if it `IS_OPEN`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(transparent)]
pub struct Real<const LEAST: i64, const MOST: i64, const IS_OPEN: bool>(pub f64);

/// A number from `LEAST` to `MOST`.
pub type Within<const LEAST: i64, const MOST: i64> = Real<LEAST, MOST, false>;
/// A number above 0, at most `MOST`.
pub type Above0<const MOST: i64> = Real<0, MOST, true>;
/// A time above 0 and of at most a day, in milliseconds.
pub type Milliseconds = Above0<DAY_MS>;

impl Milliseconds {
    /// The time in nanoseconds.
    pub fn ns(self) -> Ns {
        from_ms(self.0)
    }
}

impl<'de, const LEAST: i64, const MOST: i64, const IS_OPEN: bool> Deserialize<'de> for Real<LEAST, MOST, IS_OPEN> {
    #[allow(clippy::cast_precision_loss)]
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let expected = if IS_OPEN {
            format!("a number above {LEAST}, at most {MOST}")
        } else {
            format!("a number from {LEAST} to {MOST}")
        };
        let (least, most) = (LEAST as f64, MOST as f64);
        let fits = |number| (least..=most).contains(&number) && !(IS_OPEN && number <= least);
        number(deserializer, &expected, fits).map(Self)
    }
}

impl<const LEAST: i64, const MOST: i64, const IS_OPEN: bool> JsonSchema for Real<LEAST, MOST, IS_OPEN> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        format!("Real_{LEAST}_{MOST}_{IS_OPEN}").into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let least = if IS_OPEN { "exclusiveMinimum" } else { "minimum" };
        json_schema!({ "type": "number", least: LEAST, "maximum": MOST })
    }
}

/// A number that is not infinite.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(transparent)]
#[schemars(inline)]
pub struct Finite(pub f64);

impl<'de> Deserialize<'de> for Finite {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        number(deserializer, "a number", f64::is_finite).map(Self)
    }
}

fn number<'de, D: Deserializer<'de>>(
    deserializer: D,
    expected: &str,
    fits: impl Fn(f64) -> bool,
) -> Result<f64, D::Error> {
    let number = deserializer.deserialize_f64(NumberVisitor { expected })?;
    if fits(number.float) { Ok(number.float) } else { Err(number.refusal(expected)) }
}

/// A number as it is found.
struct Number {
    whole: Option<i128>,
    float: f64,
}

impl Number {
    fn refusal<E: de::Error>(&self, expected: &str) -> E {
        let found = self.whole.map_or_else(|| self.float.to_string(), |whole| whole.to_string());
        E::invalid_value(Unexpected::Other(&found), &expected)
    }
}

struct NumberVisitor<'e> {
    expected: &'e str,
}

#[allow(clippy::cast_precision_loss)]
impl Visitor<'_> for NumberVisitor<'_> {
    type Value = Number;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.expected)
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<Number, E> {
        self.visit_i128(number.into())
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<Number, E> {
        self.visit_i128(number.into())
    }

    fn visit_i128<E: de::Error>(self, number: i128) -> Result<Number, E> {
        Ok(Number { whole: Some(number), float: number as f64 })
    }

    fn visit_f64<E: de::Error>(self, number: f64) -> Result<Number, E> {
        Ok(Number { whole: None, float: number })
    }
}

/// Lengths from 1, ascending, at most 64 of them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "Vec<Positive>")]
pub struct LengthList(pub Vec<u32>);

impl TryFrom<Vec<Positive>> for LengthList {
    type Error = SettingError;

    fn try_from(given: Vec<Positive>) -> Result<Self, SettingError> {
        let lengths: Vec<u32> = given.into_iter().map(|length| length.0).collect();
        if !lengths.is_empty() && lengths.len() <= MAX_LENGTHS && lengths.is_sorted_by(|one, next| one < next) {
            return Ok(Self(lengths));
        }
        let found: Vec<String> = lengths.iter().map(u32::to_string).collect();
        let found = found.join(",");
        Err(format!("expected ascending lengths from 1, at most {MAX_LENGTHS} of them, but found '{found}'").into())
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

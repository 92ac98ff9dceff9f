//! Types of single values that serde does not have: keywords, names, collections that must not be empty. For numbers
//! with bounds and units, see [`knobs`](super::knobs).

use std::{borrow::Cow, collections::BTreeMap, fmt, str::FromStr};

use paternoster_engine::{OnnxEngine, Precision};
use paternoster_model::DataType;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::{SettingError, knobs::Whole, model_config::datatype_to_pb, nearest::suggestion};

/// Serialises an enum of several kinds of values as the value alone. A derived tag could be mistaken for a name.
macro_rules! serialize_untagged {
    ($kinds:ty: $($kind:ident),+) => {
        impl serde::Serialize for $kinds {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                match self {
                    $(Self::$kind(value) => value.serialize(serializer),)+
                }
            }
        }
    };
}
pub(super) use serialize_untagged;

/// A value that is read from text by `FromStr` and printed by `Display`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parsed<T>(pub T);

impl<'de, T: FromStr<Err: fmt::Display>> Deserialize<'de> for Parsed<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.trim().parse().map(Self).map_err(de::Error::custom)
    }
}

impl<T: fmt::Display> Serialize for Parsed<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

/// A type with a fixed set of values, which the JSON schema lists.
pub trait Keywords {
    /// Returns every text that is read as a value.
    fn keywords() -> Vec<&'static str>;
}

impl Keywords for OnnxEngine {
    fn keywords() -> Vec<&'static str> {
        Self::NAMES.map(|(name, _)| name).to_vec()
    }
}

impl Keywords for Precision {
    fn keywords() -> Vec<&'static str> {
        Self::NAMES.map(|(name, _)| name).into_iter().chain(["fp32"]).collect()
    }
}

impl<T: Keywords> JsonSchema for Parsed<T> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        T::keywords().join("_").into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "enum": T::keywords() })
    }
}

/// A datatype in the protocol's or Triton's spelling: `FP32`, `TYPE_FP32`, `BYTES` or `STRING`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataTypeName(pub DataType);

impl FromStr for DataTypeName {
    type Err = SettingError;

    fn from_str(name: &str) -> Result<Self, SettingError> {
        let wire = name.strip_prefix("TYPE_").unwrap_or(name);
        let datatype = if wire == "STRING" { Some(DataType::Bytes) } else { DataType::from_wire(wire) };
        datatype.map(Self).ok_or_else(|| {
            let hint = suggestion(name, DataType::ALL.map(DataType::as_str));
            let found = format_args!("'{name}'{hint}");
            SettingError::expected("a datatype such as FP32, INT64 or BYTES", found)
        })
    }
}

impl fmt::Display for DataTypeName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

impl Keywords for DataTypeName {
    fn keywords() -> Vec<&'static str> {
        let triton = DataType::ALL.map(|datatype| datatype_to_pb(datatype).as_str_name());
        DataType::ALL.map(DataType::as_str).into_iter().chain(["STRING"]).chain(triton).collect()
    }
}

/// A dimension: a size, −1 for one that varies, or the name of an axis that varies.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename = "a size, -1, or the name of an axis")]
#[schemars(untagged, inline)]
pub enum Dim {
    /// A size, or −1.
    #[serde(rename = "#whole")]
    Size(Whole<i64, -1, { i64::MAX as i128 }>),
    /// The name of an axis that varies.
    #[serde(rename = "#text")]
    Axis(Symbol),
}

/// The name of an axis. Parameters `pad.<input>` and `axes.<tensor>` must be able to list it.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(try_from = "String")]
#[schemars(inline)]
pub struct Symbol(pub String);

impl Symbol {
    /// Whether a text can be the name of an axis: neither empty nor a number, without `,`, `=` and surrounding spaces.
    pub fn is(name: &str) -> bool {
        let is_plain = name != "-" && name.trim() == name && !name.contains([',', '=']);
        !name.is_empty() && is_plain && name.parse::<f64>().is_err()
    }
}

impl TryFrom<String> for Symbol {
    type Error = SettingError;

    fn try_from(name: String) -> Result<Self, SettingError> {
        if Self::is(&name) {
            return Ok(Self(name));
        }
        Err(SettingError::expected("the name of an axis", format_args!("'{name}'")))
    }
}

/// The name of a cell or segment: letters, digits, `_` and `-`. Without dots, because `<segment>.<emit>` names a
/// tensor.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String")]
#[schemars(inline)]
pub struct PartName(pub String);

impl TryFrom<String> for PartName {
    type Error = SettingError;

    fn try_from(name: String) -> Result<Self, SettingError> {
        let fits = |letter: char| letter.is_alphanumeric() || letter == '_' || letter == '-';
        if !name.is_empty() && name.chars().all(fits) {
            return Ok(Self(name));
        }
        Err(format!("expected a name of letters, digits, '_' and '-', but found '{name}'").into())
    }
}

/// A list or mapping that is not empty.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(transparent)]
#[schemars(inline)]
pub struct NonEmpty<C>(pub C);

impl<'de, C: Deserialize<'de>> Deserialize<'de> for NonEmpty<C>
where
    for<'c> &'c C: IntoIterator,
{
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let entries = C::deserialize(deserializer)?;
        let is_empty = (&entries).into_iter().next().is_none();
        if is_empty { Err(de::Error::custom("expected at least one entry")) } else { Ok(Self(entries)) }
    }
}

/// A mapping of names to values, with at least one entry.
pub type Entries<T> = NonEmpty<BTreeMap<NonEmptyText, T>>;

/// An optional mapping of names to names, such as tensors by input.
pub type Names = Option<Entries<NonEmptyText>>;

/// A text that is not blank, without surrounding spaces.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String")]
#[schemars(inline)]
pub struct NonEmptyText(pub String);

impl TryFrom<String> for NonEmptyText {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, &'static str> {
        match text.trim() {
            "" => Err("expected a value, but found nothing"),
            text => Ok(Self(text.to_owned())),
        }
    }
}

/// Whether a file name from a configuration cannot leave its directory: it is relative, without `..`.
pub fn stays_inside(name: &str) -> bool {
    use std::path::{Component, Path};
    let mut components = Path::new(name).components().peekable();
    components.peek().is_some()
        && !name.contains('\0')
        && components.all(|component| matches!(component, Component::Normal(_) | Component::CurDir))
}

/// Whether a file name is that of a file directly in its directory.
pub fn is_file_name(name: &str) -> bool {
    stays_inside(name) && !name.contains(['/', '\\'])
}

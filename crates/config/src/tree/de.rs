//! A serde deserializer over the tree. The requested type decides how a value is read; each fault carries its path,
//! what was expected and what was found.
//!
//! Two conventions extend what serde's derives can express:
//!
//! - An enum with the variants `#flag`, `#whole`, `#number`, `#text`, `#list` or `#map` accepts values of several
//!   kinds; the kind of the value selects the variant. The enum's name says what is expected, and replaces what the
//!   selected variant expects of a single value.
//! - A struct with a field of the empty name is a switch with knobs: a single value is the value of that field.

use std::fmt;

use serde::{
    Deserializer,
    de::{
        self, DeserializeSeed, Expected, IntoDeserializer, Unexpected, Visitor,
        value::{MapAccessDeserializer, MapDeserializer, SeqDeserializer, StrDeserializer},
    },
    forward_to_deserialize_any,
};
use serde_path_to_error::{Path, Segment, Track};

use super::{Node, Value};
use crate::{
    nearest::{alternatives, suggestion},
    setting_error::{ConfigErrorKind, SettingError},
};

const MAPPING: &str = "a mapping of keys to values";
/// The value of a switch that is on.
static ON: Node = Node { at: 0, value: Value::Flag(true) };

const SWITCH: &str = "true, false or a mapping of knobs";

/// Reads a tree as the type of a seed, such as `PhantomData::<T>`.
///
/// # Errors
/// Returns the first fault, with its path as [`Node::find`] takes it.
pub(crate) fn typed<'n, S: DeserializeSeed<'n>>(seed: S, root: &'n Node) -> Result<S::Value, SettingError> {
    let mut track = Track::new();
    let read = seed.deserialize(serde_path_to_error::Deserializer::new(root, &mut track));
    read.map_err(|fault| fault.at(key_of(&track.path())))
}

/// A fault's path as [`Node::find`] takes it.
fn key_of(path: &Path) -> String {
    let labels = path.iter().map(|segment| match segment {
        Segment::Seq { index } => format!("[{index}]"),
        Segment::Enum { variant } if variant.starts_with('#') => String::new(),
        // The value of a switch has the empty name.
        Segment::Map { key } if key.is_empty() => String::new(),
        Segment::Map { key: name } | Segment::Enum { variant: name } => format!(".{name}"),
        Segment::Unknown => String::new(),
    });
    labels.collect::<String>().trim_start_matches('.').to_owned()
}

impl de::Error for SettingError {
    fn custom<T: fmt::Display>(message: T) -> Self {
        message.to_string().into()
    }

    fn invalid_type(found: Unexpected<'_>, expected: &dyn Expected) -> Self {
        let is_scalar = !matches!(found, Unexpected::Seq | Unexpected::Map | Unexpected::Unit | Unexpected::Str(_));
        let expected = expected.to_string();
        // serde's own types describe themselves in terms of Rust.
        let expected = match expected.as_str() {
            "a string" if is_scalar => "a string (put it in quotes)",
            "a boolean" => "true or false",
            "a sequence" => "a list",
            "f64" => "a number",
            "a map" => MAPPING,
            kind if kind.starts_with("struct ") => MAPPING,
            kind => kind,
        };
        Self::expected(expected, describe(found))
    }

    fn invalid_value(found: Unexpected<'_>, expected: &dyn Expected) -> Self {
        Self::expected(&expected.to_string(), describe(found))
    }

    fn unknown_variant(found: &str, expected: &'static [&'static str]) -> Self {
        let hint = suggestion(found, expected.iter().copied());
        let fault = Self::expected(&alternatives(expected), format_args!("'{}'{hint}", found.escape_debug()));
        Self { kind: ConfigErrorKind::Unknown, ..fault }
    }

    fn unknown_field(found: &str, expected: &'static [&'static str]) -> Self {
        unknown_key(found, expected.iter().copied())
    }

    fn missing_field(key: &'static str) -> Self {
        format!("expected the key '{key}'").into()
    }
}

/// The error about an unknown key.
pub(crate) fn unknown_key<'k>(found: &str, known: impl IntoIterator<Item = &'k str>) -> SettingError {
    SettingError::unknown(format!("unknown key '{found}'{}", suggestion(found, known)))
}

fn describe(found: Unexpected<'_>) -> String {
    match found {
        Unexpected::Bool(flag) => flag.to_string(),
        Unexpected::Signed(number) => number.to_string(),
        Unexpected::Unsigned(number) => number.to_string(),
        Unexpected::Float(number) => number.to_string(),
        Unexpected::Str(text) => format!("'{}'", text.escape_debug()),
        Unexpected::Unit | Unexpected::Option => "nothing".to_owned(),
        Unexpected::Seq => "a list".to_owned(),
        Unexpected::Map => "a mapping".to_owned(),
        other => other.to_string(),
    }
}

impl Node {
    fn unexpected(&self) -> Unexpected<'_> {
        match &self.value {
            Value::Null => Unexpected::Unit,
            Value::Flag(flag) => Unexpected::Bool(*flag),
            Value::Int(number) => {
                i64::try_from(*number).map_or(Unexpected::Other("a large number"), Unexpected::Signed)
            }
            Value::Float(number) => Unexpected::Float(*number),
            Value::Text(text) | Value::Raw(text) => Unexpected::Str(text),
            Value::List(_) => Unexpected::Seq,
            Value::Map(_) => Unexpected::Map,
        }
    }

    /// The parameter's text as a `T`, if this is one and reads as such.
    fn raw<T: std::str::FromStr>(&self) -> Option<T> {
        match &self.value {
            Value::Raw(text) => text.trim().parse().ok(),
            _ => None,
        }
    }

    /// Whether the value can be read as the kind of a variant.
    fn is_of_kind(&self, variant: &str) -> bool {
        match variant {
            "#flag" => matches!(self.value, Value::Flag(_)) || self.raw::<bool>().is_some(),
            "#whole" => matches!(self.value, Value::Int(_)) || self.raw::<i128>().is_some(),
            "#number" => {
                let finite = |number: &f64| number.is_finite();
                matches!(self.value, Value::Int(_))
                    || matches!(self.value, Value::Float(_))
                    || self.raw().filter(finite).is_some()
            }
            "#text" => matches!(self.value, Value::Text(_) | Value::Raw(_)),
            "#list" => matches!(self.value, Value::List(_)),
            "#map" => matches!(self.value, Value::Map(_) | Value::Null),
            _ => false,
        }
    }
}

/// The entries of a mapping; null is an empty mapping.
fn entries(node: &Node) -> Option<&[(String, Node)]> {
    match &node.value {
        Value::Map(entries) => Some(entries),
        Value::Null => Some(&[]),
        _ => None,
    }
}

/// Lets a visitor read entries as a mapping.
fn visit_entries<'n, V: Visitor<'n>>(entries: &'n [(String, Node)], visitor: V) -> Result<V::Value, SettingError> {
    visitor.visit_map(MapDeserializer::new(entries.iter().map(|(name, node)| (name.as_str(), node))))
}

impl<'n> IntoDeserializer<'n, SettingError> for &'n Node {
    type Deserializer = Self;

    fn into_deserializer(self) -> Self {
        self
    }
}

impl<'de> Deserializer<'de> for &'de Node {
    type Error = SettingError;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, SettingError> {
        match &self.value {
            Value::Null => visitor.visit_unit(),
            Value::Flag(flag) => visitor.visit_bool(*flag),
            Value::Int(number) => match (i64::try_from(*number), u64::try_from(*number)) {
                (Ok(number), _) => visitor.visit_i64(number),
                (_, Ok(number)) => visitor.visit_u64(number),
                _ => visitor.visit_i128(*number),
            },
            Value::Float(number) => visitor.visit_f64(*number),
            Value::Text(text) | Value::Raw(text) => visitor.visit_borrowed_str(text),
            Value::List(items) => visitor.visit_seq(SeqDeserializer::new(items.iter())),
            Value::Map(entries) => visit_entries(entries, visitor),
        }
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, SettingError> {
        match self.raw() {
            Some(flag) => visitor.visit_bool(flag),
            None => self.deserialize_any(visitor),
        }
    }

    fn deserialize_i128<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, SettingError> {
        match self.raw() {
            Some(number) => visitor.visit_i128(number),
            None => self.deserialize_any(visitor),
        }
    }

    fn deserialize_f64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, SettingError> {
        match self.raw().filter(|number: &f64| number.is_finite()) {
            Some(number) => visitor.visit_f64(number),
            None => self.deserialize_any(visitor),
        }
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, SettingError> {
        let Value::Raw(text) = &self.value else { return self.deserialize_any(visitor) };
        let numbers: Option<Vec<i128>> = text.split(',').map(|number| number.trim().parse().ok()).collect();
        match numbers {
            Some(numbers) => visitor.visit_seq(SeqDeserializer::new(numbers.into_iter())),
            None => Err(SettingError::expected("numbers with commas between them", describe(self.unexpected()))),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, SettingError> {
        // A key without a value is not a key left out.
        visitor.visit_some(self)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, SettingError> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, SettingError> {
        match entries(self) {
            Some(entries) => visit_entries(entries, visitor),
            None => Err(SettingError::expected(MAPPING, describe(self.unexpected()))),
        }
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, SettingError> {
        if !fields.contains(&"") {
            return self.deserialize_map(visitor);
        }
        match entries(self) {
            // A mapping of knobs switches it on. Texts of parameters are single knobs, which do so by themselves.
            Some(entries)
                if entries.iter().all(|(name, node)| !name.is_empty() && !matches!(node.value, Value::Raw(_))) =>
            {
                let entries = entries.iter().map(|(name, node)| (name.as_str(), node));
                visitor.visit_map(MapDeserializer::new(entries.chain([("", &ON)])))
            }
            Some(entries) => visit_entries(entries, visitor),
            None if self.is_of_kind("#flag") => visitor.visit_map(MapDeserializer::new([("", self)].into_iter())),
            None => Err(SettingError::expected(SWITCH, describe(self.unexpected()))),
        }
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        expected: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, SettingError> {
        // A parameter's text is a text only if no other kind fits.
        let by_kind = |is_text: bool| {
            let mut kinds = variants.iter().filter(|variant| (**variant == "#text") == is_text);
            kinds.find(|variant| self.is_of_kind(variant))
        };
        if let Some(variant) = by_kind(false).or_else(|| by_kind(true)) {
            let entry = MapDeserializer::new([(*variant, self)].into_iter());
            let read = visitor.visit_enum(MapAccessDeserializer::new(entry));
            return read.map_err(|fault| match self.value {
                Value::List(_) | Value::Map(_) | Value::Null => fault,
                _ => SettingError::expected(expected, describe(self.unexpected())),
            });
        }
        match &self.value {
            _ if variants.iter().any(|variant| variant.starts_with('#')) => {
                Err(SettingError::expected(expected, describe(self.unexpected())))
            }
            Value::Text(word) | Value::Raw(word) => {
                let word: StrDeserializer<'_, SettingError> = word.trim().into_deserializer();
                visitor.visit_enum(word)
            }
            Value::Map(entries) if entries.len() == 1 => {
                let entry = entries.iter().map(|(name, node)| (name.as_str(), node));
                visitor.visit_enum(MapAccessDeserializer::new(MapDeserializer::new(entry)))
            }
            Value::Map(_) => Err(format!("expected one of {}", alternatives(variants)).into()),
            _ => Err(SettingError::expected(&alternatives(variants), describe(self.unexpected()))),
        }
    }

    forward_to_deserialize_any! {
        i8 i16 i32 i64 u8 u16 u32 u64 u128 f32 char str string bytes byte_buf unit unit_struct tuple tuple_struct
        identifier ignored_any
    }
}

//! Typed reading of a YAML tree: every refusal names the key, the place and what was expected.

use std::{collections::BTreeMap, ops::RangeInclusive};

use super::tree::{Node, Trail, locate};
use crate::repository::config::{ConfigError, Origin, nearest::suggestion};

/// A node and how the user calls it.
#[derive(Clone, Debug)]
pub(super) struct Value<'n> {
    pub(super) node: &'n Node,
    /// Such as `inputs[0].dims`; empty for the root.
    pub(super) key: String,
    trail: Trail,
}

/// A mapping whose keys were checked: each is known and there once.
#[derive(Debug)]
pub(super) struct Section<'n> {
    entries: Vec<(&'n str, Value<'n>)>,
}

impl<'n> Section<'n> {
    /// The value of a key, if the key is there.
    pub(super) fn get(&self, name: &str) -> Option<&Value<'n>> {
        self.entries.iter().find(|(key, _)| *key == name).map(|(_, value)| value)
    }

    /// All entries in the order of the file.
    pub(super) fn entries(&self) -> &[(&'n str, Value<'n>)] {
        &self.entries
    }
}

/// Reads the tree of one file and notes where the parts of the configuration came from.
#[derive(Debug)]
pub(super) struct Reader<'t> {
    file: &'t str,
    text: &'t str,
    pub(super) origin: Origin,
}

impl<'t> Reader<'t> {
    pub(super) fn new(file: &'t str, text: &'t str) -> Self {
        Self { file, text, origin: Origin::of_text(file, text) }
    }

    pub(super) fn root<'n>(node: &'n Node) -> Value<'n> {
        Value { node, key: String::new(), trail: Trail::default() }
    }

    /// Notes that the configuration's `path` comes from `value`.
    pub(super) fn note(&mut self, path: impl Into<String>, value: &Value<'_>) {
        self.origin.place_yaml(path, value.key.clone(), value.trail.clone());
    }

    pub(super) fn error(&self, value: &Value<'_>, message: impl Into<String>) -> ConfigError {
        ConfigError {
            file: self.file.to_owned(),
            position: locate(self.text, &value.trail),
            key: value.key.clone(),
            message: message.into(),
        }
    }

    pub(super) fn expected(&self, value: &Value<'_>, what: &str) -> ConfigError {
        self.error(value, format!("expected {what}, but found {}", value.node.describe()))
    }

    /// A mapping with keys out of `known`. Null is an empty mapping.
    pub(super) fn section<'n>(&self, value: &Value<'n>, known: &[&str]) -> Result<Section<'n>, ConfigError> {
        let section = self.mapping(value)?;
        for (name, entry) in &section.entries {
            if !known.contains(name) {
                let hint = suggestion(name, known.iter().copied());
                return Err(self.error(entry, format!("unknown key '{name}'{hint}")));
            }
        }
        Ok(section)
    }

    /// A mapping with any keys, each there once.
    pub(super) fn mapping<'n>(&self, value: &Value<'n>) -> Result<Section<'n>, ConfigError> {
        let map: &[(String, Node)] = match value.node {
            Node::Map(map) => map,
            Node::Null => &[],
            _ => return Err(self.expected(value, "a mapping of keys to values")),
        };
        let mut entries: Vec<(&str, Value<'_>)> = Vec::with_capacity(map.len());
        let mut seen: BTreeMap<&str, usize> = BTreeMap::new();
        for (number, (name, node)) in map.iter().enumerate() {
            let key = if value.key.is_empty() { name.clone() } else { format!("{}.{name}", value.key) };
            let entry = Value { node, key, trail: value.trail.child(number) };
            if let Some(first) = seen.insert(name, number) {
                let place = locate(self.text, &value.trail.child(first));
                let first = place.map(|place| format!(", first in line {}", place.line)).unwrap_or_default();
                return Err(self.error(&entry, format!("the key '{name}' is there twice{first}")));
            }
            entries.push((name, entry));
        }
        Ok(Section { entries })
    }

    pub(super) fn list<'n>(&self, value: &Value<'n>) -> Result<Vec<Value<'n>>, ConfigError> {
        let Node::List(items) = value.node else { return Err(self.expected(value, "a list")) };
        let numbered = items.iter().enumerate();
        let values = numbered.map(|(number, node)| Value {
            node,
            key: format!("{}[{number}]", value.key),
            trail: value.trail.child(number),
        });
        Ok(values.collect())
    }

    pub(super) fn text(&self, value: &Value<'_>) -> Result<String, ConfigError> {
        match value.node {
            Node::Text(text) => Ok(text.clone()),
            Node::Int(_) | Node::Float(_) | Node::Flag(_) => Err(self.expected(value, "a string (put it in quotes)")),
            _ => Err(self.expected(value, "a string")),
        }
    }

    pub(super) fn flag(&self, value: &Value<'_>) -> Result<bool, ConfigError> {
        match value.node {
            Node::Flag(flag) => Ok(*flag),
            _ => Err(self.expected(value, "true or false")),
        }
    }

    pub(super) fn int<T: TryFrom<i128>>(
        &self,
        value: &Value<'_>,
        range: RangeInclusive<i128>,
    ) -> Result<T, ConfigError> {
        let expected = format!("a whole number from {} to {}", range.start(), range.end());
        match value.node {
            Node::Int(number) if range.contains(number) => {
                T::try_from(*number).map_err(|_| self.expected(value, &expected))
            }
            _ => Err(self.expected(value, &expected)),
        }
    }

    pub(super) fn number(&self, value: &Value<'_>) -> Result<f64, ConfigError> {
        match value.node {
            #[allow(clippy::cast_precision_loss)]
            Node::Int(number) => Ok(*number as f64),
            Node::Float(number) if !number.is_nan() => Ok(*number),
            _ => Err(self.expected(value, "a number")),
        }
    }
}

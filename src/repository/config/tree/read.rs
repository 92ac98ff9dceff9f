//! Builds the tree from YAML or JSON text, and finds the position of a node in that text.
//!
//! The readers report a position only together with an error. When a fault is found later, [`locate`] reads the text
//! again along the node's [`Trail`](super::Trail) and fails there on purpose.

use std::{cell::Cell, fmt};

use serde::de::{self, DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::Node;
use crate::repository::config::{Position, bounds};

/// Maximum bytes of keys and texts in a tree. A file has far fewer, but YAML aliases can repeat texts without limit.
const MAX_TEXT_BYTES: usize = 1 << 20;

/// The syntax of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::repository::config) enum Format {
    Json,
    Yaml,
}

/// Builds the tree of a text.
///
/// # Errors
/// Returns the reason, and the position where the reader knows it.
pub(in crate::repository::config) fn read(format: Format, text: &str) -> Result<Node, (Option<Position>, String)> {
    // The pass over a YAML text before this bounds its depth.
    let levels = if format == Format::Json { bounds::MAX_DEPTH } else { usize::MAX };
    let size = Size::default();
    let seed = TreeSeed { size: &size, levels };
    if format == Format::Json {
        let mut json = serde_json::Deserializer::from_str(text);
        let root = seed.deserialize(&mut json).and_then(|root| json.end().map(|()| root));
        return root.map_err(|fault| (json_position(&fault), without_position(&fault)));
    }
    let mut documents = serde_yaml::Deserializer::from_str(text);
    let Some(document) = documents.next() else { return Ok(Node::Null) };
    let root = seed.deserialize(document).map_err(|fault| (yaml_position(&fault), without_position(&fault)))?;
    if documents.next().is_some() {
        return Err((None, "expected one YAML document, but found more".to_owned()));
    }
    Ok(root)
}

/// Finds the position of the key (or list item) at the end of a trail.
pub(in crate::repository::config) fn locate(format: Format, text: &str, trail: &[usize]) -> Option<Position> {
    let seek = SeekSeed { rest: trail };
    match format {
        Format::Json => json_position(&seek.deserialize(&mut serde_json::Deserializer::from_str(text)).err()?),
        Format::Yaml => yaml_position(&seek.deserialize(serde_yaml::Deserializer::from_str(text).next()?).err()?),
    }
}

fn json_position(fault: &serde_json::Error) -> Option<Position> {
    (fault.line() > 0).then(|| Position { line: fault.line(), column: fault.column() })
}

fn yaml_position(fault: &serde_yaml::Error) -> Option<Position> {
    fault.location().map(|place| Position { line: place.line(), column: place.column() })
}

/// The message of a reader, which ends with the position.
fn without_position(fault: &impl fmt::Display) -> String {
    let mut message = fault.to_string();
    if let Some(cut) = message.rfind(" at line ") {
        message.truncate(cut);
    }
    message
}

/// The size of the tree so far, with aliases expanded.
#[derive(Default)]
struct Size {
    nodes: Cell<usize>,
    text_bytes: Cell<usize>,
}

impl Size {
    fn add<E: de::Error>(&self, nodes: usize, text: &str) -> Result<(), E> {
        self.nodes.set(self.nodes.get() + nodes);
        self.text_bytes.set(self.text_bytes.get() + text.len());
        if self.nodes.get() > bounds::MAX_VALUES {
            return Err(E::custom(bounds::too_many_values()));
        }
        if self.text_bytes.get() > MAX_TEXT_BYTES {
            let most = format_args!("{MAX_TEXT_BYTES} bytes of text once aliases are replaced");
            return Err(E::custom(format_args!("expected at most {most}, but found more")));
        }
        Ok(())
    }
}

#[derive(Clone, Copy)]
struct TreeSeed<'c> {
    size: &'c Size,
    /// How many more levels the tree may have.
    levels: usize,
}

impl<'de> DeserializeSeed<'de> for TreeSeed<'_> {
    type Value = Node;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Node, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for TreeSeed<'_> {
    type Value = Node;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a plain value without a tag")
    }

    fn visit_unit<E: de::Error>(self) -> Result<Node, E> {
        self.count(Node::Null)
    }

    fn visit_none<E: de::Error>(self) -> Result<Node, E> {
        self.visit_unit()
    }

    fn visit_bool<E: de::Error>(self, value: bool) -> Result<Node, E> {
        self.count(Node::Flag(value))
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<Node, E> {
        self.count(Node::Int(value.into()))
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<Node, E> {
        self.count(Node::Int(value.into()))
    }

    fn visit_i128<E: de::Error>(self, value: i128) -> Result<Node, E> {
        self.count(Node::Int(value))
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<Node, E> {
        self.count(Node::Float(value))
    }

    fn visit_str<E: de::Error>(self, value: &str) -> Result<Node, E> {
        self.size.add(0, value)?;
        self.count(Node::Text(value.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Node, A::Error> {
        let below = self.below()?;
        let mut list = Vec::new();
        while let Some(item) = items.next_element_seed(below)? {
            list.push(item);
        }
        self.count(Node::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Node, A::Error> {
        let below = self.below()?;
        let mut map = Vec::new();
        while let Some(key) = entries.next_key_seed(below)? {
            let key = match key {
                Node::Text(key) => key,
                // Priority levels are numbers.
                Node::Int(number) => number.to_string(),
                _ => return Err(de::Error::custom("expected a word as key")),
            };
            bounds::key(&key).map_err(de::Error::custom)?;
            map.push((key, entries.next_value_seed(below)?));
        }
        self.count(Node::Map(map))
    }
}

impl TreeSeed<'_> {
    /// Returns the seed of the values within a list or mapping.
    fn below<E: de::Error>(self) -> Result<Self, E> {
        let levels = self.levels.checked_sub(1).ok_or_else(|| E::custom(bounds::too_deep()))?;
        Ok(Self { levels, ..self })
    }

    fn count<E: de::Error>(self, node: Node) -> Result<Node, E> {
        self.size.add(1, "")?;
        Ok(node)
    }
}

/// Follows a trail and fails at its end. The visitor accepts no single value, so serde itself rejects one there.
struct SeekSeed<'t> {
    rest: &'t [usize],
}

impl<'de> DeserializeSeed<'de> for SeekSeed<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for SeekSeed<'_> {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a value on the way to the node")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        let Some((&number, rest)) = self.rest.split_first() else { return Err(de::Error::custom("here")) };
        for _ in 0..number {
            items.next_element::<IgnoredAny>()?;
        }
        items.next_element_seed(SeekSeed { rest }).map(drop)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<(), A::Error> {
        let Some((&number, rest)) = self.rest.split_first() else { return Err(de::Error::custom("here")) };
        for _ in 0..number {
            entries.next_entry::<IgnoredAny, IgnoredAny>()?;
        }
        if rest.is_empty() {
            // The position of an entry is that of its key.
            return entries.next_key_seed(SeekSeed { rest }).map(drop);
        }
        entries.next_key::<IgnoredAny>()?;
        entries.next_value_seed(SeekSeed { rest })
    }
}

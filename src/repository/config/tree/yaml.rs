//! YAML text → a tree that keeps the order of keys and their duplicates, and the way back from a node to its place.
//!
//! serde_yaml gives a place only with an error, so the tree has none; when a fault is found, [`locate`] reads the
//! text once more along the node's [`Trail`](super::Trail) and fails there on purpose.

use std::{cell::Cell, fmt};

use serde::de::{self, DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::Node;
use crate::repository::config::{Position, bounds};

/// Most bytes of keys and texts in a tree: far more than a file may have, which aliases can repeat without end.
const MAX_TEXT_BYTES: usize = 1 << 20;

/// Reads a text into a tree; the error carries a place where the reader knows one.
pub(in crate::repository::config) fn read(text: &str) -> Result<Node, (Option<Position>, String)> {
    let mut documents = serde_yaml::Deserializer::from_str(text);
    let Some(document) = documents.next() else { return Ok(Node::Null) };
    let size = Size::default();
    let root = TreeSeed { size: &size }.deserialize(document).map_err(|fault| explain(&fault))?;
    if documents.next().is_some() {
        return Err((None, "expected one YAML document, but found more".to_owned()));
    }
    Ok(root)
}

/// The place of the key (or list item) at the end of a trail.
pub(in crate::repository::config) fn locate(text: &str, trail: &[usize]) -> Option<Position> {
    let document = serde_yaml::Deserializer::from_str(text).next()?;
    let fault = SeekSeed { rest: trail }.deserialize(document).err()?;
    explain(&fault).0
}

fn explain(fault: &serde_yaml::Error) -> (Option<Position>, String) {
    let position = fault.location().map(|place| Position { line: place.line(), column: place.column() });
    let mut message = fault.to_string();
    if let Some(cut) = message.rfind(" at line ") {
        message.truncate(cut);
    }
    (position, message)
}

/// What was read so far, aliases expanded.
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
        formatter.write_str("a plain YAML value without a tag")
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
        let mut list = Vec::new();
        while let Some(item) = items.next_element_seed(self)? {
            list.push(item);
        }
        self.count(Node::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Node, A::Error> {
        let mut map = Vec::new();
        while let Some(key) = entries.next_key_seed(self)? {
            let key = match key {
                Node::Text(key) => key,
                // Numbers stand for themselves (priority levels).
                Node::Int(number) => number.to_string(),
                _ => return Err(de::Error::custom("expected a word as key")),
            };
            bounds::key(&key).map_err(de::Error::custom)?;
            map.push((key, entries.next_value_seed(self)?));
        }
        self.count(Node::Map(map))
    }
}

impl TreeSeed<'_> {
    fn count<E: de::Error>(self, node: Node) -> Result<Node, E> {
        self.size.add(1, "")?;
        Ok(node)
    }
}

/// Walks a trail and fails at its end: of a single value serde itself refuses what is there, with its place.
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
        formatter.write_str("the place looked for")
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
            // The place of an entry is that of its key.
            return entries.next_key_seed(SeekSeed { rest }).map(drop);
        }
        entries.next_key::<IgnoredAny>()?;
        entries.next_value_seed(SeekSeed { rest })
    }
}

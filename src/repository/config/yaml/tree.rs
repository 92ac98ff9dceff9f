//! YAML text → a tree that keeps the order of keys and their duplicates, and the way back from a node to its place.
//!
//! serde_yaml tells a place only with an error. So the tree carries none; when a fault is found, [`locate`] reads the
//! text once more along the node's [`Trail`] and fails there on purpose.

use std::{cell::Cell, fmt};

use serde::de::{self, DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use crate::repository::config::{Position, bounds};

/// Most bytes of keys and texts in a tree: far more than a file may have, which aliases can repeat without end.
const MAX_TEXT_BYTES: usize = 1 << 20;

/// A YAML value.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Node {
    Null,
    Flag(bool),
    Int(i128),
    Float(f64),
    Text(String),
    List(Vec<Node>),
    Map(Vec<(String, Node)>),
}

impl Node {
    /// What it is, for messages.
    pub(super) fn describe(&self) -> String {
        match self {
            Self::Null => "nothing".to_owned(),
            Self::Flag(flag) => flag.to_string(),
            Self::Int(number) => number.to_string(),
            Self::Float(number) => number.to_string(),
            Self::Text(text) => format!("'{}'", text.escape_debug()),
            Self::List(_) => "a list".to_owned(),
            Self::Map(_) => "a mapping".to_owned(),
        }
    }
}

/// The way from the root to a node: the number of the entry or item at each level.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::repository::config) struct Trail(Vec<usize>);

impl Trail {
    pub(super) fn child(&self, number: usize) -> Self {
        let mut steps = self.0.clone();
        steps.push(number);
        Self(steps)
    }
}

/// Reads a text into a tree; the error carries a place where the reader knows one.
pub(super) fn read(text: &str) -> Result<Node, (Option<Position>, String)> {
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
pub(in crate::repository::config) fn locate(text: &str, trail: &Trail) -> Option<Position> {
    let document = serde_yaml::Deserializer::from_str(text).next()?;
    let fault = SeekSeed { rest: &trail.0 }.deserialize(document).err()?;
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
    fn add_node<E: de::Error>(&self) -> Result<(), E> {
        self.nodes.set(self.nodes.get() + 1);
        match self.nodes.get() {
            0..=bounds::MAX_VALUES => Ok(()),
            _ => Err(E::custom(bounds::too_many_values())),
        }
    }

    fn add_text<E: de::Error>(&self, text: &str) -> Result<(), E> {
        self.text_bytes.set(self.text_bytes.get() + text.len());
        match self.text_bytes.get() {
            0..=MAX_TEXT_BYTES => Ok(()),
            _ => {
                let message = format_args!(
                    "expected at most {MAX_TEXT_BYTES} bytes of text once aliases are replaced, but found more"
                );
                Err(E::custom(message))
            }
        }
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
        self.count(Node::Null)
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
        self.size.add_text(value)?;
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
        while let Some(key) = entries.next_key_seed(KeySeed { size: self.size })? {
            map.push((key, entries.next_value_seed(self)?));
        }
        self.count(Node::Map(map))
    }
}

impl TreeSeed<'_> {
    fn count<E: de::Error>(self, node: Node) -> Result<Node, E> {
        self.size.add_node()?;
        Ok(node)
    }
}

/// Keys are words; numbers stand for themselves (priority levels).
struct KeySeed<'c> {
    size: &'c Size,
}

impl<'de> DeserializeSeed<'de> for KeySeed<'_> {
    type Value = String;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<String, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl Visitor<'_> for KeySeed<'_> {
    type Value = String;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a word as key")
    }

    fn visit_str<E: de::Error>(self, value: &str) -> Result<String, E> {
        bounds::key(value).map_err(E::custom)?;
        self.size.add_text(value)?;
        Ok(value.to_owned())
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<String, E> {
        Ok(value.to_string())
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<String, E> {
        Ok(value.to_string())
    }
}

/// Walks a trail and fails at its end.
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
            if items.next_element::<IgnoredAny>()?.is_none() {
                return Ok(());
            }
        }
        if rest.is_empty() {
            items.next_element_seed(Stop)?;
        } else {
            items.next_element_seed(SeekSeed { rest })?;
        }
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<(), A::Error> {
        let Some((&number, rest)) = self.rest.split_first() else { return Err(de::Error::custom("here")) };
        for _ in 0..number {
            if entries.next_entry::<IgnoredAny, IgnoredAny>()?.is_none() {
                return Ok(());
            }
        }
        if rest.is_empty() {
            entries.next_key_seed(Stop)?;
        } else if entries.next_key::<IgnoredAny>()?.is_some() {
            entries.next_value_seed(SeekSeed { rest })?;
        }
        Ok(())
    }
}

/// Fails at whatever stands here.
struct Stop;

impl<'de> DeserializeSeed<'de> for Stop {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

/// Every visit fails: serde's own refusals carry the place just as well.
impl Visitor<'_> for Stop {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("the place looked for")
    }
}

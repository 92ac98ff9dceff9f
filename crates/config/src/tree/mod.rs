//! A configuration as an untyped tree of values, each with its place in the text: [`yaml`] and [`json`] build it,
//! `parameters` builds it from keys with dots, and [`typed`] reads it as any type that serde knows.

mod de;
mod read;

use std::collections::BTreeMap;

pub(super) use self::{
    de::{typed, unknown_key},
    read::{json, yaml},
};

/// A value of a configuration, and where it is.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Node {
    /// Offset in bytes of the value in its text; of an entry of a mapping, that of its key.
    pub(super) at: usize,
    pub(super) value: Value,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Value {
    Null,
    Flag(bool),
    Int(i128),
    Float(f64),
    Text(String),
    /// The text of a parameter, which may stand for a number, a flag, a list of numbers or a text; its type decides.
    Raw(String),
    List(Vec<Node>),
    /// Entries in the order of the text; a key may occur twice.
    Map(Vec<(String, Node)>),
}

/// What [`Node::find`] found of a path.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Found {
    /// The offset of the last part that exists; `None` if the first does not.
    pub(super) at: Option<usize>,
    /// The path as the user would write it.
    pub(super) path: String,
    /// Whether the whole path exists.
    pub(super) is_whole: bool,
}

/// Two entries of one mapping with the same key.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct DuplicateKey {
    /// The offset of the first.
    pub(super) first: usize,
    /// The offset of the second.
    pub(super) second: usize,
    /// The path of both.
    pub(super) path: String,
    /// The key.
    pub(super) name: String,
}

impl Node {
    /// Follows a path such as `inputs[0].dims` as far as it exists. Names may be in brackets. Whatever a path names
    /// below a single value is left out.
    pub(super) fn find(&self, path: &str) -> Found {
        let (mut at, mut node, mut rest, mut name) = (None, self, path, String::new());
        while let Some((label, child, after)) = node.step(rest) {
            name.push_str(&label);
            at = Some(child.at);
            (node, rest) = (child, after);
        }
        if matches!(node.value, Value::List(_) | Value::Map(_) | Value::Null) {
            name.push_str(rest);
        }
        Found { at, path: name.trim_start_matches('.').to_owned(), is_whole: rest.is_empty() }
    }

    /// Finds the child that a path begins with. Returns how a path names it (`.name` for an entry, `[0]` for an item),
    /// the child and the rest of the path.
    fn step<'n, 'p>(&'n self, path: &'p str) -> Option<(String, &'n Self, &'p str)> {
        let (in_brackets, path) = match path.strip_prefix('[') {
            Some(path) => (true, path),
            None => (false, path.strip_prefix('.').unwrap_or(path)),
        };
        let end = |after: &'p str| match (in_brackets, after.strip_prefix(']')) {
            (true, after) => after,
            (false, _) => (after.is_empty() || after.starts_with(['.', '['])).then_some(after),
        };
        match &self.value {
            Value::List(items) if in_brackets => {
                let (number, after) = path.split_once(']')?;
                let number: usize = number.parse().ok()?;
                Some((format!("[{number}]"), items.get(number)?, after))
            }
            // Names may contain dots, so the longest name that fits wins.
            Value::Map(entries) => {
                let fits = entries.iter().filter_map(|(name, node)| {
                    Some((format!(".{name}"), node, end(path.strip_prefix(name.as_str())?)?))
                });
                fits.min_by_key(|(_, _, after)| after.len())
            }
            _ => None,
        }
    }

    /// Finds two entries with the same key in one mapping, if there are any.
    pub(super) fn duplicate_key(&self) -> Option<DuplicateKey> {
        let within = |label: String, child: &Self| {
            let found = child.duplicate_key()?;
            Some(DuplicateKey { path: label + &found.path, ..found })
        };
        match &self.value {
            Value::List(items) => {
                items.iter().enumerate().find_map(|(number, item)| within(format!("[{number}]"), item))
            }
            Value::Map(entries) => {
                let mut seen: BTreeMap<&str, usize> = BTreeMap::new();
                entries.iter().find_map(|(name, child)| match seen.insert(name, child.at) {
                    Some(first) => {
                        let path = format!(".{name}");
                        Some(DuplicateKey { first, second: child.at, path, name: name.clone() })
                    }
                    None => within(format!(".{name}"), child),
                })
            }
            _ => None,
        }
    }
}

//! A configuration as an untyped tree of values: [`read`] builds it from YAML or JSON text, `parameters` builds it from
//! keys with dots, and [`typed`] reads it as any type that serde knows.
//!
//! The tree holds no positions. A [`Trail`] identifies a node, and [`locate`] finds its position in the text only when
//! an error needs one.

mod de;
mod read;

use std::collections::BTreeMap;

pub(super) use self::{
    de::{Fault, key_of, typed, unknown_key},
    read::{Format, locate, read},
};

/// A value of a configuration.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Node {
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

/// The position of a node in the tree: at each level from the root, the index of the entry or item.
pub(super) type Trail = Vec<usize>;

/// Two entries of one mapping with the same key.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct DuplicateKey {
    pub(super) first: Trail,
    pub(super) second: Trail,
    /// The path of both.
    pub(super) path: String,
    /// The key.
    pub(super) name: String,
}

impl Node {
    /// Follows a path such as `inputs[0].dims` as far as it exists. Returns the trail, and the path as the user would
    /// write it. Items of lists may follow a dot (`stages.0`), and names may be in brackets. Whatever a path names
    /// below a single value is left out.
    pub(super) fn find(&self, path: &str) -> (Trail, String) {
        let (mut trail, mut node, mut rest, mut name) = (Trail::new(), self, path, String::new());
        while let Some((number, child, after)) = node.step(rest) {
            name.push_str(&node.label(number));
            trail.push(number);
            (node, rest) = (child, after);
        }
        if matches!(node, Self::List(_) | Self::Map(_) | Self::Null) {
            name.push_str(rest);
        }
        (trail, name.trim_start_matches('.').to_owned())
    }

    /// How a path names a child: `.name` for an entry, `[0]` for an item.
    fn label(&self, number: usize) -> String {
        match self {
            Self::Map(entries) => format!(".{}", entries[number].0),
            _ => format!("[{number}]"),
        }
    }

    /// Finds the child that a path begins with. Returns its index, the child and the rest of the path.
    fn step<'n, 'p>(&'n self, path: &'p str) -> Option<(usize, &'n Self, &'p str)> {
        let (in_brackets, path) = match path.strip_prefix('[') {
            Some(path) => (true, path),
            None => (false, path.strip_prefix('.').unwrap_or(path)),
        };
        let end = |after: &'p str| match (in_brackets, after.strip_prefix(']')) {
            (true, after) => after,
            (false, _) => (after.is_empty() || after.starts_with(['.', '['])).then_some(after),
        };
        match self {
            Self::List(items) => {
                let digits = path.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(path.len());
                let number: usize = path[..digits].parse().ok()?;
                Some((number, items.get(number)?, end(&path[digits..])?))
            }
            // Names may contain dots, so the longest name that fits wins.
            Self::Map(entries) => {
                let fits = entries
                    .iter()
                    .enumerate()
                    .filter_map(|(number, (name, node))| Some((number, node, end(path.strip_prefix(name.as_str())?)?)));
                fits.min_by_key(|(_, _, after)| after.len())
            }
            _ => None,
        }
    }

    /// Finds two entries with the same key in one mapping, if there are any.
    pub(super) fn duplicate_key(&self) -> Option<DuplicateKey> {
        let children: Vec<(&str, &Self)> = match self {
            Self::List(items) => items.iter().map(|item| ("", item)).collect(),
            Self::Map(entries) => entries.iter().map(|(name, node)| (name.as_str(), node)).collect(),
            _ => return None,
        };
        let mut seen: BTreeMap<&str, usize> = BTreeMap::new();
        children.into_iter().enumerate().find_map(|(number, (name, child))| {
            let label = self.label(number);
            let first = seen.insert(name, number).filter(|_| matches!(self, Self::Map(_)));
            if let Some(first) = first {
                let (first, second) = (vec![first], vec![number]);
                return Some(DuplicateKey { first, second, path: label, name: name.to_owned() });
            }
            let DuplicateKey { first, second, path, name } = child.duplicate_key()?;
            let within = |trail: Trail| [vec![number], trail].concat();
            Some(DuplicateKey { first: within(first), second: within(second), path: label + &path, name })
        })
    }
}

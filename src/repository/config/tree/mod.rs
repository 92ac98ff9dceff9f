//! A configuration as a tree of values, before they are typed: [`read`] makes it of a YAML text, `parameters` of keys
//! with dots, and serde types it ([`de`]). A place in the tree is a [`Trail`]; what the user calls it and where it is
//! in the text is worked out only when an error asks for it.

mod de;
mod yaml;

use std::collections::BTreeMap;

pub(super) use self::{
    de::{Fault, unknown_key},
    yaml::{locate, read},
};

/// A value of a configuration.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Node {
    Null,
    Flag(bool),
    Int(i128),
    Float(f64),
    Text(String),
    /// The text of a parameter. Its type decides whether it is a number, a flag, a list or a text.
    Raw(String),
    List(Vec<Node>),
    Map(Vec<(String, Node)>),
}

/// The way from the root to a node: the number of the entry or item at each level.
pub(super) type Trail = Vec<usize>;

impl Node {
    /// Where a path such as `inputs[0].dims` leads, as far as it leads anywhere: the trail, and the path as a user
    /// writes it. Items of lists may follow a dot (`stages.0`), and names may be in brackets. A path that leads into a
    /// single value ends there.
    pub(super) fn find(&self, path: &str) -> (Trail, String) {
        let (mut trail, mut node, mut rest) = (Trail::new(), self, path);
        while let Some((number, child, after)) = node.step(rest) {
            trail.push(number);
            (node, rest) = (child, after);
        }
        let rest = match node {
            Self::List(_) | Self::Map(_) | Self::Null => rest,
            Self::Flag(_) | Self::Int(_) | Self::Float(_) | Self::Text(_) | Self::Raw(_) => "",
        };
        let key = format!("{}{rest}", self.name(&trail));
        (trail, key.trim_start_matches('.').to_owned())
    }

    /// The steps of a trail: the name of each entry, and none of an item, with its number.
    pub(super) fn steps<'n>(&'n self, trail: &[usize]) -> Vec<(Option<&'n str>, usize)> {
        let (mut node, mut steps) = (self, Vec::with_capacity(trail.len()));
        for &number in trail {
            let (name, child) = match node {
                Self::List(items) => (None, &items[number]),
                Self::Map(entries) => (Some(entries[number].0.as_str()), &entries[number].1),
                _ => break,
            };
            steps.push((name, number));
            node = child;
        }
        steps
    }

    /// The path of a trail, such as `inputs[0].dims`.
    pub(super) fn name(&self, trail: &[usize]) -> String {
        let steps = self.steps(trail).into_iter().map(|(name, number)| match name {
            Some(name) => format!(".{name}"),
            None => format!("[{number}]"),
        });
        steps.collect::<String>().trim_start_matches('.').to_owned()
    }

    /// The child that a path begins with: its number, itself, and the rest of the path.
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
            // Names may hold dots: the longest that fits is meant.
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

    /// The trails of the first and the second of two entries with the same key, if there are any, and the key.
    pub(super) fn twice(&self) -> Option<(Trail, Trail, String)> {
        let below = |number: usize, node: &Self| {
            let (first, second, name) = node.twice()?;
            let extend = |trail: Trail| [vec![number], trail].concat();
            Some((extend(first), extend(second), name))
        };
        match self {
            Self::List(items) => items.iter().enumerate().find_map(|(number, item)| below(number, item)),
            Self::Map(entries) => {
                let mut seen: BTreeMap<&str, usize> = BTreeMap::new();
                entries.iter().enumerate().find_map(|(number, (name, node))| match seen.insert(name, number) {
                    Some(first) => Some((vec![first], vec![number], name.clone())),
                    None => below(number, node),
                })
            }
            _ => None,
        }
    }
}

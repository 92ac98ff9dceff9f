//! The keys of cells and segments: one table, by which `model.yaml` is read and parameters are known.

use std::fmt;

use super::{CELLS, UNFOLD};
use crate::repository::config::nearest::suggestion;

pub(crate) const PROGRAM: &str = "program";
pub(crate) const BATCH_SIZES: &str = "batch_sizes";
pub(crate) const MIN_FOLLOWUP: &str = "min_followup";
pub(crate) const PRIORITY: &str = "priority";
pub(crate) const ENGINE: &str = "engine";
pub(crate) const PRECISION: &str = "precision";

pub(crate) const KIND: &str = "kind";
pub(crate) const NAME: &str = "name";
pub(crate) const CELL: &str = "cell";
pub(crate) const LEAF: &str = "leaf";
pub(crate) const INTERNAL: &str = "internal";
pub(crate) const CHILDREN: &str = "children";
pub(crate) const MAX_NODES: &str = "max_nodes";
pub(crate) const STEPS: &str = "steps";
pub(crate) const MAX_STEPS: &str = "max_steps";
pub(crate) const REVERSE: &str = "reverse";
pub(crate) const STREAM: &str = "stream";

pub(crate) const INPUTS: &str = "inputs";
pub(crate) const OVER: &str = "over";
pub(crate) const CARRY: &str = "carry";
pub(crate) const KEEP: &str = "keep";
pub(crate) const CONTROL: &str = "control";
pub(crate) const FEED: &str = "feed";
pub(crate) const START: &str = "start";
pub(crate) const GROW: &str = "grow";
pub(crate) const HOLD: &str = "hold";
pub(crate) const LENGTH: &str = "length";
pub(crate) const CHILD: &str = "child";
pub(crate) const UNTIL: &str = "until";
pub(crate) const EMIT: &str = "emit";

/// Keys of a cell.
pub(crate) const OF_CELLS: [&str; 6] = [PROGRAM, BATCH_SIZES, MIN_FOLLOWUP, PRIORITY, ENGINE, PRECISION];

/// Keys of a segment that have a value of their own.
const PLAIN: [&str; 11] = [KIND, NAME, CELL, LEAF, INTERNAL, CHILDREN, MAX_NODES, STEPS, MAX_STEPS, REVERSE, STREAM];

/// Keys of a segment that are mappings, and what the mapping is from.
const MAPS: [(&str, &str); 13] = [
    (INPUTS, "<input>"),
    (OVER, "<input>"),
    (CARRY, "<input>"),
    (KEEP, "<input>"),
    (CONTROL, "<input>"),
    (FEED, "<input>"),
    (START, "<input>"),
    (GROW, "<input>"),
    (HOLD, "<input>"),
    (LENGTH, "<input>"),
    (CHILD, "<input>"),
    (UNTIL, "<output>"),
    (EMIT, "<name>"),
];

/// The kinds of segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A single node.
    Stage,
    /// A number of nodes that the request tells, one after the other.
    Chain,
    /// Nodes one after the other until one says that it was the last.
    Decode,
    /// Nodes behind their children.
    Tree,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Self; 4] = [Self::Stage, Self::Chain, Self::Decode, Self::Tree];

    /// The name in configurations.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Stage => "stage",
            Self::Chain => "chain",
            Self::Decode => "decode",
            Self::Tree => "tree",
        }
    }

    /// The kind of a name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == name)
    }

    /// Its keys that have a value of their own.
    pub const fn plain(self) -> &'static [&'static str] {
        match self {
            Self::Stage => &[NAME, CELL],
            Self::Chain => &[NAME, CELL, STEPS, REVERSE, STREAM],
            Self::Decode => &[NAME, CELL, MAX_STEPS, STREAM],
            Self::Tree => &[NAME, LEAF, INTERNAL, CHILDREN, MAX_NODES],
        }
    }

    /// Its keys that are mappings.
    pub const fn maps(self) -> &'static [&'static str] {
        match self {
            Self::Stage => &[OVER, INPUTS, KEEP, START, LENGTH, CONTROL, EMIT],
            Self::Chain => &[OVER, CARRY, KEEP, START, GROW, HOLD, LENGTH, CONTROL, EMIT],
            Self::Decode => &[CARRY, FEED, KEEP, START, GROW, UNTIL, HOLD, LENGTH, CONTROL, EMIT],
            Self::Tree => &[OVER, HOLD, LENGTH, CONTROL, CHILD, EMIT],
        }
    }

    /// Those of its mappings that say where inputs of its cells come from.
    pub fn sources(self) -> impl Iterator<Item = &'static str> {
        self.maps().iter().copied().filter(|map| ![START, UNTIL, EMIT].contains(map))
    }

    /// Keys that it cannot be without.
    pub const fn required(self) -> &'static [&'static str] {
        match self {
            Self::Stage => &[CELL],
            Self::Chain => &[CELL, EMIT],
            Self::Decode => &[CELL, MAX_STEPS, EMIT],
            Self::Tree => &[LEAF, INTERNAL, CHILDREN, EMIT],
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.as_str())
    }
}

/// What a key is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Key<'k> {
    /// A cell, and its key.
    Cell(&'k str, &'k str),
    /// A segment's number, and its key, with what a mapping is from behind a dot.
    Segment(u16, &'k str),
}

impl<'k> Key<'k> {
    pub(crate) fn of(key: &'k str) -> Option<Self> {
        let (first, rest) = key.split_once('.')?;
        let (part, name) = rest.split_once('.')?;
        if first == CELLS {
            return (is_name(part) && OF_CELLS.contains(&name)).then_some(Self::Cell(part, name));
        }
        let in_map = || name.split_once('.').is_some_and(|(map, from)| is_map(map) && !from.is_empty());
        (first == UNFOLD && (PLAIN.contains(&name) || in_map())).then_some(Self::Segment(number(part)?, name))
    }
}

fn is_map(name: &str) -> bool {
    MAPS.iter().any(|(map, _)| *map == name)
}

/// A number in a key, in the one form that `model.yaml` writes.
fn number(text: &str) -> Option<u16> {
    let number: u16 = text.parse().ok()?;
    (number.to_string() == text).then_some(number)
}

/// The input of `grow.<input>`, by which `length` names what a segment grows.
pub(crate) fn grown(text: &str) -> Option<&str> {
    text.strip_prefix(GROW)?.strip_prefix('.')
}

/// Whether a text can name a cell or a segment: letters, digits, `_` and `-`, so that it can stand before a dot.
pub fn is_name(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|letter| letter.is_alphanumeric() || letter == '_' || letter == '-')
}

/// Whether a key is in the name space of cells and segments.
pub fn is_ours(key: &str) -> bool {
    matches!(key.split('.').next(), Some(CELLS | UNFOLD))
}

/// Checks a key of that name space.
///
/// # Errors
/// When it says nothing about cells or segments; with the nearest one that does.
pub fn known(key: &str) -> Result<(), String> {
    if Key::of(key).is_some() {
        return Ok(());
    }
    let part = key.split('.').nth(1).unwrap_or_default();
    let cell = if is_name(part) { part } else { "<cell>" };
    let segment = number(part).unwrap_or(0);
    let cells = OF_CELLS.map(|name| format!("{CELLS}.{cell}.{name}"));
    let plain = PLAIN.map(|name| format!("{UNFOLD}.{segment}.{name}"));
    let maps = MAPS.map(|(map, from)| format!("{UNFOLD}.{segment}.{map}.{from}"));
    let known = cells.iter().chain(&plain).chain(&maps).map(String::as_str);
    Err(format!("expected {CELLS}.<cell>.<key> or {UNFOLD}.<number>.<key>{}", suggestion(key, known)))
}

//! Where each part of a configuration is in the user's file. Every error is created here, with its position.

use std::{collections::BTreeMap, fmt, iter};

use super::tree::{self, DuplicateKey, Format, Node, Trail};

/// A position in a text file. Lines and columns count from 1, columns in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// Line.
    pub line: usize,
    /// Column.
    pub column: usize,
}

impl Position {
    /// The position of a byte offset in a text (clamped to its end).
    pub(super) fn at(text: &str, offset: usize) -> Self {
        let mut end = offset.min(text.len());
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        let before = &text[..end];
        let start = before.rfind('\n').map_or(0, |newline| newline + 1);
        Self { line: before.matches('\n').count() + 1, column: before[start..].chars().count() + 1 }
    }
}

/// Why a configuration was rejected.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub struct ConfigError {
    /// The file as the user knows it, or what replaces it (a load request, the graph).
    pub file: String,
    /// Line and column, if known.
    pub position: Option<Position>,
    /// The key as the file writes it, such as `input[0].dims`; empty if the fault concerns no single key.
    pub key: String,
    /// What was expected and what was found.
    pub message: String,
}

impl ConfigError {
    /// An error about a whole text, or about a position in it.
    pub(super) fn of_text(file: &str, position: Option<Position>, message: impl Into<String>) -> Self {
        Self { file: file.to_owned(), position, key: String::new(), message: message.into() }
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.file)?;
        if let Some(Position { line, column }) = self.position {
            write!(formatter, ":{line}:{column}")?;
        }
        formatter.write_str(": ")?;
        if !self.key.is_empty() {
            write!(formatter, "{}: ", self.key)?;
        }
        formatter.write_str(&self.message)
    }
}

/// Maps paths in `ModelConfig` (`input[0].dims`, `parameters[pad.x]`) to the keys of the user's file and their
/// positions.
#[derive(Clone, Debug, Default)]
pub struct Origin {
    file: String,
    /// The user's text, which is searched for a position only when an error needs one.
    text: String,
    /// Byte offsets by path, for the text format of protobuf.
    offsets: BTreeMap<String, usize>,
    /// The tree of a YAML or JSON text.
    tree: Option<(Format, Node)>,
    /// The keys of YAML by the beginning of the path that they replace. Paths of parameters are without
    /// `parameters[…]`.
    names: Vec<(String, String)>,
    /// Whether the configuration names no policy and its form implies one.
    pub(super) implies_policy: bool,
}

impl Origin {
    /// Creates an origin without positions, whose keys are the paths themselves.
    pub fn new(file: impl Into<String>) -> Self {
        Self { file: file.into(), ..Self::default() }
    }

    /// Creates the origin of a text whose keys are the paths themselves, each at a byte offset.
    pub(super) fn of_text(file: &str, text: &str, offsets: BTreeMap<String, usize>) -> Self {
        Self { text: text.to_owned(), offsets, ..Self::new(file) }
    }

    /// Creates the origin of a YAML or JSON text. Keys of YAML are the paths themselves unless [`Self::name`] replaces
    /// them.
    pub(super) fn of_tree(file: &str, text: &str, format: Format, root: Node) -> Self {
        Self { text: text.to_owned(), tree: Some((format, root)), ..Self::new(file) }
    }

    /// Records that a YAML text has the values of paths beginning with `path` at `key`.
    pub(super) fn name(&mut self, path: impl Into<String>, key: impl Into<String>) {
        self.names.push((path.into(), key.into()));
    }

    /// Creates an error about the value at `path`, with its position or that of the nearest enclosing part in the file.
    pub fn error(&self, path: &str, message: impl Into<String>) -> ConfigError {
        let (key, position) = match &self.tree {
            Some((format, root)) => {
                let (trail, key) = root.find(&self.renamed(path));
                let key = if *format == Format::Json { path.to_owned() } else { key };
                (key, self.position(&trail))
            }
            None => {
                let mut around = iter::successors(Some(path), |path| path.rfind(['.', '[']).map(|cut| &path[..cut]));
                let offset = around.find_map(|path| self.offsets.get(path));
                (path.to_owned(), offset.map(|offset| Position::at(&self.text, *offset)))
            }
        };
        ConfigError { file: self.file.clone(), position, key, message: message.into() }
    }

    /// Fails with an error about the value at `path`, if a fault applies.
    pub(super) fn refuse_if(&self, applies: bool, path: &str, message: impl Into<String>) -> Result<(), ConfigError> {
        if applies { Err(self.error(path, message)) } else { Ok(()) }
    }

    /// Fails if a mapping of a YAML or JSON text has a key twice.
    pub(super) fn refuse_duplicate_keys(&self) -> Result<(), ConfigError> {
        let duplicate = self.tree.as_ref().and_then(|(_, root)| root.duplicate_key());
        let Some(DuplicateKey { first, second, path, name }) = duplicate else { return Ok(()) };
        let first = self.position(&first).map(|place| format!(", first in line {}", place.line));
        let message = format!("the key '{name}' is given twice{}", first.unwrap_or_default());
        Err(ConfigError { position: self.position(&second), ..self.error(path.trim_start_matches('.'), message) })
    }

    /// Finds the position of a node of the tree.
    fn position(&self, trail: &Trail) -> Option<Position> {
        let (format, _) = self.tree.as_ref().filter(|_| !trail.is_empty())?;
        tree::locate(*format, &self.text, trail)
    }

    /// The path in the user's text, by the longest of the names that it begins with.
    fn renamed(&self, path: &str) -> String {
        if matches!(self.tree, Some((Format::Json, _))) {
            return path.to_owned();
        }
        let path = path.strip_prefix("parameters[").and_then(|path| path.strip_suffix(']')).unwrap_or(path);
        let fits = self.names.iter().filter_map(|(known, key)| {
            let rest = path.strip_prefix(known.as_str())?;
            (rest.is_empty() || rest.starts_with(['.', '['])).then(|| (known.len(), format!("{key}{rest}")))
        });
        fits.max_by_key(|(length, _)| *length).map_or_else(|| path.to_owned(), |(_, renamed)| renamed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_count_lines_and_characters_from_one() {
        let text = "a\r\nbö: c\n";
        assert_eq!(Position::at(text, 0), Position { line: 1, column: 1 });
        assert_eq!(Position::at(text, text.find('c').unwrap()), Position { line: 2, column: 5 });
        assert_eq!(Position::at(text, 1000), Position { line: 3, column: 1 });
    }

    #[test]
    fn an_error_is_placed_at_the_nearest_known_part() {
        let places = BTreeMap::from([("input[0]".to_owned(), 5)]);
        let origin = Origin::of_text("m/config.pbtxt", "\n\n\n  input {}", places);
        let error = origin.error("input[0].dims", "0 is not a size");
        assert_eq!(error.to_string(), "m/config.pbtxt:4:3: input[0].dims: 0 is not a size");
        assert_eq!(origin.error("output", "none").to_string(), "m/config.pbtxt: output: none");
        assert_eq!(origin.error("", "none").to_string(), "m/config.pbtxt: none");
    }
}

//! Where the parts of a configuration stand in the user's own file, so that every refusal can say so.

use std::{collections::BTreeMap, fmt, iter};

use super::tree::{self, Node, Trail};

/// A place in a text file; both counted from 1, columns in characters.
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

/// Why a configuration was refused: the file, the place in it and the key where they are known, and the reason.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub struct ConfigError {
    /// The file as the user knows it, or what stood in its place (a load request, the graph).
    pub file: String,
    /// Line and column, where the fault lies in a text.
    pub position: Option<Position>,
    /// The key as the file writes it, such as `input[0].dims`; empty where the fault has none.
    pub key: String,
    /// What was expected and what was there.
    pub message: String,
}

impl ConfigError {
    /// A refusal of a text as a whole, or at a position of it.
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

/// Maps paths in `ModelConfig` (`input[0].dims`, `parameters[pad.x]`) to the user's keys and their places.
#[derive(Clone, Debug, Default)]
pub struct Origin {
    file: String,
    /// The user's text, in which places are counted out when an error asks for one.
    text: String,
    /// Byte offsets of paths, where the text is no YAML.
    offsets: BTreeMap<String, usize>,
    /// The tree of a YAML text.
    tree: Option<Node>,
    /// By beginning of a path, what a YAML text calls it. Parameters are there without brackets around their keys.
    names: Vec<(String, String)>,
    /// Whether the policy is implied by the form of the configuration, not written.
    pub(super) implies_policy: bool,
}

impl Origin {
    /// An origin whose keys are the configuration's own and whose places are unknown.
    pub fn new(file: impl Into<String>) -> Self {
        Self { file: file.into(), ..Self::default() }
    }

    /// An origin of a text, with the byte offset of every path, which has the same name there.
    pub(super) fn of_text(file: &str, text: &str, offsets: BTreeMap<String, usize>) -> Self {
        Self { text: text.to_owned(), offsets, ..Self::new(file) }
    }

    /// An origin of a YAML text, whose keys are paths until they are named otherwise.
    pub(super) fn of_tree(file: &str, text: &str, root: Node) -> Self {
        Self { text: text.to_owned(), tree: Some(root), ..Self::new(file) }
    }

    /// Notes that paths which begin with `path` stand at `key` of a YAML text.
    pub(super) fn name(&mut self, path: impl Into<String>, key: impl Into<String>) {
        self.names.push((path.into(), key.into()));
    }

    /// An error about the value at `path`, placed at it or at the nearest part around it that the file has.
    pub fn error(&self, path: &str, message: impl Into<String>) -> ConfigError {
        let (key, position) = match &self.tree {
            Some(root) => {
                let (trail, key) = root.find(&named(path, &self.names));
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

    /// Refuses the first of several faults that is there. Each is whether it is there, its path and the reason.
    pub(super) fn refuse_first<P: AsRef<str>, M: Into<String>>(
        &self,
        faults: impl IntoIterator<Item = (bool, P, M)>,
    ) -> Result<(), ConfigError> {
        match faults.into_iter().find(|(is_there, ..)| *is_there) {
            Some((_, path, message)) => Err(self.error(path.as_ref(), message)),
            None => Ok(()),
        }
    }

    /// An error at a place of a YAML text.
    pub(super) fn error_at(&self, trail: &Trail, message: String) -> ConfigError {
        let key = self.tree.as_ref().map(|root| root.name(trail)).unwrap_or_default();
        ConfigError { file: self.file.clone(), position: self.position(trail), key, message }
    }

    fn position(&self, trail: &Trail) -> Option<Position> {
        if trail.is_empty() { None } else { tree::locate(&self.text, trail) }
    }
}

/// What a path is called, by the longest of the names that it begins with.
fn named(path: &str, names: &[(String, String)]) -> String {
    let path = path.strip_prefix("parameters[").and_then(|path| path.strip_suffix(']')).unwrap_or(path);
    let fits = names.iter().filter_map(|(known, key)| {
        let rest = path.strip_prefix(known.as_str())?;
        (rest.is_empty() || rest.starts_with(['.', '['])).then(|| (known.len(), format!("{key}{rest}")))
    });
    fits.max_by_key(|(length, _)| *length).map_or_else(|| path.to_owned(), |(_, named)| named)
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

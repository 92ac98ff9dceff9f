//! Where the parts of a configuration stand in the user's own file, so that every refusal can say so.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use super::yaml::Trail;

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
    places: BTreeMap<String, Place>,
    /// The user's text, in which places are counted out when an error asks for one.
    text: String,
    /// Paths that nobody wrote: their values are the form's own.
    implied: BTreeSet<String>,
}

#[derive(Clone, Debug)]
struct Place {
    key: String,
    at: At,
}

#[derive(Clone, Debug)]
enum At {
    Offset(usize),
    Yaml(Trail),
}

impl Origin {
    /// An origin whose keys are the configuration's own and whose places are unknown.
    pub fn new(file: impl Into<String>) -> Self {
        Self { file: file.into(), ..Self::default() }
    }

    /// An origin whose places are noted one by one.
    pub(super) fn of_text(file: &str, text: &str) -> Self {
        Self { file: file.to_owned(), text: text.to_owned(), ..Self::default() }
    }

    /// The file as the user knows it.
    pub fn file(&self) -> &str {
        &self.file
    }

    /// Notes that the value of `path` is implied by the form of the configuration, not written.
    pub(super) fn imply(&mut self, path: String) {
        self.implied.insert(path);
    }

    /// Whether nobody wrote the value of `path`.
    pub fn is_implied(&self, path: &str) -> bool {
        self.implied.contains(path)
    }

    /// Notes that `path` stands at a byte offset of the text, under the same name.
    pub(super) fn place(&mut self, path: String, offset: usize) {
        self.places.insert(path.clone(), Place { key: path, at: At::Offset(offset) });
    }

    /// Notes that `path` stands at the end of a trail in a YAML text, under the name `key`.
    pub(super) fn place_yaml(&mut self, path: impl Into<String>, key: String, trail: Trail) {
        self.places.insert(path.into(), Place { key, at: At::Yaml(trail) });
    }

    /// An error about the value at `path`, placed at it or at the nearest part around it that the file has.
    pub fn error(&self, path: &str, message: impl Into<String>) -> ConfigError {
        let mut known = path;
        let found = loop {
            if let Some(place) = self.places.get(known) {
                break Some(place);
            }
            match known.rfind(['.', '[']) {
                Some(cut) => known = &known[..cut],
                None => break None,
            }
        };
        let (key, position) = match found {
            Some(place) => (format!("{}{}", place.key, &path[known.len()..]), self.position(place)),
            None => (path.to_owned(), None),
        };
        ConfigError { file: self.file.clone(), position, key, message: message.into() }
    }

    fn position(&self, place: &Place) -> Option<Position> {
        match &place.at {
            At::Offset(offset) => Some(Position::at(&self.text, *offset)),
            At::Yaml(trail) => super::yaml::locate(&self.text, trail),
        }
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
        let mut origin = Origin::of_text("m/config.pbtxt", "\n\n\n  input {}");
        origin.place("input[0]".to_owned(), 5);
        let error = origin.error("input[0].dims", "0 is not a size");
        assert_eq!(error.to_string(), "m/config.pbtxt:4:3: input[0].dims: 0 is not a size");
        assert_eq!(origin.error("output", "none").to_string(), "m/config.pbtxt: output: none");
        assert_eq!(origin.error("", "none").to_string(), "m/config.pbtxt: none");
    }
}

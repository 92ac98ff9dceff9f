//! Where each part of a configuration is in the user's file. Every error is created here, with its position.

use std::{collections::BTreeMap, fmt, iter};

use super::{
    position::Position,
    setting_error::{ConfigErrorKind, SettingError},
    tree::{Found, Node},
};

/// Why a configuration was rejected.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub struct ConfigError {
    /// The file as the user knows it, or what replaces it (a load request, the graph).
    pub file: String,
    /// Line and column, if known.
    pub position: Option<Position>,
    /// The key as the file writes it, such as `input[0].dims`; empty if the fault concerns no single key.
    pub key: String,
    /// What kind of fault it is.
    pub kind: ConfigErrorKind,
    /// What was expected and what was found.
    pub message: String,
}

impl ConfigError {
    /// An error about a whole text, or about a position in it.
    pub(super) fn of_text(file: &str, position: Option<Position>, fault: impl Into<SettingError>) -> Self {
        let SettingError { kind, key, message } = fault.into();
        Self { file: file.to_owned(), position, key, kind, message }
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

/// The keys of settings that `ModelConfig` has no fields for. In `model.yaml`, `pad` and `axes` are keys of tensors.
pub(super) const OWN_KEYS: [&str; 15] = [
    "pad", "axes", "engine", "pin", "rollout", "instance", "lengths", "batching", "stages", "exits", "cells", "unfold",
    "pipeline", "text", "generate",
];

/// The parameter whose text is the YAML or JSON of all settings that are more than a single value.
pub(super) const STRUCTURED: &str = "paternoster";

/// Maps paths in `ModelConfig` (`input[0].dims`), and those that begin with one of `OWN_KEYS`
/// (`unfold[0].chain.cell`), to the keys of the user's file and their positions.
#[derive(Clone, Debug, Default)]
pub struct Origin {
    file: String,
    /// The user's text, in which offsets become lines and columns only when an error needs them.
    text: String,
    places: Places,
    /// The settings among `parameters`.
    parameters: OwnParameters,
    /// Whether the configuration names no policy and its form implies one.
    pub(super) implies_policy: bool,
}

/// The byte offsets of the parts of a text.
#[derive(Clone, Debug)]
enum Places {
    /// By path, for the text format of protobuf.
    Offsets(BTreeMap<String, usize>),
    /// The tree of a JSON text, whose paths are those of `ModelConfig`.
    Json(Node),
    /// The tree of a YAML text, with its keys by the beginning of the path that they replace.
    Yaml(Node, Vec<(String, String)>),
}

/// Which of a model's own settings its `parameters` give.
#[derive(Clone, Debug, Default)]
struct OwnParameters {
    /// The keys of parameters with single values.
    flat: Vec<String>,
    /// The text of the parameter [`STRUCTURED`], and its tree.
    structured: Option<(String, Node)>,
}

impl Default for Places {
    fn default() -> Self {
        Self::Offsets(BTreeMap::new())
    }
}

impl Origin {
    /// Creates an origin without positions, whose keys are the paths themselves.
    pub fn new(file: impl Into<String>) -> Self {
        Self { file: file.into(), ..Self::default() }
    }

    /// Creates the origin of a text whose keys are the paths themselves, each at a byte offset.
    pub(super) fn of_text(file: &str, text: &str, offsets: BTreeMap<String, usize>) -> Self {
        Self { text: text.to_owned(), places: Places::Offsets(offsets), ..Self::new(file) }
    }

    /// Creates the origin of a JSON text.
    pub(super) fn of_json(file: &str, text: &str, root: Node) -> Self {
        Self { text: text.to_owned(), places: Places::Json(root), ..Self::new(file) }
    }

    /// Creates the origin of a YAML text. Its keys are the paths themselves unless [`Self::name`] replaces them.
    pub(super) fn of_yaml(file: &str, text: &str, root: Node) -> Self {
        Self { text: text.to_owned(), places: Places::Yaml(root, Vec::new()), ..Self::new(file) }
    }

    /// Records that a YAML text has the values of paths beginning with `path` at `key`.
    pub(super) fn name(&mut self, path: impl Into<String>, key: impl Into<String>) {
        if let Places::Yaml(_, names) = &mut self.places {
            names.push((path.into(), key.into()));
        }
    }

    /// Records which parameters with single values there are.
    pub(super) fn set_flat(&mut self, keys: impl Iterator<Item = String>) {
        self.parameters.flat = keys.collect();
    }

    /// Records the text of the parameter [`STRUCTURED`].
    pub(super) fn set_structured(&mut self, text: String, root: Node) {
        self.parameters.structured = Some((text, root));
    }

    /// Creates an error about the text of the parameter [`STRUCTURED`].
    pub(super) fn structured_error(&self, position: Option<Position>, fault: impl Into<SettingError>) -> ConfigError {
        let path = parameter(STRUCTURED);
        let at = position.map(|Position { line, column }| format!(":{line}:{column}")).unwrap_or_default();
        ConfigError { key: format!("{path}{at}"), ..self.error(&path, fault) }
    }

    /// Creates an error about the value at `path`, or at the fault's key below it, with its position or that of the
    /// nearest enclosing part in the file.
    pub fn error(&self, path: &str, fault: impl Into<SettingError>) -> ConfigError {
        let fault = fault.into();
        let path = &fault.path_below(path);
        let SettingError { kind, message, .. } = fault;
        let (key, offset) = match &self.places {
            Places::Yaml(root, names) => {
                let Found { at, path, .. } = root.find(&renamed(path, names));
                (path, at)
            }
            Places::Json(_) | Places::Offsets(_) if self.is_own(path) => {
                let (parameter, key) = self.parameters.of(path);
                (key, self.offset(&parameter))
            }
            Places::Json(_) | Places::Offsets(_) => (path.to_owned(), self.offset(path)),
        };
        let position = offset.map(|offset| Position::at(&self.text, offset));
        ConfigError { file: self.file.clone(), position, key, kind, message }
    }

    /// Whether a path is that of a setting that `ModelConfig` has no field for, or a misspelt one.
    fn is_own(&self, path: &str) -> bool {
        OWN_KEYS.iter().any(|own| begins_with(path, own)) || self.parameters.flat.iter().any(|key| key == path)
    }

    /// The offset of the value at a path of `ModelConfig`, or of the nearest enclosing part.
    fn offset(&self, path: &str) -> Option<usize> {
        match &self.places {
            Places::Json(root) | Places::Yaml(root, _) => root.find(path).at,
            Places::Offsets(offsets) => {
                let mut around = iter::successors(Some(path), |path| path.rfind(['.', '[']).map(|cut| &path[..cut]));
                around.find_map(|path| offsets.get(path).copied())
            }
        }
    }

    /// Fails with an error about the value at `path`, if a fault applies.
    pub(super) fn refuse_if(
        &self,
        applies: bool,
        path: &str,
        fault: impl Into<SettingError>,
    ) -> Result<(), ConfigError> {
        if applies { Err(self.error(path, fault)) } else { Ok(()) }
    }

    /// Fails if a mapping of a YAML or JSON text has a key twice.
    pub(super) fn refuse_duplicate_keys(&self) -> Result<(), ConfigError> {
        let (Places::Json(root) | Places::Yaml(root, _)) = &self.places else { return Ok(()) };
        let Some(DuplicateKey { path, place, message }) = duplicate_key(&self.text, root) else { return Ok(()) };
        Err(ConfigError { position: Some(place), ..self.error(&path, message) })
    }
}

impl OwnParameters {
    /// Finds the parameter that gives the value at a path. Returns its path, and that of the value.
    fn of(&self, path: &str) -> (String, String) {
        let flat = flat_key(path);
        let found = self.structured.as_ref().map(|(text, root)| (text, root.find(path)));
        let given = self.flat.iter().filter(|key| begins_with(&flat, key)).max_by_key(|key| key.len());
        let below = || self.flat.iter().find(|key| begins_with(key, &flat));
        match found {
            Some((text, Found { at: Some(at), path, is_whole }))
                if is_whole || given.is_none() && below().is_none() =>
            {
                let (parameter, Position { line, column }) = (parameter(STRUCTURED), Position::at(text, at));
                (parameter.clone(), format!("{parameter}:{line}:{column}: {path}"))
            }
            _ => {
                let parameter = parameter(given.or_else(below).map_or(flat.as_str(), String::as_str));
                (parameter.clone(), parameter)
            }
        }
    }
}

/// The path of a parameter in `ModelConfig`.
pub(super) fn parameter(key: &str) -> String {
    format!("parameters[{key}]")
}

/// The key of the parameter for the single value at a path.
pub(super) fn flat_key(path: &str) -> String {
    path.strip_prefix("instance.lengths.").map_or_else(|| path.to_owned(), |axis| format!("lengths.{axis}"))
}

/// Whether a path is another one, or goes on below it.
fn begins_with(path: &str, other: &str) -> bool {
    path.strip_prefix(other).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
}

/// A key that a mapping has twice.
pub(super) struct DuplicateKey {
    path: String,
    /// The place of the second.
    pub(super) place: Position,
    pub(super) message: String,
}

/// Finds a key that a mapping has twice.
pub(super) fn duplicate_key(text: &str, root: &Node) -> Option<DuplicateKey> {
    let found = root.duplicate_key()?;
    let [first, place] = [found.first, found.second].map(|offset| Position::at(text, offset));
    let message = format!("the key '{}' is given twice, first in line {}", found.name, first.line);
    Some(DuplicateKey { path: found.path.trim_start_matches('.').to_owned(), place, message })
}

/// The path in a YAML text, by the longest of the names that it begins with.
fn renamed(path: &str, names: &[(String, String)]) -> String {
    let fits = names.iter().filter_map(|(known, key)| {
        let rest = path.strip_prefix(known.as_str())?;
        (rest.is_empty() || rest.starts_with(['.', '['])).then(|| (known.len(), format!("{key}{rest}")))
    });
    fits.max_by_key(|(length, _)| *length).map_or_else(|| path.to_owned(), |(_, renamed)| renamed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_placed_at_the_nearest_known_part() {
        let places = BTreeMap::from([("input[0]".to_owned(), 5)]);
        let origin = Origin::of_text("m/config.pbtxt", "\n\n\n  input {}", places);
        let error = origin.error("input[0].dims", "0 is not a size");
        assert_eq!(error.to_string(), "m/config.pbtxt:4:3: input[0].dims: 0 is not a size");
        assert_eq!(origin.error("output", "none").to_string(), "m/config.pbtxt: output: none");
        assert_eq!(origin.error("", "none").to_string(), "m/config.pbtxt: none");
    }
    #[test]
    fn an_error_has_a_kind_and_the_place_of_its_key() {
        use crate::{json, pbtxt, yaml};
        let kind = |refused: Result<(crate::Settings, Origin), ConfigError>| {
            let ConfigError { kind, position, key, .. } = refused.expect_err("it should be refused");
            (kind, position.map(|place| (place.line, place.column)), key)
        };
        let yaml = |text: &str| kind(yaml::parse("m/model.yaml", text.as_bytes()));
        assert_eq!(yaml("a: [").0, ConfigErrorKind::Syntax);
        assert_eq!(yaml(&"[".repeat(65)).0, ConfigErrorKind::TooDeep);
        assert_eq!(yaml(&" ".repeat(200_000)).0, ConfigErrorKind::TooLarge);
        assert_eq!(yaml("\nnam: x"), (ConfigErrorKind::Unknown, Some((2, 1)), "nam".to_owned()));
        let policy = yaml("batching:\n  policy: lasy");
        assert_eq!(policy, (ConfigErrorKind::Unknown, Some((2, 3)), "batching.policy".to_owned()));
        let size = yaml("max_batch_size: -1");
        assert_eq!(size, (ConfigErrorKind::Value, Some((1, 1)), "max_batch_size".to_owned()));
        assert_eq!(kind(pbtxt::parse("f", b"name: \"m")).0, ConfigErrorKind::Syntax);
        let field = kind(json::parse("{\"nam\": 1}"));
        assert_eq!(field, (ConfigErrorKind::Unknown, Some((1, 2)), "nam".to_owned()));
    }
}

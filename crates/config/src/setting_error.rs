//! Why a setting is refused, before its place in the user's file is known.

use std::fmt;

/// What kind of fault a configuration has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ConfigErrorKind {
    /// The text is not in its format.
    Syntax,
    /// The text, a key or the number of values exceeds a limit.
    TooLarge,
    /// Values are nested deeper than the limit.
    TooDeep,
    /// A key or name is that of nothing that exists.
    Unknown,
    /// A value, alone or together with others, is not allowed.
    #[default]
    Value,
    /// The configuration does not match the graph of a program.
    Graph,
    /// The crate was built from a broken descriptor set.
    Internal,
}

/// Why a setting is refused. [`Origin::error`](super::Origin::error) finds its place in the user's file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SettingError {
    /// What kind of fault it is.
    pub kind: ConfigErrorKind,
    /// The key, below the part that was read; empty if the fault concerns the whole part.
    pub key: String,
    /// What was expected and what was found.
    pub message: String,
}

impl SettingError {
    /// Creates an error about the part that is read.
    pub(super) fn new(kind: ConfigErrorKind, message: impl Into<String>) -> Self {
        Self { kind, key: String::new(), message: message.into() }
    }

    /// Creates an error about a name that nothing has.
    pub(super) fn unknown(message: impl Into<String>) -> Self {
        Self::new(ConfigErrorKind::Unknown, message)
    }

    /// Creates an error about an unexpected value.
    pub(super) fn expected(what: &str, found: impl fmt::Display) -> Self {
        format!("expected {what}, but found {found}").into()
    }

    /// Places the fault at a key.
    pub fn at(self, key: impl Into<String>) -> Self {
        Self { key: key.into(), ..self }
    }

    /// Puts a text before the message.
    pub(super) fn prefixed(self, prefix: fmt::Arguments<'_>) -> Self {
        Self { message: format!("{prefix}{}", self.message), ..self }
    }

    /// The path of the fault, whose key is below `path`.
    pub(super) fn path_below(&self, path: &str) -> String {
        if path.is_empty() || self.key.is_empty() {
            format!("{path}{}", self.key)
        } else {
            format!("{path}.{}", self.key)
        }
    }
}

impl fmt::Display for SettingError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.key.is_empty() {
            write!(formatter, "{}: ", self.key)?;
        }
        formatter.write_str(&self.message)
    }
}

impl std::error::Error for SettingError {}

/// A value that is not allowed.
impl From<String> for SettingError {
    fn from(message: String) -> Self {
        Self::new(ConfigErrorKind::Value, message)
    }
}

/// A value that is not allowed.
impl From<&str> for SettingError {
    fn from(message: &str) -> Self {
        message.to_owned().into()
    }
}

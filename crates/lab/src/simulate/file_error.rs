//! Why a device table cannot be read.

/// Why a file is not a device table.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FileError {
    /// The file is not JSON of the right form.
    #[error("{0}")]
    Form(String),
    /// The table has no models.
    #[error("expected at least one model, but found none")]
    NoModels,
    /// Two models have the same name.
    #[error("duplicate model '{0}'")]
    Twice(String),
    /// A value is invalid.
    #[error("model '{model}': expected {expected}, but found {found}")]
    Value {
        /// The model.
        model: String,
        /// What was expected.
        expected: String,
        /// What was found.
        found: String,
    },
    /// The power values are invalid.
    #[error("expected busy_watts of at least idle_watts and neither below 0, but found {busy} and {idle}")]
    Watts {
        /// Busy power, as text.
        busy: String,
        /// Idle power, as text.
        idle: String,
    },
}

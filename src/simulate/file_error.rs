//! Why a device table cannot be read.

/// Why a file is no device table.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FileError {
    /// It is not JSON of the right form.
    #[error("{0}")]
    Form(String),
    /// A device without models simulates nothing.
    #[error("expected at least one model, but found none")]
    NoModels,
    /// Two models of one name.
    #[error("the model '{0}' is there twice")]
    Twice(String),
    /// A value that cannot be.
    #[error("model '{model}': expected {expected}, but found {found}")]
    Value {
        /// The model.
        model: String,
        /// What would be right.
        expected: String,
        /// What is there.
        found: String,
    },
    /// Power that cannot be.
    #[error("expected busy_watts of at least idle_watts and neither below 0, but found {busy} and {idle}")]
    Watts {
        /// Busy power, as text.
        busy: String,
        /// Idle power, as text.
        idle: String,
    },
}

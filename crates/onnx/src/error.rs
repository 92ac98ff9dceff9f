//! Errors of model files.

use std::io;

use super::build::BuildError;

/// Reasons why a model could not be read, built or written. Every message names the file or graph.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file could not be opened or read.
    #[error("cannot read '{file}': {source}")]
    Read {
        /// Name of the file.
        file: String,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The file could not be created or written.
    #[error("cannot write '{file}': {source}")]
    Write {
        /// Name of the file.
        file: String,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The content is not an ONNX model.
    #[error("'{file}' is not an ONNX model: {reason}")]
    Malformed {
        /// Name of the file.
        file: String,
        /// The fault, with its byte offset if known.
        reason: String,
    },
    /// The model must not be passed to an engine.
    #[error("cannot use '{file}': {reason}")]
    Unusable {
        /// Name of the file.
        file: String,
        /// What the model requires, and the limit.
        reason: String,
    },
    /// The content exceeds the size limit of a protobuf message.
    #[error("'{file}' would take {bytes} bytes, but a protobuf message holds at most 2147483647")]
    TooLarge {
        /// Name of the file.
        file: String,
        /// Encoded length.
        bytes: usize,
    },
    /// A weights file lacks a tensor, or has it with another type or shape.
    #[error("weights '{file}': {reason}")]
    Weights {
        /// Name of the file.
        file: String,
        /// The tensor, what was expected and what was found.
        reason: String,
    },
    /// A graph was built incorrectly.
    #[error(transparent)]
    Build(#[from] BuildError),
}

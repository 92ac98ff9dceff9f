//! What can go wrong with a model file.

use std::io;

use super::build::BuildError;

/// Why a model could not be read, built or written. Every text names the file or graph.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The operating system could not open or read the file.
    #[error("cannot read '{file}': {source}")]
    Read {
        /// The file as it was named.
        file: String,
        /// The operating system's reason.
        source: io::Error,
    },
    /// The operating system could not create or write the file.
    #[error("cannot write '{file}': {source}")]
    Write {
        /// The file as it was named.
        file: String,
        /// The operating system's reason.
        source: io::Error,
    },
    /// The content is no ONNX model.
    #[error("'{file}' is not an ONNX model: {reason}")]
    Malformed {
        /// The file as it was named.
        file: String,
        /// What is wrong, and at which byte where that is known.
        reason: String,
    },
    /// The model is one that an engine must not open.
    #[error("cannot use '{file}': {reason}")]
    Unusable {
        /// The file as it was named.
        file: String,
        /// What it asks for, and what is allowed.
        reason: String,
    },
    /// The content exceeds what one protobuf message may hold.
    #[error("'{file}' would take {bytes} bytes, but a protobuf message holds at most 2147483647")]
    TooLarge {
        /// The file as it was named.
        file: String,
        /// Encoded length.
        bytes: usize,
    },
    /// A weights file lacks a tensor, or holds it in another type or shape.
    #[error("weights '{file}': {reason}")]
    Weights {
        /// The file as it was named.
        file: String,
        /// The tensor, what was expected and what is there.
        reason: String,
    },
    /// A graph was put together wrongly.
    #[error(transparent)]
    Build(#[from] BuildError),
}

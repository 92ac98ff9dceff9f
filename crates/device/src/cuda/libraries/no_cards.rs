//! Why no card can be used.

use super::CudaVersion;

/// Why no card can be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoCards {
    /// No driver is installed.
    #[error("no CUDA driver is installed (libcuda.so.1 is not found)")]
    NoDriver,
    /// The driver does not start: it is a toolkit's stub, or the container has no access to the card.
    #[error("the CUDA driver does not start: {0}")]
    Refused(String),
    /// The driver is too old.
    #[error("the CUDA driver is too old: it supports {found}, expected CUDA {} or later, as of driver {}", .expected.0, .expected.1)]
    TooOld {
        /// The version of CUDA that it supports, and its file.
        found: String,
        /// The oldest version of CUDA that the server needs, and the first release of drivers that supports it.
        expected: (CudaVersion, &'static str),
    },
    /// A library lacks a function, or the libraries do not fit together.
    #[error("{0}")]
    Libraries(String),
    /// The driver lists no card.
    #[error("the CUDA driver names no card")]
    None,
}

impl NoCards {
    /// Returns whether there may be cards that cannot be used.
    pub fn is_fault(&self) -> bool {
        matches!(self, Self::TooOld { .. } | Self::Libraries(_))
    }
}

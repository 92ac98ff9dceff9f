//! What policies do with batches, as pictures show it.

use serde::{Deserialize, Serialize};

/// What happened to a batch when a task of it was launched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Change {
    /// Newcomers joined the running batch.
    Stretch,
    /// Rows that ran apart go on together.
    Merge,
    /// Rows that ran together go on apart.
    Split,
}

impl Change {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Stretch => "stretch",
            Self::Merge => "merge",
            Self::Split => "split",
        }
    }
}

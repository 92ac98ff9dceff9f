//! What policies do with batches, as pictures show it.

use serde::{Deserialize, Serialize};

/// A change of a batch at the launch of one of its tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Change {
    /// Newcomers joined the running batch.
    Stretch,
    /// Rows that ran separately continue together.
    Merge,
    /// Rows that ran together continue separately.
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

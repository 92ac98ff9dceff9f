//! What is embedded or classified.

use std::sync::Arc;

/// A text, a pair of texts, or the tokens of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Item {
    Text(String),
    Pair(Arc<str>, String),
    Tokens(Vec<i64>),
}

impl Item {
    /// Returns an upper limit of the bytes of its tensors.
    pub(super) fn bytes(&self) -> usize {
        /// Lengths in front of strings, flags and dimensions.
        const BESIDE_BYTES: usize = 32;
        BESIDE_BYTES
            + match self {
                Self::Text(text) => text.len(),
                Self::Pair(text, pair) => text.len() + pair.len(),
                Self::Tokens(ids) => ids.len() * size_of::<i64>(),
            }
    }

    pub(super) fn first(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            Self::Pair(text, _) => Some(text),
            Self::Tokens(_) => None,
        }
    }

    pub(super) fn second(&self) -> Option<&str> {
        match self {
            Self::Pair(_, text) => Some(text),
            Self::Text(_) | Self::Tokens(_) => None,
        }
    }
}

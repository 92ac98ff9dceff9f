//! What is embedded or classified.

use std::sync::Arc;

use paternoster_model::{ModelSpec, TensorSpec, text};

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

/// What a model must give.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wanted {
    /// A vector for each text.
    Vectors,
    /// Numbers for the classes of each text.
    Classes,
    /// Numbers for the classes of each token.
    TokenClasses,
    /// The tokens of each text.
    #[cfg(feature = "text")]
    Tokens,
}

impl Wanted {
    pub(super) fn output(self) -> &'static str {
        match self {
            Self::Vectors => text::EMBEDDING,
            Self::Classes | Self::TokenClasses => text::LOGITS,
            #[cfg(feature = "text")]
            Self::Tokens => text::TOKEN_COUNT,
        }
    }

    /// Whether a model takes texts and gives this.
    pub(super) fn is_given_by(self, spec: &ModelSpec) -> bool {
        // Behind the batch.
        let axes = if self == Self::TokenClasses { 2 } else { 1 };
        let is_output = |output: &TensorSpec| output.name == self.output() && output.dims.len() == axes;
        spec.input_index(text::TEXT).is_some() && spec.outputs.iter().any(is_output) && !spec.decoupled
    }
}

/// How all items of a request are treated.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Treatment {
    /// The key of the body that has the items.
    pub(super) list: &'static str,
    pub(super) prompt: Option<String>,
    pub(super) truncate: Option<bool>,
    pub(super) dimensions: Option<u32>,
    pub(super) normalize: Option<bool>,
}

/// Returns an upper limit of the bytes of the requests of all items.
pub(super) fn request_bytes(items: &[Item], treatment: &Treatment) -> usize {
    let prompt_bytes = treatment.prompt.as_ref().map_or(0, String::len);
    items.iter().map(|item| item.bytes().saturating_add(prompt_bytes)).fold(0, usize::saturating_add)
}

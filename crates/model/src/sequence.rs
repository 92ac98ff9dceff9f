//! Sequences: related requests whose model keeps state from one to the next (Triton's stateful models).

use std::{fmt, sync::Arc};

/// Identifier of a request's sequence (Triton's correlation id): a number above 0, or a text that is not empty.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CorrelationId {
    /// `sequence_id` as a number. Negative numbers are taken modulo 2^64, as in Triton.
    Number(u64),
    /// `sequence_id` as a text.
    Text(Arc<str>),
}

impl fmt::Display for CorrelationId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => number.fmt(formatter),
            Self::Text(text) => text.fmt(formatter),
        }
    }
}

/// Sequence parameters of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InSequence {
    /// Identifier of the sequence.
    pub id: CorrelationId,
    /// Whether the request starts the sequence. An open sequence with the same id ends.
    pub starts: bool,
    /// Whether the request ends the sequence.
    pub ends: bool,
}

//! Sequences: requests that belong together, whose model keeps state from one to the next (Triton's stateful models).

use std::{fmt, sync::Arc};

/// Which sequence a request belongs to, in Triton's words its correlation id: a number above 0, or a text that is not
/// empty.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CorrelationId {
    /// `sequence_id` as a number. Negative ones count as Triton counts them, modulo 2^64.
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

/// What a request says of its sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InSequence {
    /// Which one.
    pub id: CorrelationId,
    /// It is the first: a sequence of this id that is still open ends.
    pub starts: bool,
    /// It is the last.
    pub ends: bool,
}

//! One row of the step's inputs, and how large it is.

use paternoster_model::InputTensor;
use paternoster_pipeline::{InputRows, only_string};

use super::Tokenize;

/// How large a row is.
#[derive(Clone, Copy, Debug, Default)]
pub struct RowSize {
    /// Bytes of the text with its prompt.
    pub text: usize,
    /// Bytes of the second text of a pair.
    pub pair: Option<usize>,
    /// The number of tokens in place of a text.
    pub tokens: usize,
}

/// The inputs of one row.
pub(super) struct Row<'a> {
    pub(super) text: Option<&'a InputTensor>,
    pub(super) pair: Option<&'a InputTensor>,
    pub(super) tokens: Option<&'a InputTensor>,
    pub(super) prompt: Option<&'a InputTensor>,
    pub(super) may_truncate: bool,
}

impl<'a> Row<'a> {
    pub(super) fn of(given: &'a InputRows, number: usize) -> Self {
        Self {
            text: given.get(0, number),
            pair: given.get(1, number),
            tokens: given.get(2, number),
            prompt: given.get(3, number),
            may_truncate: given.get(4, number).is_none_or(|flag| flag.data.first() != Some(&0)),
        }
    }

    /// Returns the prompt; an empty one if there is none of its name, which is refused later.
    fn prompt_of<'s>(&self, step: &'s Tokenize) -> &'s str {
        let named = self.prompt.map(|prompt| lenient(Some(prompt)));
        if self.text.is_some() { step.prompt(named).unwrap_or_default() } else { "" }
    }

    pub(super) fn size(&self, step: &Tokenize) -> RowSize {
        let bytes = |tensor: &InputTensor| tensor.data.len();
        let text = self.prompt_of(step).len() + self.text.map_or(0, bytes);
        RowSize { text, pair: self.pair.map(bytes), tokens: self.tokens.map_or(0, bytes) / size_of::<i64>() }
    }

    /// Returns the work for this row, with or without its first text.
    pub(super) fn work(&self, step: &Tokenize, with_first: bool) -> usize {
        let given = self.tokens.map_or(0, |tokens| tokens.data.len());
        let first = if with_first { [self.prompt_of(step), lenient(self.text)] } else { [""; 2] };
        step.tokenizer.work(&[first[0], first[1], lenient(self.pair)], self.pair.is_some()).saturating_add(given)
    }
}

/// Returns the only text of a row; an empty one if there is none, or another thing, which is refused later.
fn lenient(tensor: Option<&InputTensor>) -> &str {
    tensor.and_then(only_string).and_then(|bytes| std::str::from_utf8(bytes).ok()).unwrap_or_default()
}

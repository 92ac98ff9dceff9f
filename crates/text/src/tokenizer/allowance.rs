//! What a call of the library may make of a text. It has no limits itself, and steps that a `tokenizer.json` chooses
//! may make much of little: characters of one, tokens of a character, long names of tokens. Each is counted where the
//! library calls back, so a text that would take more than [`most_bytes`] and [`most_tokens`] say is refused.

use std::{cell::Cell, collections::HashMap, path::Path, path::PathBuf};

use serde::{Deserialize, Deserializer};
use tokenizers::{Model, ModelWrapper, Result, Token, models::TrainerWrapper};

use super::TokenizerFault;

/// Memory for each byte of text, where each of them is a word: measured, with the lists that grow by doubling.
const BYTES_OF_A_BYTE: usize = 512;

/// Memory for a text however short it is.
const BYTES_OF_A_TEXT: usize = 64 << 10;

/// Memory for a byte of the normalized text: itself and its place in the text.
const BYTES_OF_A_NORMALIZED: usize = 1 + size_of::<(usize, usize)>();

/// Memory for a character that may become a word.
const BYTES_OF_A_CHARACTER: usize = 280;

/// Memory for a token apart from its name.
const BYTES_OF_A_TOKEN: usize = 150;

/// How often the name of a token is in memory.
pub(super) const NAMES: usize = 4;

/// The tokens that a text may become however short it is.
const SHORT_TOKENS: usize = 64;

/// Returns the most memory that the library takes to tokenize a text of this many bytes.
pub(super) fn most_bytes(text: usize) -> usize {
    text.saturating_mul(BYTES_OF_A_BYTE).saturating_add(BYTES_OF_A_TEXT)
}

/// Returns the most tokens that a text of this many bytes becomes. Three for two bytes are usual at most: `½`.
pub(super) fn most_tokens(text: usize) -> usize {
    text.saturating_add(text / 2).saturating_add(SHORT_TOKENS)
}

thread_local! {
    /// What is left of [`most_bytes`] and [`most_tokens`] in the current call.
    static LEFT: Cell<(Left, Left)> = const { Cell::new((Left { most: 0, left: 0 }, Left { most: 0, left: 0 })) };
}

#[derive(Clone, Copy, Debug)]
struct Left {
    most: usize,
    left: usize,
}

impl Left {
    fn draw(&mut self, what: &'static str, wanted: usize) -> std::result::Result<(), Refusal> {
        let Self { most, left } = *self;
        self.left =
            left.checked_sub(wanted).ok_or(Refusal { what, made: (most - left).saturating_add(wanted), most })?;
        Ok(())
    }
}

/// A step makes too much. It passes through the library as an error, or by unwinding where errors are ignored.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("a step may make {made} {what} of a text, and at most {most} are allowed")]
pub(super) struct Refusal {
    pub(super) what: &'static str,
    pub(super) made: usize,
    pub(super) most: usize,
}

impl From<Refusal> for TokenizerFault {
    fn from(Refusal { what, made, most }: Refusal) -> Self {
        Self::Grows { what, most, made }
    }
}

/// Lets the next calls of the library on this thread make as much as a text of `bytes` bytes may become.
pub(super) fn begin(bytes: usize) {
    let all = |most| Left { most, left: most };
    LEFT.set((all(most_bytes(bytes)), all(most_tokens(bytes))));
}

/// Counts a text that has been normalized, or a part of it.
pub(super) fn normalized(text: &str) -> std::result::Result<(), Refusal> {
    let (mut bytes, tokens) = LEFT.get();
    let of_characters = text.chars().count().saturating_mul(BYTES_OF_A_CHARACTER);
    bytes.draw("bytes", text.len().saturating_mul(BYTES_OF_A_NORMALIZED).saturating_add(of_characters))?;
    LEFT.set((bytes, tokens));
    Ok(())
}

fn tokenized(made: &[Token]) -> std::result::Result<(), Refusal> {
    let (mut bytes, mut tokens) = LEFT.get();
    tokens.draw("tokens", made.len())?;
    bytes.draw("bytes", made.iter().map(|token| BYTES_OF_A_TOKEN + NAMES * token.value.len()).sum())?;
    LEFT.set((bytes, tokens));
    Ok(())
}

/// A model of the library whose tokens are counted.
#[derive(Clone, Debug)]
pub(super) struct CountedModel(pub(super) ModelWrapper);

impl<'de> Deserialize<'de> for CountedModel {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        ModelWrapper::deserialize(deserializer).map(Self)
    }
}

impl Model for CountedModel {
    type Trainer = TrainerWrapper;

    fn tokenize(&self, sequence: &str) -> Result<Vec<Token>> {
        let tokens = self.0.tokenize(sequence)?;
        tokenized(&tokens)?;
        Ok(tokens)
    }

    fn token_to_id(&self, token: &str) -> Option<u32> {
        self.0.token_to_id(token)
    }

    fn id_to_token(&self, id: u32) -> Option<String> {
        self.0.id_to_token(id)
    }

    fn get_vocab(&self) -> HashMap<String, u32> {
        self.0.get_vocab()
    }

    fn get_vocab_size(&self) -> usize {
        self.0.get_vocab_size()
    }

    fn save(&self, folder: &Path, prefix: Option<&str>) -> Result<Vec<PathBuf>> {
        self.0.save(folder, prefix)
    }

    fn get_trainer(&self) -> TrainerWrapper {
        self.0.get_trainer()
    }
}

//! Tokenizers: the tokens of one text, or of a pair of texts. `bounded` says what a file may be, `allowance` what it
//! may make of a text, and `sizes` how much work and memory that is.

mod allowance;
mod bounded;
mod extent;
mod sizes;
#[cfg(test)]
mod tests;

use std::panic::{AssertUnwindSafe, catch_unwind};

use tokenizers::{Encoding, PostProcessor, PostProcessorWrapper, PreTokenizerWrapper, TokenizerImpl};

use self::{
    allowance::{CountedModel, Refusal},
    bounded::{Decoders, Normalizers},
};

/// Largest `tokenizer.json` that is read, in bytes. Those of large vocabularies have about 17 MB.
pub const MAX_TOKENIZER_BYTES: u64 = 64 << 20;

/// Default of [`TokenizerOptions::max_bytes`].
pub const DEFAULT_MAX_BYTES: usize = 1 << 20;

/// How texts become tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenizerOptions {
    /// Most tokens, those that the tokenizer adds included.
    pub max_tokens: usize,
    /// Which end longer texts lose.
    pub truncate: Truncate,
    /// Most bytes of a text, and of both texts of a pair together.
    pub max_bytes: usize,
    /// Whether the places of tokens in the text are wanted.
    pub offsets: bool,
    /// Whether texts are lowercased, before anything that the file says is done with them.
    pub lowercase: bool,
}

/// The end that a text of too many tokens loses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Truncate {
    /// The first tokens stay.
    #[default]
    Right,
    /// The last tokens stay.
    Left,
}

type Tokenizer = TokenizerImpl<CountedModel, Normalizers, PreTokenizerWrapper, PostProcessorWrapper, Decoders>;

/// A tokenizer, read from its `tokenizer.json`.
#[derive(Debug)]
pub struct TextTokenizer {
    tokenizer: Tokenizer,
    options: TokenizerOptions,
    /// Of the tokens that are added to a pair.
    added_names_bytes: usize,
    /// How many tokens there are.
    vocabulary: usize,
}

/// The tokens of a text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tokens {
    /// Numbers in the vocabulary.
    pub ids: Vec<u32>,
    /// 0 for the first text of a pair and 1 for the second.
    pub types: Vec<u32>,
    /// Where tokens begin and end in their text, in bytes; empty unless wanted.
    pub offsets: Vec<(usize, usize)>,
    /// Whether each token is of the first text; empty unless the places are wanted.
    pub is_of_first: Vec<bool>,
}

impl Tokens {
    /// Counts the places in the first text from behind its first `bytes` bytes, which no client sent.
    pub(crate) fn behind(mut self, bytes: usize) -> Self {
        let of_first = self.offsets.iter_mut().zip(&self.is_of_first).filter(|(_, is_of_first)| **is_of_first);
        for ((start, end), _) in of_first {
            (*start, *end) = (start.saturating_sub(bytes), end.saturating_sub(bytes));
        }
        self
    }
}

/// The first text of a pair, tokenized.
#[derive(Clone, Debug)]
pub struct FirstText {
    /// At most as many tokens as are allowed.
    encoding: Encoding,
    /// All of its tokens.
    tokens: usize,
    /// Of the text.
    bytes: usize,
}

/// A token as people read it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Its number in the vocabulary.
    pub id: u32,
    /// The part of the text; the token's name, if the tokenizer added it.
    pub text: String,
    /// Where it begins and ends in the text, in characters; `None` if the tokenizer added it.
    pub place: Option<(usize, usize)>,
}

/// Why there are no tokens.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum TokenizerFault {
    /// The file cannot be used.
    #[error("not a tokenizer: {0}")]
    File(String),
    /// The text is too long to be read.
    #[error("expected a text of at most {most} bytes, but it has {bytes}")]
    TooLong {
        /// The limit.
        most: usize,
        /// Bytes of the text.
        bytes: usize,
    },
    /// The text has too many tokens, and may not be truncated.
    #[error("expected at most {most} tokens, but the text has {tokens}")]
    TooManyTokens {
        /// The limit.
        most: usize,
        /// Tokens of the text, those that the tokenizer adds included.
        tokens: usize,
    },
    /// A step of the tokenizer could make too much of the text.
    #[error("a step may make {made} {what} of the text, and at most {most} are allowed")]
    Grows {
        /// What there would be too much of.
        what: &'static str,
        /// The limit, by the length of the text.
        most: usize,
        /// What the step could make.
        made: usize,
    },
    /// The tokenizer failed.
    #[error("the tokenizer failed: {0}")]
    Failed(String),
}

impl TextTokenizer {
    /// Reads a `tokenizer.json`. What it says of truncation and padding is replaced by the options.
    ///
    /// # Errors
    /// If it is none.
    pub fn read(json: &[u8], options: TokenizerOptions) -> Result<Self, TokenizerFault> {
        bounded::check(json).map_err(TokenizerFault::File)?;
        let unreadable = |fault| match fault {
            TokenizerFault::Failed(text) => TokenizerFault::File(text),
            fault => fault,
        };
        let mut tokenizer = guarded(json.len(), || Tokenizer::from_bytes(json)).map_err(unreadable)?;
        if options.lowercase {
            let normalizers = tokenizer.get_normalizer().cloned().unwrap_or_default().lowercased();
            guarded(json.len(), || tokenizer.with_normalizer(Some(normalizers)).map(|_| ())).map_err(unreadable)?;
        }
        tokenizer.with_padding(None);
        tokenizer.with_truncation(None).map_err(|fault| TokenizerFault::File(fault.to_string()))?;
        bounded::check_model(&tokenizer.get_model().0)
            .and_then(|()| tokenizer.get_pre_tokenizer().map_or(Ok(()), bounded::check_pre_tokenizer))
            .and_then(|()| tokenizer.get_post_processor().map_or(Ok(()), bounded::check_post_processor))
            .map_err(TokenizerFault::File)?;
        let added = tokenizer.get_post_processor().map_or(0, |processor| processor.added_tokens(true));
        if added >= options.max_tokens {
            let most = options.max_tokens;
            let text = format!("it adds {added} tokens to a pair of texts, and at most {most} are allowed");
            return Err(TokenizerFault::File(text));
        }
        let vocabulary = tokenizer.get_vocab_size(true);
        let mut made = Self { tokenizer, options, added_names_bytes: 0, vocabulary };
        // Inconsistencies, such as a special token that the vocabulary lacks, show only in use.
        for pair in [None, Some("b")] {
            let joined = made.first("a").and_then(|text| made.join(text, pair, true));
            let joined = joined.map_err(|fault| TokenizerFault::File(format!("it cannot be used: {fault}")))?;
            if joined.get_tokens().len() != joined.len() {
                let text = "its post_processor has tokens with another number of ids than of names";
                return Err(TokenizerFault::File(text.to_owned()));
            }
            made.added_names_bytes = joined.get_tokens().iter().map(String::len).sum();
        }
        Ok(made)
    }

    /// Checks that a token has this number.
    ///
    /// # Errors
    /// If none has.
    pub(crate) fn check_id(&self, id: i64) -> Result<u32, String> {
        let known = u32::try_from(id).ok().filter(|&id| {
            // Numbers are usually those from 0 on.
            (id as usize) < self.vocabulary || self.tokenizer.id_to_token(id).is_some()
        });
        known.ok_or_else(|| format!("expected ids of the vocabulary's {} tokens, but found {id}", self.vocabulary))
    }

    /// Returns how texts become tokens.
    pub fn options(&self) -> &TokenizerOptions {
        &self.options
    }

    /// Returns how many tokens the tokenizer adds to a text or a pair.
    pub(crate) fn added(&self, is_pair: bool) -> usize {
        self.tokenizer.get_post_processor().map_or(0, |processor| processor.added_tokens(is_pair))
    }

    /// Returns the tokens of a text, or of a pair of texts. One of too many tokens is truncated if it may be: of a
    /// pair, the longer text loses tokens first.
    ///
    /// # Errors
    /// If the text is too long, or the tokenizer fails.
    pub fn encode(&self, text: &str, pair: Option<&str>, may_truncate: bool) -> Result<Tokens, TokenizerFault> {
        self.check_bytes(text.len() + pair.map_or(0, str::len))?;
        self.complete(self.first(text)?, pair, may_truncate)
    }

    /// Tokenizes the first text of pairs, for [`Self::complete`]. Pairs that share it need it once.
    ///
    /// # Errors
    /// As [`Self::encode`].
    pub fn first(&self, text: &str) -> Result<FirstText, TokenizerFault> {
        self.check_bytes(text.len())?;
        let encoding = guarded(text.len(), || self.plain(text))?;
        let tokens = encoding.len();
        // No pair keeps more of it.
        Ok(FirstText { encoding: self.cut(encoding, self.options.max_tokens), tokens, bytes: text.len() })
    }

    /// Returns the tokens of a text and, if there is one, the second text of its pair.
    ///
    /// # Errors
    /// As [`Self::encode`].
    pub fn complete(&self, text: FirstText, pair: Option<&str>, may_truncate: bool) -> Result<Tokens, TokenizerFault> {
        let encoding = self.join(text, pair, may_truncate)?;
        let (mut offsets, mut is_of_first) = (Vec::new(), Vec::new());
        if self.options.offsets {
            offsets = encoding.get_offsets().to_vec();
            is_of_first = encoding.get_sequence_ids().into_iter().map(|text| text == Some(0)).collect();
        }
        Ok(Tokens { ids: encoding.get_ids().to_vec(), types: encoding.get_type_ids().to_vec(), offsets, is_of_first })
    }

    /// Returns all tokens of a text, however many there are, with their places. `adds` says whether the tokenizer adds
    /// its own.
    ///
    /// # Errors
    /// As [`Self::encode`].
    pub fn pieces(&self, text: &str, adds: bool) -> Result<Vec<Piece>, TokenizerFault> {
        self.check_bytes(text.len())?;
        let encoding = guarded(text.len(), || self.tokenizer.encode_char_offsets(text, adds))?;
        let bounds: Vec<usize> = text.char_indices().map(|(at, _)| at).chain([text.len()]).collect();
        let part = |start: usize, stop: usize| text.get(*bounds.get(start)?..*bounds.get(stop)?);
        let tokens = encoding.get_ids().iter().zip(encoding.get_tokens());
        let places = encoding.get_offsets().iter().zip(encoding.get_special_tokens_mask());
        let pieces = tokens.zip(places).map(|((&id, token), (&(start, stop), &is_added))| {
            let place = (is_added == 0).then_some((start, stop));
            let text = if place.is_some() { part(start, stop).unwrap_or_default() } else { token };
            Piece { id, text: text.to_owned(), place }
        });
        Ok(pieces.collect())
    }

    /// Returns the text of tokens. Numbers that are not in the vocabulary are left out, and, with `skips_added`, so are
    /// the tokens that the tokenizer adds.
    ///
    /// # Errors
    /// If the text would be too long, or the tokenizer fails.
    pub fn decode(&self, ids: &[u32], skips_added: bool) -> Result<String, TokenizerFault> {
        let decode = || {
            let bytes_of = |id: &u32| self.tokenizer.id_to_token(*id).map_or(1, |token| token.len());
            let mut bytes = 0;
            for id in ids {
                bytes += bytes_of(id);
                if let Err(fault) = self.check_bytes(bytes) {
                    return Ok(Err(fault));
                }
            }
            self.tokenizer.decode(ids, skips_added).map(Ok)
        };
        guarded(0, decode)?
    }

    /// Checks the length of a text.
    ///
    /// # Errors
    /// If it is longer than [`TokenizerOptions::max_bytes`].
    pub fn check_bytes(&self, bytes: usize) -> Result<(), TokenizerFault> {
        let most = self.options.max_bytes;
        if bytes > most { Err(TokenizerFault::TooLong { most, bytes }) } else { Ok(()) }
    }

    /// Returns the tokens of one text, without those that the tokenizer adds.
    fn plain(&self, text: &str) -> tokenizers::Result<Encoding> {
        if self.options.offsets { self.tokenizer.encode(text, false) } else { self.tokenizer.encode_fast(text, false) }
    }

    /// Returns what stays of a text's tokens. The library's own way to cut also copies what does not.
    fn cut(&self, encoding: Encoding, most: usize) -> Encoding {
        let length = encoding.len();
        if length <= most {
            return encoding;
        }
        let kept = match self.options.truncate {
            Truncate::Right => 0..most,
            Truncate::Left => length - most..length,
        };
        Encoding::new(
            encoding.get_ids()[kept.clone()].to_vec(),
            encoding.get_type_ids()[kept.clone()].to_vec(),
            encoding.get_tokens()[kept.clone()].to_vec(),
            encoding.get_word_ids()[kept.clone()].to_vec(),
            encoding.get_offsets()[kept.clone()].to_vec(),
            encoding.get_special_tokens_mask()[kept.clone()].to_vec(),
            encoding.get_attention_mask()[kept].to_vec(),
            Vec::new(),
            Default::default(),
        )
    }

    /// Joins a text, its pair and the tokens that the tokenizer adds.
    fn join(&self, text: FirstText, pair: Option<&str>, may_truncate: bool) -> Result<Encoding, TokenizerFault> {
        let pair_bytes = pair.map_or(0, str::len);
        self.check_bytes(text.bytes + pair_bytes)?;
        guarded(pair_bytes, || Ok(self.joined(text, pair, may_truncate)))?
    }

    fn joined(&self, text: FirstText, pair: Option<&str>, may_truncate: bool) -> Result<Encoding, TokenizerFault> {
        let FirstText { encoding: mut first, tokens: of_first, .. } = text;
        let mut second = pair.map(|pair| self.plain(pair)).transpose().map_err(failed)?;
        let added = self.added(pair.is_some());
        let of_second = second.as_ref().map_or(0, Encoding::len);
        let (tokens, most) = (added + of_first + of_second, self.options.max_tokens);
        if tokens > most {
            if !may_truncate {
                return Err(TokenizerFault::TooManyTokens { most, tokens });
            }
            let (most_of_first, most_of_second) = kept(of_first, of_second, most.saturating_sub(added));
            first = self.cut(first, most_of_first);
            second = second.map(|second| self.cut(second, most_of_second));
        }
        if let Some(second) = &mut second {
            // Post-processors set others, where there are any.
            second.set_type_ids(vec![1; second.len()]);
        }
        self.tokenizer.post_process(first, second, true).map_err(failed)
    }
}

/// Returns how many tokens of two texts stay where they have more than `most` together: the shorter one loses some only
/// if it has more than half of them.
fn kept(first: usize, second: usize, most: usize) -> (usize, usize) {
    let of_shorter = first.min(second).min(most / 2);
    let of_longer = most - of_shorter;
    if first > second { (of_longer, of_shorter) } else { (of_shorter, of_longer) }
}

/// Calls the library for a text of `bytes` bytes. It may panic on files that its own writer never makes.
fn guarded<T>(bytes: usize, call: impl FnOnce() -> tokenizers::Result<T>) -> Result<T, TokenizerFault> {
    allowance::begin(bytes);
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(done) => done.map_err(failed),
        Err(payload) => Err(match payload.downcast::<Refusal>() {
            Ok(refusal) => (*refusal).into(),
            Err(_) => TokenizerFault::Failed("it is inconsistent".to_owned()),
        }),
    }
}

fn failed(fault: tokenizers::Error) -> TokenizerFault {
    match fault.downcast::<Refusal>() {
        Ok(refusal) => (*refusal).into(),
        Err(fault) => TokenizerFault::Failed(fault.to_string()),
    }
}

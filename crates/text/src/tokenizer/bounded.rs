//! What a `tokenizer.json` may make of a text. Its steps are those of the library; each runs only where what it makes
//! has a bound, so a file that multiplies texts is refused and takes no memory.

use std::panic::resume_unwind;

use base64::{Engine, engine::general_purpose::STANDARD};
use serde::{Deserialize, Deserializer, de::Error};
use serde_json::Value;
use tokenizers::{
    Decoder, DecoderWrapper, ModelWrapper, NormalizedString, Normalizer, NormalizerWrapper, PostProcessor,
    PostProcessorWrapper, PreTokenizerWrapper,
    models::{bpe::BPE, wordpiece::WordPiece},
    normalizers::{Lowercase, Precompiled},
};

use super::{
    allowance::{self, Refusal},
    extent::{Extent, File},
};

/// Most bytes that a text becomes, for each of its own. Three are usual: a space becomes U+2581.
const MOST_GROWTH: usize = 8;

/// The bytes that a text may become however short it is.
const SHORT_BYTES: usize = 8 << 10;

/// Longest token of a vocabulary, in bytes: that of GPT-NeoX has 1024. The library keeps the tokens of some models in
/// trees, whose depth is their length.
const MOST_TOKEN_BYTES: usize = 4 << 10;

/// Most values in the description of a model: the largest vocabularies have a million tokens, and as many merges.
const MOST_MODEL_VALUES: usize = 8 << 20;

/// Most values in the description of another part. A list of steps has some hundreds, and an added token has eight.
const MOST_VALUES: usize = 1 << 19;

/// Most objects in the description of steps: there are some dozens.
const MOST_OBJECTS: usize = 256;

/// Most pre-tokenizers that write other characters. One or two are usual, and each may double a text.
const MOST_WRITING: usize = 2;

/// Most tokens that a post-processor adds to a text or a pair: there are two or three, or a prompt of some hundreds.
const MOST_ADDED: usize = 1024;

/// Most bytes of all texts in the description of a post-processor: the names of its tokens.
const MOST_POST_PROCESSOR_BYTES: usize = 64 << 10;

/// Longest name that tokens have for another reason than their text: that of the unknown token, or a mark of parts.
const MOST_NAME_BYTES: usize = 64;

/// Longest word that WordPiece may divide, in characters; 100 is usual. The time grows with its cube.
const MOST_WORD_CHARS: usize = 1000;

/// Says what in a file is larger than any of the library's writer.
///
/// # Errors
/// Names the part, or says why the file is not JSON.
pub(super) fn check(json: &[u8]) -> Result<(), String> {
    let file: File = serde_json::from_slice(json).map_err(|fault| fault.to_string())?;
    for (name, Extent { longest, .. }) in [("model", file.model), ("added_tokens", file.added_tokens)] {
        if longest > MOST_TOKEN_BYTES {
            return Err(format!("expected tokens of at most {MOST_TOKEN_BYTES} bytes, but '{name}' has {longest}"));
        }
    }
    if file.model.values > MOST_MODEL_VALUES {
        return Err(too_many("values", MOST_MODEL_VALUES, "model", file.model.values));
    }
    let steps = [
        ("normalizer", file.normalizer),
        ("pre_tokenizer", file.pre_tokenizer),
        ("post_processor", file.post_processor),
        ("decoder", file.decoder),
    ];
    for (name, Extent { values, .. }) in steps.into_iter().chain([("added_tokens", file.added_tokens)]) {
        if values > MOST_VALUES {
            return Err(too_many("values", MOST_VALUES, name, values));
        }
    }
    for (name, Extent { objects, .. }) in steps {
        if objects > MOST_OBJECTS {
            return Err(too_many("objects", MOST_OBJECTS, name, objects));
        }
    }
    if file.post_processor.bytes > MOST_POST_PROCESSOR_BYTES {
        return Err(too_many("bytes", MOST_POST_PROCESSOR_BYTES, "post_processor", file.post_processor.bytes));
    }
    Ok(())
}

fn too_many(what: &str, most: usize, part: &str, found: usize) -> String {
    format!("expected at most {most} {what} in '{part}', but found {found}")
}

/// Refuses a model that takes very long for a word, or has long names for short parts of it.
pub(super) fn check_model(model: &ModelWrapper) -> Result<(), String> {
    let most_chars = longest_divided_word(model).unwrap_or(0);
    if most_chars > MOST_WORD_CHARS {
        return Err(format!(
            "expected max_input_chars_per_word to be at most {MOST_WORD_CHARS}, but found {most_chars}"
        ));
    }
    let names: [Option<&String>; 3] = match model {
        ModelWrapper::BPE(BPE { unk_token, continuing_subword_prefix, end_of_word_suffix, .. }) => {
            [unk_token.as_ref(), continuing_subword_prefix.as_ref(), end_of_word_suffix.as_ref()]
        }
        ModelWrapper::WordPiece(WordPiece { unk_token, continuing_subword_prefix, .. }) => {
            [Some(unk_token), Some(continuing_subword_prefix), None]
        }
        ModelWrapper::WordLevel(model) => [Some(&model.unk_token), None, None],
        // Its tokens are parts of the text.
        ModelWrapper::Unigram(_) => [None; 3],
    };
    match names.into_iter().flatten().map(String::len).find(|&bytes| bytes > MOST_NAME_BYTES) {
        Some(found) => Err(format!(
            "expected the unknown token and the marks of parts of words to have at most {MOST_NAME_BYTES} bytes, but \
             found {found}"
        )),
        None => Ok(()),
    }
}

/// Returns the longest word, in characters, for which a model takes time that grows with its square and more.
pub(super) fn longest_divided_word(model: &ModelWrapper) -> Option<usize> {
    match model {
        ModelWrapper::WordPiece(model) => Some(model.max_input_chars_per_word),
        _ => None,
    }
}

/// Refuses pre-tokenizers that may multiply texts.
pub(super) fn check_pre_tokenizer(pre_tokenizer: &PreTokenizerWrapper) -> Result<(), String> {
    let count = writing(pre_tokenizer);
    if count <= MOST_WRITING {
        return Ok(());
    }
    Err(format!(
        "expected at most {MOST_WRITING} pre-tokenizers of the types ByteLevel and Metaspace, but found {count}"
    ))
}

fn writing(pre_tokenizer: &PreTokenizerWrapper) -> usize {
    match pre_tokenizer {
        PreTokenizerWrapper::ByteLevel(_) | PreTokenizerWrapper::Metaspace(_) => 1,
        PreTokenizerWrapper::Sequence(sequence) => sequence.as_ref().iter().map(writing).sum(),
        _ => 0,
    }
}

/// Refuses templates in which a text is more than once, and those that add many tokens.
pub(super) fn check_post_processor(post_processor: &PostProcessorWrapper) -> Result<(), String> {
    let added = post_processor.added_tokens(false).max(post_processor.added_tokens(true));
    if added > MOST_ADDED {
        return Err(format!("expected a post_processor that adds at most {MOST_ADDED} tokens, but it adds {added}"));
    }
    let value = serde_json::to_value(post_processor).map_err(|fault| fault.to_string())?;
    if repeats(&value) { Err("its post_processor repeats texts".to_owned()) } else { Ok(()) }
}

fn repeats(value: &Value) -> bool {
    match value {
        Value::Object(map) => map.values().any(repeats),
        Value::Array(list) => {
            let texts: Vec<&Value> = list.iter().filter_map(|piece| piece.get("Sequence")?.get("id")).collect();
            let is_twice = |(at, id): (usize, &&Value)| texts[..at].contains(id);
            texts.iter().enumerate().any(is_twice) || list.iter().any(repeats)
        }
        _ => false,
    }
}

/// The most bytes that a step makes of `bytes`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Growth {
    times: usize,
    more: usize,
}

impl Growth {
    /// Of a step of the library's own: at most 11 times as much, and only of characters such as U+FDFA, so what it made
    /// is checked.
    const KNOWN: Self = Self { times: 1, more: 0 };

    /// Of replacing what a pattern finds: it may find nothing between any two bytes.
    fn of_replacing(content: &str) -> Self {
        Self { times: 1 + content.len(), more: content.len() }
    }

    fn made(self, bytes: usize) -> usize {
        bytes.saturating_mul(self.times).saturating_add(self.more)
    }
}

fn check_made(made: usize, most: usize) -> Result<(), Refusal> {
    if made > most { Err(Refusal { what: "bytes", made, most }) } else { Ok(()) }
}

/// The most bytes that all steps together may make of `bytes`.
fn most(bytes: usize) -> usize {
    bytes.saturating_mul(MOST_GROWTH).saturating_add(SHORT_BYTES)
}

/// Normalizers, one after the other.
#[derive(Clone, Debug, Default)]
pub(super) struct Normalizers(Vec<(NormalizerWrapper, Growth)>);

impl Normalizers {
    /// Lowercases first, as sentence-transformers does, unless a step does so already.
    pub(super) fn lowercased(mut self) -> Self {
        if !self.0.iter().any(|(step, _)| matches!(step, NormalizerWrapper::Lowercase(_))) {
            self.0.insert(0, (NormalizerWrapper::Lowercase(Lowercase), Growth::KNOWN));
        }
        self
    }
}

impl<'de> Deserialize<'de> for Normalizers {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(deserializer)?;
        check_maps(&value).map_err(D::Error::custom)?;
        let mut steps = Vec::new();
        let whole = NormalizerWrapper::deserialize(value).map_err(D::Error::custom)?;
        flatten(whole, &mut steps).map_err(D::Error::custom)?;
        Ok(Self(steps))
    }
}

/// The key of a map of characters of SentencePiece.
const MAP: &str = "precompiled_charsmap";

/// Checks the maps of characters in a description: the library believes the size of their trees.
fn check_maps(value: &Value) -> Result<(), String> {
    match value {
        Value::Object(map) => {
            map.get(MAP).and_then(Value::as_str).map_or(Ok(0), longest_entry)?;
            map.values().try_for_each(check_maps)
        }
        Value::Array(list) => list.iter().try_for_each(check_maps),
        _ => Ok(()),
    }
}

/// Returns the bytes of the longest text in a map of SentencePiece, which is base64: the size of its tree in 4 bytes,
/// the tree, and texts that end with 0.
fn longest_entry(map: &str) -> Result<usize, String> {
    let wrong = || format!("'{MAP}' cannot be read");
    let map = STANDARD.decode(map).map_err(|_| wrong())?;
    let (size, behind) = map.split_first_chunk().ok_or_else(wrong)?;
    let texts = behind.get(u32::from_le_bytes(*size) as usize..).ok_or_else(wrong)?;
    Ok(texts.split(|byte| *byte == 0).map(<[u8]>::len).max().unwrap_or_default())
}

fn flatten(normalizer: NormalizerWrapper, steps: &mut Vec<(NormalizerWrapper, Growth)>) -> Result<(), String> {
    let growth = match &normalizer {
        NormalizerWrapper::Sequence(_) => {
            let NormalizerWrapper::Sequence(sequence) = normalizer else { return Ok(()) };
            return sequence.into_iter().try_for_each(|one| flatten(one, steps));
        }
        NormalizerWrapper::Replace(replace) => Growth::of_replacing(&replace.content),
        NormalizerWrapper::Prepend(prepend) => Growth { times: 1, more: prepend.prepend.len() },
        NormalizerWrapper::Precompiled(map) => {
            let value = serde_json::to_value(map).map_err(|fault| fault.to_string())?;
            let longest = value.get(MAP).and_then(Value::as_str).map_or(Ok(0), longest_entry)?;
            Growth { times: longest.max(1), more: 0 }
        }
        _ => Growth::KNOWN,
    };
    steps.push((normalizer, growth));
    Ok(())
}

/// Returns the most bytes that a step makes of a text.
fn made(step: &NormalizerWrapper, growth: Growth, text: &str, most: usize) -> usize {
    let made = growth.made(text.len());
    match step {
        // The longest text of a map is much longer than most.
        NormalizerWrapper::Precompiled(map) if made > most => mapped(map, text),
        _ => made,
    }
}

/// Returns the most bytes that a map makes of a text. Of a group of characters with less than six bytes, or of a
/// character, the library looks up the shortest beginning that has an entry.
fn mapped(map: &Precompiled, text: &str) -> usize {
    let of_character = |(at, character): (usize, char)| {
        let stop = (at + 5).min(text.len());
        let stop = (at..=stop).rev().find(|&stop| text.is_char_boundary(stop)).unwrap_or(at);
        map.transform(&text[at..stop]).map_or(0, str::len).max(character.len_utf8())
    };
    text.char_indices().map(of_character).fold(0, usize::saturating_add)
}

impl Normalizer for Normalizers {
    /// Unwinds with a [`Refusal`] from a step that makes too much: the library ignores errors here, and would go on
    /// with a text that is normalized in part.
    fn normalize(&self, text: &mut NormalizedString) -> tokenizers::Result<()> {
        let most = most(text.get().len());
        let or_unwind =
            |checked: Result<(), Refusal>| checked.unwrap_or_else(|refusal| resume_unwind(Box::new(refusal)));
        for (step, growth) in &self.0 {
            or_unwind(check_made(made(step, *growth, text.get(), most), most));
            step.normalize(text)?;
            or_unwind(check_made(text.get().len(), most));
        }
        or_unwind(allowance::normalized(text.get()));
        Ok(())
    }
}

/// Decoders, one after the other.
#[derive(Debug)]
pub(super) struct Decoders(DecoderWrapper);

impl<'de> Deserialize<'de> for Decoders {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        DecoderWrapper::deserialize(deserializer).map(Self)
    }
}

impl Decoder for Decoders {
    fn decode_chain(&self, tokens: Vec<String>) -> tokenizers::Result<Vec<String>> {
        let most = most(bytes_of(&tokens));
        decode(&self.0, tokens, most)
    }
}

fn decode(decoder: &DecoderWrapper, tokens: Vec<String>, most: usize) -> tokenizers::Result<Vec<String>> {
    let growth = match decoder {
        DecoderWrapper::Sequence(sequence) => {
            return sequence.get_decoders().iter().try_fold(tokens, |tokens, one| decode(one, tokens, most));
        }
        DecoderWrapper::Replace(replace) => Growth::of_replacing(&replace.content),
        _ => Growth::KNOWN,
    };
    check_made(growth.made(bytes_of(&tokens)), most)?;
    let decoded = decoder.decode_chain(tokens)?;
    check_made(bytes_of(&decoded), most)?;
    Ok(decoded)
}

/// Counts a byte more for each token: a decoder may write something for an empty one.
fn bytes_of(tokens: &[String]) -> usize {
    tokens.iter().map(|token| token.len() + 1).sum()
}

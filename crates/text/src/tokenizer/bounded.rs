//! What a `tokenizer.json` may make of a text. Its steps are those of the library; each runs only where what it makes
//! has a bound, so a file that multiplies texts is refused and takes no memory.

use std::{fmt, panic::resume_unwind};

use base64::{Engine, engine::general_purpose::STANDARD};
use serde::{
    Deserialize, Deserializer,
    de::{Error, MapAccess, SeqAccess, Visitor},
};
use tokenizers::{
    Decoder, DecoderWrapper, NormalizedString, Normalizer, NormalizerWrapper, PreTokenizerWrapper,
    normalizers::Precompiled,
};

/// Most bytes that a text becomes, for each of its own. The characters of NFKC become at most 11 times as long.
const MOST_GROWTH: usize = 64;

/// The bytes that a text may become however short it is.
const SHORT_BYTES: usize = 64 << 10;

/// Longest token of a vocabulary, in bytes. The library keeps the tokens of some in trees, whose depth is their length.
const MOST_TOKEN_BYTES: usize = 1 << 10;

/// Most objects in the description of a step: a list of steps has some dozens.
const MOST_OBJECTS: usize = 256;

/// Most pre-tokenizers that write bytes as characters. One is usual, and each may double a text.
const MOST_BYTE_LEVELS: usize = 2;

/// Says what in a file is larger than any of the library's writer.
///
/// # Errors
/// Names the part, or says why the file is not JSON.
pub(super) fn check(json: &[u8]) -> Result<(), String> {
    let file: File = serde_json::from_slice(json).map_err(|fault| fault.to_string())?;
    if file.model.longest > MOST_TOKEN_BYTES {
        let longest = file.model.longest;
        return Err(format!("expected tokens of at most {MOST_TOKEN_BYTES} bytes, but its model has {longest}"));
    }
    let steps = [
        ("normalizer", file.normalizer),
        ("pre_tokenizer", file.pre_tokenizer),
        ("post_processor", file.post_processor),
        ("decoder", file.decoder),
    ];
    for (name, Extent { objects, .. }) in steps {
        if objects > MOST_OBJECTS {
            return Err(format!("expected at most {MOST_OBJECTS} objects in '{name}', but found {objects}"));
        }
    }
    Ok(())
}

/// Refuses pre-tokenizers that may multiply texts.
pub(super) fn check_pre_tokenizer(pre_tokenizer: &PreTokenizerWrapper) -> Result<(), String> {
    let count = byte_levels(pre_tokenizer);
    if count <= MOST_BYTE_LEVELS {
        return Ok(());
    }
    Err(format!("expected at most {MOST_BYTE_LEVELS} pre-tokenizers of the type ByteLevel, but found {count}"))
}

fn byte_levels(pre_tokenizer: &PreTokenizerWrapper) -> usize {
    match pre_tokenizer {
        PreTokenizerWrapper::ByteLevel(_) => 1,
        PreTokenizerWrapper::Sequence(sequence) => sequence.as_ref().iter().map(byte_levels).sum(),
        _ => 0,
    }
}

/// The parts of a file, by how large they are.
#[derive(Default, Deserialize)]
#[serde(default)]
struct File {
    model: Extent,
    normalizer: Extent,
    pre_tokenizer: Extent,
    post_processor: Extent,
    decoder: Extent,
}

/// How large a value of JSON is, which is not built.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Extent {
    /// Bytes of the longest text.
    longest: usize,
    objects: usize,
}

impl Extent {
    fn with(self, other: Self) -> Self {
        Self { longest: self.longest.max(other.longest), objects: self.objects + other.objects }
    }
}

impl<'de> Deserialize<'de> for Extent {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ExtentVisitor)
    }
}

struct ExtentVisitor;

impl<'de> Visitor<'de> for ExtentVisitor {
    type Value = Extent;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Extent, E> {
        Ok(Extent::default())
    }

    fn visit_bool<E>(self, _: bool) -> Result<Extent, E> {
        Ok(Extent::default())
    }

    fn visit_i64<E>(self, _: i64) -> Result<Extent, E> {
        Ok(Extent::default())
    }

    fn visit_u64<E>(self, _: u64) -> Result<Extent, E> {
        Ok(Extent::default())
    }

    fn visit_f64<E>(self, _: f64) -> Result<Extent, E> {
        Ok(Extent::default())
    }

    fn visit_str<E>(self, text: &str) -> Result<Extent, E> {
        Ok(Extent { longest: text.len(), objects: 0 })
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Extent, A::Error> {
        let mut all = Extent::default();
        while let Some(one) = list.next_element()? {
            all = all.with(one);
        }
        Ok(all)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Extent, A::Error> {
        let mut all = Extent { longest: 0, objects: 1 };
        while let Some((key, value)) = map.next_entry::<Extent, Extent>()? {
            all = all.with(key).with(value);
        }
        Ok(all)
    }
}

/// The most bytes that a step makes of `bytes`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Growth {
    times: usize,
    more: usize,
}

impl Growth {
    fn by(times: usize) -> Self {
        Self { times, more: 0 }
    }

    /// Of replacing what a pattern finds: it may find nothing between any two bytes.
    fn of_replacing(content: &str) -> Self {
        Self { times: 1 + content.len(), more: content.len() }
    }

    fn check(self, bytes: usize, most: usize) -> Result<(), Refusal> {
        let made = bytes.saturating_mul(self.times).saturating_add(self.more);
        if made > most { Err(Refusal { made, most }) } else { Ok(()) }
    }
}

/// A step does not run.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("a step may make {made} bytes of a text, and at most {most} are allowed")]
pub(super) struct Refusal {
    made: usize,
    most: usize,
}

/// The most bytes that all steps together may make of `bytes`.
fn most(bytes: usize) -> usize {
    bytes.saturating_mul(MOST_GROWTH).saturating_add(SHORT_BYTES)
}

/// Normalizers, one after the other.
#[derive(Debug)]
pub(super) struct Normalizers(Vec<(NormalizerWrapper, Growth)>);

impl<'de> Deserialize<'de> for Normalizers {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut steps = Vec::new();
        flatten(NormalizerWrapper::deserialize(deserializer)?, &mut steps).map_err(D::Error::custom)?;
        Ok(Self(steps))
    }
}

fn flatten(normalizer: NormalizerWrapper, steps: &mut Vec<(NormalizerWrapper, Growth)>) -> Result<(), String> {
    let growth = match &normalizer {
        NormalizerWrapper::Sequence(_) => {
            let NormalizerWrapper::Sequence(sequence) = normalizer else { return Ok(()) };
            return sequence.into_iter().try_for_each(|one| flatten(one, steps));
        }
        NormalizerWrapper::Replace(replace) => Growth::of_replacing(&replace.content),
        NormalizerWrapper::Prepend(prepend) => Growth { times: 1, more: prepend.prepend.len() },
        NormalizerWrapper::Precompiled(precompiled) => Growth::by(longest_entry(precompiled)?.max(1)),
        // U+FDFA becomes 33 bytes of 3.
        NormalizerWrapper::NFKC(_) | NormalizerWrapper::NFKD(_) => Growth::by(11),
        // The decomposed characters, with spaces around those of Chinese.
        NormalizerWrapper::BertNormalizer(_) => Growth::by(8),
        _ => Growth::by(4),
    };
    steps.push((normalizer, growth));
    Ok(())
}

/// Returns the bytes of the longest text in a map of SentencePiece: the size of its tree in 4 bytes, the tree, and
/// texts that end with 0.
fn longest_entry(precompiled: &Precompiled) -> Result<usize, String> {
    #[derive(Deserialize)]
    struct Map {
        precompiled_charsmap: String,
    }
    let wrong = || "its map of characters cannot be read".to_owned();
    let value = serde_json::to_value(precompiled).map_err(|_| wrong())?;
    let map: Map = serde_json::from_value(value).map_err(|_| wrong())?;
    let map = STANDARD.decode(map.precompiled_charsmap).map_err(|_| wrong())?;
    let (size, behind) = map.split_first_chunk().ok_or_else(wrong)?;
    let texts = behind.get(u32::from_le_bytes(*size) as usize..).ok_or_else(wrong)?;
    Ok(texts.split(|byte| *byte == 0).map(<[u8]>::len).max().unwrap_or_default())
}

impl Normalizer for Normalizers {
    /// Unwinds with a [`Refusal`] from a step that may make too much: the library ignores errors here, and would go on
    /// with a text that is normalized in part.
    fn normalize(&self, text: &mut NormalizedString) -> tokenizers::Result<()> {
        let most = most(text.get().len());
        for (step, growth) in &self.0 {
            if let Err(refusal) = growth.check(text.get().len(), most) {
                resume_unwind(Box::new(refusal));
            }
            step.normalize(text)?;
        }
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
        // Bytes that are no text become a character of 3.
        _ => Growth::by(4),
    };
    growth.check(bytes_of(&tokens), most)?;
    decoder.decode_chain(tokens)
}

/// Counts a byte more for each token: a decoder may write something for an empty one.
fn bytes_of(tokens: &[String]) -> usize {
    tokens.iter().map(|token| token.len() + 1).sum()
}

//! How a decoder generates tokens: its configuration, and what the files beside it say.

use std::path::Path;

use serde::Deserialize;

use super::{
    Generation,
    bounded_file::read_up_to,
    config::{model::Generate, settings::OwnSettings},
};
use crate::onnx::{Signature, decoder};

/// Default maximum tokens of an answer.
const DEFAULT_MAX_TOKENS: u64 = 256;
/// Default maximum tokens of a prompt and its answer where nothing says how many positions there are.
const DEFAULT_MAX_LENGTH: u64 = 4096;
/// Maximum of that.
const MAX_LENGTH: u64 = 1 << 20;
/// Files that describe a decoder, in the order in which they count.
const FILES: [&str; 2] = [GENERATION, CONFIG];
const GENERATION: &str = "generation_config.json";
const CONFIG: &str = "config.json";
/// Largest of these files, in bytes.
const MAX_FILE_BYTES: u64 = 4 << 20;

/// What exporters say of a decoder.
#[derive(Default, Deserialize)]
struct Description {
    #[serde(default)]
    architectures: Vec<String>,
    eos_token_id: Option<Ends>,
    #[serde(alias = "n_positions", alias = "max_sequence_length")]
    max_position_embeddings: Option<u64>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Ends {
    One(i64),
    Some(Vec<i64>),
}

/// Returns whether the files in a model's directory describe a decoder that generates tokens.
pub(super) fn is_described(directory: &Path) -> bool {
    let description = || read(directory, CONFIG).unwrap_or_default();
    let generates = |name: &String| name.ends_with("ForCausalLM") || name.ends_with("LMHeadModel");
    directory.join(GENERATION).is_file() || description().architectures.iter().any(generates)
}

/// Returns whether a program is a decoder, and the files in the model's directory say that it generates tokens. Vectors
/// of texts are made by graphs of the same architectures.
pub(super) fn generates(directory: &Path, program: &Path) -> bool {
    let is_decoder = || Signature::read(program).is_ok_and(|read| decoder::tokens_of(&read.inputs).is_some());
    is_described(directory) && is_decoder()
}

/// Returns how a decoder generates tokens.
///
/// # Errors
/// If a file in its directory cannot be read.
pub(super) fn generation(
    own: &OwnSettings,
    section: &Generate,
    directory: Option<&Path>,
) -> Result<Generation, String> {
    let described = match directory {
        Some(directory) => FILES.into_iter().map(|file| read(directory, file)).collect::<Result<Vec<_>, _>>()?,
        None => Vec::new(),
    };
    let (mut ends, mut positions) = (None, None);
    for file in described {
        ends = ends.or(file.eos_token_id);
        positions = positions.or(file.max_position_embeddings);
    }
    let given = section.end_tokens.as_ref().map(|tokens| tokens.iter().map(|token| token.0).collect());
    let described = || match ends {
        Some(Ends::One(end)) => vec![end],
        Some(Ends::Some(ends)) => ends,
        None => Vec::new(),
    };
    let max_length = section.max_length.map(|length| u64::from(length.0)).or(positions).unwrap_or(DEFAULT_MAX_LENGTH);
    Ok(Generation {
        max_tokens: section.max_tokens.map_or(DEFAULT_MAX_TOKENS, |tokens| u64::from(tokens.0)),
        max_length: max_length.clamp(2, MAX_LENGTH),
        ends: given.unwrap_or_else(described),
        has_slots: own.batching.cellular.as_ref().is_some_and(|section| section.slots.is_some()),
    })
}

/// Reads a file; a missing one says nothing.
fn read(directory: &Path, file: &str) -> Result<Description, String> {
    let path = directory.join(file);
    if !path.is_file() {
        return Ok(Description::default());
    }
    let text = read_up_to(&path, MAX_FILE_BYTES)?;
    serde_json::from_slice(&text).map_err(|fault| format!("cannot read {}: {fault}", path.display()))
}

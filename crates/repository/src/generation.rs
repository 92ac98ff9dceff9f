//! How a decoder generates tokens: its configuration, and what the files beside it say.

use std::path::Path;

use paternoster_config::{
    generate::{MAX_ENDS, too_many_ends},
    settings::OwnSettings,
};
use paternoster_onnx::{Signature, decoder};
use serde_json::Value;

use super::{Generation, LoadError, bounded_file::read_up_to, load_error::cannot_read};

/// Default maximum tokens of a response.
const DEFAULT_MAX_TOKENS: u64 = 256;
/// Default maximum tokens of a prompt and its response where nothing says how many positions there are.
const DEFAULT_MAX_LENGTH: u64 = 4096;
/// Maximum of that.
const MAX_LENGTH: u64 = 1 << 20;
/// Stands for no token where a file names the tokens that end a response.
const NO_TOKEN: i64 = -1;
/// What exporters write beside a decoder.
pub(super) const GENERATION: &str = "generation_config.json";
/// What Hugging Face describes a model in.
pub(super) const DESCRIPTION: &str = "config.json";
/// What sentence-transformers describes the steps of a model in.
const MODULES: &str = "modules.json";
/// Largest of these files, in bytes.
const MAX_FILE_BYTES: u64 = 4 << 20;
/// The number of positions, by the names that architectures give it.
const POSITIONS: [&str; 4] = ["max_position_embeddings", "n_positions", "max_seq_len", "seq_length"];

/// Returns whether the files in a model's directory describe a decoder that generates tokens.
pub(super) fn is_described(directory: &Path) -> bool {
    let architectures = || read(directory, DESCRIPTION).ok()?.get("architectures")?.as_array().cloned();
    let generates =
        |name: &Value| name.as_str().is_some_and(|name| name.ends_with("ForCausalLM") || name.ends_with("LMHeadModel"));
    directory.join(GENERATION).is_file() || architectures().is_some_and(|names| names.iter().any(generates))
}

/// Returns the task for which a model is exported, as exporters name it, by its architecture.
pub(super) fn export_task(directory: &Path) -> &'static str {
    const TASKS: [(&str, &str); 6] = [
        ("ForCausalLM", "text-generation-with-past"),
        ("LMHeadModel", "text-generation-with-past"),
        ("ForSequenceClassification", "text-classification"),
        ("ForTokenClassification", "token-classification"),
        ("ForImageClassification", "image-classification"),
        ("ForObjectDetection", "object-detection"),
    ];
    let described = read(directory, DESCRIPTION).unwrap_or_default();
    let named = described["architectures"][0].as_str().unwrap_or_default();
    TASKS.iter().find(|(ending, _)| named.ends_with(ending)).map_or("feature-extraction", |(_, task)| task)
}

/// Returns whether sentence-transformers describes how the states of tokens become a vector.
fn pools(directory: &Path) -> bool {
    let is_pooling = |module: &Value| {
        let kind = module.get("type").and_then(Value::as_str);
        kind.is_some_and(|kind| kind.rsplit('.').next() == Some("Pooling"))
    };
    let modules = read(directory, MODULES);
    modules.is_ok_and(|modules| modules.as_array().is_some_and(|modules| modules.iter().any(is_pooling)))
}

/// Returns whether a program is a decoder, and the files in the model's directory say that it generates tokens. Vectors
/// of texts are made by graphs of the same architectures, with the same files.
pub(super) fn generates(directory: &Path, program: &Path) -> bool {
    let is_decoder = || Signature::read(program).is_ok_and(|read| decoder::tokens_of(&read.inputs).is_some());
    is_described(directory) && !pools(directory) && is_decoder()
}

/// Returns how a decoder generates tokens; `None` if it does not. Files in its directory are read only for what the
/// configuration leaves out.
///
/// # Errors
/// If a file cannot be read, or what it says cannot be followed; or if the configuration has more tokens than the model
/// has positions.
pub(super) fn generation(own: &OwnSettings, directory: Option<&Path>) -> Result<Option<Generation>, LoadError> {
    let Some(section) = &own.generate else { return Ok(None) };
    let file = |name: &str| directory.map_or(Ok(Value::Null), |directory| read(directory, name));
    let ends_in = |name: &str| ends(name, &file(name)?);
    let ends = match &section.end_tokens {
        Some(tokens) => tokens.iter().map(|token| token.0).filter(|token| *token != NO_TOKEN).collect(),
        None => match ends_in(GENERATION)? {
            Some(ends) => ends,
            None => ends_in(DESCRIPTION)?.unwrap_or_default(),
        },
    };
    let given = section.max_length.map(|length| u64::from(length.0));
    let max_length = match (given, file(DESCRIPTION).and_then(|config| positions(&config))) {
        (Some(given), Ok(Some(positions))) if given > positions => {
            return Err(LoadError::settings(format!(
                "generate.max_length: expected at most the {positions} positions of {DESCRIPTION}, but found {given}"
            )));
        }
        (Some(given), _) => given,
        (None, positions) => positions?.unwrap_or(DEFAULT_MAX_LENGTH),
    };
    Ok(Some(Generation {
        max_tokens: section.max_tokens.map_or(DEFAULT_MAX_TOKENS, |tokens| u64::from(tokens.0)),
        max_length: max_length.clamp(2, MAX_LENGTH),
        ends,
    }))
}

/// Returns the tokens that end a response, if a file has them.
fn ends(file: &str, description: &Value) -> Result<Option<Vec<i64>>, LoadError> {
    let given = description.get("eos_token_id").unwrap_or(&Value::Null);
    let tokens = match given {
        Value::Null => return Ok(None),
        Value::Array(tokens) => tokens.as_slice(),
        token => std::slice::from_ref(token),
    };
    if tokens.len() > MAX_ENDS {
        return Err(LoadError::files(format!("{file}: eos_token_id: {}", too_many_ends(tokens.len()))));
    }
    let token = |token: &Value| {
        let id = token.as_i64().filter(|id| *id >= NO_TOKEN);
        id.ok_or_else(|| {
            LoadError::files(format!(
                "{file}: eos_token_id: expected whole numbers from 0, or {NO_TOKEN} for none, but found {token}"
            ))
        })
    };
    let tokens = tokens.iter().map(token).collect::<Result<Vec<_>, _>>()?;
    Ok(Some(tokens.into_iter().filter(|token| *token != NO_TOKEN).collect()))
}

/// Returns how many positions `config.json` says that a model has.
fn positions(config: &Value) -> Result<Option<u64>, LoadError> {
    let mut given =
        POSITIONS.iter().filter_map(|name| Some((name, config.get(name).filter(|value| !value.is_null())?)));
    let Some((name, value)) = given.next() else { return Ok(None) };
    match value.as_u64() {
        Some(positions @ 2..) => Ok(Some(positions)),
        _ => {
            let message = format!("{DESCRIPTION}: {name}: expected a whole number from 2, but found {value}");
            Err(LoadError::files(message))
        }
    }
}

/// Reads a file; a missing one says nothing.
fn read(directory: &Path, file: &str) -> Result<Value, LoadError> {
    let path = directory.join(file);
    if !path.is_file() {
        return Ok(Value::Null);
    }
    let text = read_up_to(&path, MAX_FILE_BYTES)?;
    let text = text.strip_prefix("\u{feff}".as_bytes()).unwrap_or(&text);
    serde_json::from_slice(text).map_err(|fault| cannot_read(&path)(fault.into()))
}

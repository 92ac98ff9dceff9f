//! `generate`: the inputs and outputs of a decoder, and what its configuration may not have beside it.

use paternoster_model::DataType;
use paternoster_onnx::{Signature, decoder};

use super::{
    ConfigError, Origin,
    model_config::{datatype_to_pb, sequence_batching},
    pb,
    settings::Settings,
};

/// The output with the generated tokens.
pub const OUTPUT: &str = "tokens";

/// The optional input with the most tokens of a response.
pub const MAX_TOKENS: &str = "max_tokens";

/// Most tokens that end a response.
pub const MAX_ENDS: usize = 64;

/// Says that there are more than [`MAX_ENDS`].
pub fn too_many_ends(found: usize) -> String {
    format!("expected at most {MAX_ENDS} tokens, but found {found}")
}

/// Gives the configuration of a decoder its inputs and outputs.
///
/// # Errors
/// If the graph is no decoder, or the configuration has what a decoder cannot have.
pub fn complete(settings: &mut Settings, signature: &Signature, origin: &Origin) -> Result<(), ConfigError> {
    let Settings { config, own } = &mut *settings;
    let datatype = decoder::tokens_of(&signature.inputs).ok_or_else(|| {
        let message = format!(
            "expected a decoder that was exported with its past keys and values, but the graph has no inputs \
             '{}' and 'past_key_values.*'",
            decoder::TOKENS
        );
        origin.error("generate", message)
    })?;
    let ends = own.generate.as_ref().and_then(|section| section.end_tokens.as_ref()).map_or(0, Vec::len);
    origin.refuse_if(ends > MAX_ENDS, "generate.end_tokens", too_many_ends(ends))?;
    let batch =
        format!("expected 0 or 1, because each request generates by itself, but found {}", config.max_batch_size);
    origin.refuse_if(config.max_batch_size > 1, "max_batch_size", batch)?;
    let data_type = datatype_to_pb(datatype).into();
    let input = pb::ModelInput { name: decoder::TOKENS.to_owned(), data_type, dims: vec![-1], ..Default::default() };
    let output = pb::ModelOutput { name: OUTPUT.to_owned(), data_type, dims: vec![-1], ..Default::default() };
    let most = pb::ModelInput {
        name: MAX_TOKENS.to_owned(),
        data_type: datatype_to_pb(DataType::Int32).into(),
        dims: vec![1],
        optional: true,
        ..Default::default()
    };
    let (inputs, outputs) = (vec![input, most], vec![output]);
    let refused = [
        ("input", !config.input.is_empty() && config.input != inputs),
        ("output", !config.output.is_empty() && config.output != outputs),
        ("stages", own.stages.is_some()),
        ("exits", !own.exits.is_empty()),
        ("cells", !own.cells.is_empty()),
        ("unfold", !own.unfold.is_empty()),
        ("text", own.text.is_some()),
        ("sequence_batching", sequence_batching(config).is_some()),
    ];
    let refused = refused.into_iter().find_map(|(key, is_given)| is_given.then(|| key.to_owned()));
    if let Some(key) = refused {
        let message = "a decoder that generates has its own: remove this";
        return Err(origin.error(&key, message));
    }
    (config.input, config.output) = (inputs, outputs);
    Ok(())
}

//! The `config` parameter of a load request: `ModelConfig` in protobuf's JSON form.

use prost_reflect::DynamicMessage;
use serde::de::DeserializeSeed;

use super::{ConfigError, Origin, Position, bounds, parameters, pb, schema, settings::Settings};

const SOURCE: &str = "the config parameter of the load request";

/// Reads a JSON configuration; keys in snake_case or camelCase, 64-bit integers as numbers or strings.
///
/// # Errors
/// For anything but one JSON object of known keys, and for one that is too large; with line and column.
pub fn parse(text: &str) -> Result<(Settings, Origin), ConfigError> {
    let origin = Origin::new(SOURCE);
    if text.len() > bounds::MAX_TEXT_BYTES {
        return Err(origin.error("", bounds::too_large(text.len(), bounds::MAX_TEXT_BYTES)));
    }
    let refuse = |position, message| ConfigError::of_text(SOURCE, position, message);
    bounds::json(text).map_err(|excess| refuse(excess.position, excess.message))?;
    let root = schema::model_config().map_err(|fault| origin.error("", fault))?;
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let message: Result<DynamicMessage, serde_json::Error> =
        root.deserialize(&mut deserializer).and_then(|message| deserializer.end().map(|()| message));
    let message = message.map_err(|fault| {
        let position = Position { line: fault.line(), column: fault.column() };
        let mut reason = fault.to_string();
        if let Some(cut) = reason.rfind(" at line ") {
            reason.truncate(cut);
        }
        refuse((position.line > 0).then_some(position), reason)
    })?;
    let config = message.transcode_to().map_err(|fault| origin.error("", fault.to_string()))?;
    Ok((parameters::fold(config, &origin)?, origin))
}

/// Writes a configuration in the same JSON form, with the keys of `model_config.proto`.
///
/// # Errors
/// Only if the crate was built from a broken descriptor set.
pub fn write(config: &pb::ModelConfig) -> Result<serde_json::Value, ConfigError> {
    let origin = Origin::new("the configuration");
    let root = schema::model_config().map_err(|fault| origin.error("", fault))?;
    let mut message = DynamicMessage::new(root);
    message.transcode_from(config).map_err(|fault| origin.error("", fault.to_string()))?;
    let options = prost_reflect::SerializeOptions::new().use_proto_field_name(true);
    message
        .serialize_with_options(serde_json::value::Serializer, &options)
        .map_err(|fault| origin.error("", fault.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_spellings_of_keys_and_of_integers_are_read() {
        let (snake, _) = parse(r#"{"max_batch_size": 2, "input": [{"name": "x", "dims": ["16"]}]}"#).unwrap();
        let (camel, _) = parse(r#"{"maxBatchSize": 2, "input": [{"name": "x", "dims": [16]}]}"#).unwrap();
        assert_eq!(snake, camel);
        assert_eq!(snake.config.max_batch_size, 2);
        assert_eq!(snake.config.input[0].dims, [16]);
    }

    #[test]
    fn what_is_not_json_is_refused_with_its_place() {
        let error = parse("not json").unwrap_err();
        assert_eq!(error.to_string(), "the config parameter of the load request:1:2: expected ident");
        let error = parse("{\n \"max_batchsize\": 2}").unwrap_err();
        assert_eq!(error.position.map(|position| position.line), Some(2));
        assert!(error.message.contains("max_batchsize"), "names the key: {error}");
        assert!(parse("{} {}").is_err(), "one object only");
    }

    #[test]
    fn written_json_reads_back_the_same() {
        let text = r#"{"name":"m","parameters":{"pad.x":{"string_value":"n=0"}},"dynamic_batching":{}}"#;
        let (config, _) = parse(text).unwrap();
        let written = write(&config.shown()).unwrap();
        assert_eq!(parse(&written.to_string()).unwrap().0, config);
        assert_eq!(written["dynamic_batching"], serde_json::json!({}));
    }
}

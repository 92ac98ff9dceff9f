//! The `config` parameter of a load request: `ModelConfig` in the JSON form of protobuf.

use prost_reflect::{Kind, MessageDescriptor};

use super::{
    ConfigError, ConfigErrorKind, CustomPolicies, Origin, SettingError, bounds, model_config, parameters, pb,
    settings::Settings,
    tree::{self, Node, Value},
};

const SOURCE: &str = "the config parameter of the load request";

/// Reads a JSON configuration. Keys are in snake_case or camelCase, and 64-bit integers are numbers or strings.
///
/// # Errors
/// Rejects text that is too large, and anything but one JSON object of known keys; with line, column and key.
pub fn parse(text: &str) -> Result<(Settings, Origin), ConfigError> {
    parse_with(text, &CustomPolicies::default())
}

/// Reads a JSON configuration, which may name policies of other crates.
///
/// # Errors
/// As [`parse`] does.
pub fn parse_with(text: &str, policies: &CustomPolicies) -> Result<(Settings, Origin), ConfigError> {
    let refuse = |position, fault: SettingError| ConfigError::of_text(SOURCE, position, fault);
    bounds::text(text.len(), bounds::MAX_TEXT_BYTES).map_err(|fault| refuse(None, fault))?;
    let root = tree::json(text).map_err(|refusal| refuse(refusal.position, refusal.fault))?;
    let descriptor = model_config::descriptor().map_err(|fault| refuse(None, fault))?;
    let unknown = unknown_key(&root, &descriptor, "");
    let message = tree::typed(descriptor, &root);
    let mut origin = Origin::of_json(SOURCE, text, root);
    origin.refuse_duplicate_keys()?;
    if let Some(fault) = unknown {
        return Err(origin.error("", fault));
    }
    let message = message.map_err(|fault| origin.error("", fault))?;
    let config = message.transcode_to().map_err(|fault| origin.error("", fault.to_string()))?;
    Ok((parameters::fold(config, policies, &mut origin)?, origin))
}

/// Finds the first key that a message does not have.
fn unknown_key(node: &Node, message: &MessageDescriptor, path: &str) -> Option<SettingError> {
    let Value::Map(entries) = &node.value else { return None };
    entries.iter().find_map(|(name, value)| {
        let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
        let field = message.get_field_by_name(name).or_else(|| message.get_field_by_json_name(name));
        let Some(field) = field else { return Some(model_config::unknown_field(message, name, "").at(path)) };
        let Kind::Message(inner) = field.kind() else { return None };
        match &value.value {
            Value::Map(entries) if field.is_map() => {
                let Kind::Message(inner) = inner.map_entry_value_field().kind() else { return None };
                entries.iter().find_map(|(name, value)| unknown_key(value, &inner, &format!("{path}[{name}]")))
            }
            Value::List(items) => {
                let mut items = items.iter().enumerate();
                items.find_map(|(number, item)| unknown_key(item, &inner, &format!("{path}[{number}]")))
            }
            _ => unknown_key(value, &inner, &path),
        }
    })
}

/// Writes a configuration in the same JSON form, with the keys of `model_config.proto`.
///
/// # Errors
/// Fails only if the crate was built from a broken descriptor set.
pub fn write(config: &pb::ModelConfig) -> Result<serde_json::Value, ConfigError> {
    let refuse = |fault: SettingError| ConfigError::of_text("the configuration", None, fault);
    let options = prost_reflect::SerializeOptions::new().use_proto_field_name(true);
    let message = model_config::message(config).map_err(refuse)?;
    let written = message.serialize_with_options(serde_json::value::Serializer, &options);
    written.map_err(|fault| refuse(SettingError::new(ConfigErrorKind::Internal, fault.to_string())))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::{
        ConfigErrorKind::{Syntax, TooDeep, TooLarge, Unknown, Value},
        tests::refusals::{Refusals, part},
    };

    #[test]
    fn both_spellings_of_keys_and_of_integers_are_read() {
        let (snake, _) = parse(r#"{"max_batch_size": 2, "input": [{"name": "x", "dims": ["16"]}]}"#).unwrap();
        let (camel, _) = parse(r#"{"maxBatchSize": 2, "input": [{"name": "x", "dims": [16]}]}"#).unwrap();
        assert_eq!(snake, camel);
        assert_eq!(snake.config.max_batch_size, 2);
        assert_eq!(snake.config.input[0].dims, [16]);
    }

    #[test]
    fn all_of_json_is_read() {
        let (spread, _) = parse("\t{\"name\"\n:\"\\ud83d\\ude00\\u0041\\/\"\r\n}\n").expect("all of JSON is read");
        assert_eq!(spread.config.name, "\u{1f600}A/");
    }

    #[test]
    fn later_checks_find_the_place_of_a_key() {
        let text = "{\"input\": [{\"name\": \"x\",\n\"dims\": [0]}],\n\"parameters\": {\"pad\": {}}}";
        let (_, origin) = parse(text).expect("it can be read");
        let line = |path: &str| origin.error(path, "x").position.map(|place| place.line);
        assert_eq!(line("input[0].dims"), Some(2));
        assert_eq!(line("parameters[pad]"), Some(3));
        assert_eq!(origin.error("parameters[pad]", "x").key, "parameters[pad]");
        assert_eq!(line("output"), None);
    }

    pub(crate) fn refusals(all: &mut Refusals) {
        part(all, "the JSON of a load", parse).refuses(&[
            (Syntax, "1:2", "not json"),
            (Syntax, "1:4", "{} {}"),
            (Syntax, "1:2", "{name: m}"),
            (Syntax, "1:2", "{'name': \"m\"}"),
            (Syntax, "1:14", "{\"name\": \"m\",}"),
            (Syntax, "1:2", "name: m"),
            (Syntax, "1:15", "{\"name\": \"m\"} # m"),
            (Unknown, "2:2 max_batchsize", "{\n \"max_batchsize\": 2}"),
            (Unknown, "2:1 input[0].nam", "{\"input\": [{\n\"nam\": \"x\"}]}"),
            (Unknown, "2:1 parameters[a].text", "{\"parameters\": {\"a\": {\n\"text\": \"x\"}}}"),
            (Value, "2:1 input[0].name", "{\"input\": [{\n\"name\": 5}]}"),
            (Value, "2:1 name", "{\"name\": \"m\",\n\"name\": \"n\"}"),
        ]);
        all.title("the JSON of a load: bounds");
        let nested = |depth: usize| parse(&format!("{}{}", "[".repeat(depth), "]".repeat(depth)));
        all.add(Value, "", "lists within as many lists as may be", nested(bounds::MAX_DEPTH));
        all.add(TooDeep, "1:65", "lists within one list more", nested(bounds::MAX_DEPTH + 1));
        all.add(TooLarge, "1:40000", "too many values", parse(&format!("[{}0]", "0,".repeat(bounds::MAX_VALUES))));
        let key = "k".repeat(bounds::MAX_KEY_BYTES + 1);
        all.add(TooLarge, "1:17", "a long key", parse(&format!("{{\"parameters\": {{\"{key}\": {{}}}}}}")));
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

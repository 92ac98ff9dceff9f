//! The descriptor of `ModelConfig`, decoded once, by which text and JSON are read.

use std::sync::LazyLock;

use prost_reflect::{DescriptorPool, DynamicMessage, MessageDescriptor, Value};

use super::{nearest::suggestion, pb};

static MODEL_CONFIG: LazyLock<Option<MessageDescriptor>> = LazyLock::new(|| {
    let pool = DescriptorPool::decode(pb::DESCRIPTORS).ok()?;
    pool.get_message_by_name("inference.ModelConfig")
});

/// Returns the descriptor of `inference.ModelConfig`.
///
/// # Errors
/// Fails only if the crate was built from a broken descriptor set.
pub(super) fn model_config() -> Result<MessageDescriptor, &'static str> {
    MODEL_CONFIG.clone().ok_or("the compiled descriptors hold no inference.ModelConfig")
}

/// The message for a key that a message does not have; `within` says where, such as ` in input[0]`.
pub(super) fn unknown_field(message: &MessageDescriptor, name: &str, within: &str) -> String {
    let names: Vec<String> = message.fields().map(|field| field.name().to_owned()).collect();
    format!("unknown key '{name}'{within}{}", suggestion(name, names.iter().map(String::as_str)))
}

/// A field that is set, in a configuration or in one of the messages and lists within it.
#[derive(Debug)]
pub(super) struct SetField {
    /// The message and the field as `model_config.proto` names them, such as `ModelInput.format`.
    pub(super) name: String,
    /// The path, such as `input[0].format`.
    pub(super) path: String,
}

/// Converts a configuration to a message of the descriptor.
///
/// # Errors
/// Fails only if the crate was built from a broken descriptor set.
pub(super) fn message(config: &pb::ModelConfig) -> Result<DynamicMessage, String> {
    let mut message = DynamicMessage::new(model_config()?);
    message.transcode_from(config).map_err(|fault| fault.to_string())?;
    Ok(message)
}

/// Lists all fields that are set to anything but their default. Values of maps are left out.
///
/// # Errors
/// As [`message`].
pub(super) fn set_fields(config: &pb::ModelConfig) -> Result<Vec<SetField>, String> {
    let mut found = Vec::new();
    collect(&message(config)?, "", &mut found);
    Ok(found)
}

fn collect(message: &DynamicMessage, within: &str, found: &mut Vec<SetField>) {
    for (field, value) in message.fields() {
        let path = format!("{within}{}", field.name());
        match value {
            Value::Message(inner) => collect(inner, &format!("{path}."), found),
            Value::List(items) => {
                for (number, inner) in items.iter().filter_map(Value::as_message).enumerate() {
                    collect(inner, &format!("{path}[{number}]."), found);
                }
            }
            _ => {}
        }
        let name = field.full_name().trim_start_matches("inference.").to_owned();
        found.push(SetField { name, path });
    }
}

//! The descriptor of `ModelConfig`, decoded once, by which text and JSON are read.

use std::sync::LazyLock;

use prost_reflect::{DescriptorPool, MessageDescriptor};

use super::{nearest::suggestion, pb};

static MODEL_CONFIG: LazyLock<Option<MessageDescriptor>> = LazyLock::new(|| {
    let pool = DescriptorPool::decode(pb::DESCRIPTORS).ok()?;
    pool.get_message_by_name("inference.ModelConfig")
});

/// The descriptor of `inference.ModelConfig`; an error only if the crate was built from a broken descriptor set.
pub(super) fn model_config() -> Result<MessageDescriptor, &'static str> {
    MODEL_CONFIG.clone().ok_or("the compiled descriptors hold no inference.ModelConfig")
}

/// The message for a key that a message does not have; `within` says where, such as ` in input[0]`.
pub(super) fn unknown_field(message: &MessageDescriptor, name: &str, within: &str) -> String {
    let names: Vec<String> = message.fields().map(|field| field.name().to_owned()).collect();
    format!("unknown key '{name}'{within}{}", suggestion(name, names.iter().map(String::as_str)))
}

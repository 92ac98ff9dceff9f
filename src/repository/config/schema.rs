//! The descriptor of `ModelConfig`, decoded once: text and JSON are read through it.

use std::sync::LazyLock;

use prost_reflect::{DescriptorPool, MessageDescriptor};

use super::pb;

static MODEL_CONFIG: LazyLock<Option<MessageDescriptor>> = LazyLock::new(|| {
    let pool = DescriptorPool::decode(pb::DESCRIPTORS).ok()?;
    pool.get_message_by_name("inference.ModelConfig")
});

/// The descriptor of `inference.ModelConfig`; an error only if the crate was built from a broken descriptor set.
pub(super) fn model_config() -> Result<MessageDescriptor, &'static str> {
    MODEL_CONFIG.clone().ok_or("the compiled descriptors hold no inference.ModelConfig")
}

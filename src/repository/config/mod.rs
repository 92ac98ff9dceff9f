//! Model configuration: `config.pbtxt`, `model.yaml`, and completion from the graph, all ending in one
//! [`pb::ModelConfig`].

/// Messages of `model_config.proto`.
#[allow(missing_docs, clippy::doc_markdown)]
pub mod pb {
    include!(concat!(env!("OUT_DIR"), "/config/inference.rs"));

    /// The compiled descriptors of `model_config.proto`, for the text format.
    pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/model_config.bin"));
}

//! The wire: generated protobuf; tensors ⇄ raw and typed contents; errors → status. Knows nothing of a model's insides.

/// Messages and services of `grpc_service.proto`.
#[allow(missing_docs, clippy::doc_markdown, clippy::default_trait_access)]
pub mod pb {
    include!(concat!(env!("OUT_DIR"), "/service/inference.rs"));

    /// The compiled descriptors, for server reflection.
    pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/grpc_service.bin"));
}

//! The wire: everything between protobuf messages and the executor's plain types.
//!
//! Requests come in through [`decode::decode`], which checks them against a [`ModelSpec`](crate::model::ModelSpec) and
//! moves their payloads, and answers leave through [`encode::encode`] and [`stream`]. Here also live classification,
//! system shared memory, model metadata, and the one error type that becomes a gRPC status ([`status::RequestError`]).
//!
//! Here must not live: which model serves a request, when it runs, or how it travels (listeners, deadlines, metadata
//! headers). Nothing here waits, and nothing knows a model's insides.

mod classification;
pub mod decode;
pub mod encode;
mod fault;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzz;
pub mod json;
pub mod metadata;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod models;
pub mod plan;
pub mod shared_memory;
pub mod status;
pub mod stream;

#[cfg(test)]
mod tests;

pub use decode::Decoded;
pub use plan::ReplyPlan;
pub use shared_memory::SharedMemory;
pub use status::{Kind, RequestError};

/// Messages and services of `grpc_service.proto`.
#[allow(missing_docs, clippy::doc_markdown, clippy::default_trait_access)]
pub mod pb {
    include!(concat!(env!("OUT_DIR"), "/service/inference.rs"));

    /// The compiled descriptors, for server reflection.
    pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/grpc_service.bin"));
}

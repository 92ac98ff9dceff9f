//! The wire: conversion between protobuf messages and the executor's plain types. Front ends call it.
//!
//! [`decode::decode`] checks requests against a [`ModelSpec`](paternoster_model::ModelSpec) and moves their payloads;
//! [`encode::encode`] and [`stream`] build responses. This crate also has classification, system shared memory, model
//! metadata, and the error type that becomes a gRPC status ([`status::RequestError`]).
//!
//! It must not know which model serves a request, when it runs, or how it travels (listeners, deadlines, metadata
//! headers). Nothing here waits, and nothing depends on a model's internals.
#![deny(unsafe_code)]
#![warn(missing_docs)]
#![warn(clippy::disallowed_types)]

mod classification;
pub mod decode;
pub mod encode;
mod fault;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzz;
pub mod json;
mod kind;
pub mod metadata;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod models;
pub mod plan;
pub mod shared_memory;
pub mod status;
pub mod stream;

#[cfg(test)]
mod tests;

pub use kind::Kind;
pub use plan::ResponsePlan;
pub use shared_memory::SharedMemory;
pub use status::RequestError;

/// Messages and services of `grpc_service.proto`.
#[allow(missing_docs, clippy::doc_markdown, clippy::default_trait_access)]
pub mod pb {
    include!(concat!(env!("OUT_DIR"), "/inference.rs"));

    /// The compiled descriptors, for server reflection.
    pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/grpc_service.bin"));
}

//! ONNX graphs: read, write, inspect and build. Everything above may use it; it knows nothing of them.

/// Messages of `onnx.proto`.
#[allow(missing_docs, clippy::doc_markdown)]
pub mod pb {
    include!(concat!(env!("OUT_DIR"), "/onnx/onnx.rs"));
}

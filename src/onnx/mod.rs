//! ONNX graphs: read, write, inspect and build.
//!
//! [`Signature`] tells what a model file takes and gives without reading its weights. [`Model`] is a whole file in
//! memory. [`build::Graph`] writes new graphs, and [`zoo`] holds the networks that tests, examples and benchmarks run.
//! [`infer`] tells the shape of every tensor and whether its rows are apart, and [`cut`] makes stages of a graph.
//!
//! Nothing here runs a graph, and nothing here knows of requests, configurations or model directories.

mod attribute;
pub mod build;
mod check;
pub mod cut;
mod element;
mod error;
mod file;
pub mod infer;
mod links;
pub(crate) mod port;
mod read;
pub mod weights;
pub mod zoo;

pub use error::Error;
pub use file::Model;
pub use port::{Port, PortDim};
pub use read::Signature;

/// Messages of `onnx.proto`.
#[allow(missing_docs, clippy::doc_markdown)]
pub mod pb {
    include!(concat!(env!("OUT_DIR"), "/onnx/onnx.rs"));
}

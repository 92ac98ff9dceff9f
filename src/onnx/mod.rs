//! ONNX graphs: read, write, inspect and build.
//!
//! [`Signature`] tells what a model file takes and gives without reading its weights. [`Model`] is a whole file in
//! memory, and [`SealedModel`] one that an engine may open: bounded, with the files of its weights found and confined.
//! [`build::Graph`] writes new graphs, and [`zoo`] holds the networks that tests, examples and benchmarks run.
//! [`index_ranges`] tells which indices a model takes, [`infer`] the shape of every tensor and whether its rows are
//! apart, and [`cut`] makes stages of a graph.
//!
//! Nothing here runs a graph, and nothing here knows of requests, configurations or model directories.

mod attribute;
pub mod build;
mod check;
pub mod cut;
mod element;
mod error;
mod expansion;
mod external;
mod file;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzz;
mod indices;
pub mod infer;
mod links;
mod outline;
pub(crate) mod port;
mod protobuf;
mod read;
mod sealed;
mod tensors;
#[cfg(feature = "tools")]
pub mod weights;
#[cfg(feature = "tools")]
pub mod zoo;

pub use error::Error;
pub use external::{ExternalFiles, ExternalWeight};
pub use file::Model;
pub use indices::index_ranges;
pub use port::{Port, PortDim};
pub use read::Signature;
pub use sealed::SealedModel;

/// Messages of `onnx.proto`.
#[allow(missing_docs, clippy::doc_markdown)]
pub mod pb {
    include!(concat!(env!("OUT_DIR"), "/onnx/onnx.rs"));
}

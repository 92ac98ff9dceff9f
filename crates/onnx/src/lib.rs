//! Reads, writes, inspects and builds ONNX graphs.
//!
//! [`Signature`] contains the inputs and outputs of a model file, read without its weights. [`Model`] is a complete
//! file in memory, and [`SealedModel`] a model that an engine may open: of bounded size, with its weight files located
//! and confined. [`build::Graph`] writes new graphs, and [`zoo`] contains the networks for tests, examples and
//! benchmarks. [`index_ranges`] finds the valid indices of inputs, [`infer`] the shape of every tensor and its
//! dependence on rows, [`cut`] splits a graph into stages, and [`recurrent`] and [`decoder`] open recurrent layers and
//! decoders to [`segments`].
//!
//! This crate does not run graphs, and does not depend on requests, configurations or model directories.
#![deny(unsafe_code)]
#![warn(missing_docs)]
// Nothing here has a clock: the same input gives the same on every run.
#![warn(clippy::disallowed_types)]

#[cfg(all(test, not(feature = "tools")))]
compile_error!("tests run on the example networks: they need the feature 'tools'");

mod attribute;
pub mod build;
mod check;
pub mod cut;
pub mod decoder;
mod element;
mod error;
mod expansion;
mod external;
mod file;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzz;
mod indices;
pub mod infer;
mod links;
mod nodes;
mod outline;
mod port;
mod protobuf;
mod read;
pub mod recurrent;
mod sealed;
pub mod segments;
mod tensors;
#[cfg(feature = "tools")]
pub mod weights;
mod wide;
#[cfg(feature = "tools")]
pub mod zoo;

pub use error::Error;
pub use external::{ExternalFiles, ExternalWeight};
pub use file::Model;
pub use indices::index_ranges;
pub use port::{Port, PortDim};
pub use read::Signature;
pub use sealed::{SealedInput, SealedModel};
pub use wide::wide_integer;

/// Messages of `onnx.proto`.
#[allow(missing_docs, clippy::doc_markdown)]
pub mod pb {
    include!(concat!(env!("OUT_DIR"), "/onnx.rs"));
}

/// The example of the README compiles and runs.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

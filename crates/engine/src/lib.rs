//! Compiles a cell's program for a device and runs it on batches. This crate does not know requests.
//!
//! A [`Program`] is one compiled cell; [`CardProgram`] is its form on a CUDA card. [`onnxruntime`] runs any ONNX graph
//! on the CPU, and [`openvino`] most graphs, also in half precision; [`Engines`] compiles with either. [`cuda`] turns
//! graphs into plans for a card. [`Repeat`] and [`RepeatElements`] are small built-in programs that send several
//! responses per request, for tests of streaming.
#![deny(unsafe_code)]
#![warn(missing_docs)]
// Programs have no clock: the executor measures them.
#![warn(clippy::disallowed_types)]

mod batch_axes;
mod card;
pub mod cuda;
mod engines;
mod library;
pub mod onnxruntime;
pub mod openvino;
mod precision;
mod program;
mod reclaim;
mod repeat;
mod running;
mod sessions;
mod stop;
mod target;

pub use batch_axes::BatchAxes;
pub use card::{CardProgram, CardWeights, CardWorkspace, RunParameters, RunSize};
pub use engines::{Engines, OnnxEngine};
pub use library::{EngineLibrary, LibraryError};
pub use precision::Precision;
pub use program::{
    Batch, BatchInput, BatchOutput, EngineError, EngineErrorKind, Execution, Program, ProgramPort, RowDelay,
    RowFailure, TensorBatch,
};
pub use repeat::{Repeat, RepeatElements};
pub use stop::StopSignal;

/// Largest graph that counts as steady, in bytes. Larger graphs do not run in microseconds.
const SMALL_MODEL_BYTES: usize = 1 << 20;

fn available_cores() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

/// The example of the README compiles and runs.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

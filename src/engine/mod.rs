//! Compiles a cell's program for a device and runs it on batches. Knows nothing of requests.
//!
//! A [`Program`] is one compiled cell; what it is on a CUDA card, where it runs there, is a [`CardProgram`].
//! [`onnxruntime`] runs any ONNX graph on the CPU, [`openvino`] most of them, in half precision too; [`Engines`] has a
//! graph compiled by either. [`cuda`] makes plans of graphs for a card; [`Repeat`] and [`RepeatElements`] are small
//! built-in programs with many responses per request, for tests of streaming.

mod card;
pub mod cuda;
mod engines;
mod library;
pub mod onnxruntime;
pub mod openvino;
mod precision;
mod program;
mod repeat;
mod sessions;
mod stop;
mod target;

pub use card::{CardProgram, CardWeights, CardWorkspace, RunSize};
pub use engines::{Engines, OnnxEngine};
pub use library::{EngineLibrary, LibraryError};
pub use precision::Precision;
pub use program::{Batch, BatchInput, BatchOutput, EngineError, Execution, Program, ProgramPort, RowDelay, RowFailure};
pub use repeat::{Repeat, RepeatElements};
pub use stop::StopSignal;

/// Larger graphs do not count as steady; none of them runs in microseconds.
const SMALL_MODEL_BYTES: usize = 1 << 20;

fn available_cores() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

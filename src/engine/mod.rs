//! Compiles a cell's program for a device and runs it on batches. Knows nothing of requests.
//!
//! A [`Program`] is one compiled cell; what it is on a CUDA card, where it runs there, is a [`CardProgram`].
//! [`onnxruntime`] runs any ONNX graph on the CPU; [`cuda`] makes plans of graphs for a card; [`Repeat`] and
//! [`RepeatElements`] are small built-in programs with many responses per request, for tests of streaming.

mod card;
pub mod cuda;
pub mod onnxruntime;
mod precision;
mod program;
mod repeat;
mod stop;

pub use card::{CardProgram, CardWeights, CardWorkspace, RunSize};
pub use precision::Precision;
pub use program::{Batch, BatchInput, BatchOutput, EngineError, Execution, Program, ProgramPort, RowDelay, RowFailure};
pub use repeat::{Repeat, RepeatElements};
pub use stop::StopSignal;

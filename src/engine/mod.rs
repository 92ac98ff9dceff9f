//! Compiles a cell's program for a device and runs it on batches. Knows nothing of requests.
//!
//! A [`Program`] is one compiled cell. `onnxruntime` runs any ONNX graph on the CPU; `repeat` is a small built-in
//! program with many responses per request, for tests of streaming.

mod program;

pub use program::{BatchInput, BatchOutput, EngineError, Execution, Program};

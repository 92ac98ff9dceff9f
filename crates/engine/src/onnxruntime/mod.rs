//! ONNX Runtime: finds and loads the library, and compiles graphs into programs for the CPU or for its CUDA execution
//! provider.
//!
//! `unsafe` in this module is for the C API; each block states its reason. The `ort` crate creates the sessions. Runs
//! call the C API directly, because the crate's safe `run` takes `&mut Session` although ONNX Runtime allows concurrent
//! runs of one session.
#![allow(unsafe_code)]

mod arena;
mod awake;
mod compiled;
mod cuda_provider;
mod library;
mod lone_runs;
mod one_thread;
mod program;
mod session;
mod status;
mod value;
mod weights;

pub use cuda_provider::CudaProvider;
pub use library::{Runtime, RuntimeOptions, installed, refuse_telemetry};
pub use program::OnnxProgram;

//! OpenVINO on the CPU: finds and loads the library, and compiles graphs into programs, which may compute in BF16 or
//! FP16 where the processor supports it.
//!
//! `unsafe` in this module is for the C API; each block states its reason. The API is bound here function by function,
//! because a library that lacks a function must be rejected with its name rather than end the process
//! (docs/decisions/0055-openvino-is-opt-in.md).
#![allow(unsafe_code)]

mod api;
mod compiled;
mod core;
mod graph;
mod library;
mod program;
mod requests;
mod tensor;

pub use library::{OpenVino, OpenVinoOptions, installed};
pub use program::OpenVinoProgram;

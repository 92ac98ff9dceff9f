//! ONNX Runtime on the CPU: finds and loads its library, and compiles graphs into programs.
//!
//! The `unsafe` of this module is the C interface; each block gives its reason. Sessions are made by the crate `ort`;
//! runs go through the C function, because the crate's safe `run` wants `&mut Session` while ONNX Runtime allows
//! concurrent runs of one session.
#![allow(unsafe_code)]

mod arena;
mod library;
mod program;
mod sessions;
mod status;
mod value;
mod weights;

pub use library::{LibraryError, Runtime, RuntimeOptions, installed, refuse_telemetry};
pub use program::OnnxProgram;

//! ONNX Runtime: finds and loads its library, and compiles graphs into programs, which run on the CPU or on its CUDA
//! execution provider.
//!
//! The `unsafe` of this module is the C interface; each block gives its reason. Sessions are made by the crate `ort`;
//! runs go through the C function, because the crate's safe `run` wants `&mut Session` while ONNX Runtime allows
//! concurrent runs of one session.
#![allow(unsafe_code)]

mod arena;
mod cuda_provider;
mod library;
mod program;
mod status;
mod value;
mod weights;

pub use cuda_provider::CudaProvider;
pub use library::{Runtime, RuntimeOptions, installed, refuse_telemetry};
pub use program::OnnxProgram;

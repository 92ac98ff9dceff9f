//! OpenVINO on the CPU: finds and loads its library, and compiles graphs into programs that may compute in BF16 or
//! FP16, where the processor has units for it.
//!
//! The `unsafe` of this module is the C interface; each block gives its reason. The interface is bound here, function
//! by function, since a library that lacks one must be refused by name rather than end the process
//! (docs/decisions/0055-openvino-is-opt-in.md).
#![allow(unsafe_code)]

mod api;
mod library;
mod program;
mod requests;
mod tensor;

pub use library::{OpenVino, OpenVinoOptions, installed};
pub use program::OpenVinoProgram;

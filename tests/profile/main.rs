//! Profiles of small models: measured, printed, kept, and served by.
//!
//! Needs ONNX Runtime: in `ORT_DYLIB_PATH` or where `make` puts it. Without it each test says so and passes.

mod background;
mod command;
mod rig;
#[path = "../common/runtime.rs"]
mod runtime;
mod serving;
mod spans;

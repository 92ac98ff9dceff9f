//! Profiles of small models: measured, printed, stored, and used for serving.
//!
//! Needs ONNX Runtime, from `ORT_DYLIB_PATH` or where `make` puts it. Without the library each test prints a note and
//! passes.

mod background;
mod cells;
mod command;
mod operators;
mod rig;
mod serving;
mod spans;

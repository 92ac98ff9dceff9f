//! The OpenVINO engine: its programs, the pool's use of them, and comparisons with ONNX Runtime, network by network and
//! model by model.
//!
//! Answers are also compared where an engine runs in memory that earlier requests have used.
//!
//! Needs the libraries of both engines, where `make` puts them, or in `ORT_DYLIB_PATH` and `OPENVINO_DYLIB_PATH`.
//! Without them each test prints a note and passes.

mod models;
mod networks;
mod oddities;
mod programs;
mod refusals;
mod rig;
mod stain;

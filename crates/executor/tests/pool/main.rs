//! The pool with real threads: requests, stages, stopping, and ONNX Runtime below it.

mod onnxruntime;
mod requests;
mod stages;
mod stopping;

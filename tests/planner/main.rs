//! Plans of graphs for a card, on the libraries that stand in for CUDA's, compared with ONNX Runtime on the CPU.
//!
//! Each test runs in its own process, which finds the stand-in (`common/fake_cuda.rs`).

mod attention;
mod buckets;
mod compiling;
mod convolutions;
#[path = "../common/fake_control.rs"]
#[expect(dead_code, reason = "other tests use the rest")]
mod fake_control;
#[path = "../common/fake_cuda.rs"]
mod fake_cuda;
mod faults;
mod images;
mod kernels;
mod lengths;
mod loading;
mod networks;
mod operators;
mod precision;
mod resampling;
mod rig;
#[path = "../common/runtime.rs"]
mod runtime;
mod sources;

//! Plans of graphs for a card, on the libraries that stand in for CUDA's, compared with ONNX Runtime on the CPU.
//!
//! Each test runs in its own process, which finds the stand-in (`common/fake_cuda.rs`).

mod attention;
mod buckets;
mod compiling;
mod convolutions;
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
mod sources;

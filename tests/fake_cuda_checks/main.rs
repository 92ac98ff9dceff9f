//! The stand-in for CUDA's libraries, driven through cudarc as the server drives them. Each test runs in a process of
//! its own, which finds the stand-in in place of the libraries.

#[path = "../common/fake_control.rs"]
mod fake_control;
#[path = "../common/fake_cuda.rs"]
mod fake_cuda;

mod captures;
mod contexts;
mod convolution;
mod convolution_rig;
mod cudnn;
mod failures;
mod matmul;
mod memory;
mod nvrtc;
mod rig;
mod streams;

//! Checks of the stand-in for CUDA's libraries, called through cudarc as the server does. Each test runs in its own
//! process, which finds the stand-in in place of the libraries.

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

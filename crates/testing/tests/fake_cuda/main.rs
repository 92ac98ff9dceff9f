//! Checks of the stand-in for CUDA's libraries, called through cudarc as the server does. Each test runs in its own
//! process, which finds the stand-in in place of the libraries.

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

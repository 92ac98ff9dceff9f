//! A stand-in for CUDA's driver, NVML, NVRTC, cuBLASLt and cuDNN on machines without a GPU, for tests only.
//!
//! One library is linked under all of their names (`libcuda.so`, `libnvrtc.so.13`, …), so that they share one state. A
//! child process finds it by `LD_LIBRARY_PATH` (`crates/testing/src/fake_cuda.rs` builds and links it). Device memory
//! is host memory between guard zones, each stream is a thread, and NVRTC compiles kernels with `c++` against the host
//! prelude of `kernels/`. Each call checks what the real driver checks, and returns the same codes.
//!
//! | environment | meaning | default |
//! |---|---|---|
//! | `FAKE_CUDA_DEVICES` | number of devices | 1 |
//! | `FAKE_CUDA_CAPABILITY` | compute capability | 9.0 |
//! | `FAKE_CUDA_DRIVER` | version of CUDA that the driver supports | 13000 |
//! | `FAKE_CUDA_MEMORY` | bytes of memory of each device | 4 GiB |
//! | `FAKE_CUDA_CACHE` | folder for compiled kernels | `fake_cuda` in the folder for temporary files |
//! | `FAKE_CUDA_TRACE` | file to which all calls are written | none |
//! | `FAKE_CUDA_FAIL` | `name:nth:code`, as `fake_cuda_fail_calls`; several are separated by commas | none |
//!
//! Tests in the same process use the exported functions of [`control`].

// Names follow the C interfaces.
#![allow(non_snake_case)]

mod arena;
mod blaslt;
mod calls;
mod capture;
mod compiler;
mod context;
mod control;
mod convolution;
mod convolve;
mod copies;
mod cudnn;
mod descriptors;
mod device;
mod errors;
mod event;
mod gate;
mod graph;
mod guard;
mod handles;
mod image;
mod kernels;
mod matmul;
mod memory;
mod module;
mod nvml;
mod nvrtc;
mod pinned;
mod settings;
mod shared;
mod stream;
mod trace;

//! What the tests of several crates share.
//!
//! [`sim`] is a device in virtual time that detects faults which real devices hide. [`fake_cuda`] runs tests in a
//! process that finds a stand-in for CUDA's libraries (the example `fake_cuda`), and [`fake_control`] controls it from
//! there. [`program`] has programs that run a function, and gates before them. [`runs`] plays random runs, whose
//! numbers [`rng`] draws. [`runtime`] and [`openvino`] load the libraries that `make` fetches.
#![warn(missing_docs)]

pub mod chain;
pub mod fake_control;
pub mod fake_cuda;
pub mod openvino;
pub mod program;
pub mod rng;
pub mod runs;
pub mod runtime;
pub mod sim;

use std::path::PathBuf;

/// Returns the folder where `make` keeps what it fetches.
pub fn cache() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../.cache"))
}

/// The example of the README compiles and runs.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

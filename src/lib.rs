//! Paternoster: an inference server whose batches requests board and leave while they run.
//!
//! Modules are listed as data flows through them; a module imports only from modules below it (`docs/architecture.md`).
#![deny(unsafe_code)]
#![warn(missing_docs)]

#[cfg(all(test, not(feature = "tools")))]
compile_error!("tests run on the example models and with drawn loads: they need the feature 'tools'");

// What the tests of the core are made of is made anew into those of the pool, and names the crate.
#[cfg(test)]
extern crate self as paternoster;

#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;

#[cfg(feature = "tools")]
pub mod bench;
pub mod cli;
pub mod frontend;
pub mod wire;

pub mod repository;

pub mod profile;

pub mod executor;
#[cfg(feature = "tools")]
pub mod simulate;

pub mod router;

pub mod batching;
pub mod engine;

pub mod device;
pub mod model;
pub mod onnx;

pub mod observe;

pub mod budget;
#[cfg(feature = "tools")]
pub mod report;
pub mod wheels;
#[cfg(feature = "tools")]
pub mod workload;

//! Paternoster: an inference server whose batches requests board and leave while they run.
//!
//! Modules are listed as data flows through them; a module imports only from modules below it (`docs/architecture.md`).
#![deny(unsafe_code)]
#![warn(missing_docs)]
// Modules without a clock run in virtual time, and alike on every run. Those that have one say here what for.
#![warn(clippy::disallowed_types)]

#[cfg(all(test, not(feature = "tools")))]
compile_error!("tests run on the example models and with drawn loads: they need the feature 'tools'");

// What the tests of the core are made of is made again into those of the pool, and names the crate.
#[cfg(test)]
extern crate self as paternoster;

#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;

#[cfg(feature = "tools")]
#[allow(clippy::disallowed_types, reason = "it measures")]
pub mod bench;
#[allow(clippy::disallowed_types, reason = "it reports how long starting takes")]
pub mod cli;
#[allow(clippy::disallowed_types, reason = "connections and calls have deadlines")]
pub mod frontend;
pub mod wire;

#[allow(clippy::disallowed_types, reason = "loads, polls and profiles take time")]
pub mod repository;

pub mod profile;

#[allow(clippy::disallowed_types, reason = "it holds the pool's clock and timer, and measures tasks")]
pub mod executor;
#[cfg(feature = "tools")]
pub mod simulate;

#[doc(no_inline)]
pub use paternoster_batching::{self as batching, router};
pub mod engine;

#[allow(clippy::disallowed_types, reason = "streams wait until a deadline, and signals are watched")]
pub mod device;
#[doc(no_inline)]
pub use paternoster_model as model;
#[doc(no_inline)]
pub use paternoster_onnx as onnx;

#[allow(clippy::disallowed_types, reason = "latencies and traces are dated")]
pub mod observe;

#[allow(clippy::disallowed_types, reason = "it waits for room until a deadline")]
pub mod budget;
#[cfg(feature = "tools")]
pub mod report;
pub mod wheels;
#[cfg(feature = "tools")]
pub mod workload;

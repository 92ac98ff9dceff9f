//! Paternoster: an inference server whose batches requests board and leave while they run.
//!
//! The command line and the wiring; what they wire are the crates of `crates` (`docs/architecture.md`).
#![deny(unsafe_code)]
#![warn(missing_docs)]
// Modules that read a clock say here what for.
#![warn(clippy::disallowed_types)]

#[cfg(all(test, not(feature = "tools")))]
compile_error!("tests run on the example models and with drawn loads: they need the feature 'tools'");

#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;

#[allow(clippy::disallowed_types, reason = "it reports how long starting takes")]
pub mod cli;

/// The examples of the page compile.
#[cfg(doctest)]
#[doc = include_str!("../docs/adding-a-policy.md")]
struct AddingAPolicy;

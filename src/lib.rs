//! Paternoster: an inference server whose batches requests board and leave while they run.
//!
//! Modules are listed as data flows through them; a module imports only from modules below it (`docs/architecture.md`).
#![deny(unsafe_code)]
#![warn(missing_docs)]
// Modules that read a clock say here what for.
#![warn(clippy::disallowed_types)]

#[cfg(all(test, not(feature = "tools")))]
compile_error!("tests run on the example models and with drawn loads: they need the feature 'tools'");

#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;

#[cfg(feature = "tools")]
#[allow(clippy::disallowed_types, reason = "it measures")]
pub mod bench;
#[allow(clippy::disallowed_types, reason = "it reports how long starting takes")]
pub mod cli;

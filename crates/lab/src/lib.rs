//! Experiments without a server: loads, simulated devices, and reports of what was measured.
//!
//! [`workload`] has arrival times and lengths of requests, [`simulate`] runs the scheduling core over tables of devices
//! in virtual time, and [`report`] makes latency summaries, CSV files and plots.
#![deny(unsafe_code)]
#![warn(missing_docs)]
// Nothing here has a clock: the same input gives the same on every run.
#![warn(clippy::disallowed_types)]

pub mod report;
pub mod simulate;
pub mod workload;

/// The example of the README compiles and runs.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

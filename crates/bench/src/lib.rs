//! Load generation and latency measurement: what `paternoster bench` runs.
//!
//! Contains the generated requests and their reference answers ([`samples`], [`checked_requests`]), the targets
//! ([`Target`]: a model in this process, or a server over gRPC), open and closed loops ([`load`]), and comparisons of
//! several policies ([`compare`], [`local`], [`sweep`]). Output belongs to the command line, and arrival processes to
//! [`paternoster_lab::workload`].
#![deny(unsafe_code)]
#![warn(missing_docs)]

pub mod checked_requests;
pub mod compare;
mod energy;
pub mod load;
pub mod local;
mod remote;
pub mod samples;
mod sizes;
pub mod sweep;
mod target;

#[cfg(test)]
mod tests;

pub use energy::Meter;
pub use remote::{Remote, RemoteError};
pub use sizes::Sizes;
pub use target::{ResponseTensors, Target};

//! Load on a model, and what it does to latencies: what `paternoster bench` measures.
//!
//! Here live generated requests and their right answers ([`samples`], [`answers`]), what is measured ([`Target`]: a
//! model in this process, or a server over gRPC), open and closed loops ([`load`]), and runs of several policies beside
//! each other ([`compare`], [`local`], [`sweep`]). Here must not live: what is printed, and when requests arrive
//! ([`crate::workload`]).

pub mod answers;
pub mod compare;
pub mod load;
pub mod local;
mod remote;
pub mod samples;
mod sizes;
pub mod sweep;
mod target;

#[cfg(test)]
mod tests;

pub use remote::{Remote, RemoteError};
pub use sizes::Sizes;
pub use target::{Answer, Target};

//! Devices run work on memory in a defined order. They know nothing of cells or batching.
//!
//! [`Device`] is the contract: CUDA-like streams, events, copies and launches over buffers of rows. [`cpu`] implements
//! it with threads, [`cuda`] on a GPU. The crate `paternoster-testing` has a third, in virtual time with symbolic rows,
//! to detect faults that real devices hide; one conformance suite (`tests/device`) covers all of them. [`RowBuffer`] is
//! the host memory between two stages, and [`BufferPool`] the memory of batches and responses. [`wheels`] finds the
//! libraries that Python environments hold.
#![deny(unsafe_code)]
#![warn(missing_docs)]

mod access;
mod contract;
pub mod cpu;
pub mod cuda;
mod error;
mod memory;
mod names;
mod registry;
mod rows;
mod violation;
pub mod wheels;

pub use access::{Access, AccessKind, BufferRows, Region, check_copy, check_named_once};
pub use contract::Device;
pub use error::{DeviceError, MemoryShortage, RowError, WorkFailure};
pub use memory::{ALIGNMENT_BYTES, Buffer, BufferPool, NoMemory};
pub use names::{BufferId, Operation, StreamId, Ticket};
pub use registry::Registry;
pub use rows::{RowBuffer, RowsMut, RowsRef};
pub use violation::{Accessor, Violation};

/// The example of the README compiles and runs.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

//! Devices run work on memory in a defined order. They know nothing of cells or batching.
//!
//! [`Device`] is the contract: CUDA-like streams, events, copies and launches over buffers of rows. [`cpu`] implements
//! it with threads, [`cuda`] on a GPU, and [`sim`] in virtual time with symbolic rows, to detect faults that real
//! devices hide. One conformance suite (`tests/device`) covers all of them. [`RowBuffer`] is the host memory between
//! two stages, and [`BufferPool`] the memory of batches and responses.

mod access;
mod contract;
pub mod cpu;
pub mod cuda;
mod error;
mod memory;
mod names;
mod registry;
mod rows;
pub mod sim;

pub use access::{Access, AccessKind, Region, Rows};
pub use contract::Device;
pub use error::{DeviceError, RowError, WorkFailure};
pub use memory::{ALIGNMENT_BYTES, Buffer, BufferPool, NoMemory};
pub use names::{BufferId, Operation, StreamId, Ticket};
pub use rows::{RowBuffer, RowsMut, RowsRef};

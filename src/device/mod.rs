//! Devices: what runs work, in which order, on which memory. Knows nothing of cells or batching.
//!
//! [`Device`] is the contract: CUDA's streams, events, copies and launches over buffers of rows. [`cpu`] carries it out
//! on threads, [`cuda`] on a GPU, and [`sim`] in virtual time with symbolic rows, where it finds the faults that real
//! devices hide. One suite (`tests/device`) holds all of them to it. [`RowBuffer`] is the host memory between two
//! stages; [`BufferPool`] the memory of batches and responses.

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
pub use memory::{ALIGNMENT_BYTES, Buffer, BufferPool};
pub use names::{BufferId, Operation, StreamId, Ticket};
pub use rows::{RowBuffer, RowsMut, RowsRef};

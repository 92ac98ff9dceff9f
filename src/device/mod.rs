//! Devices: the memory that batches live in. Knows nothing of cells or batching.
//!
//! The CPU is the only device so far; its lanes are the executor's threads.

mod memory;

pub use memory::{ALIGNMENT_BYTES, Buffer, BufferPool};

//! Converts the elements of a tensor between JSON text and wire form.

mod read;
mod write;

pub(super) use read::{built_bytes, count, read, read_one_or_many};
pub use write::listed;
pub(super) use write::{WriteFault, string, write};

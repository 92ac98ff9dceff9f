//! Messages of calls within the limits: received in parts, decompressed, encoded and compressed. Independent of methods
//! and models.

mod compression;
mod reader;
mod writer;

pub(super) use compression::{Packing, take_encoding};
#[cfg(any(test, feature = "fuzzing"))]
pub use reader::fuzz::frames;
pub(super) use reader::{MessageReader, decode, unparsable};
pub(super) use writer::Writer;

/// Length of a message's prefix: a flag for compression, and the length as a big-endian u32.
pub(super) const PREFIX_BYTES: usize = 5;

//! Messages in HTTP/2 bodies: length-prefixed frames, compression, deadlines, trailers. Knows no method and no model.

mod compression;
mod deadline;
mod reader;
mod reply;

pub(super) use compression::{Packing, encoding_of};
pub(super) use deadline::{Deadline, before, deadline, expired};
#[cfg(any(test, feature = "fuzzing"))]
pub use reader::fuzz::frames;
pub(super) use reader::{MessageReader, decode, unparsable};
pub(super) use reply::{MessageStream, ReplyBody, Writer, answered, closing_status, refused, streaming};

/// Bytes before each message: a flag that says whether it is compressed, and its length as a big-endian u32.
const PREFIX_BYTES: usize = 5;

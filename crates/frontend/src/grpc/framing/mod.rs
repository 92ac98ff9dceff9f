//! Messages in HTTP/2 bodies: length-prefixed frames, compression, deadlines and trailers. Independent of methods and
//! models.

mod compression;
mod deadline;
mod reader;
mod response;

pub(super) use compression::{Packing, encoding_of};
pub(super) use deadline::{Deadline, before, deadline, expired};
#[cfg(any(test, feature = "fuzzing"))]
pub use reader::fuzz::frames;
pub(super) use reader::{MessageReader, decode, unparsable};
pub(super) use response::{MessageStream, ResponseBody, Writer, answered, closing_status, refused, streaming};

/// Length of a message's prefix: a flag for compression, and the length as a big-endian u32.
const PREFIX_BYTES: usize = 5;

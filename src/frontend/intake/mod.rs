//! Taking requests in, over whatever transport: the room that their bytes hold, decompression, and the threads for what
//! would hold up an I/O thread. Knows no protocol and no model.

mod inflate;
mod workers;

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use tonic::Status;

pub(super) use inflate::{Inflate, InflateError};
pub(super) use workers::Workers;

use crate::{
    budget::{Exhausted, Reservation},
    executor::InputTensor,
    repository::ModelVersion,
    wire::Decoded,
};

/// How long a message waits for room in the budget of bytes. Meanwhile its body is not read, so that flow control holds
/// the peer.
pub(super) const ROOM_PATIENCE: Duration = Duration::from_secs(2);

/// A message gets this much memory on its declared length alone, in bytes.
pub(super) const TRUSTED_BYTES: usize = 1 << 20;

/// … and from then on at most this many times the bytes that have come.
pub(super) const TRUST_FACTOR: usize = 8;

/// Longest message that may be decoded where it came in: checking the elements of a raw payload takes time, too.
pub(super) const LONGEST_HERE_BYTES: usize = 1 << 20;

/// Most bytes that decoding may build there: well below a millisecond's work.
pub(super) const MOST_BUILT_HERE_BYTES: usize = 256 << 10;

/// What decoding builds there is not worth counting up to this many bytes: it is gone within the same step, but for a
/// payload that is as small.
pub(super) const UNCOUNTED_BYTES: usize = 4 << 10;

/// Replies from this size on are encoded by a worker.
pub(super) const LARGE_REPLY_BYTES: usize = 1 << 20;

/// Replies from this size on are, where the reply is compressed.
pub(super) const LARGE_PACKED_REPLY_BYTES: usize = 64 << 10;

/// Payloads from this size on keep the room of their request for as long as anything shares them, as a task may that
/// runs on after its requests were cancelled. Smaller ones keep it to the end of their request.
const LARGE_PAYLOAD_BYTES: usize = 64 << 10;

/// A compression of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Encoding {
    /// RFC 1952.
    Gzip,
    /// RFC 1950: what gRPC and HTTP call deflate has zlib's frame.
    Deflate,
}

impl Encoding {
    /// Its name in headers.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Gzip => "gzip",
            Self::Deflate => "deflate",
        }
    }
}

/// One message, uncompressed, and the room that it takes.
#[derive(Debug)]
pub(super) struct Message {
    /// The encoded message.
    pub(super) bytes: Bytes,
    /// At least its length.
    pub(super) held: Reservation,
}

/// A request that is decoded and not yet submitted.
pub(super) struct Admitted {
    /// What serves it.
    pub(super) version: Arc<ModelVersion>,
    /// What to submit.
    pub(super) decoded: Decoded,
    /// What it holds until it ends.
    pub(super) held: Held,
}

/// A request's part of the budgets, kept to its end.
#[derive(Debug)]
pub(super) struct Held {
    _place: Reservation,
    _bytes: Reservation,
}

impl Admitted {
    /// A request decoded from a message of `message_bytes`, whose room and what decoding built are `held`.
    pub(super) fn new(
        version: Arc<ModelVersion>,
        mut decoded: Decoded,
        place: Reservation,
        mut held: Reservation,
        message_bytes: usize,
    ) -> Self {
        let inputs = &mut decoded.request.inputs;
        let payload_bytes: usize = inputs.iter().flatten().map(|input| input.data.len()).sum();
        // A payload is a part of the message, or was built from it; the rest of both is gone.
        held.shrink_to(message_bytes.max(payload_bytes));
        let rest = if payload_bytes < LARGE_PAYLOAD_BYTES { held } else { keep_room(inputs, held) };
        Self { version, decoded, held: Held { _place: place, _bytes: rest } }
    }
}

/// Lets the payloads hold the room that they take; gives an empty reservation.
fn keep_room(inputs: &mut [Option<InputTensor>], mut held: Reservation) -> Reservation {
    struct Kept(Bytes, #[allow(dead_code, reason = "held for as long as the bytes are")] Arc<Reservation>);
    impl AsRef<[u8]> for Kept {
        fn as_ref(&self) -> &[u8] {
            &self.0
        }
    }
    let room = Arc::new(held.take());
    for input in inputs.iter_mut().flatten() {
        input.data = Bytes::from_owner(Kept(std::mem::take(&mut input.data), Arc::clone(&room)));
    }
    held
}

/// The status of a message for which there is no room in the budget of bytes.
pub(super) fn no_room(error: &Exhausted) -> Status {
    Status::resource_exhausted(format!("no memory for the message within --max-pending-bytes: {error}"))
}

//! Reading requests, independent of transport: memory reservations, decompression, and threads for work that would
//! block an I/O thread. Independent of protocols and models.

mod buffer;
mod inflate;
mod workers;

use std::{sync::Arc, time::Duration};

pub(super) use buffer::Buffer;
#[cfg(any(test, feature = "fuzzing"))]
pub(super) use buffer::TRUSTED_BYTES;
use bytes::Bytes;
pub(super) use inflate::{Inflate, InflateError};
use paternoster_executor::InferRequest;
use paternoster_model::InputTensor;
use paternoster_observe::budget::{Exhausted, Reservation, SharedReservation};
use paternoster_repository::ModelVersion;
use paternoster_wire::ResponsePlan;
use tonic::Status;
pub(super) use workers::Workers;

/// How long a message waits for room in the budget of bytes. Meanwhile its body is not read, so flow control stops the
/// peer.
pub(super) const ROOM_PATIENCE: Duration = Duration::from_secs(2);

/// Maximum message that may be decoded on the I/O thread. Checking the elements of a raw payload takes time, too.
pub(super) const LONGEST_HERE_BYTES: usize = 1 << 20;

/// Maximum bytes that decoding may build on the I/O thread; takes well below a millisecond.
pub(super) const MOST_BUILT_HERE_BYTES: usize = 256 << 10;

/// Memory up to this many bytes is not reserved on the I/O thread: it is released within the same step, except for a
/// payload of that size.
pub(super) const UNCOUNTED_BYTES: usize = 4 << 10;

/// Responses of at least this size are encoded by a worker.
pub(super) const LARGE_RESPONSE_BYTES: usize = 1 << 20;

/// The same for compressed responses.
pub(super) const LARGE_PACKED_RESPONSE_BYTES: usize = 64 << 10;

/// Payloads of at least this size keep their reservation as long as they are shared, for example by a task that still
/// runs after its requests were cancelled. Smaller ones keep it until their request ends.
const LARGE_PAYLOAD_BYTES: usize = 64 << 10;

/// A compression of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Encoding {
    /// RFC 1952.
    Gzip,
    /// RFC 1950. The encoding that gRPC and HTTP call deflate has zlib's frame.
    Deflate,
}

impl Encoding {
    /// Returns its name in headers.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Gzip => "gzip",
            Self::Deflate => "deflate",
        }
    }
}

/// One message, uncompressed, with its memory reservation.
#[derive(Debug)]
pub(super) struct Message {
    /// The encoded message.
    pub(super) bytes: Bytes,
    /// Reservation of at least its length.
    pub(super) held: Reservation,
}

/// A request that has been decoded but not submitted.
pub(super) struct Admitted {
    /// The version that serves it.
    pub(super) version: Arc<ModelVersion>,
    /// The request to submit.
    pub(super) request: InferRequest,
    /// The form of its response.
    pub(super) reply: ResponsePlan,
    /// Its reservations until it ends.
    pub(super) held: Held,
}

/// A request's reservations in the budgets, kept until its end.
#[derive(Debug)]
pub(super) struct Held {
    _place: Reservation,
    _bytes: Reservation,
}

impl Admitted {
    /// Creates a request decoded from a message of `message_bytes`. `held` is the reservation of the message and of
    /// what decoding built.
    pub(super) fn new(
        version: Arc<ModelVersion>,
        (mut request, reply): (InferRequest, ResponsePlan),
        place: Reservation,
        mut held: Reservation,
        message_bytes: usize,
    ) -> Self {
        let inputs = &mut request.inputs;
        let payload_bytes: usize = inputs.iter().flatten().map(|input| input.data.len()).sum();
        // A payload is part of the message or was built from it; the rest of both has been released.
        held.shrink_to(message_bytes.max(payload_bytes));
        let rest = if payload_bytes < LARGE_PAYLOAD_BYTES { held } else { keep_room(inputs, held) };
        Self { version, request, reply, held: Held { _place: place, _bytes: rest } }
    }
}

/// Attaches the reservation to the payloads; returns an empty reservation.
fn keep_room(inputs: &mut [Option<InputTensor>], mut held: Reservation) -> Reservation {
    let room = SharedReservation::new(held.take());
    for input in inputs.iter_mut().flatten() {
        input.data = room.attach(std::mem::take(&mut input.data));
    }
    held
}

/// Returns the status for a message that exceeds the budget of bytes.
pub(super) fn no_room(error: &Exhausted) -> Status {
    Status::resource_exhausted(format!("no memory for the message within --max-pending-bytes: {error}"))
}

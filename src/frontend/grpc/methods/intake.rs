//! From the bytes of an inference request to one that can be submitted, within the server's budgets.
//!
//! What a message will build is found before it is built. Small messages are decoded where they came in; what would hold
//! up an I/O thread goes to the workers.

use std::{future::Future, pin::Pin, sync::Arc};

use bytes::Bytes;
use tonic::Status;

use super::Services;
use crate::{
    budget::Reservation,
    executor::InputTensor,
    frontend::grpc::{
        framing::{Message, ROOM_PATIENCE, no_room, unparsable},
        workers::Workers,
    },
    repository::ModelVersion,
    wire::{
        Decoded, Kind, RequestError,
        decode::{
            self,
            size::{INFER_REQUEST, SizeError, measure},
        },
        pb,
    },
};

/// Longest message that may be decoded where it came in: checking the elements of a raw payload takes time, too.
const LONGEST_HERE_BYTES: usize = 1 << 20;

/// Most bytes that decoding may build there: well below a millisecond's work.
const MOST_BUILT_HERE_BYTES: usize = 256 << 10;

/// What decoding builds there is not worth counting up to this many bytes: it is gone within the same step, but for a
/// payload that is as small.
const UNCOUNTED_BYTES: usize = 4 << 10;

/// Steps of looking at a message there.
const STEPS_HERE: usize = 16 << 10;

/// Payloads from this size on keep the room of their request for as long as anything shares them, as a task may that
/// runs on after its requests were cancelled. Smaller ones keep it to the end of their request.
const LARGE_PAYLOAD_BYTES: usize = 64 << 10;

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

/// Finds the version of a request and checks the request against it.
pub(super) type Admit = fn(&Services, pb::ModelInferRequest) -> Result<(Arc<ModelVersion>, Decoded), RequestError>;

/// A request, or why it is refused; an error is one of the call: nothing can be read after it.
pub(super) type Outcome = Result<Result<Admitted, RequestError>, Status>;

/// A request being taken in.
#[allow(clippy::large_enum_variant, reason = "a box would cost every small request an allocation")]
pub(super) enum Intake {
    /// It was small.
    Done(Outcome),
    /// Workers have it.
    Apart(Apart),
}

/// Becomes the outcome of a large request.
pub(super) type Apart = Pin<Box<dyn Future<Output = Outcome> + Send>>;

/// Takes a message in.
pub(super) fn take_in(services: &Arc<Services>, workers: &Arc<Workers>, mut message: Message, admit: Admit) -> Intake {
    let requests = &services.budgets.requests;
    let Some(place) = requests.take_one() else {
        let text = format!("the server has {} pending requests, its limit", requests.capacity());
        return Intake::Done(Ok(Err(RequestError::new(Kind::Unavailable, text))));
    };
    if message.bytes.len() <= LONGEST_HERE_BYTES {
        match measure(INFER_REQUEST, &message.bytes, STEPS_HERE) {
            Err(error) => return Intake::Done(refuse(error)),
            Ok(Some(built))
                if built <= UNCOUNTED_BYTES || (built <= MOST_BUILT_HERE_BYTES && message.held.try_grow(built)) =>
            {
                return Intake::Done(decode(services, message, place, admit));
            }
            Ok(_) => {}
        }
    }
    Intake::Apart(Box::pin(apart(Arc::clone(services), Arc::clone(workers), message, place, admit)))
}

async fn apart(
    services: Arc<Services>,
    workers: Arc<Workers>,
    message: Message,
    place: Reservation,
    admit: Admit,
) -> Outcome {
    let bytes = message.bytes.len();
    let look = move || (measure(INFER_REQUEST, &message.bytes, usize::MAX), message);
    let (built, mut message) = workers.run(bytes, look).await?;
    let built = match built {
        Ok(built) => built.unwrap_or(usize::MAX),
        Err(error) => return refuse(error),
    };
    if let Err(error) = message.held.grow_within(built, ROOM_PATIENCE).await {
        return Ok(Err(RequestError::new(Kind::ResourceExhausted, no_room(&error).message())));
    }
    workers.run(bytes.max(built), move || decode(&services, message, place, admit)).await?
}

/// What is not to be decoded: a request that is refused, or bytes behind which nothing can be read.
fn refuse(error: SizeError) -> Outcome {
    match error {
        SizeError::TooMany(error) => Ok(Err(error)),
        SizeError::Broken => Err(unparsable(&error)),
    }
}

fn decode(services: &Services, message: Message, place: Reservation, admit: Admit) -> Outcome {
    let Message { bytes, mut held } = message;
    let message_bytes = bytes.len();
    let request = decode::parse(bytes).map_err(|error| unparsable(&error))?;
    Ok(admit(services, request).map(|(version, mut decoded)| {
        let inputs = &mut decoded.request.inputs;
        let payload_bytes: usize = inputs.iter().flatten().map(|input| input.data.len()).sum();
        // A payload is a part of the message, or was built from it; the rest of both is gone.
        held.shrink_to(message_bytes.max(payload_bytes));
        let rest = if payload_bytes < LARGE_PAYLOAD_BYTES { held } else { keep_room(inputs, held) };
        Admitted { version, decoded, held: Held { _place: place, _bytes: rest } }
    }))
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

//! Converts the bytes of an inference request to a request that can be submitted, within the server's budgets.
//!
//! The memory that decoding takes is determined first. Small messages are decoded on the I/O thread; larger ones, which
//! would block it, go to the workers.

use std::{future::Future, pin::Pin, sync::Arc};

use tonic::Status;
use tracing::Span;

use crate::{
    budget::Reservation,
    frontend::{
        Services,
        grpc::framing::unparsable,
        intake::{
            Admitted, LONGEST_HERE_BYTES, MOST_BUILT_HERE_BYTES, Message, ROOM_PATIENCE, UNCOUNTED_BYTES, Workers,
            no_room,
        },
        span,
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

/// Maximum number of steps for measuring a message on the I/O thread.
const STEPS_HERE: usize = 16 << 10;

/// Resolves the version of a request and checks the request against it.
pub(super) type Admit = fn(&Services, pb::ModelInferRequest) -> Result<(Arc<ModelVersion>, Decoded), RequestError>;

/// An admitted request or the reason for its rejection. The outer error ends the call: nothing can be read after it.
pub(super) type Outcome = Result<Result<Admitted, RequestError>, Status>;

/// A request that is being taken in.
#[allow(clippy::large_enum_variant, reason = "a box would cost every small request an allocation")]
pub(super) enum Intake {
    /// A small request, already decoded.
    Done(Outcome),
    /// A large request, which the workers decode.
    Apart(Apart),
}

/// Future of a large request.
pub(super) type Apart = Pin<Box<dyn Future<Output = Outcome> + Send>>;

/// Takes in a message, and records in the span what the request asks for.
pub(super) fn take_in(
    services: &Arc<Services>,
    workers: &Arc<Workers>,
    mut message: Message,
    admit: Admit,
    span: &Span,
) -> Intake {
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
                return Intake::Done(decode(services, message, place, admit, span));
            }
            Ok(_) => {}
        }
    }
    let (services, workers, span) = (Arc::clone(services), Arc::clone(workers), span.clone());
    Intake::Apart(Box::pin(apart(services, workers, message, place, admit, span)))
}

async fn apart(
    services: Arc<Services>,
    workers: Arc<Workers>,
    message: Message,
    place: Reservation,
    admit: Admit,
    span: Span,
) -> Outcome {
    let bytes = message.bytes.len();
    let measure = move || (measure(INFER_REQUEST, &message.bytes, usize::MAX), message);
    let (built, mut message) = workers.run(bytes, measure).await?;
    let built = match built {
        Ok(built) => built.unwrap_or(usize::MAX),
        Err(error) => return refuse(error),
    };
    if let Err(error) = message.held.grow_within(built, ROOM_PATIENCE).await {
        return Ok(Err(RequestError::new(Kind::ResourceExhausted, no_room(&error).message())));
    }
    workers.run(bytes.max(built), move || decode(&services, message, place, admit, &span)).await?
}

/// Converts the reason for not decoding a message: a rejected request, or bytes after which nothing can be read.
fn refuse(error: SizeError) -> Outcome {
    match error {
        SizeError::TooMany(error) => Ok(Err(error)),
        SizeError::Broken => Err(unparsable(&error)),
    }
}

fn decode(services: &Services, message: Message, place: Reservation, admit: Admit, span: &Span) -> Outcome {
    let Message { bytes, held } = message;
    let message_bytes = bytes.len();
    let request = decode::parse(bytes).map_err(|error| unparsable(&error))?;
    span::asked(span, &request.model_name, &request.model_version, &request.id);
    let admitted = admit(services, request).map(|(version, decoded)| {
        let admitted = Admitted::new(version, decoded, place, held, message_bytes);
        span::admitted(span, &admitted);
        admitted
    });
    Ok(admitted)
}

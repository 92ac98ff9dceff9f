//! Converts the bytes of an inference request to a request that can be submitted, within the server's budgets.
//!
//! The memory that decoding takes is determined first. Small messages are decoded on the I/O thread; larger ones, which
//! would block it, go to the workers.

use std::{future::Future, pin::Pin, sync::Arc};

use paternoster_executor::InferRequest;
use paternoster_observe::budget::Reservation;
use paternoster_repository::{Caller, ModelVersion, ResolveError};
use paternoster_wire::{
    Kind, RequestError, ResponsePlan,
    decode::{
        self,
        size::{INFER_REQUEST, SizeError, measure},
    },
    pb,
};
use tonic::Status;
use tracing::Span;

use crate::{
    Services,
    grpc::messages::unparsable,
    intake::{
        Admitted, LONGEST_HERE_BYTES, MOST_BUILT_HERE_BYTES, Message, ROOM_PATIENCE, UNCOUNTED_BYTES, Workers, no_room,
    },
    methods::unresolved,
    span,
};

/// Maximum number of steps for measuring a message on the I/O thread.
const STEPS_HERE: usize = 16 << 10;

/// Checks a request against the version that serves it.
pub(super) type Admit =
    fn(&Services, &ModelVersion, pb::ModelInferRequest) -> Result<(InferRequest, ResponsePlan), RequestError>;

/// A request whose model is to be loaded for it. It is parsed again then: a parsed request takes more memory.
struct Unloaded {
    model: String,
    version: String,
    id: String,
    message: Message,
    place: Reservation,
}

/// An admitted request or the reason for its rejection. The outer error ends the call: nothing can be read after it.
pub(super) type Outcome = Result<Result<Admitted, RequestError>, Status>;

/// A request that is being taken in.
#[allow(clippy::large_enum_variant, reason = "a box would cost every small request an allocation")]
pub(super) enum Intake {
    /// A small request, already decoded.
    Done(Outcome),
    /// A large request, which the workers decode, or one whose model is being loaded.
    Deferred(Deferred),
}

/// Future of such a request.
pub(super) type Deferred = Pin<Box<dyn Future<Output = Outcome> + Send>>;

/// Takes in a message, and records in the span what the request asks for.
pub(super) fn take_in(
    services: &Arc<Services>,
    workers: &Arc<Workers>,
    mut message: Message,
    caller: &Caller,
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
                return match decode(services, message, place, caller, admit, span) {
                    Ok(outcome) => Intake::Done(outcome),
                    Err(unloaded) => {
                        let (services, workers) = (Arc::clone(services), Arc::clone(workers));
                        let (caller, span) = (caller.clone(), span.clone());
                        Intake::Deferred(Box::pin(decode_when_loaded(services, workers, unloaded, caller, admit, span)))
                    }
                };
            }
            Ok(_) => {}
        }
    }
    let (services, workers) = (Arc::clone(services), Arc::clone(workers));
    let (caller, span) = (caller.clone(), span.clone());
    Intake::Deferred(Box::pin(apart(services, workers, message, place, caller, admit, span)))
}

async fn apart(
    services: Arc<Services>,
    workers: Arc<Workers>,
    message: Message,
    place: Reservation,
    caller: Caller,
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
    let decoded = {
        let (services, caller, span) = (Arc::clone(&services), caller.clone(), span.clone());
        workers.run(bytes.max(built), move || decode(&services, message, place, &caller, admit, &span)).await?
    };
    match decoded {
        Ok(outcome) => outcome,
        Err(unloaded) => decode_when_loaded(services, workers, unloaded, caller, admit, span).await,
    }
}

/// Decodes a request once its model is loaded.
async fn decode_when_loaded(
    services: Arc<Services>,
    workers: Arc<Workers>,
    unloaded: Box<Unloaded>,
    caller: Caller,
    admit: Admit,
    span: Span,
) -> Outcome {
    let Unloaded { model, version, id, message, place } = *unloaded;
    let version = match services.repository.route_or_load(&model, &version, &caller).await {
        Ok(version) => version,
        Err(error) => return Ok(Err(unresolved(&error).with_id(id))),
    };
    let message_bytes = message.bytes.len();
    let work = move || {
        let Message { bytes, held } = message;
        let request = decode::parse(bytes).map_err(|error| unparsable(&error))?;
        Ok(admitted(&services, version, request, Reserved { place, held, message_bytes }, admit, &span))
    };
    workers.run(message_bytes, work).await?
}

/// Converts the reason for not decoding a message: a rejected request, or bytes after which nothing can be read.
fn refuse(error: SizeError) -> Outcome {
    match error {
        SizeError::TooMany(error) => Ok(Err(error)),
        SizeError::Broken => Err(unparsable(&error)),
    }
}

/// Decodes a message.
///
/// # Errors
/// Gives the message back if the model is to be loaded for it.
fn decode(
    services: &Services,
    message: Message,
    place: Reservation,
    caller: &Caller,
    admit: Admit,
    span: &Span,
) -> Result<Outcome, Box<Unloaded>> {
    let Message { bytes, held } = message;
    let message_bytes = bytes.len();
    let kept = services.repository.is_on_demand().then(|| bytes.clone());
    let request = match decode::parse(bytes) {
        Ok(request) => request,
        Err(error) => return Ok(Err(unparsable(&error))),
    };
    span::asked(span, &request.model_name, &request.model_version, &request.id);
    let version = services.repository.route(&request.model_name, &request.model_version, caller);
    match (version, kept) {
        (Ok(version), _) => {
            Ok(Ok(admitted(services, version, request, Reserved { place, held, message_bytes }, admit, span)))
        }
        (Err(ResolveError::NotLoaded { .. }), Some(bytes)) => {
            let (model, version, id) = (request.model_name, request.model_version, request.id);
            Err(Box::new(Unloaded { model, version, id, message: Message { bytes, held }, place }))
        }
        (Err(error), _) => Ok(Ok(Err(unresolved(&error).with_id(request.id)))),
    }
}

/// What the budget has reserved for a message.
struct Reserved {
    /// One of the requests.
    place: Reservation,
    /// The bytes of the message and of what is read from it.
    held: Reservation,
    message_bytes: usize,
}

/// Checks a request against its version.
fn admitted(
    services: &Services,
    version: Arc<ModelVersion>,
    request: pb::ModelInferRequest,
    reserved: Reserved,
    admit: Admit,
    span: &Span,
) -> Result<Admitted, RequestError> {
    let decoded = admit(services, &version, request)?;
    let admitted = Admitted::new(version, decoded, reserved.place, reserved.held, reserved.message_bytes);
    span::admitted(span, &admitted);
    Ok(admitted)
}

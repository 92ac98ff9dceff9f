//! Inference over HTTP: one request, one response.

use std::sync::Arc;

use axum::{
    extract::{Request, State},
    response::Response,
};
use http::{HeaderMap, StatusCode};
use paternoster_observe::{budget::Reservation, trace::Transport};
use paternoster_repository::{Caller, ModelVersion};
use paternoster_wire::{
    Kind, RequestError, ResponsePlan, encode,
    json::{self, Forms},
    pb::ModelInferRequest,
};
use tracing::{Instrument, Span};

use super::{
    Problem,
    api::Api,
    body::{self, Limit},
    path::ModelPath,
    unsent_response::{JSON_LENGTH, UnsentResponse},
};
use crate::{
    Services,
    intake::{
        Admitted, LARGE_PACKED_RESPONSE_BYTES, LARGE_RESPONSE_BYTES, MOST_BUILT_HERE_BYTES, Message, UNCOUNTED_BYTES,
    },
    span,
    trace::{Received, begin, responded},
};

/// Maximum JSON that is parsed on the I/O thread, in bytes; takes well below a millisecond.
pub(super) const LONGEST_JSON_HERE_BYTES: usize = 64 << 10;

/// Outputs of at least this size are written as JSON by a worker.
const LARGE_JSON_RESPONSE_BYTES: usize = 16 << 10;

/// Answers `POST …/infer`. Dropping the future, for example when the client disconnects, cancels the request.
pub(super) async fn infer(State(api): State<Api>, path: ModelPath, request: Request) -> Result<Response, Problem> {
    let span = span::open(Transport::Http);
    let answer = answer(&api, path, request, &span).instrument(span.clone()).await;
    answer.inspect_err(|problem| problem.log(&span))
}

async fn answer(api: &Api, path: ModelPath, request: Request, span: &Span) -> Result<Response, Problem> {
    span::asked(span, &path.model, &path.version, "");
    let (parts, body) = request.into_parts();
    let holds = api.holds(&parts.extensions);
    let _client = api.client_place(&holds, &parts.headers).await;
    let head = api.services.tracer.head(&parts.headers);
    let json_bytes = json_length(&parts.headers)?;
    let packing = body::accepted(&parts.headers);
    let limit = limit(json_bytes, api.max_input_bytes)?;
    let message = body::read(body, &parts.headers, limit, &holds.share, &api.workers).await?;
    let received = Received::now(head);
    let caller = api.services.caller(&holds, &parts.headers);
    let (mut admitted, forms) = take_in(api, path, &caller, message, json_bytes).await?;
    span::admitted(span, &admitted);
    let trace = begin(&api.services, Transport::Http, received, &mut admitted);

    let Admitted { version, request, reply, held } = admitted;
    let answer = version.submit(request).await;
    if let Some(trace) = &trace {
        responded(trace, &version, &answer);
    }
    let response = answer.map_err(|error| RequestError::from_infer(&error, &reply.id))?;
    // The request's bytes are no longer needed; returns them to the budget before the response is written.
    drop(held);

    // Small answers are written here, because a hand-over to a worker would take longer.
    let large = is_large(&version, &forms, &response, packing.is_some());
    let write = move || {
        let answer = write(&version, &reply, &forms, response)?;
        Ok::<_, Problem>(match packing {
            Some(encoding) => answer.packed(encoding),
            None => answer,
        })
    };
    let answer = match large {
        None => write()?,
        Some(bytes) => api.workers.run(bytes, write).await??,
    };
    answer.traced(trace).into_response(&holds.backlog)
}

/// Returns the bytes of outputs if encoding them would block an I/O thread.
fn is_large(
    version: &ModelVersion,
    forms: &Forms,
    response: &paternoster_executor::Response,
    packed: bool,
) -> Option<usize> {
    let outputs = || response.outputs.iter().zip(&version.spec().outputs);
    let bytes: usize = outputs().map(|(output, _)| output.data.len()).sum();
    let as_json = outputs().filter(|(_, spec)| !forms.is_binary(&spec.name)).map(|(output, _)| output.data.len());
    let most = if packed { LARGE_PACKED_RESPONSE_BYTES } else { LARGE_RESPONSE_BYTES };
    (bytes >= most || as_json.sum::<usize>() >= LARGE_JSON_RESPONSE_BYTES).then_some(bytes)
}

fn write(
    version: &ModelVersion,
    plan: &ResponsePlan,
    forms: &Forms,
    response: paternoster_executor::Response,
) -> Result<UnsentResponse, RequestError> {
    let response = encode::encode(version.spec(), plan, response)?;
    let reply = json::response(response, forms).map_err(|error| error.with_id(&*plan.id))?;
    Ok(UnsentResponse::inference(reply))
}

/// Returns the JSON length that a request declares; 0 means that there is no JSON. Lines that say the same count once.
fn json_length(headers: &HeaderMap) -> Result<Option<usize>, Problem> {
    let mut lines = headers.get_all(JSON_LENGTH).iter();
    let Some(stated) = lines.next() else { return Ok(None) };
    if let Some(other) = lines.find(|other| *other != stated) {
        let text =
            format!("Inference-Header-Content-Length is both {stated:?} and {other:?}, expected one number of bytes");
        return Err(Problem::invalid(text));
    }
    let digits = stated.to_str().ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
    let wrong =
        || Problem::invalid(format!("Inference-Header-Content-Length is {stated:?}, expected a number of bytes"));
    digits.and_then(|digits| digits.parse().ok()).map(Some).ok_or_else(wrong)
}

/// Returns the limit on a body, given the length of its JSON.
fn limit(json_bytes: Option<usize>, most: usize) -> Result<Limit, Problem> {
    match json_bytes {
        None => Ok(Limit::Json(most)),
        Some(0) => Ok(Limit::Raw(most)),
        Some(bytes) if bytes > most => Err(Limit::Json(most).exceeded(bytes)),
        Some(_) => Ok(Limit::Binary { inflated: most }),
    }
}

/// Converts a body to a request that can be submitted, within the server's budgets; the memory that it takes is
/// determined before it is built. Small bodies are decoded on the I/O thread, larger ones by the workers.
async fn take_in(
    api: &Api,
    path: ModelPath,
    caller: &Caller,
    mut message: Message,
    json_bytes: Option<usize>,
) -> Result<(Admitted, Forms), Problem> {
    let place = pending_place(api)?;
    let version = resolve(&api.services, &path, caller).await?;
    if json_bytes == Some(0) {
        let copied = if version.spec().inputs.iter().any(|input| input.datatype.size_bytes().is_none()) {
            size_of::<u32>() + message.bytes.len()
        } else {
            0
        };
        body::grow(&mut message.held, copied).await?;
        let length = message.bytes.len();
        let request = json::raw(std::mem::take(&mut message.bytes), version.spec())?;
        return admit(&api.services, version, request, length, message.held, place);
    }
    if json_bytes.unwrap_or(message.bytes.len()) <= LONGEST_JSON_HERE_BYTES {
        json::prepare(&mut message.bytes, json_bytes)?;
        let request = json::Request::read(&message.bytes, json_bytes)?;
        let built = request.built_bytes();
        if built <= UNCOUNTED_BYTES || (built <= MOST_BUILT_HERE_BYTES && message.held.try_grow(built)) {
            let request = request.build(&path.model, &path.version)?;
            return admit(&api.services, version, request, message.bytes.len(), message.held, place);
        }
    }
    apart(api, version, path, message, json_bytes, place).await
}

/// Reserves a place among the pending requests.
///
/// # Errors
/// 503 if all places are taken.
pub(super) fn pending_place(api: &Api) -> Result<Reservation, Problem> {
    let requests = &api.services.budgets.requests;
    requests.take_one().ok_or_else(|| {
        let text = format!("the server has {} pending requests, its limit", requests.capacity());
        Problem::new(StatusCode::SERVICE_UNAVAILABLE, text)
    })
}

async fn apart(
    api: &Api,
    version: Arc<ModelVersion>,
    path: ModelPath,
    mut message: Message,
    json_bytes: Option<usize>,
    place: Reservation,
) -> Result<(Admitted, Forms), Problem> {
    let length = message.bytes.len();
    // The reservation goes along to the worker, which goes on if the client leaves.
    let look = move || {
        json::prepare(&mut message.bytes, json_bytes)?;
        let built = json::Request::read(&message.bytes, json_bytes)?.built_bytes();
        Ok::<_, Problem>((built, message))
    };
    let (built, mut message) = api.workers.run(length, look).await??;
    body::grow(&mut message.held, built).await?;
    let services = Arc::clone(&api.services);
    let build = move || {
        let request = json::Request::read(&message.bytes, json_bytes)?.build(&path.model, &path.version)?;
        admit(&services, version, request, length, message.held, place)
    };
    api.workers.run(length.max(built), build).await?
}

/// Returns the version for a path, if it can be called here. Waits for its model where requests load models.
async fn resolve(services: &Services, path: &ModelPath, caller: &Caller) -> Result<Arc<ModelVersion>, Problem> {
    let version = services.repository.route_or_load(&path.model, &path.version, caller).await;
    let version = version.map_err(|error| Problem::from(&error))?;
    if version.spec().decoupled {
        let text = format!(
            "HTTP end point doesn't support models with decoupled transaction policy: model '{}' needs generate_stream \
             or gRPC",
            path.model
        );
        return Err(RequestError::new(Kind::Unimplemented, text).into());
    }
    Ok(version)
}

/// Checks a request against its model.
pub(super) fn admit(
    services: &Services,
    version: Arc<ModelVersion>,
    (request, forms): (ModelInferRequest, Forms),
    message_bytes: usize,
    held: Reservation,
    place: Reservation,
) -> Result<(Admitted, Forms), Problem> {
    let decoded = services.decode(&version, request)?;
    let (_, reply) = &decoded;
    forms.check(version.spec(), reply)?;
    Ok((Admitted::new(version, decoded, place, held, message_bytes), forms))
}

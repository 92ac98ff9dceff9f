//! The generate extension: requests of flat JSON, answered with a single response, or with a stream of server-sent
//! events.

use std::{convert::Infallible, sync::Arc};

use axum::{
    body::Body,
    extract::{Request, State},
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use futures_util::stream;
use http::{HeaderValue, header::CONTENT_TYPE};
use paternoster_executor::{Backlog, InferError};
use paternoster_observe::trace::{RequestTrace, Transport};
use paternoster_repository::ModelVersion;
use paternoster_wire::{
    Kind, RequestError, ResponsePlan, encode,
    json::{self, Forms},
};
use tracing::{Instrument, Span};

use super::{
    Problem,
    api::Api,
    body::{self, Limit},
    infer::{LONGEST_JSON_HERE_BYTES, admit, pending_place},
    path::ModelPath,
    unsent_response::UnsentResponse,
};
use crate::{
    clients::ClientPlace,
    intake::{Admitted, Held, MOST_BUILT_HERE_BYTES},
    services::ConnectionHolds,
    span,
    trace::{Received, begin, responded},
    unsent::counted,
};

const EVENTS: &str = "text/event-stream; charset=utf-8";

/// Answers `POST …/generate` with the model's single response.
pub(super) async fn generate(State(api): State<Api>, path: ModelPath, request: Request) -> Result<Response, Problem> {
    let span = span::open(Transport::Http);
    let answer = answer_once(&api, path, request, &span).instrument(span.clone()).await;
    answer.inspect_err(|problem| problem.log(&span))
}

async fn answer_once(api: &Api, path: ModelPath, request: Request, span: &Span) -> Result<Response, Problem> {
    let (mut responses, holds) = submit(api, path, request, span).await?;
    let only = responses.next().await;
    let exactly_one = || {
        let text = "generate expects model to produce exactly 1 response, use generate stream for model that generates \
                    various number of responses";
        Problem::from(RequestError::new(Kind::InvalidArgument, text))
    };
    let json = only.ok_or_else(exactly_one)??;
    if let Some(second) = responses.next().await {
        second?;
        return Err(exactly_one());
    }
    UnsentResponse::json(json).traced(responses.trace.take()).into_response(&holds.backlog)
}

/// Answers `POST …/generate_stream` with one event per response of the model. As in Triton, the HTTP status is that of
/// the first response; later errors are events.
pub(super) async fn generate_stream(
    State(api): State<Api>,
    path: ModelPath,
    request: Request,
) -> Result<Response, Problem> {
    let span = span::open(Transport::Http);
    let submitted = submit(&api, path, request, &span).instrument(span.clone()).await;
    let (mut responses, holds) = submitted.inspect_err(|problem| problem.log(&span))?;
    // The status line precedes all events, so it depends on the first response.
    let first = responses.next().await;
    let status = match &first {
        Some(Err(error)) => Problem::from(error.clone()).into_response().status(),
        _ => http::StatusCode::OK,
    };
    let events =
        stream::unfold((Some(first), responses, holds.backlog), |(first, mut responses, backlog)| async move {
            let next = match first {
                Some(first) => first,
                None => responses.next().await,
            };
            let next = next?;
            if let Err(error) = &next {
                span::refused(&responses.span, error.kind().code(), error.message());
            }
            let event = counted(event(next), &backlog);
            Some((Ok::<_, Infallible>(event), (None, responses, backlog)))
        });
    let mut response = Response::new(Body::from_stream(events));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(EVENTS));
    Ok(response)
}

fn event(response: Result<Vec<u8>, RequestError>) -> Bytes {
    let json =
        response.unwrap_or_else(|error| serde_json::json!({ "error": error.message() }).to_string().into_bytes());
    [b"data: ", &json[..], b"\n\n"].concat().into()
}

/// The responses of a request as JSON. Dropping them cancels the request.
struct Responses {
    version: Arc<ModelVersion>,
    plan: ResponsePlan,
    source: Source,
    trace: Option<Arc<RequestTrace>>,
    span: Span,
    _held: Held,
    _client: Option<ClientPlace>,
}

enum Source {
    One(Option<paternoster_pipeline::PendingResponse>),
    Many(paternoster_pipeline::Responses),
}

impl Responses {
    async fn next(&mut self) -> Option<Result<Vec<u8>, RequestError>> {
        let response = match &mut self.source {
            Source::One(response) => response.take()?.await,
            Source::Many(responses) => responses.next().await?,
        };
        if response.is_err() {
            // Nothing follows an error.
            self.source = Source::One(None);
        }
        Some(self.written(response))
    }

    fn written(&self, response: Result<paternoster_executor::Response, InferError>) -> Result<Vec<u8>, RequestError> {
        let _sending = self.trace.as_ref().map(|trace| {
            responded(trace, &self.version, &response);
            trace.sending()
        });
        let response = response.map_err(|error| RequestError::from_infer(&error, &self.plan.id))?;
        json::generated(encode::encode(self.version.spec(), &self.plan, response)?)
    }
}

async fn submit(
    api: &Api,
    path: ModelPath,
    request: Request,
    span: &Span,
) -> Result<(Responses, ConnectionHolds), Problem> {
    span::asked(span, &path.model, &path.version, "");
    let (parts, body) = request.into_parts();
    let head = api.services.tracer.head(&parts.headers);
    let holds = api.holds(&parts.extensions);
    let client = api.client_place(&holds, &parts.headers).await;
    let limit = Limit::Json(api.max_input_bytes);
    let mut message = body::read(body, &parts.headers, limit, &holds.share, &api.workers).await?;
    let received = Received::now(head);
    let place = pending_place(api)?;
    let caller = api.services.caller(&holds, &parts.headers);
    let version = api.services.repository.route_or_load(&path.model, &path.version, &caller).await;
    let version = version.map_err(|error| Problem::from(&error))?;

    let length = message.bytes.len();
    let built = json::generate_built_bytes(length);
    body::grow(&mut message.held, built).await?;
    let services = Arc::clone(&api.services);
    let build = move || {
        json::prepare(&mut message.bytes, None)?;
        let request = json::generate(&message.bytes, version.spec())?;
        admit(&services, version, (request, Forms::default()), length, message.held, place)
    };
    let here = length <= LONGEST_JSON_HERE_BYTES && built <= MOST_BUILT_HERE_BYTES;
    let (mut admitted, _) = if here { build()? } else { api.workers.run(built, build).await?? };
    span::admitted(span, &admitted);
    let trace = begin(&api.services, Transport::Http, received, &mut admitted);
    Ok((start((admitted, client), trace, span.clone(), &holds.backlog), holds))
}

fn start(
    (admitted, client): (Admitted, Option<ClientPlace>),
    trace: Option<Arc<RequestTrace>>,
    span: Span,
    backlog: &Arc<Backlog>,
) -> Responses {
    let Admitted { version, request, reply: plan, held } = admitted;
    let source = if version.spec().decoupled {
        Source::Many(version.servable().submit_stream(request.counted_in(&backlog.stream())))
    } else {
        Source::One(Some(version.submit(request)))
    };
    Responses { version, plan, source, trace, span, _held: held, _client: client }
}

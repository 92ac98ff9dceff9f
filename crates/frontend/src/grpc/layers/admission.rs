//! Which calls there are, and who may make them.

use std::{future::ready, sync::Arc};

use futures_util::future::Either;
use http::{HeaderMap, Request, Response, StatusCode, header::CONTENT_TYPE};
use paternoster_observe::trace::{Tracer, Transport};
use tonic::Status;
use tower::service_fn;
use tracing::{Instrument, Span};

use super::{Answer, Calls, ResponseBody, refused};
use crate::{
    Protocol,
    grpc::{
        CompressionLevel, MessageLimits,
        call::{Call, CallRequest, Kind, Method},
        messages::{Packing, Writer},
    },
    restricted::Restrictions,
    services::ConnectionHolds,
    span,
};

/// Begins the calls of a connection, and rejects what is not gRPC.
pub(in crate::grpc) fn begin<B: Send + 'static>(
    tracer: Arc<Tracer>,
    holds: Arc<ConnectionHolds>,
    limits: MessageLimits,
    compression: CompressionLevel,
    mut inner: impl Calls<CallRequest<B>>,
) -> impl Calls<Request<B>> {
    service_fn(move |request: Request<B>| {
        if !is_grpc(request.headers()) {
            return Either::Right(ready(not_grpc()));
        }
        let method = Method::of(request.uri().path());
        let packing = match method {
            Some(Method { protocol: Protocol::Inference, .. }) => Packing::negotiate(compression, request.headers()),
            _ => None,
        };
        let is_infer = method.is_some_and(|method| method.kind == Kind::Infer);
        let span = if is_infer { span::open(Transport::Grpc) } else { Span::none() };
        let head = if is_infer { tracer.head(request.headers()) } else { None };
        let call = Call {
            method,
            holds: Arc::clone(&holds),
            deadline: None,
            writer: Writer::new(packing, limits.max_send_bytes),
            span: span.clone(),
            head,
            handover: Arc::default(),
        };
        Either::Left(span.in_scope(|| inner.call(CallRequest { call, request })).instrument(span))
    })
}

/// Rejects the calls of methods that do not exist, or that need a header which the call lacks.
pub(in crate::grpc) fn restrict<B: Send + 'static>(
    restrictions: Arc<Restrictions>,
    mut inner: impl Calls<CallRequest<B>>,
) -> impl Calls<CallRequest<B>> {
    service_fn(move |request: CallRequest<B>| match check(&restrictions, &request) {
        Ok(()) => Either::Left(inner.call(request)),
        Err(status) => Either::Right(ready(refused(status))),
    })
}

fn check<B>(restrictions: &Restrictions, CallRequest { call, request }: &CallRequest<B>) -> Result<(), Status> {
    let Some(method) = call.method else {
        return Err(Status::unimplemented(format!("unknown method '{}'", request.uri().path())));
    };
    restrictions
        .check(method.protocol, request.headers())
        .map_err(|header| Status::unavailable(format!("This protocol is restricted, expecting header '{header}'")))
}

/// Whether a call has gRPC's content type, for messages of protobuf.
fn is_grpc(headers: &HeaderMap) -> bool {
    let kind = headers.get(CONTENT_TYPE).and_then(|kind| kind.as_bytes().split(|byte| *byte == b';').next());
    kind.is_some_and(|kind| {
        let kind = kind.trim_ascii();
        kind.eq_ignore_ascii_case(b"application/grpc") || kind.eq_ignore_ascii_case(b"application/grpc+proto")
    })
}

fn not_grpc() -> Answer {
    let mut response = Response::new(ResponseBody::default());
    *response.status_mut() = StatusCode::UNSUPPORTED_MEDIA_TYPE;
    Ok(response)
}

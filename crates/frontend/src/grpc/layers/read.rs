//! Reads the messages of requests, within the limits, before tonic sees them.

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, Request};
use hyper::body::Incoming;
use paternoster_observe::budget::Reservation;
use tonic::Status;
use tower::service_fn;

use super::{
    Calls,
    bodies::{Replies, RequestBody, ResponseBody},
    refused,
};
use crate::{
    grpc::{
        call::{Call, CallRequest, Kind},
        codec::HANDED_OVER,
        messages::{MessageReader, take_encoding},
    },
    intake::Workers,
};

/// Maximum request size of a method that is not meant to carry data; names and settings are far shorter. Such a request
/// cannot take much memory, whatever it contains.
const MOST_SMALL_REQUEST_BYTES: usize = 64 << 10;

/// Reads messages of at most `limit` bytes for tonic's services.
pub(in crate::grpc) fn read_messages(
    limit: usize,
    workers: Arc<Workers>,
    inner: impl Calls<Request<RequestBody>, tonic::body::Body>,
) -> impl Calls<CallRequest<Incoming>> {
    service_fn(move |CallRequest { call, request }| {
        let (workers, mut inner) = (Arc::clone(&workers), inner.clone());
        Box::pin(async move {
            let (mut parts, body) = request.into_parts();
            let (body, replies) = match read(&call, &mut parts.headers, body, limit, workers).await {
                Ok(bodies) => bodies,
                Err(status) => return refused(status),
            };
            parts.extensions.insert(call);
            let response = inner.call(Request::from_parts(parts, body)).await?;
            Ok(response.map(|body| ResponseBody::new(body, replies)))
        })
    })
}

/// Returns the body of a request for tonic, and what the body of its response needs.
///
/// # Errors
/// As [`MessageReader::only`]; UNIMPLEMENTED for an unknown compression.
async fn read(
    call: &Call,
    headers: &mut HeaderMap,
    body: Incoming,
    limit: usize,
    workers: Arc<Workers>,
) -> Result<(RequestBody, Option<Replies>), Status> {
    if call.is(Kind::Reflection) {
        return Ok((RequestBody::Unread(body), None));
    }
    let is_small = call.is(Kind::Small);
    let limit = if is_small { limit.min(MOST_SMALL_REQUEST_BYTES) } else { limit };
    let encoding = take_encoding(headers)?;
    let mut reader = MessageReader::new(body, encoding, limit, Reservation::none(&call.holds.share), workers);
    let body = if call.is(Kind::StreamInfer) {
        RequestBody::Messages { reader: Box::new(reader), handover: Arc::clone(&call.handover) }
    } else if is_small {
        RequestBody::Message(Some(framed(&reader.only().await?.bytes)))
    } else {
        call.handover.put_request(reader.only().await?);
        RequestBody::Message(Some(HANDED_OVER))
    };
    Ok((body, Some(Replies::of(call))))
}

/// Prepends the prefix to a message that is within the limit of small requests.
fn framed(message: &[u8]) -> Bytes {
    [&[0], &(message.len() as u32).to_be_bytes()[..], message].concat().into()
}

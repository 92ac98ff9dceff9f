//! The body of a response: its parts in sequence, never copied together.

use std::{
    collections::VecDeque,
    convert::Infallible,
    io::{self, Write},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use axum::{body::Body, response::Response};
use bytes::Bytes;
use flate2::{
    Compression,
    write::{GzEncoder, ZlibEncoder},
};
use http::{
    HeaderValue, StatusCode,
    header::{CONTENT_ENCODING, CONTENT_TYPE},
};
use http_body::{Frame, SizeHint};
use paternoster_executor::Backlog;
use paternoster_observe::trace::{RequestTrace, Sending, TRACE_RESPONSE};
use paternoster_wire::json;

use super::Problem;
use crate::{intake::Encoding, unsent::admitted};

/// Header with the length in bytes of the JSON before binary data.
pub(super) const JSON_LENGTH: &str = "inference-header-content-length";

/// A response that has not been sent.
pub(super) struct UnsentResponse {
    kind: &'static str,
    /// Uncompressed length of the JSON, if binary data follows it.
    json_bytes: Option<usize>,
    encoding: Option<Encoding>,
    parts: VecDeque<Bytes>,
    /// Trace of its request, if it is traced.
    trace: Option<Arc<RequestTrace>>,
}

impl UnsentResponse {
    /// Creates the response to an inference request.
    pub(super) fn inference(json::JsonResponse { json, binary }: json::JsonResponse) -> Self {
        let (kind, json_bytes) =
            if binary.is_empty() { ("application/json", None) } else { ("application/octet-stream", Some(json.len())) };
        let mut parts = VecDeque::from(binary);
        parts.push_front(json.into());
        Self { kind, json_bytes, encoding: None, parts, trace: None }
    }

    /// Creates a response of JSON only.
    pub(super) fn json(json: Vec<u8>) -> Self {
        Self::json_of(VecDeque::from([json.into()]))
    }

    /// Creates a response of JSON in parts.
    pub(super) fn json_of(parts: VecDeque<Bytes>) -> Self {
        Self { kind: "application/json", json_bytes: None, encoding: None, parts, trace: None }
    }

    /// Compresses the response if that makes it shorter.
    pub(super) fn packed(self, encoding: Encoding) -> Self {
        let bytes: usize = self.parts.iter().map(Bytes::len).sum();
        match pack(encoding, &self.parts) {
            Ok(packed) if packed.len() < bytes => {
                Self { encoding: Some(encoding), parts: VecDeque::from([packed.into()]), ..self }
            }
            _ => self,
        }
    }

    /// Records in the request's trace when the response has been sent.
    pub(super) fn traced(self, trace: Option<Arc<RequestTrace>>) -> Self {
        Self { trace, ..self }
    }

    /// Converts to an HTTP response. Its parts count in the backlog until they have been sent.
    ///
    /// # Errors
    /// 503 if too many responses wait in the process.
    pub(super) fn into_response(self, backlog: &Arc<Backlog>) -> Result<Response, Problem> {
        let parts = self.parts.into_iter().filter(|part| !part.is_empty()).map(|part| admitted(part, backlog));
        let parts = parts.collect::<Result<VecDeque<Bytes>, _>>();
        let parts = parts.map_err(|unread| Problem::new(StatusCode::SERVICE_UNAVAILABLE, unread.to_string()))?;
        let sending = self.trace.as_ref().map(RequestTrace::sending);
        let mut response = Response::new(Body::new(Parts { parts, _sending: sending }));
        let headers = response.headers_mut();
        if let Some(span) = self.trace.as_ref().and_then(|trace| trace.response_header()) {
            headers.insert(TRACE_RESPONSE, span);
        }
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(self.kind));
        if let Some(bytes) = self.json_bytes {
            headers.insert(JSON_LENGTH, HeaderValue::from(bytes));
        }
        if let Some(encoding) = self.encoding {
            headers.insert(CONTENT_ENCODING, HeaderValue::from_static(encoding.name()));
        }
        Ok(response)
    }
}

/// Compresses at the fastest level: tensors compress poorly, so time matters more than size.
fn pack(encoding: Encoding, parts: &VecDeque<Bytes>) -> io::Result<Vec<u8>> {
    fn write_all<W: Write>(mut encoder: W, parts: &VecDeque<Bytes>) -> io::Result<W> {
        parts.iter().try_for_each(|part| encoder.write_all(part))?;
        Ok(encoder)
    }
    match encoding {
        Encoding::Gzip => write_all(GzEncoder::new(Vec::new(), Compression::fast()), parts)?.finish(),
        Encoding::Deflate => write_all(ZlibEncoder::new(Vec::new(), Compression::fast()), parts)?.finish(),
    }
}

struct Parts {
    parts: VecDeque<Bytes>,
    /// Records that the last part has been sent.
    _sending: Option<Sending>,
}

impl http_body::Body for Parts {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.parts.pop_front().map(|part| Ok(Frame::data(part))))
    }

    fn is_end_stream(&self) -> bool {
        self.parts.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.parts.iter().map(|part| part.len() as u64).sum())
    }
}

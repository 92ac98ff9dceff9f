//! What the head of every request must be, and how the connection goes on after its response.

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, ready},
};

use axum::response::Response;
use bytes::Bytes;
use http::{
    HeaderMap, HeaderName, HeaderValue, Request, StatusCode,
    header::{CONNECTION, TRANSFER_ENCODING},
};
use http_body::{Body, Frame, SizeHint};

use super::{Problem, host::Names};

/// Maximum size of a request's head in bytes.
pub(super) const MOST_HEAD_BYTES: usize = 64 << 10;

/// Checks a request before it reaches its route.
///
/// # Errors
/// 431 for a head that is too large, 501 for a transfer coding other than chunked, and the errors of [`Names::check`].
pub(super) fn check<B>(request: &Request<B>, names: &Names) -> Result<(), Problem> {
    // hyper's own limit is on what it has buffered, which may be the double before it is noticed.
    if bytes_of(request) > MOST_HEAD_BYTES {
        let message = format!("the head of the request has more than {MOST_HEAD_BYTES} bytes");
        return Err(Problem::new(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, message));
    }
    // hyper undoes the last coding, which is chunked, and no other.
    let mut codings = elements(request.headers(), &TRANSFER_ENCODING);
    if let Some(coding) = codings.find(|coding| !coding.eq_ignore_ascii_case(b"chunked")) {
        let coding = String::from_utf8_lossy(coding);
        let message = format!("Transfer-Encoding '{coding}' is not supported, expected chunked");
        return Err(Problem::new(StatusCode::NOT_IMPLEMENTED, message));
    }
    names.check(request)
}

/// Returns the size of a head as it was sent, apart from optional blanks.
fn bytes_of<B>(request: &Request<B>) -> usize {
    let uri = request.uri();
    let target = uri.path_and_query().map_or(0, |path| path.as_str().len())
        + uri.authority().map_or(0, |authority| authority.as_str().len());
    let line = request.method().as_str().len() + " ".len() + target + " HTTP/1.1\r\n".len();
    let fields = request.headers().iter().map(|(name, value)| name.as_str().len() + value.len() + ": \r\n".len());
    line + fields.sum::<usize>() + "\r\n".len()
}

/// Returns the elements of a header that is a list, over all of its lines (RFC 9110, section 5.6.1).
pub(super) fn elements<'h>(headers: &'h HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'h [u8]> + use<'h> {
    let lines = headers.get_all(name).into_iter();
    let elements = lines.flat_map(|line| line.as_bytes().split(|byte| *byte == b','));
    elements.map(<[u8]>::trim_ascii).filter(|element| !element.is_empty())
}

/// The body of a request, which remembers whether it was read to its end.
pub(super) struct Watched<B> {
    body: B,
    is_read: Arc<AtomicBool>,
}

/// Tells whether a [`Watched`] body was read to its end.
pub(super) struct Watch(Arc<AtomicBool>);

impl<B: Body> Watched<B> {
    pub(super) fn new(body: B) -> (Self, Watch) {
        let is_read = Arc::new(AtomicBool::new(body.is_end_stream()));
        let watch = Watch(Arc::clone(&is_read));
        (Self { body, is_read }, watch)
    }
}

impl Watch {
    /// Announces that the connection closes after a response that came before the end of the request's body. What is
    /// left of the body could otherwise be taken for the next request.
    pub(super) fn announce(&self, mut answer: Response) -> Response {
        if !self.0.load(Ordering::Relaxed) {
            answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        answer
    }
}

impl<B: Body<Data = Bytes> + Unpin> Body for Watched<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        if frame.is_none() || self.body.is_end_stream() {
            self.is_read.store(true, Ordering::Relaxed);
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_elements_of_all_lines_are_one_list() {
        let mut headers = HeaderMap::new();
        for line in ["gzip , deflate", "", ",br,"] {
            headers.append(TRANSFER_ENCODING, HeaderValue::from_static(line));
        }
        let listed: Vec<&[u8]> = elements(&headers, &TRANSFER_ENCODING).collect();
        assert_eq!(listed, [&b"gzip"[..], b"deflate", b"br"]);
    }
}

//! A client below gRPC: HTTP/2 requests with any headers and any body.

use std::{
    convert::Infallible,
    future::poll_fn,
    net::SocketAddr,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http::{Request, Response};
use http_body::{Body, Frame};
use hyper::{body::Incoming, client::conn::http2};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use prost::Message;
use tokio::{net::TcpStream, sync::oneshot, task::JoinHandle};

use super::soon;

/// A request's body: some bytes, after which it ends, stays open, or sends the rest.
pub(crate) struct RawBody {
    bytes: Option<Bytes>,
    ends: bool,
    rest: Option<oneshot::Receiver<Bytes>>,
}

impl RawBody {
    /// Returns a body of these bytes that ends after them.
    pub(crate) fn whole(bytes: impl Into<Bytes>) -> Self {
        Self { bytes: Some(bytes.into()), ends: true, rest: None }
    }

    /// Returns a body of one gRPC message that ends after it.
    pub(crate) fn message(message: &impl Message) -> Self {
        Self::whole(frame(message))
    }

    /// Returns a body of these bytes that stays open without sending more.
    pub(crate) fn silent_after(bytes: impl Into<Bytes>) -> Self {
        Self { bytes: Some(bytes.into()), ends: false, rest: None }
    }

    /// Returns a body of these bytes and, once there are any, others.
    pub(crate) fn in_two(bytes: impl Into<Bytes>, rest: oneshot::Receiver<Bytes>) -> Self {
        Self { bytes: Some(bytes.into()), ends: true, rest: Some(rest) }
    }
}

impl Body for RawBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.bytes.is_none()
            && let Some(rest) = &mut self.rest
        {
            self.bytes = ready!(Pin::new(rest).poll(context)).ok();
            self.rest = None;
        }
        match self.bytes.take() {
            Some(bytes) => Poll::Ready(Some(Ok(Frame::data(bytes)))),
            None if self.ends => Poll::Ready(None),
            None => Poll::Pending,
        }
    }
}

/// Prepends the prefix to an encoded message, uncompressed.
pub(crate) fn framed(message: &[u8]) -> Vec<u8> {
    let length = u32::try_from(message.len()).expect("a message that gRPC can carry");
    [&[0], &length.to_be_bytes()[..], message].concat()
}

/// A connection, and the task that drives it until it is closed.
pub(crate) struct RawConnection {
    pub sender: http2::SendRequest<RawBody>,
    pub task: JoinHandle<hyper::Result<()>>,
}

impl RawConnection {
    pub(crate) async fn open(address: SocketAddr) -> Self {
        Self::with(address, &mut http2::Builder::new(TokioExecutor::new())).await
    }

    /// Opens a connection whose peer may send at most this many bytes of each response before they are read.
    pub(crate) async fn with_window(address: SocketAddr, bytes: u32) -> Self {
        Self::with(address, http2::Builder::new(TokioExecutor::new()).initial_stream_window_size(bytes)).await
    }

    async fn with(address: SocketAddr, builder: &mut http2::Builder<TokioExecutor>) -> Self {
        let stream = TcpStream::connect(address).await.expect("a connection");
        let (sender, connection) =
            builder.timer(TokioTimer::new()).handshake(TokioIo::new(stream)).await.expect("a handshake");
        Self { sender, task: tokio::spawn(connection) }
    }

    pub(crate) async fn call(&mut self, request: Request<RawBody>) -> hyper::Result<Response<Incoming>> {
        self.sender.ready().await?;
        self.sender.send_request(request).await
    }
}

/// Encodes a gRPC message with its prefix.
pub(crate) fn frame(message: &impl Message) -> Vec<u8> {
    framed(&message.encode_to_vec())
}

/// Returns a gRPC request to any path.
pub(crate) fn post(path: &str, body: RawBody) -> Request<RawBody> {
    Request::post(format!("http://test{path}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(body)
        .expect("a request")
}

/// How a response ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Ending {
    /// Total bytes of its messages.
    pub bytes: usize,
    /// The status, from the headers or the trailers.
    pub status: Option<String>,
    /// The status message as encoded in its header.
    pub message: Option<String>,
}

/// Reads a response to its end.
pub(crate) async fn ending(response: Response<Incoming>) -> Ending {
    let (head, mut body) = response.into_parts();
    let (mut bytes, mut headers) = (0, head.headers);
    while let Some(Ok(frame)) = soon(poll_fn(|context| Pin::new(&mut body).poll_frame(context))).await {
        match frame.into_data() {
            Ok(data) => bytes += data.len(),
            Err(other) => headers.extend(other.into_trailers().ok().into_iter().flatten()),
        }
    }
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
    Ending { bytes, status: text("grpc-status"), message: text("grpc-message") }
}

/// Returns the status of a response without messages.
pub(crate) fn grpc_status(response: &Response<Incoming>) -> Option<&str> {
    response.headers().get("grpc-status").and_then(|status| status.to_str().ok())
}

//! One connection, from its handshake to its end.

use std::{
    future::{Future, pending},
    io,
    pin::pin,
    sync::Arc,
    time::Duration,
};

use hyper::{server::conn::http2, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use parking_lot::Mutex;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tower::Service;
use tracing::debug;

use super::{
    authority::Escaped,
    calls::{Calls, WithCalls},
    idle::Idleness,
    preface::Prefaced,
};
use crate::{
    clients::Identity,
    grpc::{ConnectionLimits, stack::Stack},
    listen::{Opened, Stream, peer_address, turn_away},
    tls::Certificates,
};

/// Flow-control window per call, in bytes.
const STREAM_WINDOW_BYTES: u32 = 1 << 20;

/// Flow-control window per connection, in bytes. Larger than one call's window, so that a stream that is not read does
/// not block the others.
const CONNECTION_WINDOW_BYTES: u32 = 8 << 20;

/// Maximum HTTP/2 frame size that a client may send. Larger frames mean fewer frames for large tensors, but take this
/// much memory per connection.
const FRAME_BYTES: u32 = 64 << 10;

/// Maximum size of the headers of one call.
const HEADER_LIST_BYTES: u32 = 16 << 10;

/// Sent to a client without TLS that exceeds the connection limit: empty settings, and GOAWAY with code
/// ENHANCE_YOUR_CALM and a text that clients show.
const NO_PLACE: &[u8] = b"\0\0\0\x04\0\0\0\0\0\0\0\x1c\x07\0\0\0\0\0\0\0\0\0\0\0\0\x0btoo many connections";

/// Resources shared by all connections.
pub(crate) struct Host {
    stack: Stack,
    limits: ConnectionLimits,
    tls: Option<Arc<Certificates>>,
    /// Cancelled when connections must finish their calls and close.
    closing: CancellationToken,
    /// Cancelled when connections must close at once.
    ended: CancellationToken,
}

impl Host {
    /// Creates a host whose calls go through `stack`.
    pub(crate) fn new(
        stack: Stack,
        limits: ConnectionLimits,
        tls: Option<Arc<Certificates>>,
        closing: CancellationToken,
        ended: CancellationToken,
    ) -> Self {
        Self { stack, limits, tls, closing, ended }
    }

    fn http(&self, calls: Calls) -> http2::Builder<Calls> {
        let mut http = http2::Builder::new(calls);
        let most_calls = self.limits.max_concurrent_streams;
        // Calls that are cancelled before they begin may be as many as those that run. Beyond that, HTTP/2 can only
        // close the connection, which takes the answers of others on it.
        http.timer(TokioTimer::new())
            .initial_stream_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            .max_frame_size(FRAME_BYTES)
            .max_header_list_size(HEADER_LIST_BYTES)
            .max_concurrent_streams(most_calls)
            .max_pending_accept_reset_streams(usize::try_from(most_calls).unwrap_or(usize::MAX))
            .keep_alive_interval(self.limits.keepalive_time)
            .keep_alive_timeout(self.limits.keepalive_timeout)
            .auto_date_header(false);
        http
    }

    /// Serves a connection until it ends. `spread` in 0..1 selects its age within the variation of a tenth.
    pub(super) async fn serve(&self, stream: Stream, spread: f64) {
        let served = match self.shake_hands(self.open(stream)).await {
            Ok((stream, identity)) => self.serve_http(stream, spread, identity).await,
            Err(error) => Err(error.into()),
        };
        if let Err(error) = served {
            debug!(%error, "connection ended");
        }
    }

    /// Closes a connection that exceeds the connection limit.
    pub(super) fn turn_away(&self, stream: Stream) {
        // A client that expects TLS could not read a message yet.
        let words = if self.tls.is_none() { NO_PLACE } else { &[] };
        let closed = turn_away(stream, words);
        debug!(?closed, "gRPC connection refused: there are too many");
    }

    /// Performs the TLS handshake, if there is one, and awaits the first bytes of HTTP/2.
    async fn open(&self, stream: Stream) -> io::Result<(Prefaced<Escaped<Opened>>, Identity)> {
        let is_unix = matches!(stream, Stream::Right(_));
        let identity = Identity::of_address(peer_address(&stream));
        let (stream, identity) = match &self.tls {
            None => (Opened::Left(stream), identity),
            Some(certificates) => {
                let stream = certificates.acceptor().accept(stream).await?;
                let identity = identity.secured(&stream);
                (Opened::Right(stream), identity)
            }
        };
        Ok((Prefaced::expect(Escaped::new(stream, is_unix)).await?, identity))
    }

    async fn shake_hands<S>(&self, handshake: impl Future<Output = io::Result<S>>) -> io::Result<S> {
        match self.closing.run_until_cancelled(timeout(self.limits.handshake_timeout, handshake)).await {
            Some(Ok(result)) => result,
            Some(Err(_)) => Err(io::Error::new(io::ErrorKind::TimedOut, "no handshake in time")),
            None => Err(io::Error::new(io::ErrorKind::ConnectionAborted, "the server closes")),
        }
    }

    async fn serve_http(
        &self,
        stream: Prefaced<Escaped<Opened>>,
        spread: f64,
        identity: Identity,
    ) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        // The layers are always ready.
        let service = Mutex::new(self.stack.connection(identity));
        let service = service_fn(|request| service.lock().call(request));
        let calls = Calls::default();
        let connection = self.http(calls.clone()).serve_connection(TokioIo::new(stream), service);
        let mut connection = WithCalls::new(connection, calls);
        let mut idleness = Idleness::new(self.limits.max_idle);
        let mut old = pin!(after(self.limits.max_age.map(|age| age.mul_f64(0.9 + 0.2 * spread))));
        let mut idle = false;
        while !idle {
            tokio::select! {
                result = &mut connection => return Ok(result?),
                () = self.ended.cancelled() => return Ok(()),
                () = self.closing.cancelled() => break,
                () = &mut old => break,
                () = idleness.next_check() => idle = idleness.check(connection.begun(), connection.is_running()),
            }
        }
        // Sends GOAWAY. The connection ends once its calls have ended and the peer has answered.
        connection.connection().graceful_shutdown();
        if idle {
            tokio::select! {
                result = &mut connection => return Ok(result?),
                () = self.ended.cancelled() => return Ok(()),
                () = sleep(self.limits.keepalive_timeout) => {}
            }
            if !connection.is_running() {
                return Err("an idle connection whose peer does not answer".into());
            }
        }
        let grace = if self.closing.is_cancelled() { None } else { self.limits.max_age_grace };
        tokio::select! {
            result = &mut connection => Ok(result?),
            () = self.ended.cancelled() => Ok(()),
            () = after(grace) => Err("its grace after the largest age is over".into()),
        }
    }
}

async fn after(duration: Option<Duration>) {
    match duration {
        Some(duration) => sleep(duration).await,
        None => pending().await,
    }
}

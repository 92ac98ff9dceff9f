//! Accepts connections and limits what each may hold.

use std::{convert::Infallible, io, pin::pin, sync::Arc, time::Duration};

use axum::{Router, response::IntoResponse};
use http::Request;
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use paternoster_observe::budget::{Budget, Reservation};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    time::{sleep, timeout},
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tower::Service;
use tracing::{debug, warn};

use super::{
    guard::Guarded,
    head::{self, MOST_HEAD_BYTES, Watched},
    host::Names,
};
use crate::{
    Services,
    clients::Identity,
    listen::{Listener, Opened, Stream, peer_address, turn_away},
    services::ConnectionHolds,
    tls::Certificates,
};

/// Sent to a connection that exceeds the connection limit.
const NO_PLACE: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";

/// Time limit for the complete head of a request, and for an idle connection. Longer than load balancers keep idle
/// connections, so that they do not send on one that is being closed.
const HEADER_TIMEOUT: Duration = Duration::from_secs(75);

/// Time limit from the first packet to the end of the TLS handshake.
pub(super) const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(20);

/// Maximum number of header fields of a request.
const MOST_HEADERS: usize = 100;

/// Pause after a failed accept (for example, no file descriptors left), so that the loop does not spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// An open port.
pub(super) struct Acceptor {
    pub listener: Listener,
    pub routes: Router,
    /// The hosts that requests may name.
    pub names: Names,
    /// TLS settings; `None`: plain text.
    pub tls: Option<Arc<Certificates>>,
    /// The services whose budgets connections share; `None` if requests have no bodies.
    pub services: Option<Arc<Services>>,
    /// Budget of open connections.
    pub places: Arc<Budget>,
    pub connections: TaskTracker,
    /// Cancelled when no further connection or request is accepted.
    pub closing: CancellationToken,
    /// Cancelled when open connections are cut off.
    pub ended: CancellationToken,
}

impl Acceptor {
    /// Accepts connections until closing.
    pub(super) async fn accept(self) {
        while let Some(accepted) = self.closing.run_until_cancelled(next(&self.listener, &self.places)).await {
            match accepted {
                Ok((stream, None)) => {
                    // A client that expects TLS could not read a message yet.
                    let words = if self.tls.is_none() { NO_PLACE } else { &[] };
                    let closed = turn_away(stream, words);
                    debug!(?closed, "HTTP connection refused: there are too many");
                }
                Ok((stream, Some(place))) => {
                    let (routes, closing, ended) = (self.routes.clone(), self.closing.clone(), self.ended.clone());
                    let identity = Identity::of_address(peer_address(&stream));
                    let holds = self.services.as_ref().map(|services| services.connection(identity));
                    let peer = Peer { holds, is_certified: false, names: self.names.clone() };
                    let tls = self.tls.as_ref().map(|certificates| certificates.acceptor());
                    self.connections.spawn(async move {
                        let served = async {
                            if let Some((stream, peer)) = open(stream, tls, peer, &closing).await {
                                serve(stream, routes, peer, closing).await;
                            }
                        };
                        ended.run_until_cancelled(served).await;
                        drop(place);
                    });
                }
                Err(error) => {
                    warn!(%error, "cannot accept an HTTP connection");
                    sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }
}

async fn next(listener: &Listener, places: &Arc<Budget>) -> io::Result<(Stream, Option<Reservation>)> {
    let stream = listener.accept().await?;
    Ok((stream, places.take_one()))
}

/// Properties of a connection's peer.
#[derive(Default)]
pub(super) struct Peer {
    /// The resources that its calls share; `None` if requests have no bodies.
    pub(super) holds: Option<ConnectionHolds>,
    /// Whether it presented a valid client certificate.
    pub(super) is_certified: bool,
    /// The hosts that its requests may name.
    pub(super) names: Names,
}

/// Marks requests whose client presented a certificate.
#[derive(Clone, Copy, Debug)]
pub(super) struct Certified;

/// Performs the TLS handshake within [`HANDSHAKE_TIMEOUT`], if there is one. Returns nothing if it fails.
async fn open(
    stream: Stream,
    tls: Option<TlsAcceptor>,
    peer: Peer,
    closing: &CancellationToken,
) -> Option<(Opened, Peer)> {
    let Some(tls) = tls else { return Some((Opened::Left(stream), peer)) };
    match closing.run_until_cancelled(timeout(HANDSHAKE_TIMEOUT, tls.accept(stream))).await? {
        Ok(Ok(stream)) => {
            let is_certified = is_certified(&stream);
            let holds = peer.holds.map(|holds| ConnectionHolds { identity: holds.identity.secured(&stream), ..holds });
            return Some((Opened::Right(stream), Peer { is_certified, holds, ..peer }));
        }
        Ok(Err(error)) => debug!(%error, "a TLS handshake over HTTP failed"),
        Err(_) => debug!("no TLS handshake over HTTP in time"),
    }
    None
}

/// Whether the client presented a certificate. The handshake has already verified it.
fn is_certified(stream: &TlsStream<Stream>) -> bool {
    let (_, session) = stream.get_ref();
    session.peer_certificates().is_some_and(|chain| !chain.is_empty())
}

/// Answers the requests of one connection until it ends or `closing` is cancelled. If the peer disconnects or
/// half-closes, the request in progress is dropped.
pub(super) async fn serve<S>(stream: S, routes: Router, peer: Peer, closing: CancellationToken)
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let service = service_fn(move |request: Request<Incoming>| {
        let (parts, body) = request.into_parts();
        let (body, watch) = Watched::new(body);
        let mut request = Request::from_parts(parts, body);
        if let Some(holds) = &peer.holds {
            request.extensions_mut().insert(holds.clone());
        }
        if peer.is_certified {
            request.extensions_mut().insert(Certified);
        }
        let answer = head::check(&request, &peer.names).map(|()| routes.clone().call(request));
        async move {
            let answer = match answer {
                Ok(answer) => answer.await.unwrap_or_else(|never| match never {}),
                Err(problem) => problem.into_response(),
            };
            Ok::<_, Infallible>(watch.announce(answer))
        }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .max_headers(MOST_HEADERS)
        // Also of a piece of a body that is read at a time.
        .max_buf_size(MOST_HEAD_BYTES)
        .serve_connection(TokioIo::new(Guarded::new(stream)), service);
    let mut connection = pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = closing.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        debug!(%error, "an HTTP connection ended early");
    }
}

//! Accepting connections, and the bounds on what one of them may hold.

use std::{convert::Infallible, io, pin::pin, sync::Arc, time::Duration};

use axum::Router;
use http::Request;
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream},
    time::{sleep, timeout},
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tower::Service;
use tracing::{debug, warn};

use super::guard::Guarded;
use crate::{
    budget::{Budget, Reservation},
    frontend::{Services, services::ConnectionHolds, turn_away::turn_away},
};

/// What a connection gets for which there is no place.
const NO_PLACE: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";

/// Time for the whole head of a request, and for an idle connection: longer than what load balancers keep theirs open,
/// so that they do not send into one that is being closed.
const HEADER_TIMEOUT: Duration = Duration::from_secs(75);

/// Time from the first packet to the end of the TLS handshake.
pub(super) const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(20);

/// Most header fields of a request.
const MOST_HEADERS: usize = 100;

/// Most bytes of a request's head, and of a body that are read at a time.
const MOST_BUFFER_BYTES: usize = 64 << 10;

/// Pause after a failed accept (no file descriptors left), so that the loop does not spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// An open port.
pub(super) struct Acceptor {
    pub listener: TcpListener,
    pub routes: Router,
    /// Secures connections; none: they are plain text.
    pub tls: Option<TlsAcceptor>,
    /// Whose budgets the connections have their parts of; none where requests carry nothing.
    pub services: Option<Arc<Services>>,
    /// A place for each connection that may be open.
    pub places: Arc<Budget>,
    pub connections: TaskTracker,
    /// No further connection or request is taken.
    pub closing: CancellationToken,
    /// What is still open is cut off.
    pub ended: CancellationToken,
}

impl Acceptor {
    /// Accepts until closing.
    pub(super) async fn accept(self) {
        while let Some(accepted) = self.closing.run_until_cancelled(next(&self.listener, &self.places)).await {
            match accepted {
                Ok((stream, None)) => {
                    // A client that expects TLS cannot read anything yet.
                    let words = if self.tls.is_none() { NO_PLACE } else { &[] };
                    let told = turn_away(stream, words);
                    debug!(?told, "HTTP connection refused: there are too many");
                }
                Ok((stream, Some(place))) => {
                    let (routes, closing, ended) = (self.routes.clone(), self.closing.clone(), self.ended.clone());
                    let holds = self.services.as_ref().map(|services| services.connection());
                    let peer = Peer { holds, is_certified: false };
                    let tls = self.tls.clone();
                    self.connections.spawn(async move {
                        let served = async {
                            match tls {
                                None => serve(stream, routes, peer, closing).await,
                                Some(tls) => serve_secured(stream, &tls, routes, peer, closing).await,
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

async fn next(listener: &TcpListener, places: &Arc<Budget>) -> io::Result<(TcpStream, Option<Reservation>)> {
    let (stream, _) = listener.accept().await?;
    stream.set_nodelay(true)?;
    Ok((stream, places.take_one()))
}

/// Who is at the other end of a connection.
#[derive(Default)]
pub(super) struct Peer {
    /// What its calls hold; none where requests carry nothing.
    pub(super) holds: Option<ConnectionHolds>,
    /// Whether it showed a certificate, which was found to be good.
    pub(super) is_certified: bool,
}

/// A mark of requests whose client showed a certificate.
#[derive(Clone, Copy, Debug)]
pub(super) struct Certified;

/// Answers the requests of a connection once its handshake is done, which it has [`HANDSHAKE_TIMEOUT`] for.
async fn serve_secured(stream: TcpStream, tls: &TlsAcceptor, routes: Router, peer: Peer, closing: CancellationToken) {
    match closing.run_until_cancelled(timeout(HANDSHAKE_TIMEOUT, tls.accept(stream))).await {
        Some(Ok(Ok(stream))) => {
            let is_certified = is_certified(&stream);
            Box::pin(serve(stream, routes, Peer { is_certified, ..peer }, closing)).await;
        }
        Some(Ok(Err(error))) => debug!(%error, "a TLS handshake over HTTP failed"),
        Some(Err(_)) => debug!("no TLS handshake over HTTP in time"),
        None => {}
    }
}

/// Certificates that the handshake let pass are good.
fn is_certified(stream: &TlsStream<TcpStream>) -> bool {
    let (_, session) = stream.get_ref();
    session.peer_certificates().is_some_and(|chain| !chain.is_empty())
}

/// Answers the requests of one connection until it ends or `closing` says so. A peer that disconnects, or says that it
/// sends nothing more, drops the request that is being answered.
pub(super) async fn serve<S>(stream: S, routes: Router, peer: Peer, closing: CancellationToken)
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let service = service_fn(move |mut request: Request<Incoming>| {
        if let Some(holds) = &peer.holds {
            request.extensions_mut().insert(holds.clone());
        }
        if peer.is_certified {
            request.extensions_mut().insert(Certified);
        }
        let answer = routes.clone().call(request);
        async move { Ok::<_, Infallible>(answer.await.unwrap_or_else(|never| match never {})) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .max_headers(MOST_HEADERS)
        .max_buf_size(MOST_BUFFER_BYTES)
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

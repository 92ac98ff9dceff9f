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
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tower::Service;
use tracing::{debug, warn};

use crate::{
    budget::{Budget, Reservation},
    frontend::turn_away::turn_away,
};

/// What a connection gets for which there is no place.
const NO_PLACE: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";

/// Time for the whole head of a request, and for an idle connection.
const HEADER_TIMEOUT: Duration = Duration::from_secs(30);

/// Most header fields of a request.
const MOST_HEADERS: usize = 100;

/// Most bytes of a request's head.
const MOST_HEADER_BYTES: usize = 16 << 10;

/// Age at which a connection takes no further request.
const MOST_AGE: Duration = Duration::from_secs(600);

/// Time from then on for its last response, so that a peer that does not read holds nothing for long.
const LAST_RESPONSE: Duration = Duration::from_secs(30);

/// Pause after a failed accept (no file descriptors left), so that the loop does not spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// An open port.
pub(super) struct Acceptor {
    pub listener: TcpListener,
    pub routes: Router,
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
                    let told = turn_away(stream, NO_PLACE);
                    debug!(?told, "HTTP connection refused: there are too many");
                }
                Ok((stream, Some(place))) => {
                    let (routes, closing, ended) = (self.routes.clone(), self.closing.clone(), self.ended.clone());
                    self.connections.spawn(async move {
                        ended.run_until_cancelled(serve(stream, routes, closing)).await;
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

/// Answers the requests of one connection until it ends or `closing` says so.
pub(super) async fn serve<S>(stream: S, routes: Router, closing: CancellationToken)
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let service = service_fn(move |request: Request<Incoming>| {
        let answer = routes.clone().call(request);
        async move { Ok::<_, Infallible>(answer.await.unwrap_or_else(|never| match never {})) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .max_headers(MOST_HEADERS)
        .max_buf_size(MOST_HEADER_BYTES)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => Ok(ended),
        () = closing.cancelled() => {
            connection.as_mut().graceful_shutdown();
            Ok(connection.await)
        }
        () = sleep(MOST_AGE) => {
            connection.as_mut().graceful_shutdown();
            timeout(LAST_RESPONSE, connection).await
        }
    };
    if let Ok(Err(error)) = ended {
        debug!(%error, "an HTTP connection ended early");
    }
}

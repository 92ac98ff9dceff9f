//! Accepting connections, and the bounds on what one of them may hold.

use std::{convert::Infallible, io, pin::pin, sync::Arc, time::Duration};

use axum::Router;
use http::Request;
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{sleep, timeout},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tower::Service;
use tracing::{debug, warn};

/// Most connections at once; more wait in the system's queue.
const MOST_CONNECTIONS: usize = 1024;

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
pub(super) struct Door {
    pub listener: TcpListener,
    pub routes: Router,
    pub connections: TaskTracker,
    /// No further connection or request is taken.
    pub closing: CancellationToken,
    /// What is still open is cut off.
    pub ended: CancellationToken,
}

impl Door {
    /// Accepts until closing.
    pub(super) async fn accept(self) {
        let room = Arc::new(Semaphore::new(MOST_CONNECTIONS));
        while let Some(accepted) = self.closing.run_until_cancelled(next(&self.listener, &room)).await {
            match accepted {
                Ok((stream, place)) => {
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

async fn next(listener: &TcpListener, room: &Arc<Semaphore>) -> io::Result<(TcpStream, OwnedSemaphorePermit)> {
    let place = Arc::clone(room).acquire_owned().await.map_err(io::Error::other)?;
    let (stream, _) = listener.accept().await?;
    stream.set_nodelay(true)?;
    Ok((stream, place))
}

async fn serve(stream: TcpStream, routes: Router, closing: CancellationToken) {
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

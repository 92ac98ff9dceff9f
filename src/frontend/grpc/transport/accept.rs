//! The accept loop.

use std::{io::ErrorKind, sync::Arc, time::Duration};

use tokio::{net::TcpListener, time::sleep};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::warn;

use super::Host;
use crate::budget::Budget;

/// Pause after a failure to accept that is the machine's, not the peer's (as when file descriptors run out).
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Fractional part of the golden ratio: multiples of it, taken modulo 1, are spread evenly however many there are.
const GOLDEN_FRACTION: f64 = 0.618_033_988_749_894_9;

/// Where connections come in.
pub(in crate::frontend::grpc) struct Acceptor {
    /// The listening socket; closed when the loop ends.
    pub(in crate::frontend::grpc) listener: TcpListener,
    /// Serves each connection.
    pub(in crate::frontend::grpc) host: Host,
    /// A place for each connection that may be open.
    pub(in crate::frontend::grpc) places: Arc<Budget>,
    /// Counts the connections that are open.
    pub(in crate::frontend::grpc) connections: TaskTracker,
    /// Ends the loop.
    pub(in crate::frontend::grpc) closing: CancellationToken,
}

/// Accepts connections until the server closes.
pub(in crate::frontend::grpc) async fn accept(acceptor: Acceptor) {
    let Acceptor { listener, host, places, connections, closing } = acceptor;
    let host = Arc::new(host);
    let mut spread = 0.0_f64;
    while let Some(accepted) = closing.run_until_cancelled(listener.accept()).await {
        match accepted {
            Ok((stream, _peer)) => {
                let Some(place) = places.take_one() else {
                    host.turn_away(stream);
                    continue;
                };
                // A small reply must not wait for the acknowledgement of the one before it.
                if stream.set_nodelay(true).is_err() {
                    continue;
                }
                spread = (spread + GOLDEN_FRACTION).fract();
                let host = Arc::clone(&host);
                connections.spawn(async move {
                    host.serve(stream, spread).await;
                    drop(place);
                });
            }
            Err(error) if of_the_peer(error.kind()) => {}
            Err(error) => {
                warn!(%error, "cannot accept a connection");
                closing.run_until_cancelled(sleep(ACCEPT_PAUSE)).await;
            }
        }
    }
}

fn of_the_peer(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::ConnectionAborted | ErrorKind::ConnectionRefused | ErrorKind::ConnectionReset)
}

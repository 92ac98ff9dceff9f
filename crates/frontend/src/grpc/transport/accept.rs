//! The accept loop.

use std::{io::ErrorKind, sync::Arc, time::Duration};

use paternoster_observe::budget::Budget;
use tokio::time::sleep;
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::warn;

use super::Host;
use crate::listen::Listener;

/// Pause after a failed accept that is caused by the machine rather than the peer, for example if file descriptors run
/// out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Fractional part of the golden ratio. Its multiples modulo 1 are evenly spread, whatever their number.
const GOLDEN_FRACTION: f64 = 0.618_033_988_749_894_9;

/// The accept loop's resources.
pub(crate) struct Acceptor {
    /// The listening socket; closed when the loop ends.
    pub(crate) listener: Listener,
    /// Serves each connection.
    pub(crate) host: Host,
    /// Budget of open connections.
    pub(crate) places: Arc<Budget>,
    /// Tracks the open connections.
    pub(crate) connections: TaskTracker,
    /// Ends the loop.
    pub(crate) closing: CancellationToken,
}

/// Accepts connections until the server closes.
pub(crate) async fn accept(acceptor: Acceptor) {
    let Acceptor { listener, host, places, connections, closing } = acceptor;
    let host = Arc::new(host);
    let mut spread = 0.0_f64;
    while let Some(accepted) = closing.run_until_cancelled(listener.accept()).await {
        match accepted {
            Ok(stream) => {
                let Some(place) = places.take_one() else {
                    host.turn_away(stream);
                    continue;
                };
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

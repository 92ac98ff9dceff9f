//! Whether the server wants traffic: one answer for gRPC, HTTP and the health service.

use std::sync::Arc;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::repository::Repository;

/// Readiness of the whole server: every model that should be loaded is, and no shutdown has begun.
#[derive(Debug)]
pub struct Readiness {
    repository: Arc<Repository>,
    draining: CancellationToken,
}

impl Readiness {
    /// Readiness over a repository, which knows whether its models count (`--strict-readiness`).
    pub fn new(repository: Arc<Repository>) -> Arc<Self> {
        Arc::new(Self { repository, draining: CancellationToken::new() })
    }

    /// Whether the server is ready now.
    pub fn ready(&self) -> bool {
        !self.draining.is_cancelled() && self.repository.ready()
    }

    /// Turns readiness off for good, so that load balancers take the server out before it stops accepting.
    pub fn begin_drain(&self) {
        self.draining.cancel();
    }

    /// A subscription to whatever may change [`Self::ready`].
    pub fn changes(&self) -> ReadinessChanges {
        ReadinessChanges { models: self.repository.changes(), draining: self.draining.clone() }
    }
}

/// Wakes when readiness may have changed.
#[derive(Debug)]
pub struct ReadinessChanges {
    models: watch::Receiver<u64>,
    draining: CancellationToken,
}

impl ReadinessChanges {
    /// Returns when a model's state changed or draining began since the last call; never, once draining was seen.
    pub async fn changed(&mut self) {
        if self.draining.is_cancelled() {
            return std::future::pending().await;
        }
        tokio::select! {
            () = self.draining.cancelled() => {}
            result = self.models.changed() => {
                if result.is_err() {
                    self.draining.cancelled().await;
                }
            }
        }
    }
}

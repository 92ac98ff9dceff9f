//! Readiness of the server, shared by gRPC, HTTP and the health service.

use std::sync::Arc;

use paternoster_executor::Responsiveness;
use paternoster_repository::Repository;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// Readiness of the whole server: every model that should be loaded is loaded and responds, no lane is stuck, no device
/// is lost, the scheduler has not failed, and no shutdown has started.
#[derive(Debug)]
pub struct Readiness {
    repository: Arc<Repository>,
    responsiveness: watch::Receiver<Responsiveness>,
    draining: CancellationToken,
}

impl Readiness {
    /// Creates the readiness over a repository, which knows whether its models count (`--strict-readiness`).
    /// `responsiveness` changes when a loaded model or a lane stops or starts responding.
    pub fn new(repository: Arc<Repository>, responsiveness: watch::Receiver<Responsiveness>) -> Arc<Self> {
        Arc::new(Self { repository, responsiveness, draining: CancellationToken::new() })
    }

    /// Whether the server came up, that is, whether every repository could be read at least once.
    pub fn live(&self) -> bool {
        self.repository.live()
    }

    /// Whether the server is ready now.
    pub fn ready(&self) -> bool {
        let Responsiveness { stuck_lanes, lost_devices, failed, .. } = *self.responsiveness.borrow();
        let lanes_respond = stuck_lanes == 0 && lost_devices == 0 && !failed;
        !self.draining.is_cancelled() && lanes_respond && self.repository.ready()
    }

    /// Turns readiness off permanently, so that load balancers remove the server before it stops accepting.
    pub fn begin_drain(&self) {
        self.draining.cancel();
    }

    /// Returns a subscription to everything that may change [`Self::ready`].
    pub fn changes(&self) -> ReadinessChanges {
        ReadinessChanges {
            models: self.repository.changes(),
            responsiveness: self.responsiveness.clone(),
            draining: self.draining.clone(),
        }
    }
}

/// Wakes when readiness may have changed.
#[derive(Debug)]
pub struct ReadinessChanges {
    models: watch::Receiver<u64>,
    responsiveness: watch::Receiver<Responsiveness>,
    draining: CancellationToken,
}

impl ReadinessChanges {
    /// Returns when a model's state changed or draining started since the last call; never returns once draining was
    /// reported.
    pub async fn changed(&mut self) {
        if self.draining.is_cancelled() {
            return std::future::pending().await;
        }
        let ended = tokio::select! {
            () = self.draining.cancelled() => false,
            result = self.models.changed() => result.is_err(),
            result = self.responsiveness.changed() => result.is_err(),
        };
        if ended {
            self.draining.cancelled().await;
        }
    }
}

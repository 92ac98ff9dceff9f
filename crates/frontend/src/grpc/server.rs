//! The gRPC server: starts with a configuration and shuts down in order.

use std::{io, sync::Arc, time::Duration};

use futures_util::future::BoxFuture;
use tokio::time::{sleep, timeout};
use tokio_util::{
    sync::{CancellationToken, DropGuard},
    task::TaskTracker,
};
use tracing::info;

use super::{
    GrpcConfig,
    stack::Stack,
    transport::{self, Acceptor, Host},
};
use crate::{
    Endpoint, Readiness, RestrictionError, Services, TlsError,
    restricted::Restrictions,
    tls::{Certificates, Uncertified},
};

/// Why the front end cannot start.
#[derive(Debug, thiserror::Error)]
pub enum GrpcStartError {
    /// The address cannot be bound.
    #[error("cannot listen on {endpoint}: {error}")]
    Bind {
        /// The address.
        endpoint: Endpoint,
        /// The system's error.
        error: io::Error,
    },
    /// Certificates or keys are unusable.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The restrictions contradict each other.
    #[error(transparent)]
    Restriction(#[from] RestrictionError),
    /// The descriptors compiled into the server cannot be read.
    #[error("cannot serve reflection: {0}")]
    Reflection(#[from] tonic_reflection::server::Error),
}

/// The running gRPC front end. Dropping it closes all its connections at once.
#[derive(Debug)]
pub struct GrpcServer {
    endpoint: Endpoint,
    readiness: Arc<Readiness>,
    connections: TaskTracker,
    closing: CancellationToken,
    ended: CancellationToken,
    tls: Option<Arc<Certificates>>,
    _guards: (DropGuard, DropGuard),
}

impl GrpcServer {
    /// Binds the address and serves; returns once connections are accepted.
    ///
    /// # Errors
    /// If the address, the certificates or the restrictions are unusable.
    pub fn start(config: GrpcConfig, services: Services) -> BoxFuture<'static, Result<Self, GrpcStartError>> {
        Box::pin(async move {
            let tls = config.tls.as_ref();
            let tls = tls.map(|files| Certificates::read(files, b"h2", Uncertified::Refused)).transpose()?;
            let restrictions = Restrictions::new(&config.restricted)?;
            let bind = |error| GrpcStartError::Bind { endpoint: config.endpoint.clone(), error };
            let (closing, ended) = (CancellationToken::new(), CancellationToken::new());
            let readiness = Arc::clone(&services.readiness);
            let places = Arc::clone(&services.budgets.grpc_connections);
            let stack = Stack::new(&config, services, restrictions, closing.clone())?;
            let (listener, endpoint) = config.endpoint.bind().await.map_err(bind)?;

            let host = Host::new(stack, config.connection, tls.clone(), closing.clone(), ended.clone());
            let connections = TaskTracker::new();
            let acceptor =
                Acceptor { listener, host, places, connections: connections.clone(), closing: closing.clone() };
            connections.spawn(transport::accept(acceptor));
            if let Some(certificates) = &tls {
                let (closing, following) = (closing.clone(), Arc::clone(certificates).follow());
                connections.spawn(async move { closing.run_until_cancelled(following).await });
            }
            info!(address = %endpoint, tls = tls.is_some(), "gRPC front end listens");
            let guards = (closing.clone().drop_guard(), ended.clone().drop_guard());
            Ok(Self { endpoint, readiness, connections, closing, ended, tls, _guards: guards })
        })
    }

    /// Returns the address that clients reach.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Returns the port's certificates, if it has any.
    pub fn certificates(&self) -> Option<&Arc<Certificates>> {
        self.tls.as_ref()
    }

    /// Shuts the server down in order. Readiness goes off, and for `drain` everything is served as before, so that load
    /// balancers can redirect traffic. Then the port is closed, clients get GOAWAY, streams without a request in flight
    /// end, and requests in flight have `timeout_after` to finish. The rest is cut off.
    ///
    /// Returns whether everything finished in time.
    pub async fn shutdown(self, drain: Duration, timeout_after: Duration) -> bool {
        self.readiness.begin_drain();
        sleep(drain).await;
        self.closing.cancel();
        self.connections.close();
        let finished = timeout(timeout_after, self.connections.wait()).await.is_ok();
        if !finished {
            self.ended.cancel();
            self.connections.wait().await;
        }
        finished
    }
}

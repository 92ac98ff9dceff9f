//! The HTTP front end: probes, metadata, configuration, statistics and the timeline on one port, Prometheus metrics on another.
//!
//! `listener` accepts connections and bounds what a peer may hold; `routes` answers; `models` is what the routes ask of
//! the repository. Here must not live: which model a name stands for (`repository`), or what is counted (`observe`).
//! Inference over HTTP is not there yet.

mod config_json;
#[cfg(any(test, feature = "fuzzing"))]
mod fake;
#[cfg(any(test, feature = "fuzzing"))]
mod fuzz;
mod listener;
mod models;
mod problem;
mod routes;
mod timeline;

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use tokio::net::TcpListener;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

#[cfg(any(test, feature = "fuzzing"))]
pub use fuzz::http;
pub use models::{Models, Served};
pub use problem::Problem;

use self::routes::ConfigSchemaError;
use crate::{
    budget::Budget,
    observe::{Metrics, timeline::Timeline},
    wire::pb::ServerMetadataResponse,
};

/// Why an HTTP endpoint cannot start.
#[derive(Debug, thiserror::Error)]
pub enum HttpStartError {
    /// The address cannot be listened on.
    #[error("cannot listen on {address}: {error}")]
    Bind {
        /// The address.
        address: SocketAddr,
        /// What the system says.
        error: io::Error,
    },
    /// The descriptors compiled into the server cannot be read.
    #[error("cannot describe model configurations: {0}")]
    Schema(#[from] ConfigSchemaError),
}

/// What the HTTP endpoint says of the server.
#[derive(Clone, Debug, Default)]
pub struct ServerInfo {
    /// The answer to `GET /v2`.
    pub metadata: ServerMetadataResponse,
    /// Where gRPC is served, if it is.
    pub grpc_port: Option<u16>,
}

/// A running HTTP endpoint. Dropping it closes the port and lets requests in flight end.
#[derive(Debug)]
pub struct HttpServer {
    address: SocketAddr,
    connections: TaskTracker,
    closing: CancellationToken,
    ended: CancellationToken,
}

impl HttpServer {
    /// Serves probes, metadata, configuration, statistics and the timeline on as many connections as the budget has.
    ///
    /// # Errors
    /// When the address cannot be listened on.
    pub async fn start(
        address: SocketAddr,
        server: ServerInfo,
        models: Arc<dyn Models>,
        timeline: Arc<Timeline>,
        connections: Arc<Budget>,
    ) -> Result<Self, HttpStartError> {
        let routes = routes::api(server, models, timeline)?;
        Self::listen(address, routes, connections).await
    }

    /// Serves `GET /metrics` and nothing else, on as many connections as the budget has.
    ///
    /// # Errors
    /// When the address cannot be listened on.
    pub async fn start_metrics(
        address: SocketAddr,
        metrics: Arc<Metrics>,
        connections: Arc<Budget>,
    ) -> Result<Self, HttpStartError> {
        Self::listen(address, routes::metrics(metrics), connections).await
    }

    async fn listen(address: SocketAddr, routes: axum::Router, places: Arc<Budget>) -> Result<Self, HttpStartError> {
        let bind = |error| HttpStartError::Bind { address, error };
        let listener = TcpListener::bind(address).await.map_err(bind)?;
        let bound = listener.local_addr().map_err(bind)?;
        let server = Self {
            address: bound,
            connections: TaskTracker::new(),
            closing: CancellationToken::new(),
            ended: CancellationToken::new(),
        };
        let acceptor = listener::Acceptor {
            listener,
            routes,
            places,
            connections: server.connections.clone(),
            closing: server.closing.clone(),
            ended: server.ended.clone(),
        };
        server.connections.spawn(acceptor.accept());
        Ok(server)
    }

    /// The address that clients reach.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Closes the port and idle connections, gives requests in flight `timeout` to end, and cuts off the rest.
    ///
    /// Returns whether everything ended in time.
    pub async fn shutdown(self, timeout: Duration) -> bool {
        self.closing.cancel();
        self.connections.close();
        let finished = tokio::time::timeout(timeout, self.connections.wait()).await.is_ok();
        self.ended.cancel();
        self.connections.wait().await;
        finished
    }
}

impl Drop for HttpServer {
    fn drop(&mut self) {
        self.closing.cancel();
    }
}

#[cfg(test)]
mod tests;

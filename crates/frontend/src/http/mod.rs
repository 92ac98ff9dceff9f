//! The HTTP front end: the KServe v2 protocol as Triton serves it over HTTP, the timeline and a web page on one port;
//! Prometheus metrics on another.
//!
//! `listener` accepts connections and limits what a peer may hold; `head` checks the head of each request, and `host`
//! that it names this server; `body` reads requests; `routes` maps paths to handlers, which share the state in `api`
//! and take names from `path`; `unsent_response` sends responses. `infer` and `generate` run models, and `text` those
//! that take texts; `describe` and `control` call the same methods as gRPC. `page` is the web page, and `overview` the
//! data that it and `paternoster top` show. This module must not convert tensors to JSON (`wire`), resolve model names
//! (`repository`), or count (`observe`).

mod api;
mod body;
mod config_json;
mod control;
mod describe;
#[cfg(any(test, feature = "fuzzing"))]
mod fixture;
#[cfg(any(test, feature = "fuzzing"))]
mod fuzz;
mod generate;
mod guard;
mod head;
mod host;
mod infer;
mod listener;
mod object;
mod openapi;
mod overview;
mod page;
mod path;
mod problem;
mod routes;
mod shared_response;
mod text;
mod timeline;
mod unsent_response;

use std::{io, sync::Arc, time::Duration};

use futures_util::future::BoxFuture;
#[cfg(any(test, feature = "fuzzing"))]
pub use fuzz::http;
use paternoster_exporters::Metrics;
use paternoster_observe::{LoadedVersion, budget::Budget, timeline::Timeline};
use paternoster_repository::{ModelVersion, Repository};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

pub use self::overview::response as overview_response;
use self::{config_json::ConfigSchemaError, host::Names, problem::Problem};
use super::{
    Endpoint, RestrictedProtocol, RestrictionError, Services, TlsConfig, TlsError,
    tls::{Certificates, Uncertified},
};

/// The protocol's ALPN name.
const HTTP_1: &[u8] = b"http/1.1";

/// Why an HTTP endpoint cannot start.
#[derive(Debug, thiserror::Error)]
pub enum HttpStartError {
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
    #[error("cannot describe model configurations: {0}")]
    Schema(#[from] ConfigSchemaError),
}

/// Settings of the HTTP port.
#[derive(Clone, Debug)]
pub struct HttpConfig {
    /// Maximum bytes of a request's JSON, of raw input, and of what a body is decompressed to
    /// (`--http-max-input-size`).
    pub max_input_bytes: usize,
    /// Certificate and key; `None`: plain text (`--http-use-ssl`). With client authorities, requests without a client
    /// certificate are rejected, except health requests, because Kubernetes probes have no certificate.
    pub tls: Option<TlsConfig>,
    /// Whether to serve the web page and its overview (`--allow-web`).
    pub allow_web: bool,
    /// Groups of routes that require a header (`--http-restricted-api`, repeatable).
    pub restricted: Vec<RestrictedProtocol>,
    /// What `GET /metrics` answers here too, as in text-embeddings-inference; `None`: there is no such route.
    pub metrics: Option<Arc<Metrics>>,
}

impl Default for HttpConfig {
    /// Triton's limit on JSON, plain text, with the page, and without restrictions.
    fn default() -> Self {
        Self { max_input_bytes: 64 << 20, tls: None, allow_web: true, restricted: Vec::new(), metrics: None }
    }
}

/// Returns all loaded versions of a repository with their counters, for metrics.
pub fn loaded_versions(repository: &Repository) -> Vec<LoadedVersion> {
    let counted = |version: &Arc<ModelVersion>| LoadedVersion {
        name: version.spec().name.clone(),
        version: version.spec().version,
        stats: Arc::clone(version.servable().stats()),
    };
    repository.loaded().iter().map(counted).collect()
}

/// A running HTTP endpoint. Dropping it closes the port and lets requests in flight end.
#[derive(Debug)]
pub struct HttpServer {
    endpoint: Endpoint,
    connections: TaskTracker,
    closing: CancellationToken,
    ended: CancellationToken,
    tls: Option<Arc<Certificates>>,
}

impl HttpServer {
    /// Serves the protocol and the timeline, with at most as many connections as the services' budget allows.
    ///
    /// # Errors
    /// If the address cannot be bound, the certificates are unusable, or the restrictions contradict each other.
    pub async fn start(
        endpoint: impl Into<Endpoint>,
        services: Services,
        config: HttpConfig,
        timeline: Arc<Timeline>,
    ) -> Result<Self, HttpStartError> {
        let (services, places) = (Arc::new(services.clone()), services.budgets.http_connections);
        let tls = config.tls.as_ref();
        let tls = tls.map(|files| Certificates::read(files, HTTP_1, Uncertified::Accepted)).transpose()?;
        let routes = routes::api(Arc::clone(&services), config, timeline)?;
        Self::listen(endpoint.into(), routes, tls, Some(services), places).await
    }

    /// Serves only `GET /metrics`, with at most as many connections as the budget allows.
    ///
    /// # Errors
    /// If the address cannot be bound.
    pub async fn start_metrics(
        endpoint: impl Into<Endpoint>,
        metrics: Arc<Metrics>,
        connections: Arc<Budget>,
    ) -> Result<Self, HttpStartError> {
        Self::listen(endpoint.into(), routes::metrics(metrics), None, None, connections).await
    }

    fn listen(
        endpoint: Endpoint,
        routes: axum::Router,
        tls: Option<Arc<Certificates>>,
        services: Option<Arc<Services>>,
        places: Arc<Budget>,
    ) -> BoxFuture<'static, Result<Self, HttpStartError>> {
        Box::pin(async move {
            let (listener, bound) = match endpoint.bind().await {
                Ok(bound) => bound,
                Err(error) => return Err(HttpStartError::Bind { endpoint, error }),
            };
            let names = Names::of(&endpoint, &bound);
            let server = Self {
                endpoint: bound,
                connections: TaskTracker::new(),
                closing: CancellationToken::new(),
                ended: CancellationToken::new(),
                tls: tls.clone(),
            };
            let acceptor = listener::Acceptor {
                listener,
                routes,
                names,
                tls,
                services,
                places,
                connections: server.connections.clone(),
                closing: server.closing.clone(),
                ended: server.ended.clone(),
            };
            server.connections.spawn(acceptor.accept());
            if let Some(certificates) = &server.tls {
                let (closing, following) = (server.closing.clone(), Arc::clone(certificates).follow());
                server.connections.spawn(async move { closing.run_until_cancelled(following).await });
            }
            Ok(server)
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

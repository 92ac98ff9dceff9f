//! The whole server: starts repository, front ends and metrics in order, loads models while the ports are open, and
//! shuts everything down in order.

use std::{
    io,
    sync::Arc,
    time::{Duration, Instant},
};

use paternoster_executor::Pool;
use paternoster_exporters::{ExportError, MachineMetrics, Metrics, SpanExport};
use paternoster_frontend::{
    Certificates, Clients, Endpoint, Readiness, RestrictionError, Services,
    grpc::{self, GrpcServer},
    http::{HttpServer, HttpStartError, loaded_versions},
};
use paternoster_observe::{
    Logging,
    budget::Budgets,
    trace::{TraceExport, TraceMode, TraceOptions, TraceStartError, Tracer},
};
use paternoster_repository::{Loader, Repository, Startup};
use paternoster_wire::SharedMemory;
use tokio::time::sleep;
use tracing::{error, field::display, info, warn};

use super::{
    ServeArgs, cuda::watched_cards, flags::TraceChoice, limits, options, recording::TimelineRecording, report,
};

/// Time for answers to leave after the scheduler has failed.
const LAST_RESPONSES: Duration = Duration::from_secs(5);

/// Time for programs to stop after every request has ended or was cut off.
const LAST_TASKS: Duration = Duration::from_secs(5);

/// Time for a running scrape after everything else has ended.
const LAST_SCRAPE: Duration = Duration::from_secs(1);

/// A started executor pool, and what belongs to it.
pub(super) struct StartedPool {
    /// Runs the models.
    pub pool: Arc<Pool>,
    /// Ordinals of its CUDA cards, or why it has none.
    pub cards: Result<Vec<u16>, String>,
    /// Compiles versions and starts them in the pool.
    pub loader: Arc<dyn Loader>,
    /// Records the pool's timeline.
    pub recording: TimelineRecording,
    /// When the server began to start.
    pub began: Instant,
}

/// Why the server cannot start.
#[derive(Debug, thiserror::Error)]
pub(super) enum StartError {
    #[error(transparent)]
    Repository(#[from] paternoster_repository::StartError),
    #[error("{} failed to load and --exit-on-error is set: {}", plural(.0.len(), "model"), .0.join("; "))]
    Models(Vec<String>),
    #[error("--grpc-restricted-protocol: {0}")]
    GrpcRestriction(RestrictionError),
    #[error("--http-restricted-api: {0}")]
    HttpRestriction(RestrictionError),
    #[error("{0}")]
    Limits(String),
    #[error("gRPC: {0}")]
    Grpc(#[from] grpc::GrpcStartError),
    #[error("HTTP: {0}")]
    Http(HttpStartError),
    #[error("metrics: {0}")]
    MetricsServer(HttpStartError),
    #[error("metrics: {0}")]
    Metrics(#[from] prometheus::Error),
    #[error("cannot print the models: {0}")]
    Print(io::Error),
    #[error("--trace-config: {0}")]
    Tracing(#[from] TraceStartError),
    #[error("--trace-config: {0}")]
    SpanExport(#[from] ExportError),
}

fn plural(count: usize, noun: &str) -> String {
    if count == 1 { format!("1 {noun}") } else { format!("{count} {noun}s") }
}

/// Starts the tracer, and before it the export of spans, whose connections run on the calling runtime.
fn start_tracer(choice: TraceChoice) -> Result<Tracer, StartError> {
    let TraceChoice { mode, settings, file, otlp } = choice;
    let export: Option<Arc<dyn TraceExport>> = match mode {
        TraceMode::Triton => None,
        TraceMode::OpenTelemetry => Some(Arc::new(SpanExport::start(otlp)?)),
    };
    Ok(Tracer::start(TraceOptions { settings, file, export })?)
}

/// Returns the metrics of a server: those of its versions, its memory, its clients and its machine.
fn metrics_of(
    args: &ServeArgs,
    pool: &Arc<Pool>,
    repository: &Arc<Repository>,
    tracer: &Tracer,
    clients: Option<Arc<Clients>>,
    budgets: &Budgets,
) -> Result<Metrics, StartError> {
    let (loaded, counting) = (Arc::clone(repository), Arc::clone(pool));
    let versions = move || {
        counting.count_meta_operations();
        loaded_versions(&loaded)
    };
    let metrics = Metrics::new(versions, Arc::clone(pool.stats()), budgets.clone())?;
    let residency = {
        let repository = Arc::clone(repository);
        move || repository.residency()
    };
    let metrics = metrics.with_repository(repository.stats(), residency)?.with_traces(tracer.stats())?;
    let metrics = match repository.response_cache().cloned() {
        Some(cache) => {
            let limit_bytes = cache.limit_bytes();
            metrics.with_response_cache(move || cache.bytes(), limit_bytes)?
        }
        None => metrics,
    };
    let metrics = match clients {
        Some(clients) => {
            let counting = Arc::clone(&clients);
            metrics.with_clients(move || clients.present(), move || counting.waits())?
        }
        None => metrics,
    };
    let metrics = if pool.has_rate_limiter() {
        let reading = Arc::clone(pool);
        metrics.with_rate_limiter(move || reading.resources())?
    } else {
        metrics
    };
    Ok(metrics.with_machine(MachineMetrics {
        cpu: args.http.allow_cpu_metrics,
        cards: args.http.allow_gpu_metrics.then(|| watched_cards(pool)).flatten(),
        interval: Duration::from_millis(u64::from(args.http.metrics_interval_ms)),
    })?)
}

/// A running server. Dropping it ends it at once.
#[derive(Debug)]
pub(super) struct Server {
    pool: Arc<Pool>,
    repository: Arc<Repository>,
    readiness: Arc<Readiness>,
    grpc: Option<GrpcServer>,
    http: Option<HttpServer>,
    metrics: Option<HttpServer>,
    recording: TimelineRecording,
    tracer: Option<Arc<Tracer>>,
    drain_delay: Duration,
    exit_timeout: Duration,
    began: Instant,
}

impl Server {
    /// Opens the ports. From here on the server is live; it is ready once [`Self::load_models`] has loaded its models.
    pub(super) async fn open(
        args: &ServeArgs,
        log: Logging,
        budgets: Budgets,
        started: StartedPool,
    ) -> Result<(Self, Startup), StartError> {
        let StartedPool { pool, cards, loader, recording, began } = started;
        // Errors in the flags are reported before anything is loaded.
        let grpc_config = options::grpc(&args.grpc).map_err(StartError::GrpcRestriction)?;
        let mut http_config = options::http(&args.http).map_err(StartError::HttpRestriction)?;
        let asks_for_certificates =
            [&grpc_config.tls, &http_config.tls].map(|tls| tls.as_ref().is_some_and(|tls| tls.client_ca.is_some()));
        limits::check_client(&args.limits, asks_for_certificates).map_err(StartError::Limits)?;

        let startup = Repository::open(options::repository(args, pool.has_cards(), &budgets), loader).await?;
        let repository = startup.repository();
        let readiness = Readiness::new(Arc::clone(repository), pool.responsiveness());
        let mut server = Self {
            pool: Arc::clone(&pool),
            repository: Arc::clone(repository),
            readiness: Arc::clone(&readiness),
            grpc: None,
            http: None,
            metrics: None,
            recording,
            tracer: None,
            drain_delay: Duration::from_secs(u64::from(args.life.drain_delay_secs)),
            exit_timeout: Duration::from_secs(u64::from(args.life.exit_timeout_secs)),
            began,
        };
        let tracer = Arc::new(start_tracer(args.traces.choice())?);
        server.tracer = Some(Arc::clone(&tracer));
        let clients = args.limits.client.clone().map(Clients::new);
        let services = Services {
            server_name: args.server_name().to_owned(),
            repository: Arc::clone(repository),
            readiness: Arc::clone(&readiness),
            shared_memory: Arc::new(
                SharedMemory::new(args.grpc.allow_client_shm)
                    .with_request_limit(u64::from(args.grpc.max_receive_bytes))
                    .with_cards(cards),
            ),
            pool: Arc::clone(&pool),
            log,
            tracer: Arc::clone(&tracer),
            budgets: budgets.clone(),
            clients: clients.clone(),
        };
        if args.grpc.allow_grpc {
            server.grpc = Some(GrpcServer::start(grpc_config, services.clone()).await?);
        }
        if args.http.allow_metrics {
            let endpoint = args.metrics_address().at(args.http.metrics_port);
            let metrics = metrics_of(args, &pool, repository, &tracer, clients, &budgets)?;
            let metrics = Arc::new(metrics);
            http_config.metrics = Some(Arc::clone(&metrics));
            let started = HttpServer::start_metrics(endpoint, metrics, budgets.metrics_connections).await;
            server.metrics = Some(started.map_err(StartError::MetricsServer)?);
        }
        // Last, so that a client that gets a response over HTTP finds every other port open.
        if args.http.allow_http {
            let endpoint = args.http.http_address.at(args.http.http_port);
            let timeline = Arc::clone(&server.recording.timeline);
            let started = HttpServer::start(endpoint, services, http_config, timeline).await;
            server.http = Some(started.map_err(StartError::Http)?);
        }
        server.announce_ports();
        Ok((server, startup))
    }

    /// Loads the models while the ports are open.
    ///
    /// # Errors
    /// Fails if a store cannot be read, unless `--exit-on-error` is false; with `--exit-on-error`, also if a model
    /// failed to load.
    pub(super) async fn load_models(&self, args: &ServeArgs, startup: Startup) -> Result<(), StartError> {
        startup.load().await?;
        let index = self.repository.index(false).await;
        report::models(&self.repository, &index, &args.repository.directories, &args.log);
        let failures = report::failures(&index);
        if args.repository.exit_on_error == Some(true) && !failures.is_empty() {
            return Err(StartError::Models(failures));
        }
        self.announce_readiness(args.log_name());
        Ok(())
    }

    /// Loads the models and prints which can be served. Returns whether all can, and there are any.
    ///
    /// # Errors
    /// Fails if a store cannot be read, or nothing can be printed.
    pub(super) async fn check_models(&self, args: &ServeArgs, startup: Startup) -> Result<bool, StartError> {
        startup.load().await?;
        let index = self.repository.index(false).await;
        report::print(&self.repository, &index, &args.repository.directories).map_err(StartError::Print)?;
        Ok(!index.is_empty() && report::failures(&index).is_empty())
    }

    /// Logs the addresses, in Triton's wording, which scripts rely on.
    fn announce_ports(&self) {
        for (name, endpoint) in self.endpoints() {
            info!("Started {name} at {endpoint}");
        }
    }

    /// Returns names and addresses of the open ports.
    fn endpoints(&self) -> impl Iterator<Item = (&'static str, &Endpoint)> {
        let endpoints = [
            ("GRPCInferenceService", self.grpc.as_ref().map(GrpcServer::endpoint)),
            ("HTTPService", self.http_endpoint()),
            ("Metrics Service", self.metrics_endpoint()),
        ];
        endpoints.into_iter().filter_map(|(name, endpoint)| Some((name, endpoint?)))
    }

    fn announce_readiness(&self, id: &str) {
        let startup_ms = self.began.elapsed().as_millis() as u64;
        let grpc = self.grpc.as_ref().map(GrpcServer::endpoint).map(display);
        let [http, metrics] = [self.http_endpoint(), self.metrics_endpoint()].map(|endpoint| endpoint.map(display));
        if self.readiness.ready() {
            info!(id, startup_ms, grpc, http, metrics, "the server is ready");
        } else {
            warn!(id, startup_ms, grpc, http, metrics, "the server is not ready, because not every model is");
        }
    }

    /// Returns the address of the HTTP port.
    pub(super) fn http_endpoint(&self) -> Option<&Endpoint> {
        self.http.as_ref().map(HttpServer::endpoint)
    }

    /// Returns the address of the metrics port.
    pub(super) fn metrics_endpoint(&self) -> Option<&Endpoint> {
        self.metrics.as_ref().map(HttpServer::endpoint)
    }

    /// Returns the certificates of the ports that serve over TLS.
    pub(super) fn certificates(&self) -> Vec<Arc<Certificates>> {
        let ports = [
            self.grpc.as_ref().and_then(GrpcServer::certificates),
            self.http.as_ref().and_then(HttpServer::certificates),
        ];
        ports.into_iter().flatten().cloned().collect()
    }

    /// Shuts down in order: readiness goes off; the server continues to serve for the drain delay; then requests in
    /// flight have the exit timeout to end. Metrics are served to the end. Then the timeline is written, if one was
    /// recorded.
    ///
    /// Returns how that went.
    pub(super) async fn shutdown(self) -> Ending {
        let (drain_delay, exit_timeout) = (self.drain_delay, self.exit_timeout);
        self.end(drain_delay, exit_timeout).await
    }

    /// Shuts down a server that was not ready yet: as [`Self::shutdown`], but without a drain delay, since no load
    /// balancer has to notice.
    pub(super) async fn shutdown_early(self) -> Ending {
        let exit_timeout = self.exit_timeout;
        self.end(Duration::ZERO, exit_timeout).await
    }

    /// Shuts down after the scheduler has failed: all requests are answered, and the answers have a few seconds to
    /// leave.
    pub(super) async fn end_failed(self) {
        self.end(Duration::ZERO, LAST_RESPONSES).await;
    }

    async fn end(self, drain_delay: Duration, timeout: Duration) -> Ending {
        self.readiness.begin_drain();
        sleep(drain_delay).await;
        self.repository.end_loads_on_demand();
        let grpc = async {
            match self.grpc {
                Some(grpc) => grpc.shutdown(Duration::ZERO, timeout).await,
                None => true,
            }
        };
        let http = async {
            match self.http {
                Some(http) => http.shutdown(timeout).await,
                None => true,
            }
        };
        let (grpc_ended, http_ended) = tokio::join!(grpc, http);
        if let Some(metrics) = self.metrics {
            metrics.shutdown(LAST_SCRAPE).await;
        }
        self.repository.shutdown();
        let (pool, recording, tracer) = (self.pool, self.recording, self.tracer);
        let stop = move || {
            let ended = pool.stop(LAST_TASKS);
            if let Some(tracer) = tracer {
                tracer.flush();
            }
            let recorded = recording.finish();
            match &recorded {
                Ok(Some(file)) => info!(file = %file.display(), "timeline written"),
                Ok(None) => {}
                Err(error) => error!(%error, "the timeline cannot be written"),
            }
            (ended, recorded.is_ok())
        };
        let (pool_ended, is_recorded) = tokio::task::spawn_blocking(stop).await.unwrap_or((false, false));
        Ending { in_time: grpc_ended && http_ended && pool_ended, is_recorded }
    }
}

/// How a server ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ending {
    /// Whether all requests ended in time.
    pub(super) in_time: bool,
    /// Whether the timeline, if one was recorded, has been written.
    pub(super) is_recorded: bool,
}

#[cfg(test)]
mod tests;

//! A server with a few small models, and its clients.

pub(crate) mod models;
pub(crate) mod raw;

use std::{
    future::Future,
    net::SocketAddr,
    sync::{Arc, OnceLock},
    time::Duration,
};

use models::{Gate, Models};
use paternoster_executor::{Pool, PoolOptions};
use paternoster_frontend::{
    Host, Readiness, Services,
    grpc::{GrpcConfig, GrpcServer},
    http::{HttpConfig, HttpServer},
};
use paternoster_observe::{
    LogOptions, Logging,
    budget::Budgets,
    timeline::Timeline,
    trace::{TraceOptions, Tracer},
};
use paternoster_repository::Repository;
use paternoster_wire::{
    SharedMemory,
    pb::{
        ModelInferRequest, ModelInferResponse, grpc_inference_service_client::GrpcInferenceServiceClient,
        model_infer_request::InferInputTensor,
    },
};
use tempfile::TempDir;
use tonic::transport::{Channel, Endpoint};

/// Time limit of waits, far longer than anything here takes: a test that would hang fails instead.
const PATIENCE: Duration = Duration::from_secs(120);

/// A client of the inference service.
pub(crate) type Client = GrpcInferenceServiceClient<Channel>;

/// A running server, and the handles that tests use.
pub(crate) struct Server {
    pub grpc: GrpcServer,
    pub http: HttpServer,
    pub repository: Arc<Repository>,
    pub readiness: Arc<Readiness>,
    pub pool: Arc<Pool>,
    pub gate: Gate,
    pub budgets: Budgets,
    pub tracer: Arc<Tracer>,
    _folder: TempDir,
}

impl Server {
    /// Starts a server with all models and a changed configuration.
    pub(crate) async fn start(change: impl FnOnce(&mut GrpcConfig)) -> Self {
        Self::start_with(Models::all(), change).await
    }

    /// Starts a server with the given models.
    pub(crate) async fn start_with(models: Models, change: impl FnOnce(&mut GrpcConfig)) -> Self {
        Self::start_on(&PoolOptions::default(), models, change).await
    }

    /// Starts a server with all models and the given budgets for clients.
    pub(crate) async fn start_within(budgets: Budgets, change: impl FnOnce(&mut GrpcConfig)) -> Self {
        Self::start_with_all(&PoolOptions::default(), Models::all(), budgets, TraceOptions::default(), change).await
    }

    /// Starts a server with all models, whose requests are traced.
    pub(crate) async fn start_traced(traces: TraceOptions) -> Self {
        Self::start_with_all(&PoolOptions::default(), Models::all(), Budgets::default(), traces, |_| {}).await
    }

    /// Starts a server with the given models, on a pool with the given options.
    pub(crate) async fn start_on(options: &PoolOptions, models: Models, change: impl FnOnce(&mut GrpcConfig)) -> Self {
        Self::start_with_all(options, models, Budgets::default(), TraceOptions::default(), change).await
    }

    async fn start_with_all(
        options: &PoolOptions,
        models: Models,
        budgets: Budgets,
        traces: TraceOptions,
        change: impl FnOnce(&mut GrpcConfig),
    ) -> Self {
        let pool = Pool::start(options).expect("threads");
        let (repository, gate, folder) = models.start(&pool).await;
        let readiness = Readiness::new(Arc::clone(&repository), pool.responsiveness());
        let tracer = Arc::new(Tracer::start(traces).expect("a thread"));
        let services = Services {
            server_name: "triton".to_owned(),
            repository: Arc::clone(&repository),
            readiness: Arc::clone(&readiness),
            shared_memory: Arc::new(SharedMemory::new(true)),
            pool: Arc::clone(&pool),
            log: log(),
            tracer: Arc::clone(&tracer),
            budgets: budgets.clone(),
            clients: None,
        };
        let mut config = GrpcConfig { endpoint: Host::LOOPBACK.at(0), ..GrpcConfig::default() };
        change(&mut config);
        let timeline = Arc::new(Timeline::off());
        let http = HttpServer::start(Host::LOOPBACK.at(0), services.clone(), HttpConfig::default(), timeline).await;
        let http = http.expect("a free port");
        let grpc = GrpcServer::start(config, services).await.expect("a free port");
        Self { grpc, http, repository, readiness, pool, gate, budgets, tracer, _folder: folder }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.grpc.endpoint().socket().expect("it listens on a port")
    }

    pub(crate) fn http_address(&self) -> SocketAddr {
        self.http.endpoint().socket().expect("it listens on a port")
    }

    pub(crate) async fn channel(&self) -> Channel {
        let endpoint = Endpoint::from_shared(format!("http://{}", self.address())).expect("an address");
        endpoint.connect().await.expect("a connection")
    }

    pub(crate) async fn client(&self) -> Client {
        Client::new(self.channel().await).max_decoding_message_size(usize::MAX)
    }
}

/// Returns the log, of which a process has only one.
fn log() -> Logging {
    static LOG: OnceLock<Logging> = OnceLock::new();
    LOG.get_or_init(|| Logging::start(LogOptions { info: false, ..LogOptions::default() }).expect("no other log"))
        .clone()
}

/// Awaits a future that must complete.
pub(crate) async fn soon<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, what).await.expect("it comes in time")
}

/// Waits for a condition that other threads establish.
pub(crate) async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let wait = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(PATIENCE, wait).await.unwrap_or_else(|_| panic!("{what} in time"));
}

/// Returns a request of one row for a model with one FP32 input.
pub(crate) fn request(model: &str, id: &str, row: &[f32]) -> ModelInferRequest {
    let data: Vec<u8> = row.iter().flat_map(|value| value.to_le_bytes()).collect();
    ModelInferRequest {
        model_name: model.to_owned(),
        id: id.to_owned(),
        inputs: vec![InferInputTensor {
            name: "INPUT0".to_owned(),
            datatype: "FP32".to_owned(),
            shape: vec![1, row.len() as i64],
            ..InferInputTensor::default()
        }],
        raw_input_contents: vec![data.into()],
        ..ModelInferRequest::default()
    }
}

/// Returns the values of a response's only output.
pub(crate) fn row(response: &ModelInferResponse) -> Vec<f32> {
    let [data] = response.raw_output_contents.as_slice() else { panic!("one output: {response:?}") };
    data.chunks_exact(4).map(|value| f32::from_le_bytes(value.try_into().expect("four bytes"))).collect()
}

//! What `GET /v2/overview` answers, apart from the timeline. `paternoster top` reads it with the same types.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

/// The state of a server and its models.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OverviewResponse {
    /// The server.
    pub server: ServerState,
    /// What all clients together hold.
    pub load: ServerLoad,
    /// The memory of all models, where it is counted.
    pub memory: Option<ModelsMemory>,
    /// Models that requests load; `None` in other control modes.
    pub on_demand: Option<OnDemandState>,
    /// Resources of the rate limiter; none without one, and of servers that do not show them yet.
    #[serde(default)]
    pub resources: Vec<LimitedResource>,
    /// Seconds over which the models' rates and times are computed.
    pub recent_seconds: usize,
    /// Those that need attention first, then those that serve, then those that are not loaded; each by name.
    pub models: Vec<ModelOverview>,
    /// Number of versions beyond the limit.
    pub models_left_out: usize,
}

/// The server's name and health.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerState {
    /// Its name in its metadata.
    pub name: String,
    /// Its version.
    pub version: String,
    /// As the health endpoint answers.
    pub live: bool,
    /// As the health endpoint answers.
    pub ready: bool,
}

/// Limited resources and their use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerLoad {
    /// Requests that have not ended.
    pub pending_requests: Usage,
    /// Bytes of these requests.
    pub pending_bytes: Usage,
    /// Connections of the gRPC port.
    pub grpc_connections: Usage,
    /// Connections of the HTTP port.
    pub http_connections: Usage,
}

/// Use of a limited resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// What is used.
    pub used: usize,
    /// The limit.
    pub limit: usize,
}

/// A resource of the rate limiter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LimitedResource {
    /// Its name.
    pub name: String,
    /// `cpu`, the number of a card, or `global`.
    pub device: String,
    /// Its units, and those that running batches hold.
    #[serde(flatten)]
    pub units: Usage,
}

/// The memory of all models.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelsMemory {
    /// What models take, and loads in progress have reserved.
    pub used_bytes: usize,
    /// The limit, if there is one.
    pub limit_bytes: Option<usize>,
}

/// Loads on demand since the server was started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OnDemandState {
    /// Requests that wait for their model now.
    pub waiting_requests: usize,
    /// Loads that requests began.
    pub loads: u64,
    /// Those of them that failed.
    pub failed_loads: u64,
    /// Models that left for others.
    pub unloaded_for_memory: u64,
    /// Models that left because they had no requests.
    pub unloaded_idle: u64,
}

/// A version, or a model without versions. Rates and times are those of the last seconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ModelOverview {
    /// The model.
    pub name: String,
    /// The version; empty for a model without any version tried.
    pub version: String,
    /// `READY`, `LOADING`, `UNLOADING`, `ON_DEMAND` or `UNAVAILABLE`; empty if it was never loaded.
    pub state: Cow<'static, str>,
    /// Why it is unavailable, or why its last reload failed. Ends with `…` where it was cut.
    pub reason: String,
    /// Why an operator should look at it, if so.
    pub attention: Option<Attention>,
    /// The policy that batches its requests; empty if it does not serve.
    pub policy: Cow<'static, str>,
    /// Answered and failed requests per second.
    pub requests_per_second: Option<f64>,
    /// Failed requests per second.
    pub failures_per_second: Option<f64>,
    /// Median duration of answered requests, estimated within the buckets of a histogram: at most 10 s.
    pub p50_ms: Option<f64>,
    /// As `p50_ms`, for the 99th percentile.
    pub p99_ms: Option<f64>,
    /// Mean time that answered requests waited.
    pub queue_ms: Option<f64>,
    /// Mean time that answered requests were computed.
    pub compute_ms: Option<f64>,
    /// Mean rows of a batch, without padding.
    pub mean_batch_rows: Option<f64>,
    /// Executions by size since it was loaded: the most frequent ones, ascending.
    pub batch_sizes: Vec<BatchSize>,
    /// Requests that have not ended.
    pub in_flight_requests: u64,
    /// Those of them that wait for their first task.
    pub pending_requests: u64,
    /// Answered requests since it was loaded.
    pub succeeded_requests: u64,
    /// Failed requests since it was loaded.
    pub failed_requests: u64,
    /// Memory of the host that the model's versions take, as estimated from their files, where it is counted.
    pub memory_estimated_bytes: Option<usize>,
    /// The same as measured, if it was.
    pub memory_measured_bytes: Option<usize>,
    /// Memory that the version has reserved on cards, if it has.
    pub card_memory_bytes: Option<u64>,
    /// The last minute.
    pub history: History,
}

/// Why an operator should look at a model, the most urgent first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Attention {
    /// It should serve and does not.
    Unavailable,
    /// It serves, but its last reload failed.
    Reload,
    /// Requests fail, other than by their clients' deadlines and cancellations.
    Failures,
    /// Requests wait for a second or longer, on average.
    Queue,
}

/// Executions of one batch size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BatchSize {
    /// Rows of the batch, without padding.
    pub rows: u64,
    /// How many batches had as many.
    pub executions: u64,
}

/// One value a second, oldest first, at most 60; empty without requests in that time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct History {
    /// As in [`ModelOverview`], each over one second, like all of these.
    pub requests_per_second: Vec<f64>,
    /// `None` where no request was answered.
    pub p50_ms: Vec<Option<f64>>,
    /// `None` where no request was answered.
    pub p99_ms: Vec<Option<f64>>,
    /// `None` where no request was answered.
    pub queue_ms: Vec<Option<f64>>,
}

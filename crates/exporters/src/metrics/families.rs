//! The metric families: names, help texts, types, and the source of their values.

use paternoster_observe::{
    FIRST_RESPONSE_HISTOGRAM, FailureReason, MetaCounters, PoolSnapshot, StageReading, TokenCounts, VersionReading,
    budget::{Budget, Budgets},
    trace::TraceStats,
};
use prometheus::proto::MetricType;

use crate::cards::CardReading;

const NS_PER_US: u64 = 1_000;

/// Converts nanoseconds. Divides instead of multiplying, because that gives the nearest number to each bound of a
/// histogram and thus its short form in the text.
pub(super) fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

/// A family's name, help line and type.
pub(super) struct Family {
    pub name: &'static str,
    pub help: &'static str,
    pub kind: MetricType,
}

pub(super) const fn counter(name: &'static str, help: &'static str) -> Family {
    Family { name, help, kind: MetricType::COUNTER }
}

pub(super) const fn gauge(name: &'static str, help: &'static str) -> Family {
    Family { name, help, kind: MetricType::GAUGE }
}

const fn histogram(name: &'static str, help: &'static str) -> Family {
    Family { name, help, kind: MetricType::HISTOGRAM }
}

const fn summary(name: &'static str, help: &'static str) -> Family {
    Family { name, help, kind: MetricType::SUMMARY }
}

/// A family of one number per version (labels model, version).
pub(super) struct PerVersion {
    pub family: Family,
    pub value: fn(&VersionReading) -> u64,
}

impl PerVersion {
    /// Whether it sums durations. Such families are omitted if the counters of latencies are disabled.
    pub(super) fn is_latency(&self) -> bool {
        self.family.name.contains("_duration_")
    }
}

const fn version_counter(name: &'static str, help: &'static str, value: fn(&VersionReading) -> u64) -> PerVersion {
    PerVersion { family: counter(name, help), value }
}

/// All families of one number per version.
pub(super) const PER_VERSION: [PerVersion; 12] = [
    version_counter("nv_inference_request_success", "Requests answered, whatever their batch size", |read| {
        read.stats.inference_stats.success.count
    }),
    version_counter("nv_inference_count", "Rows of all requests answered", |read| read.stats.inference_count),
    version_counter("nv_inference_exec_count", "Batches executed", |read| read.stats.execution_count),
    version_counter(
        "nv_inference_request_duration_us",
        "Time from admission to the answer, summed, in microseconds",
        |read| read.stats.inference_stats.success.ns / NS_PER_US,
    ),
    version_counter("nv_inference_queue_duration_us", "Time that requests waited, summed, in microseconds", |read| {
        read.stats.inference_stats.queue.ns / NS_PER_US
    }),
    version_counter(
        "nv_inference_compute_input_duration_us",
        "Time gathering inputs, summed, in microseconds",
        |read| read.stats.inference_stats.compute_input.ns / NS_PER_US,
    ),
    version_counter(
        "nv_inference_compute_infer_duration_us",
        "Time running the model, summed, in microseconds",
        |read| read.stats.inference_stats.compute_infer.ns / NS_PER_US,
    ),
    version_counter(
        "nv_inference_compute_output_duration_us",
        "Time taking outputs, summed, in microseconds",
        |read| read.stats.inference_stats.compute_output.ns / NS_PER_US,
    ),
    PerVersion {
        family: gauge("nv_inference_pending_request_count", "Requests admitted and not yet executed"),
        value: |read| read.pending,
    },
    version_counter("paternoster_expired_requests_total", "Requests whose client's deadline passed", |read| {
        read.failures.expired
    }),
    version_counter("paternoster_invalid_requests_total", "Requests whose content the model cannot take", |read| {
        read.failures.invalid
    }),
    version_counter(
        "paternoster_batch_slack_misses_total",
        "Requests that completed after their latency objective",
        |read| read.meta.slack_misses,
    ),
];

/// A family of one number per version with padded axes (labels model, version).
pub(super) struct PerTokens {
    pub family: Family,
    pub value: fn(&TokenCounts) -> u64,
}

/// What executed batches had along the first padded axis.
pub(super) const TOKENS: [PerTokens; 2] = [
    PerTokens {
        family: counter("paternoster_tokens_total", "Tokens of requests in executed batches"),
        value: |read| read.own,
    },
    PerTokens {
        family: counter(
            "paternoster_padding_tokens_total",
            "Tokens that filled executed batches up to the longest row",
        ),
        value: |read| read.padding,
    },
];

/// The families of one number per version whose responses are cached.
pub(super) const PER_CACHED: [PerVersion; 4] = [
    version_counter("nv_cache_num_hits_per_model", "Requests that the response cache answered", |read| {
        read.stats.inference_stats.cache_hit.count
    }),
    version_counter("nv_cache_num_misses_per_model", "Requests that were not in the response cache", |read| {
        read.stats.inference_stats.cache_miss.count
    }),
    version_counter(
        "nv_cache_hit_duration_per_model",
        "Time finding responses in the cache, summed, in microseconds",
        |read| read.stats.inference_stats.cache_hit.ns / NS_PER_US,
    ),
    version_counter(
        "nv_cache_miss_duration_per_model",
        "Time looking for responses that were not in the cache, and keeping them there, summed, in microseconds",
        |read| read.stats.inference_stats.cache_miss.ns / NS_PER_US,
    ),
];

/// A family of one number per version of several stages (labels model, version).
pub(super) struct PerMeta {
    pub family: Family,
    pub value: fn(&MetaCounters) -> u64,
}

/// The policies' operations on batches, for versions with several stages.
pub(super) const META: [PerMeta; 5] = [
    PerMeta {
        family: counter("paternoster_batch_stretches_total", "Requests that joined a running batch"),
        value: |read| read.stretches,
    },
    PerMeta {
        family: counter("paternoster_batch_splits_total", "Batches cut into parts that travel on their own"),
        value: |read| read.splits,
    },
    PerMeta {
        family: counter(
            "paternoster_batch_merges_total",
            "Steps that caught up with the one before them in their batch",
        ),
        value: |read| read.merges,
    },
    PerMeta {
        family: counter(
            "paternoster_batch_preemptions_total",
            "Times that a batch was left waiting for later requests",
        ),
        value: |read| read.preemptions,
    },
    PerMeta {
        family: counter("paternoster_batch_early_exits_total", "Rows that were done before the last stage"),
        value: |read| read.early_exits,
    },
];

/// A family of one number per stage (labels model, stage, version), for versions of several stages.
pub(super) struct PerStage {
    pub family: Family,
    pub value: fn(&StageReading) -> f64,
}

/// All families of one number per stage.
pub(super) const PER_STAGE: [PerStage; 4] = [
    PerStage {
        family: counter("paternoster_stage_tasks_total", "Tasks that ran the stage"),
        value: |read| read.tasks as f64,
    },
    PerStage {
        family: counter("paternoster_stage_rows_total", "Rows that ran through the stage, padding left out"),
        value: |read| read.rows as f64,
    },
    PerStage {
        family: counter(
            "paternoster_stage_queue_seconds_total",
            "Time that rows waited for the stage, summed over rows",
        ),
        value: |read| seconds(read.queue_ns),
    },
    PerStage {
        family: counter("paternoster_stage_run_seconds_total", "Time that tasks ran the stage"),
        value: |read| seconds(read.run_ns),
    },
];

pub(super) const STAGE_BATCH_SIZE: Family =
    histogram("paternoster_stage_batch_size", "Real rows of the tasks that ran the stage");

/// Failures per version and reason (labels model, reason, version).
pub(super) const FAILURES: Family = counter("nv_inference_request_failure", "Requests that failed, by reason");

/// A `reason` label of [`FAILURES`].
pub(super) struct Reason {
    pub label: &'static str,
    pub value: fn(&VersionReading) -> u64,
}

/// All reasons.
pub(super) const REASONS: [Reason; 4] = [
    Reason { label: FailureReason::Backend.name(), value: |read| read.failures.backend },
    Reason { label: FailureReason::Canceled.name(), value: |read| read.failures.canceled },
    Reason { label: FailureReason::Other.name(), value: |read| read.failures.other },
    Reason { label: FailureReason::Rejected.name(), value: |read| read.failures.rejected },
];

/// A family of one number about tracing.
pub(super) struct PerTracer {
    pub family: Family,
    pub value: fn(&TraceStats) -> u64,
}

/// All families about tracing.
pub(super) const PER_TRACER: [PerTracer; 3] = [
    PerTracer {
        family: counter("paternoster_traces_total", "Requests that were traced"),
        value: TraceStats::sampled_requests,
    },
    PerTracer {
        family: counter("paternoster_traces_dropped_total", "Traces that were lost on their way to a file"),
        value: TraceStats::dropped_traces,
    },
    PerTracer {
        family: counter("paternoster_trace_spans_dropped_total", "Spans that were lost on their way to the collector"),
        value: TraceStats::spans_dropped,
    },
];

/// Optional summaries of latencies, in the order of [`LatencyReading`](paternoster_observe::LatencyReading).
pub(super) const SUMMARIES: [Family; 7] = [
    summary("nv_inference_request_summary_us", "Time from admission to the answer, in microseconds"),
    summary("nv_inference_queue_summary_us", "Time that requests waited, in microseconds"),
    summary("nv_inference_compute_input_summary_us", "Time gathering inputs, in microseconds"),
    summary("nv_inference_compute_infer_summary_us", "Time running the model, in microseconds"),
    summary("nv_inference_compute_output_summary_us", "Time taking outputs, in microseconds"),
    summary("nv_cache_hit_summary_us", "Time finding a response in the cache, in microseconds"),
    summary("nv_cache_miss_summary_us", "Time looking for a response in the cache and keeping it, in microseconds"),
];

/// The first of the summaries that only versions whose responses are cached have.
pub(super) const FIRST_CACHE_SUMMARY: usize = 5;

pub(super) const FIRST_RESPONSE: Family =
    histogram(FIRST_RESPONSE_HISTOGRAM, "Time from admission to the first response, in milliseconds");

pub(super) const REQUEST_DURATION: Family =
    histogram("paternoster_request_duration_seconds", "Time from admission to the answer of answered requests");
pub(super) const QUEUE_DURATION: Family =
    histogram("paternoster_queue_duration_seconds", "Time that answered requests waited for a lane");
pub(super) const BATCH_ROWS: Family = histogram("paternoster_batch_rows", "Real rows of executed batches");

/// A family of one number for the pool.
pub(super) struct PerPool {
    pub family: Family,
    pub value: fn(&PoolSnapshot) -> f64,
}

/// All families of one number for the pool.
pub(super) const PER_POOL: [PerPool; 13] = [
    PerPool {
        family: counter("paternoster_scheduler_steps_total", "Steps of the scheduler"),
        value: |read| read.steps as f64,
    },
    PerPool {
        family: counter("paternoster_scheduler_seconds_total", "Time spent in the scheduler's steps"),
        value: |read| seconds(read.step_ns),
    },
    PerPool { family: counter("paternoster_tasks_total", "Tasks handed to a lane"), value: |read| read.tasks as f64 },
    PerPool {
        family: gauge("paternoster_tasks_running", "Tasks running on a lane"),
        value: |read| read.tasks_running as f64,
    },
    PerPool {
        family: counter("paternoster_tasks_unwanted_total", "Tasks asked to stop because all their requests had ended"),
        value: |read| read.lanes.unwanted as f64,
    },
    PerPool {
        family: counter("paternoster_tasks_overdue_total", "Tasks asked to stop because their time was over"),
        value: |read| read.lanes.overdue as f64,
    },
    PerPool {
        family: gauge("paternoster_tasks_abandoned", "Tasks that did not stop and run on beside the lanes"),
        value: |read| read.lanes.abandoned as f64,
    },
    PerPool {
        family: gauge("paternoster_lanes_stuck", "Lanes held by a task whose time is over, or lost to one"),
        value: |read| read.lanes.stuck as f64,
    },
    PerPool {
        family: counter("paternoster_lanes_replaced_total", "Lanes that got a new thread because a task did not stop"),
        value: |read| read.lanes.replaced as f64,
    },
    PerPool {
        family: gauge("paternoster_waiting_reply_bytes", "Bytes of replies that wait for their clients"),
        value: |read| read.waiting_response_bytes as f64,
    },
    PerPool {
        family: counter(
            "paternoster_reply_pauses_total",
            "Times that a request paused because its client left too many responses unread",
        ),
        value: |read| read.responses_paused as f64,
    },
    PerPool {
        family: counter(
            "paternoster_reply_refusals_total",
            "Replies that failed because their client left too many unread",
        ),
        value: |read| read.responses_refused as f64,
    },
    PerPool {
        family: counter(
            "paternoster_requests_moved_total",
            "Requests that moved to another device before they ran, because that one idled or theirs was lost",
        ),
        value: |read| read.moved as f64,
    },
];

/// The families of one budget.
pub(super) struct PerBudget {
    pub used: Family,
    pub limit: Family,
    pub refused: Family,
    pub budget: fn(&Budgets) -> &Budget,
}

/// For each budget: its use, its limit, and the number of rejections.
pub(super) const PER_BUDGET: [PerBudget; 3] = [
    PerBudget {
        used: gauge("paternoster_pending_requests", "Inference requests that are read and not yet ended"),
        limit: gauge("paternoster_pending_requests_limit", "Most inference requests that may be pending"),
        refused: counter(
            "paternoster_pending_requests_refused_total",
            "Requests refused because too many were pending",
        ),
        budget: |budgets| &budgets.requests,
    },
    PerBudget {
        used: gauge("paternoster_pending_bytes", "Bytes that requests take, received or decoded"),
        limit: gauge("paternoster_pending_bytes_limit", "Most bytes that requests may take"),
        refused: counter(
            "paternoster_pending_bytes_refused_total",
            "Requests refused because there was no room for them",
        ),
        budget: |budgets| &budgets.bytes,
    },
    PerBudget {
        used: gauge("paternoster_sent_model_bytes", "Memory that is reserved for models that clients sent"),
        limit: gauge("paternoster_sent_model_bytes_limit", "Most memory for models that clients send"),
        refused: counter(
            "paternoster_sent_model_bytes_refused_total",
            "Reservations for models that clients sent, refused because there was no room",
        ),
        budget: |budgets| &budgets.sent_model_bytes,
    },
];

/// A family of one number per port (label port).
pub(super) struct PerPort {
    pub family: Family,
    pub value: fn(&Budget) -> f64,
}

/// The connections of each port.
pub(super) const PER_PORT: [PerPort; 3] = [
    PerPort {
        family: gauge("paternoster_connections", "Open connections of a port"),
        value: |budget| budget.used() as f64,
    },
    PerPort {
        family: gauge("paternoster_connections_limit", "Most connections that a port may have open"),
        value: |budget| budget.capacity() as f64,
    },
    PerPort {
        family: counter("paternoster_connections_refused_total", "Connections refused because a port had too many"),
        value: |budget| budget.refused() as f64,
    },
];

/// A `port` label of [`PER_PORT`].
pub(super) struct Port {
    pub label: &'static str,
    pub budget: fn(&Budgets) -> &Budget,
}

/// All ports.
pub(super) const PORTS: [Port; 3] = [
    Port { label: "grpc", budget: |budgets| &budgets.grpc_connections },
    Port { label: "http", budget: |budgets| &budgets.http_connections },
    Port { label: "metrics", budget: |budgets| &budgets.metrics_connections },
];

pub(super) const REJECTION_TIME: Family =
    histogram("paternoster_rejection_seconds", "Time from admission to the rejection of rejected requests");

pub(super) const CACHE_BYTES: Family = gauge("paternoster_response_cache_bytes", "Bytes that the response cache takes");
pub(super) const CACHE_LIMIT: Family =
    gauge("paternoster_response_cache_bytes_limit", "Most bytes that the response cache may take");

pub(super) const CLIENTS: Family = gauge("paternoster_clients", "Clients with calls for inference in progress");
pub(super) const CLIENT_WAITS: Family =
    counter("paternoster_client_waits_total", "Requests that waited because of the limit of their client");

pub(super) const FAILED_SCANS: Family = counter(
    "paternoster_repository_failed_scans_total",
    "Failed scans of a model repository or a model's directory; the served models stayed as they were",
);

/// A family of one number per card (label gpu_uuid).
pub(super) struct PerCard {
    pub family: Family,
    pub value: fn(&CardReading) -> Option<f64>,
}

/// All families of cards.
pub(super) const PER_CARD: [PerCard; 6] = [
    PerCard {
        family: gauge("nv_gpu_utilization", "Share of time in which a kernel ran on a card, 0.0 to 1.0"),
        value: |card| card.utilization,
    },
    PerCard {
        family: gauge("nv_gpu_memory_total_bytes", "Memory of a card in bytes"),
        value: |card| Some(card.memory?.0 as f64),
    },
    PerCard {
        family: gauge("nv_gpu_memory_used_bytes", "Memory of a card in use by all processes, in bytes"),
        value: |card| Some(card.memory?.1 as f64),
    },
    PerCard {
        family: gauge("nv_gpu_power_usage", "Power that a card takes, in watts"),
        value: |card| card.power_usage,
    },
    PerCard {
        family: gauge("nv_gpu_power_limit", "Most power that a card may take, in watts"),
        value: |card| card.power_limit,
    },
    PerCard {
        family: counter("nv_energy_consumption", "Energy that a card took since the server started, in joules"),
        value: |card| card.energy,
    },
];

pub(super) const LOAD_DURATION: Family =
    gauge("nv_model_load_duration_secs", "Time that loading the version took, in seconds");

pub(super) const SHADOWED: Family = counter(
    "paternoster_shadow_requests_total",
    "Requests that the version was to answer for comparison with the version that answers clients, by result",
);

pub(super) const CARD_MEMORY: Family =
    gauge("paternoster_model_gpu_memory_bytes", "Memory of a card that the version has reserved, in bytes");

pub(super) const CPU_UTILIZATION: Family =
    gauge("nv_cpu_utilization", "Share of the machine's CPUs in use, 0.0 to 1.0");
pub(super) const MEMORY_TOTAL: Family = gauge("nv_cpu_memory_total_bytes", "Memory of the machine in bytes");
pub(super) const MEMORY_USED: Family = gauge("nv_cpu_memory_used_bytes", "Memory of the machine in use, in bytes");
pub(super) const PINNED_TOTAL: Family =
    gauge("nv_pinned_memory_pool_total_bytes", "Size of the pinned memory pool in bytes");
pub(super) const PINNED_USED: Family = gauge("nv_pinned_memory_pool_used_bytes", "Pinned memory in use, in bytes");

//! `batching`: the policy by name, what all policies have in common, the queue, and one section of knobs for each
//! policy.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{PositiveInt, StageNumber};
use crate::{
    batching::{
        AdaptiveSettings, DiversitySettings, LazySettings, TimeoutAction,
        knob::{Above0, Count, DAY_MS, DAY_US, Long, Milliseconds, Positive, Whole, Within},
    },
    repository::config::{settings::PolicyName, values::Named},
};

/// How requests share batches.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Batching {
    /// The policy. Default: `auto`.
    pub policy: Option<Named<PolicyName>>,
    /// Target latency of a request, in milliseconds.
    pub latency_objective_ms: Option<Milliseconds>,
    /// Share of the device against other models. Default: 1.
    pub weight: Option<Whole<u32, 1, 1_000>>,
    /// Buffers at each boundary between two stages. Default: 2.
    pub buffer_pairs: Option<Whole<u16, 1, 16>>,
    /// How long a task may run before it is asked to stop, in milliseconds; 0: no limit. Default: the server's limit.
    pub task_time_limit_ms: Option<Within<0, DAY_MS>>,
    /// Measured times of stages or cells: the name of a file in the model's directory, or a list.
    pub latencies: Option<Latencies>,
    /// The queue of every policy that batches.
    pub queueing: Option<Queueing>,
    /// Nothing: `serial` has no knobs.
    pub serial: Option<NoKnobs>,
    /// Knobs of `window`, Triton's dynamic batcher. The queue's keys may be here too, unless there is `queueing`.
    pub window: Option<Queueing>,
    /// Knobs of `adaptive` (Efficient Adaptive Batching).
    pub adaptive: Option<AdaptiveSettings>,
    /// Knobs of `lazy` (LazyBatching).
    pub lazy: Option<LazySettings>,
    /// Knobs of `diversity` (DVABatch).
    pub diversity: Option<DiversitySettings>,
    /// Knobs of `cellular` (BatchMaker).
    pub cellular: Option<CellularSettings>,
    /// The parameter of `queueing.bucket_width`.
    #[schemars(skip)]
    pub bucket_width: Option<Count>,
    /// The parameters of `sequence_batching.queue`.
    #[schemars(skip)]
    pub sequences: Option<Queue>,
}

/// An empty mapping.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NoKnobs {}

/// The queue of a policy that batches, and in the section of `window` its knobs. It becomes Triton's
/// `dynamic_batching`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Queueing {
    /// Of `window` alone: how long the oldest request may wait for a preferred size, in microseconds. Default: 0.
    pub max_queue_delay_us: Option<Long>,
    /// Of `window` alone: sizes in rows at which a batch goes at once. Default: the largest batch.
    pub preferred_batch_sizes: Option<Vec<PositiveInt>>,
    /// Responses leave in the order of arrival.
    pub preserve_ordering: Option<bool>,
    /// Only requests whose lengths round up to the same multiple share a batch; 0: all.
    pub bucket_width: Option<Count>,
    /// Number of priority levels, 1 the highest; 0: one level.
    pub priority_levels: Option<Long>,
    /// Level of requests that name none.
    pub default_priority_level: Option<Long>,
    /// Limits of levels without their own.
    pub queue: Option<Queue>,
    /// Limits by level.
    pub priority_queues: Option<BTreeMap<Level, Queue>>,
}

/// A queue's limits.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Queue {
    /// What happens to requests whose timeout passes. Default: `reject`.
    pub timeout_action: Option<TimeoutAction>,
    /// Timeout of requests that bring none, in microseconds; 0: none.
    pub default_timeout_us: Option<Long>,
    /// Whether a request's own timeout counts.
    pub allow_timeout_override: Option<bool>,
    /// Most requests that wait; 0: no limit.
    pub max_queue_size: Option<Count>,
}

/// A priority level as a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String")]
#[schemars(inline, with = "String")]
pub struct Level(pub u64);

impl TryFrom<String> for Level {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let level = text.parse().map(Self);
        level.map_err(|_| format!("expected a priority level as key, but found '{text}'"))
    }
}

/// Knobs of `cellular`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CellularSettings {
    /// Slots for the state of requests that have boarded. Default: 65536.
    pub slots: Option<Whole<u32, 1, { 1 << 24 }>>,
    /// Most tasks of one type that a lane is given in a row (MaxTasksToSubmit). Default: 5.
    pub max_tasks: Option<Whole<u16, 1, 1_000>>,
    /// Whether inner nodes of a tree wait for their own children alone. Default: `true`.
    pub frontier: Option<bool>,
    /// Most requests whose graphs are merged. Default: requests board and leave at any task.
    pub merge_requests: Option<Whole<u32, 1, { 1 << 16 }>>,
}

/// Where measured times of stages or cells are.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(try_from = "WrittenLatencies")]
#[schemars(with = "WrittenLatencies", inline)]
pub enum Latencies {
    /// In the file of this name, in the model's directory.
    File(String),
    /// Here.
    Here(Vec<Latency>),
}

/// [`Latencies`] as they are written. The text may also be a table.
#[derive(Deserialize, JsonSchema)]
#[serde(rename = "the name of a file, or a list of latencies")]
#[schemars(untagged, inline)]
pub(in crate::repository::config) enum WrittenLatencies {
    #[serde(rename = "#text")]
    Text(String),
    #[serde(rename = "#list")]
    List(Vec<Latency>),
}

/// How long a stage takes.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Latency {
    /// The stage, from 0.
    pub stage: StageNumber,
    /// Rows of the batch.
    pub rows: Positive,
    /// The padded length; of several axes: their product. Default: 0, for a model that has none.
    pub length: Option<Long>,
    /// The latency in microseconds.
    pub latency_us: Above0<{ DAY_US as i64 }>,
}

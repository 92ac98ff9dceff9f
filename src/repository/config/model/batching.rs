//! `batching`: the name of the policy, settings common to all policies, the queue, and a section of knobs for each
//! policy.

use std::{collections::BTreeMap, fmt, str::FromStr};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{PositiveInt, StageNumber};
use crate::{
    batching::{
        AdaptiveSettings, DiversitySettings, LazySettings, PolicyKind, TimeoutAction,
        knob::{Above0, Count, DAY_MS, DAY_US, Long, Milliseconds, Positive, Whole, Within},
    },
    repository::config::{
        nearest::{alternatives, suggestion},
        values::{Keywords, Parsed},
    },
};

/// How requests share batches.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Batching {
    /// The policy. Default: `auto`.
    pub policy: Option<Parsed<PolicyName>>,
    /// Target latency of a request, in milliseconds.
    pub latency_objective_ms: Option<Milliseconds>,
    /// Weight of the model's share of the device, relative to other models. Default: 1.
    pub weight: Option<Whole<u32, 1, 1_000>>,
    /// Buffers at each boundary between two stages. Default: 2.
    pub buffer_pairs: Option<Whole<u16, 1, 16>>,
    /// How long a task may run before it is asked to stop, in milliseconds; 0: no limit. Default: the server's limit.
    pub task_time_limit_ms: Option<Within<0, DAY_MS>>,
    /// Measured times of stages or cells: the name of a file in the model's directory, or a list.
    pub latencies: Option<Latencies>,
    /// The queue, for every policy.
    pub queueing: Option<Queueing>,
    /// An empty mapping, because `serial` has no knobs.
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
    /// `queueing.bucket_width` as a parameter.
    #[schemars(skip)]
    pub bucket_width: Option<Count>,
    /// `sequence_batching.queue` as parameters.
    #[schemars(skip)]
    pub sequences: Option<Queue>,
}

/// An empty mapping.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NoKnobs {}

/// The queue of a policy that batches. In the section `window` it also has the knobs of that policy. It is converted to
/// Triton's `dynamic_batching`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Queueing {
    /// Only in `window`: how long the oldest request may wait for a preferred size, in microseconds. Default: 0.
    pub max_queue_delay_us: Option<Long>,
    /// Only in `window`: sizes in rows at which a batch starts at once. Default: the largest batch.
    pub preferred_batch_sizes: Option<Vec<PositiveInt>>,
    /// Whether responses are sent in the order in which requests arrived.
    pub preserve_ordering: Option<bool>,
    /// Only requests whose lengths round up to the same multiple share a batch; 0: all.
    pub bucket_width: Option<Count>,
    /// Number of priority levels, 1 the highest; 0: one level.
    pub priority_levels: Option<Long>,
    /// Priority level of requests without one.
    pub default_priority_level: Option<Long>,
    /// Limits of priority levels that have none in `priority_queues`.
    pub queue: Option<Queue>,
    /// Limits by priority level.
    pub priority_queues: Option<BTreeMap<Level, Queue>>,
}

/// A queue's limits.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Queue {
    /// What happens to requests whose timeout passes. Default: `reject`.
    pub timeout_action: Option<TimeoutAction>,
    /// Timeout of requests without one, in microseconds; 0: none.
    pub default_timeout_us: Option<Long>,
    /// Whether a request may set its own timeout.
    pub allow_timeout_override: Option<bool>,
    /// Maximum number of waiting requests; 0: no limit.
    pub max_queue_size: Option<Count>,
}

/// A priority level as the key of a mapping.
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
    /// Number of slots for the state of requests that have boarded. Default: 65536.
    pub slots: Option<Whole<u32, 1, { 1 << 24 }>>,
    /// Maximum number of consecutive tasks of one type for a lane (MaxTasksToSubmit). Default: 5.
    pub max_tasks: Option<Whole<u16, 1, 1_000>>,
    /// Whether an inner node of a tree waits only for its own children. Default: `true`.
    pub frontier: Option<bool>,
    /// Maximum number of requests whose graphs are merged. Default: requests board and leave at any task.
    pub merge_requests: Option<Whole<u32, 1, { 1 << 16 }>>,
}

/// Measured times of stages or cells.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(try_from = "WrittenLatencies")]
#[schemars(with = "WrittenLatencies", inline)]
pub enum Latencies {
    /// The name of a file in the model's directory.
    File(String),
    /// The times themselves.
    Here(Vec<Latency>),
}

/// The written form of [`Latencies`]. The text is the name of a file or a table.
#[derive(Deserialize, JsonSchema)]
#[serde(rename = "the name of a file, or a list of latencies")]
#[schemars(untagged, inline)]
pub(in crate::repository::config) enum WrittenLatencies {
    #[serde(rename = "#text")]
    Text(String),
    #[serde(rename = "#list")]
    List(Vec<Latency>),
}

/// The measured time of a stage for one size.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Latency {
    /// The stage, from 0.
    pub stage: StageNumber,
    /// Rows of the batch.
    pub rows: Positive,
    /// The padded length, or the product of several padded axes. Default: 0, for a model without padding.
    pub length: Option<Long>,
    /// The latency in microseconds.
    pub latency_us: Above0<{ DAY_US as i64 }>,
}

/// The name of a policy, or `auto`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PolicyName {
    /// The server chooses the policy.
    Auto,
    /// One policy.
    Of(PolicyKind),
}

impl PolicyName {
    /// Iterates over all names.
    pub fn all() -> impl Iterator<Item = Self> {
        std::iter::once(Self::Auto).chain(PolicyKind::ALL.iter().copied().map(Self::Of))
    }

    /// Returns the name that configurations use.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Of(kind) => kind.name(),
        }
    }

    /// Whether the policy may wait for preferred batch sizes, up to a delay.
    pub const fn has_window(self) -> bool {
        matches!(self, Self::Auto | Self::Of(PolicyKind::Window))
    }
}

impl fmt::Display for PolicyName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.as_str())
    }
}

impl FromStr for PolicyName {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        Self::all().find(|policy| policy.as_str() == name).ok_or_else(|| {
            let names = Self::keywords();
            let hint = suggestion(name, names.iter().copied());
            format!("expected {}, but found '{name}'{hint}", alternatives(&names))
        })
    }
}

impl Keywords for PolicyName {
    fn keywords() -> Vec<&'static str> {
        Self::all().map(Self::as_str).collect()
    }
}

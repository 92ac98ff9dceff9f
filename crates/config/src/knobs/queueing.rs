//! The sections of the queue: `queueing`, and `window`, which also has the knobs of that policy.

use std::collections::BTreeMap;

use paternoster_batching::{TimeoutAction, WindowKnobs};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Count, FromSettings, Long, ModelTraits, PositiveInt};
use crate::SettingError;

/// The queue of a policy that batches. In the section `window` it also has the knobs of that policy. It is converted to
/// Triton's `dynamic_batching`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct QueueingSettings {
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
    pub queue: Option<QueueSettings>,
    /// Limits by priority level.
    pub priority_queues: Option<BTreeMap<PriorityLevel, QueueSettings>>,
}

/// A queue's limits.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct QueueSettings {
    /// What happens to requests whose timeout passes. Default: `reject`.
    pub timeout_action: Option<TimeoutActionName>,
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
pub struct PriorityLevel(pub u64);

impl TryFrom<String> for PriorityLevel {
    type Error = SettingError;

    fn try_from(text: String) -> Result<Self, SettingError> {
        let level = text.parse().map(Self);
        level.map_err(|_| SettingError::expected("a priority level as key", format_args!("'{text}'")))
    }
}

/// Triton's `TimeoutAction`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(rename = "TimeoutAction")]
pub enum TimeoutActionName {
    /// The request is rejected.
    Reject,
    /// The request moves behind all others of its level and waits there without a timeout.
    Delay,
}

impl From<TimeoutActionName> for TimeoutAction {
    fn from(name: TimeoutActionName) -> Self {
        match name {
            TimeoutActionName::Reject => Self::Reject,
            TimeoutActionName::Delay => Self::Delay,
        }
    }
}

impl FromSettings for WindowKnobs {
    type Settings = QueueingSettings;

    fn read(settings: &QueueingSettings, _: ModelTraits) -> Result<Self, SettingError> {
        let sizes = settings.preferred_batch_sizes.iter().flatten();
        Ok(Self {
            preferred_batch_sizes: sizes.filter_map(|size| u32::try_from(size.0).ok()).collect(),
            max_queue_delay_ns: settings.max_queue_delay_us.map_or(0, Long::us),
        })
    }
}

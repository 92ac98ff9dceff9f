//! The section `cellular`, which `policies` reads: it goes together with a model's cells and segments.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Milliseconds, Mode, Whole};

/// Knobs of `cellular`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CellularSettings {
    /// Number of slots for the state of requests that have boarded. Default: 65536.
    pub slots: Option<Whole<u32, 1, { 1 << 24 }>>,
    /// `default`, or `paper`: algorithm 1 of BatchMaker chooses the type that runs next.
    pub mode: Option<Mode>,
    /// Maximum number of consecutive tasks of one type for a lane (MaxTasksToSubmit), in the mode `paper`. Default: 5.
    pub max_tasks: Option<Whole<u16, 1, 1_000>>,
    /// Whether an inner node of a tree waits only for its own children. Default: `true`.
    pub frontier: Option<bool>,
    /// Maximum number of requests whose graphs are merged. Default: requests board and leave at any task.
    pub merge_requests: Option<Whole<u32, 1, { 1 << 16 }>>,
    /// Longest predicted time of a task that runs several steps of its rows, in milliseconds. Default: as long as that
    /// shortens the mean latency.
    pub max_chunk_ms: Option<Milliseconds>,
}

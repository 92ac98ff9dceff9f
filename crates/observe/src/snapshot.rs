//! Values read from the counters: the content of ModelStatistics, independent of any protocol.

use serde::{Serialize, Serializer, ser::SerializeMap};

/// Number of occurrences and their total duration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Tally {
    /// Number of occurrences.
    pub count: u64,
    /// Sum of the durations in nanoseconds.
    pub ns: u64,
}

impl Tally {
    /// Adds an occurrence that took `ns` nanoseconds.
    pub fn add(&mut self, ns: u64) {
        self.count += 1;
        self.ns += ns;
    }
}

/// Statistics of one version since it was loaded: the content of Triton's `ModelStatistics` except name, version and
/// `memory_usage`, which is always empty. Field names and numbers serialize as Triton's HTTP endpoint writes them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct StatsSnapshot {
    /// End of the last execution in milliseconds since the Unix epoch; 0 if there was none.
    pub last_inference: u64,
    /// Rows of all answered requests that ran.
    pub inference_count: u64,
    /// Executions of a batch.
    pub execution_count: u64,
    /// Per request.
    pub inference_stats: InferenceStats,
    /// Per position: the responses of decoupled requests at that position.
    #[serde(serialize_with = "steps_as_map")]
    pub response_stats: Vec<ResponseStats>,
    /// Per execution, one entry for each executed size, ascending.
    pub batch_stats: Vec<BatchStats>,
}

/// Durations of requests, each counted once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct InferenceStats {
    /// Answered requests, from admission to the response; those that the cache answered too.
    pub success: Tally,
    /// Failed requests, from admission to the error.
    pub fail: Tally,
    /// Waiting time of answered requests; none for those that the cache answered.
    pub queue: Tally,
    /// Time for gathering inputs of answered requests.
    pub compute_input: Tally,
    /// Time for running the model, of answered requests.
    pub compute_infer: Tally,
    /// Time for splitting outputs of answered requests.
    pub compute_output: Tally,
    /// Time for finding the responses of requests that the cache answered.
    pub cache_hit: Tally,
    /// Time for looking for the responses of other requests, and for keeping them.
    pub cache_miss: Tally,
}

/// Executions of one batch size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct BatchStats {
    /// Rows of the batch without padding.
    pub batch_size: u64,
    /// Time for gathering inputs.
    pub compute_input: Tally,
    /// Time for running the model.
    pub compute_infer: Tally,
    /// Time for splitting outputs.
    pub compute_output: Tally,
}

/// Responses at one position of decoupled requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ResponseStats {
    /// Time for running the model.
    pub compute_infer: Tally,
    /// Time for splitting outputs.
    pub compute_output: Tally,
    /// Responses with outputs, from the start to the end of their computation.
    pub success: Tally,
    /// Always zero: a failed response ends its request, which counts as failed.
    pub fail: Tally,
    /// Always zero: no backend reports responses without outputs.
    pub empty_response: Tally,
    /// Always zero: a cancelled request counts as failed.
    pub cancel: Tally,
}

fn steps_as_map<S: Serializer>(steps: &[ResponseStats], serializer: S) -> Result<S::Ok, S::Error> {
    let mut map = serializer.serialize_map(Some(steps.len()))?;
    for (step, stats) in steps.iter().enumerate() {
        map.serialize_entry(&step.to_string(), stats)?;
    }
    map.end()
}

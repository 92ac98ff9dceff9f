//! Plain values read from the counters: what ModelStatistics answers, free of any protocol.

use serde::{Serialize, Serializer, ser::SerializeMap};

/// How often something happened and how long it took in all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Tally {
    /// Number of times.
    pub count: u64,
    /// Sum of the durations in nanoseconds.
    pub ns: u64,
}

impl Tally {
    /// Counts one more that took `ns` nanoseconds.
    pub fn add(&mut self, ns: u64) {
        self.count += 1;
        self.ns += ns;
    }
}

/// Statistics of one loaded version since it was loaded: the content of Triton's `ModelStatistics` but for name,
/// version and `memory_usage`, which is always empty. Field names and numbers serialise as Triton's HTTP endpoint
/// writes them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct StatsSnapshot {
    /// When the last execution ended, in milliseconds since the Unix epoch; 0: there was none.
    pub last_inference: u64,
    /// Rows of all requests that were answered.
    pub inference_count: u64,
    /// Executions of a batch.
    pub execution_count: u64,
    /// Counted per request.
    pub inference_stats: InferenceStats,
    /// By position: the responses of decoupled requests that came at this position.
    #[serde(serialize_with = "steps_as_map")]
    pub response_stats: Vec<ResponseStats>,
    /// Counted per execution, one entry for each size that ran, ascending.
    pub batch_stats: Vec<BatchStats>,
}

/// What requests met, each counted once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct InferenceStats {
    /// Answered requests, from admission to the answer.
    pub success: Tally,
    /// Failed requests, from admission to the error.
    pub fail: Tally,
    /// Waiting time of answered requests.
    pub queue: Tally,
    /// Gathering inputs, of answered requests.
    pub compute_input: Tally,
    /// Running the model, of answered requests.
    pub compute_infer: Tally,
    /// Taking outputs, of answered requests.
    pub compute_output: Tally,
    /// Always zero: there is no response cache.
    pub cache_hit: Tally,
    /// Always zero: there is no response cache.
    pub cache_miss: Tally,
}

/// Executions of one batch size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct BatchStats {
    /// Real rows of the batch, padding left out.
    pub batch_size: u64,
    /// Gathering inputs.
    pub compute_input: Tally,
    /// Running the model.
    pub compute_infer: Tally,
    /// Taking outputs.
    pub compute_output: Tally,
}

/// Responses at one position of decoupled requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ResponseStats {
    /// Running the model.
    pub compute_infer: Tally,
    /// Taking outputs.
    pub compute_output: Tally,
    /// Responses with outputs, from the start of their computation to their end.
    pub success: Tally,
    /// Always zero: a failed response ends its request, which counts as failed.
    pub fail: Tally,
    /// Final responses without outputs.
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

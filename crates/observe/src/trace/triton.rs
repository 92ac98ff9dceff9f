//! Converts a trace to objects of Triton's JSON.

use std::time::Instant;

use serde::Serialize;

use super::record::{Milestone, SEPARATOR, TraceProgress, TraceRecord};

/// Identifies the request of a trace.
#[derive(Serialize)]
struct Name<'a> {
    id: u64,
    model_name: &'a str,
    model_version: i64,
    #[serde(skip_serializing_if = "str::is_empty")]
    request_id: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    parent_id: Option<u64>,
}

/// A point in its life.
#[derive(Serialize)]
struct Timestamps {
    id: u64,
    timestamps: [Timestamp; 1],
}

#[derive(Serialize)]
struct Timestamp {
    name: &'static str,
    ns: u64,
}

/// An input or output.
#[derive(Serialize)]
struct Activity<'a> {
    id: u64,
    activity: &'static str,
    tensor: Tensor<'a>,
}

#[derive(Serialize)]
struct Tensor<'a> {
    name: &'a str,
    data: &'a str,
    shape: String,
    dtype: &'a str,
}

/// Returns the objects of one trace, separated by commas, without the surrounding list. `ns_of` converts an instant to
/// nanoseconds of the monotonic clock.
pub(super) fn objects(trace: &TraceRecord, progress: &TraceProgress, ns_of: impl Fn(Instant) -> u64) -> Vec<u8> {
    let mut text = Vec::with_capacity(1024);
    let id = trace.id;
    let (model_name, request_id, parent_id) = (&*trace.model, &*trace.request_id, trace.parent_id);
    write(&mut text, &Name { id, model_name, model_version: trace.version, request_id, parent_id });
    if trace.level.timestamps {
        let milestones = [trace.of_transport(progress), trace.of_request(progress), trace.of_compute(progress)];
        for (name, instant) in milestones.into_iter().flatten().collect::<Vec<Milestone>>() {
            let timestamps = [Timestamp { name, ns: ns_of(instant) }];
            write(&mut text, &Timestamps { id, timestamps });
        }
    }
    for tensor in &progress.tensors {
        let activity = if tensor.is_input { "TENSOR_QUEUE_INPUT" } else { "TENSOR_BACKEND_OUTPUT" };
        let shape: Vec<String> = tensor.shape.iter().map(i64::to_string).collect();
        let tensor = Tensor { name: &tensor.name, data: &tensor.data, shape: shape.join(","), dtype: tensor.datatype };
        write(&mut text, &Activity { id, activity, tensor });
    }
    text
}

fn write(text: &mut Vec<u8>, object: &impl Serialize) {
    if !text.is_empty() {
        text.extend_from_slice(SEPARATOR);
    }
    // Writing numbers and strings to memory cannot fail.
    let _ = serde_json::to_writer(text, object);
}

//! A trace as objects of Triton's JSON.

use std::time::Instant;

use serde::Serialize;

use super::request::{Milestone, Progress, RequestTrace};

/// Which request a trace is of.
#[derive(Serialize)]
struct Name<'a> {
    id: u64,
    model_name: &'a str,
    model_version: i64,
    #[serde(skip_serializing_if = "str::is_empty")]
    request_id: &'a str,
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

/// An input or output of it.
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

/// The objects of one trace, parted by commas, without the list around them. `ns_of` tells an instant in nanoseconds of
/// the monotonic clock.
pub(super) fn objects(trace: &RequestTrace, progress: &Progress, ns_of: impl Fn(Instant) -> u64) -> Vec<u8> {
    let mut text = Vec::with_capacity(1024);
    let id = trace.id;
    let (model_name, request_id) = (&*trace.model, &*trace.request_id);
    write(&mut text, &Name { id, model_name, model_version: trace.version, request_id });
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
        text.extend_from_slice(b",\n");
    }
    // Writing numbers and strings into memory cannot fail.
    let _ = serde_json::to_writer(text, object);
}

//! Conversion of tasks and requests to entries of the timeline and of traces.

use paternoster_batching::{End, Ns};
use paternoster_observe::{ExecutionTimings, timeline::RequestEnd, trace::TaskRan};

/// A task that ran in this interval, with `batch_rows` rows in its batch.
pub(super) fn task_ran(
    cell: u16,
    (started_ns, ended_ns): (Ns, Ns),
    timings: &ExecutionTimings,
    batch_rows: u32,
) -> TaskRan {
    let &ExecutionTimings { compute_input_ns, compute_infer_ns, compute_output_ns } = timings;
    let (input_ns, infer_ns, output_ns) = (compute_input_ns, compute_infer_ns, compute_output_ns);
    TaskRan { cell, started_ns, ended_ns, input_ns, infer_ns, output_ns, batch_rows }
}

/// Converts how a request ended.
pub(super) fn request_end(end: End) -> RequestEnd {
    match end {
        End::Completed => RequestEnd::Completed,
        End::Failed => RequestEnd::Failed,
        End::Rejected(_) => RequestEnd::Rejected,
        End::Expired => RequestEnd::Expired,
        End::Cancelled => RequestEnd::Cancelled,
    }
}

//! What is recorded of one traced request, and the milestones in it.

use std::{sync::Arc, time::Instant};

use parking_lot::Mutex;

use super::{context::TraceHead, settings::TraceLevel};
use crate::{end::RequestEnd, timings::TaskRun};

/// What is between objects of a trace.
pub(super) const SEPARATOR: &[u8] = b",\n";

/// Maximum number of intervals per request. Further tasks are added to the last interval of the same cell, or to the
/// last interval.
const MOST_INTERVALS: usize = 64;

/// Maximum length of a request id in a trace, in bytes.
const MOST_ID_BYTES: usize = 256;

/// The protocol of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// ModelInfer and ModelStreamInfer.
    Grpc,
    /// `infer`, `generate` and `generate_stream`.
    Http,
}

/// Consecutive tasks of one stage or cell: a long chain of one cell is a single interval.
#[derive(Clone, Copy, Debug)]
pub struct Interval {
    /// Number of tasks.
    pub tasks: u32,
    /// From the start of the first to the end of the last, with the sum of their timings and the rows of the largest.
    pub run: TaskRun,
}

impl Interval {
    fn add(&mut self, task: &TaskRun) {
        let run = &mut self.run;
        self.tasks = self.tasks.saturating_add(1);
        run.started_ns = run.started_ns.min(task.started_ns);
        run.ended_ns = run.ended_ns.max(task.ended_ns);
        run.timings += task.timings;
        run.batch_rows = run.batch_rows.max(task.batch_rows);
    }
}

/// The end of a request in the executor.
#[derive(Clone, Copy, Debug)]
pub struct TraceEnd {
    /// When it had arrived there, in nanoseconds since the executor's epoch.
    pub arrived_ns: u64,
    /// When it ended.
    pub ended_ns: u64,
    /// How it ended.
    pub how: RequestEnd,
}

/// What the tasks of a version run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Parts {
    /// The whole model.
    #[default]
    Whole,
    /// One of its stages.
    Stages,
    /// One of its cells, which have these names.
    Cells(Arc<[String]>),
}

/// Maximum number of recorded tensors per request, because a stream may have any number of responses.
const MOST_TENSORS: usize = 256;

/// Maximum text of a request's tensors, in bytes. Tensors beyond it are recorded without their elements.
const MOST_TENSOR_BYTES: usize = 64 << 10;

/// Maximum number of traces of a client's request and its steps, and the steps of these; they take about 1 MB.
const MOST_STEPS: usize = 1_000;

/// An input or output of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TracedTensor {
    /// Whether it is an input.
    pub is_input: bool,
    /// Its name.
    pub name: String,
    /// Its datatype in the protocol's notation.
    pub datatype: &'static str,
    /// Its shape, batch dimension included.
    pub shape: Vec<i64>,
    /// Its elements, separated by commas; empty if omitted.
    pub data: String,
}

/// The events recorded so far.
#[derive(Debug, Default)]
pub struct TraceProgress {
    /// The epoch of the executor's times.
    pub epoch: Option<Instant>,
    /// What its tasks run.
    pub parts: Parts,
    /// Its tasks, as intervals.
    pub intervals: Vec<Interval>,
    /// The task that started first.
    pub first: Option<TaskRun>,
    /// The task that ended last.
    pub(super) last: Option<TaskRun>,
    /// Its end in the executor.
    pub end: Option<TraceEnd>,
    /// When its last response was complete.
    pub responded: Option<Instant>,
    /// When the first response began to be sent, and when the last one had been sent.
    pub sent: Option<(Instant, Instant)>,
    pub(super) tensors: Vec<TracedTensor>,
    tensor_bytes: usize,
    /// Whether requests that are its steps have traces of their own, which say when it was computed.
    pub(super) has_steps: bool,
    /// Of a client's request: the number of traces of its steps, and of their steps.
    steps: usize,
    /// The objects of those that have ended, each after a separator.
    pub(super) ended_steps: Vec<u8>,
}

impl TraceProgress {
    /// Counts a trace of a step, if there may be another one.
    pub(super) fn step(&mut self) -> bool {
        self.steps += 1;
        self.steps <= MOST_STEPS
    }

    /// Adds the objects of the trace of a step that has ended.
    pub(super) fn step_ended(&mut self, objects: &[u8]) {
        self.ended_steps.extend_from_slice(SEPARATOR);
        self.ended_steps.extend_from_slice(objects);
    }

    /// Records a task that ran rows of it.
    pub(super) fn ran(&mut self, task: &TaskRun) {
        if self.first.is_none_or(|first| task.started_ns < first.started_ns) {
            self.first = Some(*task);
        }
        if self.last.is_none_or(|last| task.ended_ns >= last.ended_ns) {
            self.last = Some(*task);
        }
        let intervals = &mut self.intervals;
        let same = intervals.last().is_some_and(|last| last.run.cell == task.cell);
        if !same && intervals.len() < MOST_INTERVALS {
            return intervals.push(Interval { tasks: 1, run: *task });
        }
        let last = intervals.len() - 1;
        let at = if same {
            last
        } else {
            intervals.iter().rposition(|interval| interval.run.cell == task.cell).unwrap_or(last)
        };
        intervals[at].add(task);
    }

    /// Records an input or output.
    pub(super) fn tensor(&mut self, mut tensor: TracedTensor) {
        let bytes = self.tensor_bytes + tensor.data.len();
        if bytes > MOST_TENSOR_BYTES {
            tensor.data = String::new();
        } else {
            self.tensor_bytes = bytes;
        }
        if self.tensors.len() < MOST_TENSORS {
            self.tensors.push(tensor);
        }
    }
}

/// The record of a traced request.
#[derive(Debug)]
pub struct TraceRecord {
    pub(super) id: u64,
    /// The trace of the request that it is a step of.
    pub(super) parent_id: Option<u64>,
    pub(super) level: TraceLevel,
    /// From the settings by which it was sampled.
    pub(super) log_frequency: u32,
    pub(super) transport: Transport,
    /// Trace data from before its message was read.
    pub head: TraceHead,
    /// When its message had been read.
    pub(super) received: Instant,
    /// When it was admitted.
    pub admitted: Instant,
    /// Name of its model.
    pub model: String,
    /// Version of its model.
    pub version: i64,
    /// The id chosen by its client, cut off if it is long; may be empty.
    pub request_id: String,
    pub(super) progress: Mutex<TraceProgress>,
}

/// The request to be traced.
#[derive(Clone, Copy, Debug)]
pub struct TracedRequest<'a> {
    /// The protocol.
    pub transport: Transport,
    /// Trace data from before its message was read.
    pub head: TraceHead,
    /// When its message had been read.
    pub received: Instant,
    /// Name of its model.
    pub model: &'a str,
    /// Version of its model.
    pub version: i64,
    /// The id chosen by its client; may be empty.
    pub id: &'a str,
}

impl TraceRecord {
    pub(super) fn new(id: u64, (level, log_frequency): (TraceLevel, u32), of: &TracedRequest<'_>) -> Self {
        let &TracedRequest { transport, head, received, model, version, id: request_id } = of;
        let end = request_id.floor_char_boundary(MOST_ID_BYTES);
        Self {
            id,
            parent_id: None,
            level,
            log_frequency,
            transport,
            head,
            received,
            admitted: Instant::now(),
            model: model.to_owned(),
            version,
            request_id: request_id[..end].to_owned(),
            progress: Mutex::default(),
        }
    }

    /// Returns the record of a request that is a step of its request.
    pub(super) fn step(&self, id: u64, model: &str, version: i64) -> Self {
        Self {
            id,
            parent_id: Some(self.id),
            admitted: Instant::now(),
            model: model.to_owned(),
            version,
            request_id: self.request_id.clone(),
            progress: Mutex::default(),
            ..*self
        }
    }

    /// Returns when its message was read and its response was sent; nothing, of a step.
    pub fn of_transport(&self, progress: &TraceProgress) -> Vec<Milestone> {
        if self.parent_id.is_some() {
            return Vec::new();
        }
        let names = match self.transport {
            Transport::Grpc => ["GRPC_WAITREAD_START", "GRPC_WAITREAD_END", "GRPC_SEND_START", "GRPC_SEND_END"],
            Transport::Http => ["HTTP_RECV_START", "HTTP_RECV_END", "HTTP_SEND_START", "HTTP_SEND_END"],
        };
        let mut milestones = vec![(names[0], self.head.came), (names[1], self.received)];
        if let Some((began, ended)) = progress.sent {
            milestones.extend([(names[2], began), (names[3], ended)]);
        }
        milestones
    }

    /// Returns when it was in the executor.
    pub fn of_request(&self, progress: &TraceProgress) -> Vec<Milestone> {
        let mut milestones = vec![("REQUEST_START", self.admitted)];
        let end = progress.end.zip(progress.epoch);
        if let Some((end, epoch)) = end {
            milestones.push(("QUEUE_START", at(epoch, end.arrived_ns)));
        }
        milestones.extend(progress.responded.map(|responded| ("INFER_RESPONSE_COMPLETE", responded)));
        if let Some((end, epoch)) = end {
            milestones.push(("REQUEST_END", at(epoch, end.ended_ns)));
        }
        milestones
    }

    /// Returns when it was computed, from its first task to its last; nothing, if its steps have traces that say so.
    pub fn of_compute(&self, progress: &TraceProgress) -> Vec<Milestone> {
        if progress.has_steps {
            return Vec::new();
        }
        let TraceProgress { epoch: Some(epoch), first: Some(first), last: Some(last), .. } = *progress else {
            return Vec::new();
        };
        let input_end = (first.started_ns + first.timings.compute_input_ns).min(last.ended_ns);
        let output_start = last.ended_ns.saturating_sub(last.timings.compute_output_ns).max(input_end);
        vec![
            ("COMPUTE_START", at(epoch, first.started_ns)),
            ("COMPUTE_INPUT_END", at(epoch, input_end)),
            ("COMPUTE_OUTPUT_START", at(epoch, output_start)),
            ("COMPUTE_END", at(epoch, last.ended_ns)),
        ]
    }
}

/// A point in the life of a request, with Triton's name for it.
pub type Milestone = (&'static str, Instant);

/// Converts an executor time to an instant.
pub fn at(epoch: Instant, ns: u64) -> Instant {
    epoch + std::time::Duration::from_nanos(ns)
}

//! What is recorded of one request while it runs.

use std::{sync::Arc, time::Instant};

use parking_lot::Mutex;

use super::{context::TraceHead, otlp::RootSpan, settings::TraceLevel, tracer::Sink};

/// Spells of tasks that are kept apart. What runs beyond them is added to the last of the same cell, or to the last.
const MOST_SPELLS: usize = 64;

/// Longest id of a request that is kept, in bytes.
const MOST_ID_BYTES: usize = 256;

/// The protocol that a request came over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// ModelInfer and ModelStreamInfer.
    Grpc,
    /// `infer`, `generate` and `generate_stream`.
    Http,
}

/// A task that ran rows of the request. Times are nanoseconds since the executor's epoch.
#[derive(Clone, Copy, Debug)]
pub struct TaskRan {
    /// The stage or cell, counted from 0.
    pub cell: u16,
    /// When it began.
    pub started_ns: u64,
    /// When it completed.
    pub ended_ns: u64,
    /// How long its inputs took.
    pub input_ns: u64,
    /// How long its program ran.
    pub infer_ns: u64,
    /// How long its outputs took.
    pub output_ns: u64,
    /// Rows of all requests in it.
    pub batch_rows: u32,
}

/// Tasks of one stage or cell that ran one after the other: a long chain of one cell is one spell.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spell {
    pub(super) cell: u16,
    /// How many.
    pub(super) tasks: u32,
    pub(super) started_ns: u64,
    pub(super) ended_ns: u64,
    /// Sums over the tasks.
    pub(super) input_ns: u64,
    pub(super) infer_ns: u64,
    pub(super) output_ns: u64,
    /// Of the largest task.
    pub(super) batch_rows: u32,
}

impl Spell {
    fn of(task: &TaskRan) -> Self {
        let &TaskRan { cell, started_ns, ended_ns, input_ns, infer_ns, output_ns, batch_rows } = task;
        Self { cell, tasks: 1, started_ns, ended_ns, input_ns, infer_ns, output_ns, batch_rows }
    }

    fn add(&mut self, task: &TaskRan) {
        self.tasks = self.tasks.saturating_add(1);
        self.started_ns = self.started_ns.min(task.started_ns);
        self.ended_ns = self.ended_ns.max(task.ended_ns);
        self.input_ns += task.input_ns;
        self.infer_ns += task.infer_ns;
        self.output_ns += task.output_ns;
        self.batch_rows = self.batch_rows.max(task.batch_rows);
    }
}

/// How the executor let a request go.
#[derive(Clone, Copy, Debug)]
pub(super) struct End {
    pub(super) arrived_ns: u64,
    pub(super) ended_ns: u64,
    /// Why it has no response; `None` where it completed.
    pub(super) failure: Option<&'static str>,
}

/// What tasks of a version run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Parts {
    /// The whole model.
    #[default]
    Whole,
    /// One of its stages.
    Stages,
    /// One of its cells, which have these names.
    Cells(Vec<String>),
}

/// Most tensors of a request that are recorded: a stream may have any number of responses.
const MOST_TENSORS: usize = 256;

/// Most text of the tensors of a request, in bytes; those beyond it are recorded without their elements.
const MOST_TENSOR_BYTES: usize = 64 << 10;

/// An input or output of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TracedTensor {
    /// Whether it is an input.
    pub is_input: bool,
    /// Its name.
    pub name: String,
    /// Its datatype, as the protocol names it.
    pub datatype: &'static str,
    /// Its shape, batch dimension included.
    pub shape: Vec<i64>,
    /// Its elements, parted by commas; empty where they are left out.
    pub data: String,
}

/// What has happened so far.
#[derive(Debug, Default)]
pub(super) struct Progress {
    /// Since when the executor's times count.
    pub(super) epoch: Option<Instant>,
    pub(super) parts: Parts,
    pub(super) spells: Vec<Spell>,
    /// The task that began first, and the one that ended last.
    pub(super) first: Option<TaskRan>,
    pub(super) last: Option<TaskRan>,
    pub(super) end: Option<End>,
    pub(super) responded: Option<Instant>,
    pub(super) sent: Option<(Instant, Instant)>,
    pub(super) tensors: Vec<TracedTensor>,
    tensor_bytes: usize,
}

/// The record of a request that is traced. The last holder's letting go ends it.
#[derive(Debug)]
pub struct RequestTrace {
    pub(super) sink: Arc<Sink>,
    pub(super) id: u64,
    pub(super) level: TraceLevel,
    /// Of the settings by which it was sampled.
    pub(super) log_frequency: u32,
    pub(super) transport: Transport,
    pub(super) head: TraceHead,
    /// When its message had been read.
    pub(super) received: Instant,
    /// When it was admitted.
    pub(super) admitted: Instant,
    pub(super) model: String,
    pub(super) version: i64,
    pub(super) request_id: String,
    /// Its span, where it is exported as spans.
    pub(super) root: Option<RootSpan>,
    pub(super) progress: Mutex<Progress>,
}

/// Which request a trace is of.
#[derive(Clone, Copy, Debug)]
pub struct TracedRequest<'a> {
    /// The protocol.
    pub transport: Transport,
    /// What was known before its message was read.
    pub head: TraceHead,
    /// When its message had been read.
    pub received: Instant,
    /// Name of its model.
    pub model: &'a str,
    /// Version of its model.
    pub version: i64,
    /// The id that its client gave it; may be empty.
    pub id: &'a str,
}

impl RequestTrace {
    pub(super) fn new(
        sink: Arc<Sink>,
        id: u64,
        (level, log_frequency): (TraceLevel, u32),
        of: &TracedRequest<'_>,
    ) -> Self {
        let &TracedRequest { transport, head, received, model, version, id: request_id } = of;
        let root = sink.begin(&head, transport);
        let end = request_id.floor_char_boundary(MOST_ID_BYTES);
        Self {
            sink,
            id,
            level,
            log_frequency,
            transport,
            head,
            received,
            admitted: Instant::now(),
            model: model.to_owned(),
            version,
            request_id: request_id[..end].to_owned(),
            root,
            progress: Mutex::default(),
        }
    }

    /// The executor has the request, whose tasks run these parts; its times count from an epoch of its own.
    pub fn submitted(&self, epoch: Instant, parts: Parts) {
        let mut progress = self.progress.lock();
        progress.epoch = Some(epoch);
        progress.parts = parts;
    }

    /// A task ran rows of it.
    pub fn ran(&self, task: &TaskRan) {
        let mut progress = self.progress.lock();
        if progress.first.is_none_or(|first| task.started_ns < first.started_ns) {
            progress.first = Some(*task);
        }
        if progress.last.is_none_or(|last| task.ended_ns >= last.ended_ns) {
            progress.last = Some(*task);
        }
        let spells = &mut progress.spells;
        let same = spells.last().is_some_and(|last| last.cell == task.cell);
        if !same && spells.len() < MOST_SPELLS {
            return spells.push(Spell::of(task));
        }
        let last = spells.len() - 1;
        let at = if same { last } else { spells.iter().rposition(|spell| spell.cell == task.cell).unwrap_or(last) };
        spells[at].add(task);
    }

    /// The executor lets it go; `failure` names in a word why it has no response.
    pub fn ended(&self, arrived_ns: u64, ended_ns: u64, failure: Option<&'static str>) {
        self.progress.lock().end = Some(End { arrived_ns, ended_ns, failure });
    }

    /// Whether its tensors are recorded.
    pub fn has_tensors(&self) -> bool {
        self.level.tensors && self.root.is_none()
    }

    /// It has this input or output.
    pub fn tensor(&self, mut tensor: TracedTensor) {
        let mut progress = self.progress.lock();
        let bytes = progress.tensor_bytes + tensor.data.len();
        if bytes > MOST_TENSOR_BYTES {
            tensor.data = String::new();
        } else {
            progress.tensor_bytes = bytes;
        }
        if progress.tensors.len() < MOST_TENSORS {
            progress.tensors.push(tensor);
        }
    }

    /// A response of it is there.
    pub fn responded(&self) {
        self.progress.lock().responded = Some(Instant::now());
    }

    /// The cells whose tasks ran, in order, with how many ran one after the other.
    #[cfg(test)]
    pub(crate) fn spells(&self) -> Vec<(String, u32)> {
        let progress = self.progress.lock();
        let Parts::Cells(names) = &progress.parts else { return Vec::new() };
        progress.spells.iter().map(|spell| (names[usize::from(spell.cell)].clone(), spell.tasks)).collect()
    }

    /// Its reply leaves, and has left when what is returned is dropped.
    pub fn sending(self: &Arc<Self>) -> Sending {
        Sending { trace: Arc::clone(self), began: Instant::now() }
    }
}

/// A reply on its way.
#[derive(Debug)]
pub struct Sending {
    trace: Arc<RequestTrace>,
    began: Instant,
}

impl Drop for Sending {
    fn drop(&mut self) {
        let now = Instant::now();
        let mut progress = self.trace.progress.lock();
        // Of several replies the first begins, and the last ends.
        let began = progress.sent.map_or(self.began, |(began, _)| began);
        progress.sent = Some((began, now));
    }
}

impl Drop for RequestTrace {
    fn drop(&mut self) {
        let sink = Arc::clone(&self.sink);
        sink.take(self);
    }
}

/// A point in the life of a request, with Triton's name for it.
pub(super) type Milestone = (&'static str, Instant);

impl RequestTrace {
    /// When its message was read and its reply left.
    pub(super) fn of_transport(&self, progress: &Progress) -> Vec<Milestone> {
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

    /// When the executor had it.
    pub(super) fn of_request(&self, progress: &Progress) -> Vec<Milestone> {
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

    /// When it was computed, from its first task to its last.
    pub(super) fn of_compute(&self, progress: &Progress) -> Vec<Milestone> {
        let Progress { epoch: Some(epoch), first: Some(first), last: Some(last), .. } = *progress else {
            return Vec::new();
        };
        let input_end = (first.started_ns + first.input_ns).min(last.ended_ns);
        let output_start = last.ended_ns.saturating_sub(last.output_ns).max(input_end);
        vec![
            ("COMPUTE_START", at(epoch, first.started_ns)),
            ("COMPUTE_INPUT_END", at(epoch, input_end)),
            ("COMPUTE_OUTPUT_START", at(epoch, output_start)),
            ("COMPUTE_END", at(epoch, last.ended_ns)),
        ]
    }
}

/// An instant of the executor's.
pub(super) fn at(epoch: Instant, ns: u64) -> Instant {
    epoch + std::time::Duration::from_nanos(ns)
}

//! A request that is traced: its record, and where the record goes when the request has ended.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};

use http::HeaderValue;

use super::{
    export::ExportedTrace,
    record::{Parts, TraceEnd, TraceRecord, TracedTensor},
    sink::Sink,
};
use crate::{end::RequestEnd, timings::TaskRun};

/// A traced request. Dropping the last reference ends its trace; those of its steps keep it until they have ended.
#[derive(Debug)]
pub struct RequestTrace {
    sink: Arc<Sink>,
    /// The next id of a trace.
    ids: Arc<AtomicU64>,
    pub(super) record: TraceRecord,
    /// Its root span, if spans are exported.
    root: Option<Box<dyn ExportedTrace>>,
    /// The trace of the client's request, of a trace of a step.
    whole: Option<Arc<Self>>,
}

impl RequestTrace {
    pub(super) fn new(sink: Arc<Sink>, ids: Arc<AtomicU64>, record: TraceRecord) -> Self {
        let root = sink.begin(&record);
        Self { sink, ids, record, root, whole: None }
    }

    /// Starts the trace of a request to this version of a model, which is a step of this trace's request. `None` if
    /// spans are exported, where steps are spans of the request itself, or if there are too many steps.
    pub fn step(self: &Arc<Self>, model: &str, version: i64) -> Option<Arc<Self>> {
        if self.root.is_some() {
            return None;
        }
        self.record.progress.lock().has_steps = true;
        let whole = self.whole.as_ref().unwrap_or(self);
        if !whole.record.progress.lock().step() {
            self.sink.lose();
            return None;
        }
        let record = self.record.step(self.ids.fetch_add(1, Ordering::Relaxed), model, version);
        Some(Arc::new(Self {
            sink: Arc::clone(&self.sink),
            ids: Arc::clone(&self.ids),
            record,
            root: None,
            whole: Some(Arc::clone(whole)),
        }))
    }

    /// Returns the value of [`TRACE_RESPONSE`](super::TRACE_RESPONSE) for the response, if the request has a span.
    pub fn response_header(&self) -> Option<HeaderValue> {
        let root = self.root.as_ref()?;
        HeaderValue::try_from(root.header()).ok()
    }

    /// Records that the executor has the request, whose tasks run these parts. `epoch` is the epoch of the executor's
    /// times.
    pub fn submitted(&self, epoch: Instant, parts: Parts) {
        let mut progress = self.record.progress.lock();
        progress.epoch = Some(epoch);
        progress.parts = parts;
    }

    /// Records a task that ran rows of it.
    pub fn ran(&self, task: &TaskRun) {
        self.record.progress.lock().ran(task);
    }

    /// Records its end in the executor.
    pub fn ended(&self, arrived_ns: u64, ended_ns: u64, how: RequestEnd) {
        self.record.progress.lock().end = Some(TraceEnd { arrived_ns, ended_ns, how });
    }

    /// Whether its tensors are recorded.
    pub fn has_tensors(&self) -> bool {
        self.record.level.tensors && self.root.is_none()
    }

    /// Records an input or output.
    pub fn tensor(&self, tensor: TracedTensor) {
        self.record.progress.lock().tensor(tensor);
    }

    /// Records that a response is complete.
    pub fn responded(&self) {
        self.record.progress.lock().responded = Some(Instant::now());
    }

    /// Returns the cells whose tasks ran, in order, with the number of consecutive tasks.
    pub fn intervals(&self) -> Vec<(String, u32)> {
        let progress = self.record.progress.lock();
        let Parts::Cells(names) = &progress.parts else { return Vec::new() };
        progress
            .intervals
            .iter()
            .map(|interval| (names[usize::from(interval.run.cell)].clone(), interval.tasks))
            .collect()
    }

    /// Records that its response is being sent, until the returned value is dropped.
    pub fn sending(self: &Arc<Self>) -> Sending {
        Sending { trace: Arc::clone(self), began: Instant::now() }
    }
}

/// A response that is being sent.
#[derive(Debug)]
pub struct Sending {
    trace: Arc<RequestTrace>,
    began: Instant,
}

impl Drop for Sending {
    fn drop(&mut self) {
        let now = Instant::now();
        let mut progress = self.trace.record.progress.lock();
        // With several responses, the period is from the start of the first to the end of the last.
        let began = progress.sent.map_or(self.began, |(began, _)| began);
        progress.sent = Some((began, now));
    }
}

impl Drop for RequestTrace {
    fn drop(&mut self) {
        match &self.whole {
            Some(whole) => self.sink.take_step(&self.record, &whole.record),
            None => self.sink.take(&self.record, self.root.take()),
        }
    }
}

//! What a destination of traces outside this crate is to the tracer.

use std::{fmt, sync::Arc};

use super::{
    context::TraceHead,
    record::{TraceProgress, TraceRecord, Transport},
    stats::TraceStats,
};

/// A destination of traces as spans. It is asked nothing about requests that are not traced.
pub trait TraceExport: fmt::Debug + Send + Sync {
    /// Returns the counters in which it counts lost spans. Those of the tracer are the same.
    fn stats(&self) -> &Arc<TraceStats>;

    /// Starts the root span of a request.
    fn begin(&self, head: &TraceHead, transport: Transport) -> Box<dyn ExportedTrace>;

    /// Returns once all previous spans are exported or lost.
    fn flush(&self);
}

/// The root span of a request in progress.
pub trait ExportedTrace: fmt::Debug + Send + Sync {
    /// Returns the value of [`TRACE_RESPONSE`](super::TRACE_RESPONSE) for the response.
    fn header(&self) -> String;

    /// Takes the record of the request, which has ended.
    fn end(self: Box<Self>, record: &TraceRecord, progress: &TraceProgress);
}

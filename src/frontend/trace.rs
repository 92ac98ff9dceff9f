//! Traces of the requests that come in, over whatever transport.

use std::{sync::Arc, time::Instant};

use super::{Services, intake::Admitted};
use crate::observe::trace::{RequestTrace, TraceHead, TracedRequest, Transport};

/// What is known of a request once its message is read; nothing where no request is traced.
#[derive(Clone, Copy, Debug)]
pub(super) struct Received {
    head: TraceHead,
    at: Instant,
}

impl Received {
    /// Its message is there.
    pub(super) fn now(head: Option<TraceHead>) -> Option<Self> {
        head.map(|head| Self { head, at: Instant::now() })
    }
}

/// Begins the trace of a request that is admitted, if it is traced, and lets the executor add to it.
pub(super) fn begin(
    services: &Services,
    transport: Transport,
    received: Option<Received>,
    admitted: &mut Admitted,
) -> Option<Arc<RequestTrace>> {
    let Received { head, at: received } = received?;
    let Admitted { version, decoded, .. } = admitted;
    let (model, version, id) = (&*version.spec().name, version.spec().version, &*decoded.reply.id);
    let trace = services.tracer.begin(&TracedRequest { transport, head, received, model, version, id });
    decoded.request.trace.clone_from(&trace);
    trace
}

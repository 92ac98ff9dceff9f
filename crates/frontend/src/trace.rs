//! Traces of incoming requests, for all transports.

use std::{sync::Arc, time::Instant};

use paternoster_executor::{InferError, OutputTensor, Response};
use paternoster_model::{InputTensor, TensorSpec};
use paternoster_observe::trace::{RequestTrace, TraceHead, TracedRequest, TracedTensor, Transport};
use paternoster_repository::ModelVersion;
use paternoster_wire::json;

use super::{Services, intake::Admitted};

/// Maximum text of a tensor's elements in a trace; takes well below a millisecond.
const MOST_TENSOR_TEXT_BYTES: usize = 16 << 10;

/// Trace data of a request whose message has been read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Received {
    head: TraceHead,
    at: Instant,
}

impl Received {
    /// Records that the message has arrived now. `None` if no request is traced.
    pub(super) fn now(head: Option<TraceHead>) -> Option<Self> {
        head.map(|head| Self { head, at: Instant::now() })
    }
}

/// Starts the trace of an admitted request, if it is traced, and passes it to the executor.
pub(super) fn begin(
    services: &Services,
    transport: Transport,
    received: Option<Received>,
    admitted: &mut Admitted,
) -> Option<Arc<RequestTrace>> {
    let Received { head, at: received } = received?;
    let Admitted { version, request, reply, .. } = admitted;
    let spec = version.spec();
    let (model, version, id) = (&*spec.name, spec.version, &*reply.id);
    let trace = services.tracer.begin(&TracedRequest { transport, head, received, model, version, id });
    if let Some(trace) = trace.as_ref().filter(|trace| trace.has_tensors()) {
        for (given, spec) in request.inputs.iter().zip(&spec.inputs) {
            if let Some(InputTensor { shape, data }) = given {
                trace.tensor(traced(true, spec, shape, data));
            }
        }
    }
    request.trace.clone_from(&trace);
    trace
}

/// Records a response of a request, or its error.
pub(super) fn responded(trace: &RequestTrace, version: &ModelVersion, answer: &Result<Response, InferError>) {
    trace.responded();
    if let Ok(response) = answer
        && trace.has_tensors()
    {
        for (OutputTensor { shape, data }, spec) in response.outputs.iter().zip(&version.spec().outputs) {
            trace.tensor(traced(false, spec, shape, data));
        }
    }
}

fn traced(is_input: bool, spec: &TensorSpec, shape: &[i64], data: &[u8]) -> TracedTensor {
    TracedTensor {
        is_input,
        name: spec.name.clone(),
        datatype: spec.datatype.as_str(),
        shape: shape.to_vec(),
        data: json::listed(data, spec.datatype, MOST_TENSOR_TEXT_BYTES).unwrap_or_default(),
    }
}

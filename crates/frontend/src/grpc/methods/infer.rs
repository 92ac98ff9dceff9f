//! ModelInfer: one request, one response.

use std::sync::Arc;

use bytes::Bytes;
use hyper::body::Incoming;
use paternoster_executor::Response;
use paternoster_observe::trace::{RequestTrace, TraceHead, Transport};
use paternoster_repository::{Caller, ModelVersion};
use paternoster_wire::{Decoded, Kind, RequestError, ResponsePlan, encode, pb};
use tonic::Status;
use tracing::Span;

use super::intake::{Intake, take_in};
use crate::{
    Services,
    grpc::framing::{Deadline, MessageReader, Writer, before},
    intake::{Admitted, LARGE_PACKED_RESPONSE_BYTES, LARGE_RESPONSE_BYTES},
    trace::{Received, begin, responded},
};

/// An encoded response, and its request's trace if it is traced.
pub(crate) type TracedResponse = (Bytes, Option<Arc<RequestTrace>>);

/// Answers ModelInfer with an encoded message. Dropping the future cancels the request.
///
/// # Errors
/// The error of the request or of its execution; DEADLINE_EXCEEDED if the client's deadline passes before its message
/// has arrived or while the request runs; UNAVAILABLE and RESOURCE_EXHAUSTED if the server has no capacity for it.
pub(crate) async fn infer(
    services: &Arc<Services>,
    reader: &mut MessageReader<Incoming>,
    writer: Writer,
    deadline: Deadline,
    (caller, head): (Caller, Option<TraceHead>),
    span: &Span,
) -> Result<TracedResponse, Status> {
    let message = before(deadline, reader.only()).await?;
    let received = Received::now(head);
    let mut admitted = match take_in(services, reader.workers(), message, &caller, admit, span) {
        Intake::Done(outcome) => outcome??,
        Intake::Deferred(outcome) => before(deadline, outcome).await??,
    };
    let trace = begin(services, Transport::Grpc, received, &mut admitted);
    let Admitted { version, mut decoded, held } = admitted;
    decoded.request.deadline = deadline;
    let answer = version.submit(decoded.request).await;
    if let Some(trace) = &trace {
        responded(trace, &version, &answer);
    }
    let response = answer.map_err(|error| RequestError::from_infer(&error, &decoded.reply.id))?;
    drop(held);

    let bytes = response.outputs.iter().map(|output| output.data.len()).sum::<usize>();
    let large = if writer.packs() { LARGE_PACKED_RESPONSE_BYTES } else { LARGE_RESPONSE_BYTES };
    if bytes < large {
        return Ok((encode_response(&version, &decoded.reply, response, writer)?, trace));
    }
    let work = move || encode_response(&version, &decoded.reply, response, writer);
    Ok((reader.workers().run(bytes, work).await??, trace))
}

fn encode_response(
    version: &ModelVersion,
    plan: &ResponsePlan,
    response: Response,
    writer: Writer,
) -> Result<Bytes, Status> {
    writer.encode(&encode::encode(version.spec(), plan, response)?)
}

fn admit(services: &Services, version: &ModelVersion, request: pb::ModelInferRequest) -> Result<Decoded, RequestError> {
    if version.spec().decoupled {
        return Err(decoupled(&version.spec().name));
    }
    services.decode(version, request)
}

fn decoupled(model: &str) -> RequestError {
    let message = format!(
        "ModelInfer RPC doesn't support models with decoupled transaction policy: model '{model}' needs \
         ModelStreamInfer"
    );
    RequestError::new(Kind::Unimplemented, message)
}

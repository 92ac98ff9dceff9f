//! ModelInfer: one request, one response.

use std::sync::Arc;

use bytes::Bytes;
use paternoster_executor::{InferRequest, Response};
use paternoster_observe::trace::{TRACE_RESPONSE, Transport};
use paternoster_repository::ModelVersion;
use paternoster_wire::{Kind, RequestError, ResponsePlan, encode, pb};
use tonic::{Request, Status};

use super::intake::{Intake, take_in};
use crate::{
    Services,
    grpc::{
        call::Call,
        codec::{Encoded, Reply, Undecoded},
        messages::Writer,
    },
    intake::{Admitted, LARGE_PACKED_RESPONSE_BYTES, LARGE_RESPONSE_BYTES, Workers},
    trace::{Received, begin, responded},
    unsent::admitted,
};

/// Answers ModelInfer. Dropping the future cancels the request.
///
/// # Errors
/// The error of the request or of its execution; UNAVAILABLE and RESOURCE_EXHAUSTED if the server has no capacity for
/// it; RESOURCE_EXHAUSTED if too many replies wait for the client.
pub(crate) async fn infer(
    services: &Arc<Services>,
    workers: &Arc<Workers>,
    mut request: Request<Undecoded<pb::ModelInferRequest>>,
) -> Result<tonic::Response<Encoded<pb::ModelInferResponse>>, Status> {
    let Call { holds, deadline, writer, span, head, handover, .. } = Call::of(&mut request)?;
    let received = Received::now(head);
    let caller = services.caller(&holds, request.metadata().as_ref());
    let message = request.into_inner().take(&handover)?;
    let mut admitted_request = match take_in(services, workers, message, &caller, admit, &span) {
        Intake::Done(outcome) => outcome??,
        Intake::Deferred(outcome) => outcome.await??,
    };
    let trace = begin(services, Transport::Grpc, received, &mut admitted_request);
    let Admitted { version, mut request, reply, held } = admitted_request;
    request.deadline = deadline;
    handover.set_submitted();
    let answer = version.submit(request).await;
    if let Some(trace) = &trace {
        responded(trace, &version, &answer);
    }
    let response = answer.map_err(|error| RequestError::from_infer(&error, &reply.id))?;
    drop(held);

    let bytes = response.outputs.iter().map(|output| output.data.len()).sum::<usize>();
    let large = if writer.packs() { LARGE_PACKED_RESPONSE_BYTES } else { LARGE_RESPONSE_BYTES };
    let frame = if bytes < large {
        encode_response(&version, &reply, response, writer)?
    } else {
        let work = move || encode_response(&version, &reply, response, writer);
        workers.run(bytes, work).await??
    };
    let frame = admitted(frame, &holds.backlog).map_err(|unread| Status::resource_exhausted(unread.to_string()))?;
    let sending = trace.as_ref().map(|trace| trace.sending());
    let mut response = writer.response(Encoded::new(Reply { frame, sending }, handover));
    if let Some(span) = trace.and_then(|trace| trace.response_header()) {
        response.metadata_mut().as_mut().insert(TRACE_RESPONSE, span);
    }
    Ok(response)
}

fn encode_response(
    version: &ModelVersion,
    plan: &ResponsePlan,
    response: Response,
    writer: Writer,
) -> Result<Bytes, Status> {
    writer.encode(&encode::encode(version.spec(), plan, response)?)
}

fn admit(
    services: &Services,
    version: &ModelVersion,
    request: pb::ModelInferRequest,
) -> Result<(InferRequest, ResponsePlan), RequestError> {
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

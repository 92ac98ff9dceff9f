//! ModelInfer: one request, one answer.

use hyper::body::Incoming;
use tonic::Status;

use super::{Services, unresolved::unresolved};
use crate::{
    frontend::grpc::framing::{Deadline, MessageReader, before},
    wire::{Kind, RequestError, decode, encode, pb},
};

/// Answers ModelInfer. Dropping the future cancels the request.
///
/// # Errors
/// Whatever is wrong with the request or becomes of it; DEADLINE_EXCEEDED when the client's deadline passes before its
/// message has come or while the request runs.
pub(in crate::frontend::grpc) async fn infer(
    services: &Services,
    reader: &mut MessageReader<Incoming>,
    deadline: Deadline,
) -> Result<pb::ModelInferResponse, Status> {
    let request: pb::ModelInferRequest = before(deadline, reader.only()).await?;
    let version =
        services.repository.resolve(&request.model_name, &request.model_version).map_err(|error| unresolved(&error))?;
    let spec = version.spec();
    if spec.decoupled {
        return Err(decoupled(&spec.name).into());
    }
    let mut decoded = decode::decode(request, spec, &services.shared_memory)?;
    decoded.request.deadline = deadline;
    let response = version
        .handle()
        .submit(decoded.request)
        .await
        .map_err(|error| RequestError::from_infer(&error, &decoded.reply.id))?;
    Ok(encode::encode(spec, &decoded.reply, response)?)
}

fn decoupled(model: &str) -> RequestError {
    let message = format!(
        "ModelInfer RPC doesn't support models with decoupled transaction policy: model '{model}' needs ModelStreamInfer"
    );
    RequestError::new(Kind::Unimplemented, message)
}

//! `grpc.health.v1.Health`: readiness for load balancers and probes.

use std::sync::Arc;

use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::Status;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse, health_check_response::ServingStatus};

use super::framing::{MessageStream, Writer, closing_status};
use crate::Readiness;

/// Services that can be queried: the server as a whole, and the inference service.
const SERVICES: [&str; 2] = ["", "inference.GRPCInferenceService"];

/// Answers Check.
///
/// # Errors
/// NOT_FOUND for an unknown service.
pub(super) fn check(readiness: &Readiness, request: &HealthCheckRequest) -> Result<HealthCheckResponse, Status> {
    match status(readiness, &request.service) {
        ServingStatus::ServiceUnknown => Err(Status::not_found(format!("unknown service '{}'", request.service))),
        known => Ok(HealthCheckResponse { status: known as i32 }),
    }
}

/// Answers Watch: sends the current status, and again whenever it changes, until the client leaves or the server
/// closes.
pub(super) fn watch(
    readiness: &Arc<Readiness>,
    request: &HealthCheckRequest,
    writer: Writer,
    closing: CancellationToken,
) -> MessageStream {
    let (updates, stream) = mpsc::channel(1);
    let (readiness, service) = (Arc::clone(readiness), request.service.clone());
    let mut changes = readiness.changes();
    tokio::spawn(async move {
        let mut last = None;
        loop {
            let current = status(&readiness, &service);
            if last.replace(current) != Some(current) {
                let update = writer.encode(&HealthCheckResponse { status: current as i32 });
                if updates.send(update).await.is_err() {
                    return;
                }
            }
            tokio::select! {
                () = changes.changed() => {}
                () = updates.closed() => return,
                () = closing.cancelled() => break,
            }
        }
        // Fails only if the client has left already.
        let _ = updates.send(Err(closing_status())).await;
    });
    Box::pin(ReceiverStream::new(stream))
}

fn status(readiness: &Readiness, service: &str) -> ServingStatus {
    if !SERVICES.contains(&service) {
        ServingStatus::ServiceUnknown
    } else if readiness.ready() {
        ServingStatus::Serving
    } else {
        ServingStatus::NotServing
    }
}

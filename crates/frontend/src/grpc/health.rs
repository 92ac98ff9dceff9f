//! `grpc.health.v1.Health`: readiness for load balancers and probes.

use std::sync::Arc;

use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};
use tonic_health::pb::{
    HealthCheckRequest, HealthCheckResponse, health_check_response::ServingStatus, health_server::Health,
};

use super::call::closing_status;
use crate::Readiness;

/// Services that can be queried: the server as a whole, and the inference service.
const SERVICES: [&str; 2] = ["", "inference.GRPCInferenceService"];

/// The health service.
pub(super) struct HealthService {
    pub(super) readiness: Arc<Readiness>,
    /// Cancelled when open watches must end.
    pub(super) closing: CancellationToken,
}

#[tonic::async_trait]
impl Health for HealthService {
    /// Answers NOT_FOUND for an unknown service.
    async fn check(&self, request: Request<HealthCheckRequest>) -> Result<Response<HealthCheckResponse>, Status> {
        let service = request.into_inner().service;
        match status(&self.readiness, &service) {
            ServingStatus::ServiceUnknown => Err(Status::not_found(format!("unknown service '{service}'"))),
            known => Ok(Response::new(HealthCheckResponse { status: known as i32 })),
        }
    }

    type WatchStream = ReceiverStream<Result<HealthCheckResponse, Status>>;

    /// Sends the current status, and again whenever it changes, until the client leaves or the server closes.
    async fn watch(&self, request: Request<HealthCheckRequest>) -> Result<Response<Self::WatchStream>, Status> {
        let (updates, stream) = mpsc::channel(1);
        let (readiness, service) = (Arc::clone(&self.readiness), request.into_inner().service);
        let closing = self.closing.clone();
        let mut changes = readiness.changes();
        tokio::spawn(async move {
            let mut last = None;
            loop {
                let current = status(&readiness, &service);
                if last.replace(current) != Some(current) {
                    let update = HealthCheckResponse { status: current as i32 };
                    if updates.send(Ok(update)).await.is_err() {
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
        Ok(Response::new(ReceiverStream::new(stream)))
    }
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

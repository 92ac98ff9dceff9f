//! What the layers around tonic's services, and the methods, know of a call.

use std::{sync::Arc, time::Instant};

use paternoster_executor::InferError;
use paternoster_observe::trace::TraceHead;
use paternoster_wire::RequestError;
use tonic::{Request, Status};
use tracing::Span;

use super::{codec::Handover, messages::Writer};
use crate::{Protocol, services::ConnectionHolds};

/// Time at which the client stops waiting; `None`: it has no deadline.
pub(super) type Deadline = Option<Instant>;

/// The path of the inference service, with which those of its methods begin.
pub(super) const INFERENCE: &str = "/inference.GRPCInferenceService/";

/// How the messages of a method are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// ModelInfer.
    Infer,
    /// ModelStreamInfer, which reads its requests itself.
    StreamInfer,
    /// RepositoryModelLoad, whose request may be large, but has no tensors.
    Load,
    /// A method with one small request.
    Small,
    /// Server reflection, whose requests only tonic reads.
    Reflection,
}

/// A method of a service of this server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Method {
    /// The group that it belongs to.
    pub(super) protocol: Protocol,
    /// How its messages are read.
    pub(super) kind: Kind,
}

impl Method {
    /// Returns the method of a path; `None` if the server has no such method.
    pub(super) fn of(path: &str) -> Option<Self> {
        let small = |protocol| (protocol, Kind::Small);
        let (protocol, kind) = match path.strip_prefix(INFERENCE) {
            Some("ModelInfer") => (Protocol::Inference, Kind::Infer),
            Some("ModelStreamInfer") => (Protocol::Inference, Kind::StreamInfer),
            Some("RepositoryModelLoad") => (Protocol::ModelRepository, Kind::Load),
            Some("ServerLive" | "ServerReady" | "ModelReady") => small(Protocol::Health),
            Some("ServerMetadata" | "ModelMetadata") => small(Protocol::Metadata),
            Some("ModelConfig") => small(Protocol::ModelConfig),
            Some("ModelStatistics") => small(Protocol::Statistics),
            Some("RepositoryIndex" | "RepositoryModelUnload") => small(Protocol::ModelRepository),
            Some(
                "SystemSharedMemoryStatus"
                | "SystemSharedMemoryRegister"
                | "SystemSharedMemoryUnregister"
                | "CudaSharedMemoryStatus"
                | "CudaSharedMemoryRegister"
                | "CudaSharedMemoryUnregister",
            ) => small(Protocol::SharedMemory),
            Some("TraceSetting") => small(Protocol::Trace),
            Some("LogSettings") => small(Protocol::Logging),
            Some(_) => return None,
            None => match path {
                "/grpc.health.v1.Health/Check" | "/grpc.health.v1.Health/Watch" => small(Protocol::Health),
                // Reflection describes the server's methods.
                "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"
                | "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo" => {
                    (Protocol::Metadata, Kind::Reflection)
                }
                _ => return None,
            },
        };
        Some(Self { protocol, kind })
    }
}

/// A request with its call.
pub(super) struct CallRequest<B> {
    pub(super) call: Call,
    pub(super) request: http::Request<B>,
}

/// What is known of a call; an extension of its request when that reaches its method.
#[derive(Clone, Debug)]
pub(super) struct Call {
    /// Its method; `None` if the server has no such method.
    pub(super) method: Option<Method>,
    /// The resources of its connection.
    pub(super) holds: Arc<ConnectionHolds>,
    /// Time at which its client stops waiting.
    pub(super) deadline: Deadline,
    /// Encoder of its replies.
    pub(super) writer: Writer,
    /// The span of its request, if it is ModelInfer.
    pub(super) span: Span,
    /// Start of its trace, if requests are traced and it is ModelInfer.
    pub(super) head: Option<TraceHead>,
    /// Its messages that may be large.
    pub(super) handover: Arc<Handover>,
}

impl Call {
    /// Takes the call out of its request.
    ///
    /// # Errors
    /// INTERNAL if the request has not come through the layers.
    pub(super) fn of<M>(request: &mut Request<M>) -> Result<Self, Status> {
        request.extensions_mut().remove().ok_or_else(|| Status::internal("the call has passed no layers"))
    }

    /// Returns whether it is of a method of this kind.
    pub(super) fn is(&self, kind: Kind) -> bool {
        self.method.is_some_and(|method| method.kind == kind)
    }
}

#[cfg(test)]
impl Call {
    /// Returns a call of ModelInfer on a connection with the default limits.
    pub(super) fn example() -> Self {
        use paternoster_executor::{Backlog, BacklogLimits};
        use paternoster_observe::{PoolStats, budget::Budget};

        use crate::clients::Identity;

        let backlog = Backlog::new(BacklogLimits::default(), &Arc::new(PoolStats::default()));
        Self {
            method: Method::of("/inference.GRPCInferenceService/ModelInfer"),
            holds: Arc::new(ConnectionHolds {
                share: Budget::share_of(&Budget::of_bytes(1 << 20)),
                backlog: backlog.connection(),
                identity: Identity::default(),
            }),
            deadline: None,
            writer: Writer::new(None, 1000),
            span: Span::none(),
            head: None,
            handover: Arc::default(),
        }
    }
}

/// Returns the status of a call whose deadline passed, wherever that was detected.
pub(super) fn expired() -> Status {
    RequestError::from_infer(&InferError::Expired, "").into()
}

/// Returns the status of calls that end because the server shuts down.
pub(super) fn closing_status() -> Status {
    Status::unavailable("the server is shutting down")
}

#[cfg(test)]
mod tests {
    use paternoster_wire::pb;
    use prost_reflect::DescriptorPool;

    use super::*;

    #[test]
    fn every_method_of_the_inference_service_belongs_to_a_group() {
        let pool = DescriptorPool::decode(pb::DESCRIPTORS).expect("descriptors");
        let service = pool.get_service_by_name("inference.GRPCInferenceService").expect("the service");
        assert_eq!(service.methods().count(), 20);
        for method in service.methods() {
            let known = Method::of(&format!("{INFERENCE}{}", method.name()));
            let is_stream = known.map(|known| known.kind == Kind::StreamInfer);
            assert_eq!(is_stream, Some(method.is_client_streaming()), "{}", method.name());
        }
        assert_eq!(Method::of(&format!("{INFERENCE}Unknown")), None);
    }
}

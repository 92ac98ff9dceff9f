//! tonic's services, and the layers around them for each connection.

use std::{
    convert::Infallible,
    sync::Arc,
    task::{Context, Poll},
};

use http::{Request, Response};
use hyper::body::Incoming;
use tokio_util::sync::CancellationToken;
use tonic::{codegen::BoxFuture, service::Routes};
use tonic_health::pb::health_server::HealthServer;
use tower::{Service, ServiceBuilder, layer::layer_fn};

use super::{
    CompressionLevel, GrpcConfig, MessageLimits,
    call::INFERENCE,
    health::HealthService,
    layers::{
        Calls, RequestBody, begin, end_at_deadline, log_and_encode, read_messages, restrict, wait_for_client,
        wait_for_reader,
    },
    methods::StreamBounds,
    reflection::{UntilClosing, add_reflection},
    service::{GrpcInferenceServiceServer, InferenceService},
};
use crate::{Services, clients::Identity, intake::Workers, restricted::Restrictions};

/// The services of all connections.
pub(super) struct Stack {
    services: Arc<Services>,
    restrictions: Arc<Restrictions>,
    messages: MessageLimits,
    compression: CompressionLevel,
    workers: Arc<Workers>,
    servers: Servers,
}

impl Stack {
    /// Creates the services. Open streams end with `closing`.
    ///
    /// # Errors
    /// If the descriptors for reflection are invalid.
    pub(super) fn new(
        config: &GrpcConfig,
        services: Services,
        restrictions: Restrictions,
        closing: CancellationToken,
    ) -> Result<Self, tonic_reflection::server::Error> {
        let (services, restrictions, workers) = (Arc::new(services), Arc::new(restrictions), Workers::new());
        let inference = InferenceService {
            services: Arc::clone(&services),
            restrictions: Arc::clone(&restrictions),
            workers: Arc::clone(&workers),
            stream_bounds: StreamBounds {
                requests: config.connection.stream_in_flight,
                bytes: config.connection.stream_in_flight_bytes,
            },
            closing: closing.clone(),
        };
        let health = HealthService { readiness: Arc::clone(&services.readiness), closing: closing.clone() };
        let routes = add_reflection(Routes::new(HealthServer::new(health)))?.prepare();
        let inference = GrpcInferenceServiceServer::new(inference);
        let servers = Servers { inference, others: Arc::new(Others { routes, closing }) };
        let GrpcConfig { messages, compression, .. } = *config;
        Ok(Self { services, restrictions, messages, compression, workers, servers })
    }

    /// Returns the service for the calls of a new connection.
    pub(super) fn connection(&self, identity: Identity) -> impl Calls<Request<Incoming>> + use<> {
        let Self { messages, compression, .. } = *self;
        let (holds, tracer) = (Arc::new(self.services.connection(identity)), &self.services.tracer);
        ServiceBuilder::new()
            .layer(layer_fn(|inner| begin(Arc::clone(tracer), Arc::clone(&holds), messages, compression, inner)))
            .map_response(log_and_encode)
            .layer(layer_fn(|inner| restrict(Arc::clone(&self.restrictions), inner)))
            .layer(layer_fn(end_at_deadline))
            .layer(layer_fn(wait_for_reader))
            .layer(layer_fn(|inner| wait_for_client(Arc::clone(&self.services), inner)))
            .layer(layer_fn(|inner| read_messages(messages.max_receive_bytes, Arc::clone(&self.workers), inner)))
            .service(self.servers.clone())
    }
}

/// The servers that tonic has generated.
#[derive(Clone)]
struct Servers {
    inference: GrpcInferenceServiceServer<InferenceService>,
    others: Arc<Others>,
}

/// Those of health and reflection, whose calls are rare.
struct Others {
    routes: Routes,
    closing: CancellationToken,
}

impl Service<Request<RequestBody>> for Servers {
    type Response = Response<tonic::body::Body>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Infallible>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<RequestBody>) -> Self::Future {
        if request.uri().path().starts_with(INFERENCE) {
            return self.inference.call(request);
        }
        let Others { routes, closing } = &*self.others;
        Box::pin(routes.clone().call(request.map(|body| UntilClosing::new(body, closing.clone()))))
    }
}

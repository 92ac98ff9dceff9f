//! `inference.GRPCInferenceService`: a method for each call.

use std::sync::Arc;

use http::HeaderName;
use paternoster_repository::Requester;
use paternoster_wire::pb;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, Streaming};

use super::{
    call::Call,
    codec::{Encoded, Undecoded},
    methods::{InferStream, StreamBounds, infer, read_load},
};
use crate::{Services, intake::Workers, methods, restricted::Restrictions};

#[allow(unreachable_pub, clippy::doc_markdown, clippy::default_trait_access)]
mod generated {
    include!(concat!(env!("OUT_DIR"), "/inference.rs"));
}

use generated::grpc_inference_service_server::GrpcInferenceService;
pub(super) use generated::grpc_inference_service_server::GrpcInferenceServiceServer;

type Answer<M> = Result<Response<M>, Status>;

/// The inference service.
pub(super) struct InferenceService {
    pub(super) services: Arc<Services>,
    pub(super) restrictions: Arc<Restrictions>,
    pub(super) workers: Arc<Workers>,
    pub(super) stream_bounds: StreamBounds,
    /// Cancelled when open streams must end.
    pub(super) closing: CancellationToken,
}

impl InferenceService {
    /// Returns the client for which a call may load models, or the header that it lacks.
    ///
    /// # Errors
    /// As [`Call::of`].
    fn loader<M>(&self, request: &mut Request<M>) -> Result<Result<Requester, &HeaderName>, Status> {
        let call = Call::of(request)?;
        let headers = request.metadata().as_ref();
        Ok(self.restrictions.check_load(headers).map(|()| self.services.requester(&call.holds, headers)))
    }
}

#[tonic::async_trait]
impl GrpcInferenceService for InferenceService {
    async fn model_infer(
        &self,
        request: Request<Undecoded<pb::ModelInferRequest>>,
    ) -> Answer<Encoded<pb::ModelInferResponse>> {
        infer(&self.services, &self.workers, request).await
    }

    type ModelStreamInferStream = InferStream;

    async fn model_stream_infer(
        &self,
        request: Request<Streaming<Undecoded<pb::ModelInferRequest>>>,
    ) -> Answer<InferStream> {
        let (services, workers) = (Arc::clone(&self.services), Arc::clone(&self.workers));
        InferStream::open(services, workers, request, self.stream_bounds, self.closing.clone())
    }

    async fn server_live(&self, request: Request<pb::ServerLiveRequest>) -> Answer<pb::ServerLiveResponse> {
        Ok(Response::new(methods::server_live(&self.services, request.into_inner())))
    }

    async fn server_ready(&self, request: Request<pb::ServerReadyRequest>) -> Answer<pb::ServerReadyResponse> {
        Ok(Response::new(methods::server_ready(&self.services, request.into_inner())))
    }

    async fn model_ready(&self, request: Request<pb::ModelReadyRequest>) -> Answer<pb::ModelReadyResponse> {
        methods::model_ready(&self.services, request.into_inner()).map(Response::new)
    }

    async fn server_metadata(&self, request: Request<pb::ServerMetadataRequest>) -> Answer<pb::ServerMetadataResponse> {
        Ok(Response::new(methods::metadata(&self.services, request.into_inner())))
    }

    async fn model_metadata(
        &self,
        mut request: Request<pb::ModelMetadataRequest>,
    ) -> Answer<pb::ModelMetadataResponse> {
        let loader = self.loader(&mut request)?;
        Ok(Response::new(methods::model_metadata(&self.services, request.into_inner(), loader).await?))
    }

    async fn model_config(&self, mut request: Request<pb::ModelConfigRequest>) -> Answer<pb::ModelConfigResponse> {
        let loader = self.loader(&mut request)?;
        Ok(Response::new(methods::model_config(&self.services, request.into_inner(), loader).await?))
    }

    async fn model_statistics(
        &self,
        request: Request<pb::ModelStatisticsRequest>,
    ) -> Answer<pb::ModelStatisticsResponse> {
        methods::model_statistics(&self.services, request.into_inner()).await.map(Response::new)
    }

    async fn repository_index(
        &self,
        request: Request<pb::RepositoryIndexRequest>,
    ) -> Answer<pb::RepositoryIndexResponse> {
        methods::index(&self.services, request.into_inner()).await.map(Response::new)
    }

    async fn repository_model_load(
        &self,
        mut request: Request<Undecoded<pb::RepositoryModelLoadRequest>>,
    ) -> Answer<pb::RepositoryModelLoadResponse> {
        let call = Call::of(&mut request)?;
        let (request, held) = read_load(&self.workers, request.into_inner().take(&call.handover)?).await?;
        methods::load(&self.services, request, held).await.map(Response::new)
    }

    async fn repository_model_unload(
        &self,
        request: Request<pb::RepositoryModelUnloadRequest>,
    ) -> Answer<pb::RepositoryModelUnloadResponse> {
        methods::unload(&self.services, request.into_inner()).await.map(Response::new)
    }

    async fn system_shared_memory_status(
        &self,
        request: Request<pb::SystemSharedMemoryStatusRequest>,
    ) -> Answer<pb::SystemSharedMemoryStatusResponse> {
        methods::system_status(&self.services, request.into_inner()).map(Response::new)
    }

    async fn system_shared_memory_register(
        &self,
        request: Request<pb::SystemSharedMemoryRegisterRequest>,
    ) -> Answer<pb::SystemSharedMemoryRegisterResponse> {
        methods::system_register(&self.services, request.into_inner()).map(Response::new)
    }

    async fn system_shared_memory_unregister(
        &self,
        request: Request<pb::SystemSharedMemoryUnregisterRequest>,
    ) -> Answer<pb::SystemSharedMemoryUnregisterResponse> {
        Ok(Response::new(methods::system_unregister(&self.services, request.into_inner())))
    }

    async fn cuda_shared_memory_status(
        &self,
        request: Request<pb::CudaSharedMemoryStatusRequest>,
    ) -> Answer<pb::CudaSharedMemoryStatusResponse> {
        methods::cuda_status(&self.services, request.into_inner()).map(Response::new)
    }

    async fn cuda_shared_memory_register(
        &self,
        request: Request<pb::CudaSharedMemoryRegisterRequest>,
    ) -> Answer<pb::CudaSharedMemoryRegisterResponse> {
        methods::cuda_register(&self.services, request.into_inner()).await.map(Response::new)
    }

    async fn cuda_shared_memory_unregister(
        &self,
        request: Request<pb::CudaSharedMemoryUnregisterRequest>,
    ) -> Answer<pb::CudaSharedMemoryUnregisterResponse> {
        Ok(Response::new(methods::cuda_unregister(&self.services, request.into_inner())))
    }

    async fn trace_setting(&self, request: Request<pb::TraceSettingRequest>) -> Answer<pb::TraceSettingResponse> {
        methods::trace_setting(&self.services, request.into_inner()).map(Response::new)
    }

    async fn log_settings(&self, request: Request<pb::LogSettingsRequest>) -> Answer<pb::LogSettingsResponse> {
        methods::log_settings(&self.services, request.into_inner()).map(Response::new)
    }
}

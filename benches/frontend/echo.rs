//! The limit: tonic's own server around a handler that gives the request's bytes back.

use std::error::Error;

use paternoster::{
    repository::config::pb::{DataType, ModelConfig, ModelInput, ModelOutput},
    wire::pb::{
        self,
        grpc_inference_service_server::{GrpcInferenceService, GrpcInferenceServiceServer},
        model_infer_response::InferOutputTensor,
        model_metadata_response::TensorMetadata,
    },
};
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Request, Response, Status};

/// Serves on a free port of loopback, printing the address, until killed.
pub fn serve() -> Result<(), Box<dyn Error>> {
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(async {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
        println!("{}", listener.local_addr()?);
        tonic::transport::Server::builder()
            .tcp_nodelay(true)
            .add_service(GrpcInferenceServiceServer::new(Echo))
            .serve_with_incoming(TcpListenerStream::new(listener))
            .await?;
        Ok(())
    })
}

struct Echo;

#[tonic::async_trait]
impl GrpcInferenceService for Echo {
    async fn model_infer(
        &self,
        request: Request<pb::ModelInferRequest>,
    ) -> Result<Response<pb::ModelInferResponse>, Status> {
        let request = request.into_inner();
        let outputs = request.inputs.into_iter().map(|input| InferOutputTensor {
            name: "OUTPUT0".to_owned(),
            datatype: input.datatype,
            shape: input.shape,
            ..InferOutputTensor::default()
        });
        Ok(Response::new(pb::ModelInferResponse {
            model_name: request.model_name,
            model_version: "1".to_owned(),
            id: request.id,
            outputs: outputs.collect(),
            raw_output_contents: request.raw_input_contents,
            ..pb::ModelInferResponse::default()
        }))
    }

    async fn server_live(&self, _: Request<pb::ServerLiveRequest>) -> Result<Response<pb::ServerLiveResponse>, Status> {
        Ok(Response::new(pb::ServerLiveResponse { live: true }))
    }

    async fn server_ready(
        &self,
        _: Request<pb::ServerReadyRequest>,
    ) -> Result<Response<pb::ServerReadyResponse>, Status> {
        Ok(Response::new(pb::ServerReadyResponse { ready: true }))
    }

    async fn model_ready(&self, _: Request<pb::ModelReadyRequest>) -> Result<Response<pb::ModelReadyResponse>, Status> {
        Ok(Response::new(pb::ModelReadyResponse { ready: true }))
    }

    async fn server_metadata(
        &self,
        _: Request<pb::ServerMetadataRequest>,
    ) -> Result<Response<pb::ServerMetadataResponse>, Status> {
        Ok(Response::new(pb::ServerMetadataResponse {
            name: "echo".to_owned(),
            version: "1".to_owned(),
            extensions: vec![],
        }))
    }

    async fn model_metadata(
        &self,
        request: Request<pb::ModelMetadataRequest>,
    ) -> Result<Response<pb::ModelMetadataResponse>, Status> {
        let tensor =
            |name: &str| TensorMetadata { name: name.to_owned(), datatype: "FP32".to_owned(), shape: vec![-1, 16] };
        Ok(Response::new(pb::ModelMetadataResponse {
            name: request.into_inner().name,
            versions: vec!["1".to_owned()],
            platform: "onnxruntime_onnx".to_owned(),
            inputs: vec![tensor("INPUT0")],
            outputs: vec![tensor("OUTPUT0")],
        }))
    }

    async fn model_config(
        &self,
        request: Request<pb::ModelConfigRequest>,
    ) -> Result<Response<pb::ModelConfigResponse>, Status> {
        let data_type = DataType::TypeFp32.into();
        let config = ModelConfig {
            name: request.into_inner().name,
            max_batch_size: 64,
            input: vec![ModelInput { name: "INPUT0".to_owned(), data_type, dims: vec![16], ..ModelInput::default() }],
            output: vec![ModelOutput {
                name: "OUTPUT0".to_owned(),
                data_type,
                dims: vec![16],
                ..ModelOutput::default()
            }],
            ..ModelConfig::default()
        };
        Ok(Response::new(pb::ModelConfigResponse { config: Some(config) }))
    }
}

//! The limit: tonic's own server around a handler that gives the request's bytes back.

use std::error::Error;

use paternoster_wire::pb::{
    self,
    grpc_inference_service_server::{GrpcInferenceService, GrpcInferenceServiceServer},
    model_infer_response::InferOutputTensor,
};
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Request, Response, Status};

/// Serves on a free port of loopback, printing the address, until its standard input ends: with the benchmark, however
/// that ends.
pub(crate) fn serve() -> Result<(), Box<dyn Error>> {
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(async {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
        println!("{}", listener.local_addr()?);
        tonic::transport::Server::builder()
            .tcp_nodelay(true)
            .add_service(GrpcInferenceServiceServer::new(Echo))
            .serve_with_incoming_shutdown(TcpListenerStream::new(listener), parent_gone())
            .await?;
        Ok(())
    })
}

async fn parent_gone() {
    let read = tokio::task::spawn_blocking(|| std::io::copy(&mut std::io::stdin(), &mut std::io::sink()));
    // However it ended, nobody is there any more.
    let _ = read.await;
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
}

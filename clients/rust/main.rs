//! Asks the example repository over gRPC: one inference, and a stream of responses.
//!
//!     cargo run --example client [-- http://localhost:8001]

use std::{env, error::Error};

use bytes::Bytes;
use paternoster_wire::pb::{
    ModelInferRequest, grpc_inference_service_client::GrpcInferenceServiceClient, model_infer_request::InferInputTensor,
};
use tonic::transport::Channel;

/// A request with one row of 16 numbers. Tensors travel as little-endian bytes beside their descriptions.
fn request(model: &str, row: &[f32; 16]) -> ModelInferRequest {
    let input = InferInputTensor {
        name: "INPUT0".to_owned(),
        datatype: "FP32".to_owned(),
        shape: vec![1, 16],
        ..InferInputTensor::default()
    };
    let content = row.iter().flat_map(|number| number.to_le_bytes()).collect::<Bytes>();
    ModelInferRequest {
        model_name: model.to_owned(),
        inputs: vec![input],
        raw_input_contents: vec![content],
        ..ModelInferRequest::default()
    }
}

async fn infer(client: &mut GrpcInferenceServiceClient<Channel>) -> Result<(), Box<dyn Error>> {
    let row = std::array::from_fn(|place| place as f32);
    let sent = request("identity", &row);
    let content = sent.raw_input_contents[0].clone();
    let answer = client.model_infer(sent).await?.into_inner();
    let same = answer.raw_output_contents == [content];
    println!("identity: {} numbers, {}", row.len(), if same { "as sent" } else { "others than sent" });
    Ok(())
}

/// The model answers as often as the first number says; each answer comes by itself.
async fn stream(client: &mut GrpcInferenceServiceClient<Channel>) -> Result<(), Box<dyn Error>> {
    let mut row = [0.0; 16];
    row[0] = 3.0;
    let requests = tokio_stream::iter([request("repeat", &row)]);
    let mut answers = client.model_stream_infer(requests).await?.into_inner();
    let mut count = 0;
    while let Some(answer) = answers.message().await? {
        if !answer.error_message.is_empty() {
            return Err(answer.error_message.into());
        }
        count += 1;
    }
    println!("repeat: {count} responses");
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let address = env::args().nth(1).unwrap_or_else(|| "http://localhost:8001".to_owned());
    let mut client = GrpcInferenceServiceClient::connect(address).await?;
    infer(&mut client).await?;
    stream(&mut client).await
}

//! Clients of both protocols: one request in flight each, whose answer is compared with what was sent.

use std::error::Error;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use paternoster_wire::pb::{
    self, grpc_inference_service_client::GrpcInferenceServiceClient, model_infer_request::InferInputTensor,
};
use tokio::net::TcpStream;
use tonic::transport::{Channel, Endpoint};

use crate::servers::Server;

/// Requests in flight per connection of gRPC, where they share one.
const PER_CONNECTION: usize = 8;

/// Whatever goes wrong, across threads.
pub(crate) type Failure = Box<dyn Error + Send + Sync>;

/// How a server is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    /// ModelInfer, the tensor raw; eight requests in flight share a connection.
    Grpc,
    /// The same, each request in flight on a connection of its own.
    GrpcApart,
    /// `POST …/infer`, the tensor in binary both ways; HTTP/1.1 has one request in flight on a connection.
    Http,
}

/// The model that is asked: it returns one row of so many FP32.
#[derive(Clone, Debug)]
pub(crate) struct Model {
    pub(crate) name: String,
    pub(crate) elements: usize,
}

impl Model {
    /// Payloads that differ, so that a response that belongs to another request shows.
    pub(crate) fn payloads(&self) -> Vec<Bytes> {
        // As many as a second asks for, where they are small.
        let count = (16 << 20) / (self.elements * 4).max(1 << 16);
        let one = |seed: usize| -> Vec<u8> {
            (0..self.elements).flat_map(|index| ((seed * 16 + index) as f32).to_le_bytes()).collect()
        };
        (0..count).map(|seed| Bytes::from(one(seed))).collect()
    }
}

/// A connection, or a share of one.
pub(crate) enum Client {
    Grpc(GrpcInferenceServiceClient<Channel>),
    Http(SendRequest<Full<Bytes>>),
}

impl Client {
    /// Clients for so many requests in flight.
    pub(crate) async fn connect(protocol: Protocol, server: &Server, in_flight: usize) -> Result<Vec<Self>, Failure> {
        let mut clients = Vec::with_capacity(in_flight);
        match protocol {
            Protocol::Grpc | Protocol::GrpcApart => {
                let shares = if protocol == Protocol::Grpc { PER_CONNECTION } else { 1 };
                let mut channels = Vec::new();
                for _ in 0..in_flight.div_ceil(shares) {
                    let endpoint = Endpoint::from_shared(format!("http://{}", server.grpc))?.tcp_nodelay(true);
                    channels.push(endpoint.http2_adaptive_window(true).connect().await?);
                }
                let shares = channels.iter().cycle().take(in_flight);
                clients.extend(shares.map(|channel| Self::Grpc(GrpcInferenceServiceClient::new(channel.clone()))));
            }
            Protocol::Http => {
                for _ in 0..in_flight {
                    let address = server.http.as_ref().ok_or("this server has no HTTP port")?;
                    let stream = TcpStream::connect(address).await?;
                    stream.set_nodelay(true)?;
                    let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
                    tokio::spawn(connection);
                    clients.push(Self::Http(sender));
                }
            }
        }
        Ok(clients)
    }

    /// Sends a payload and waits for its response.
    pub(crate) async fn ask(&mut self, model: &Model, payload: &Bytes) -> Result<(), Failure> {
        let is_same = match self {
            Self::Grpc(client) => {
                let answer = client.model_infer(message(model, payload.clone())).await?.into_inner();
                answer.raw_output_contents == [payload.clone()]
            }
            Self::Http(sender) => {
                let answer = sender.send_request(request(model, payload)).await?;
                let status = answer.status();
                let body = answer.into_body().collect().await?.to_bytes();
                if !status.is_success() {
                    return Err(format!("{status}: {}", String::from_utf8_lossy(&body)).into());
                }
                body.ends_with(payload)
            }
        };
        if is_same { Ok(()) } else { Err("an answer is not its request's".into()) }
    }
}

fn message(model: &Model, payload: Bytes) -> pb::ModelInferRequest {
    pb::ModelInferRequest {
        model_name: model.name.clone(),
        inputs: vec![InferInputTensor {
            name: "INPUT0".to_owned(),
            datatype: "FP32".to_owned(),
            shape: vec![1, model.elements as i64],
            ..InferInputTensor::default()
        }],
        raw_input_contents: vec![payload],
        ..pb::ModelInferRequest::default()
    }
}

/// As tritonclient writes it.
fn request(Model { name, elements }: &Model, payload: &Bytes) -> hyper::Request<Full<Bytes>> {
    let json = format!(
        r#"{{"inputs":[{{"name":"INPUT0","shape":[1,{elements}],"datatype":"FP32","parameters":{{"binary_data_size":{}}}}}],"outputs":[{{"name":"OUTPUT0","parameters":{{"binary_data":true}}}}]}}"#,
        payload.len(),
    );
    let body = [json.as_bytes(), payload].concat();
    let mut request = hyper::Request::new(Full::new(Bytes::from(body)));
    *request.method_mut() = hyper::Method::POST;
    *request.uri_mut() = format!("/v2/models/{name}/infer").parse().expect("a path");
    let headers = request.headers_mut();
    headers.insert("host", "localhost".parse().expect("a value"));
    headers.insert("inference-header-content-length", json.len().into());
    request
}

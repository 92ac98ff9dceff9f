//! A server over gRPC: any server that implements KServe v2 as Triton does.

use std::sync::atomic::{AtomicUsize, Ordering};

use tonic::{
    Status,
    transport::{Channel, Endpoint},
};

use crate::{
    bench::{
        Answer,
        samples::{Port, Ports, Sample},
    },
    executor::OutputTensor,
    model::{DataType, Dims},
    wire::pb::{
        self, grpc_inference_service_client::GrpcInferenceServiceClient, model_infer_request::InferInputTensor,
        model_metadata_response::TensorMetadata,
    },
};

/// Number of connections. More than one, because the server parses each connection on a single thread.
const CONNECTIONS: usize = 8;
/// Maximum size of an answer, in bytes.
const MAX_ANSWER_BYTES: usize = i32::MAX as usize;

/// A model on a server.
#[derive(Debug)]
pub struct Remote {
    clients: Vec<GrpcInferenceServiceClient<Channel>>,
    next: AtomicUsize,
    model: String,
    ports: Ports,
}

/// Reasons why a server cannot be measured.
#[derive(Debug, thiserror::Error)]
pub enum RemoteError {
    /// The address is malformed.
    #[error("'{url}' is no address; expected host:port, as 'localhost:8001'")]
    Address {
        /// The address as given.
        url: String,
    },
    /// The connection failed.
    #[error("cannot connect to '{url}': {source}; is the server running, and is that its gRPC port?")]
    Connect {
        /// The address as given.
        url: String,
        /// Error of the transport.
        source: tonic::transport::Error,
    },
    /// The server does not serve the model, or describes it in a way that this client does not support.
    #[error("'{url}' does not serve the model '{model}': {reason}")]
    Model {
        /// The address as given.
        url: String,
        /// Name of the model.
        model: String,
        /// Reason given by the server.
        reason: String,
    },
}

impl Remote {
    /// Connects to `host:port` and requests the model's metadata.
    ///
    /// # Errors
    /// If the connection fails, or the model is not ready.
    pub async fn connect(url: &str, model: &str) -> Result<Self, RemoteError> {
        let address = url.strip_prefix("http://").or(url.strip_prefix("grpc://")).unwrap_or(url);
        let wrong = || RemoteError::Address { url: url.to_owned() };
        address.rsplit_once(':').filter(|(_, port)| port.parse::<u16>().is_ok()).ok_or_else(wrong)?;
        let endpoint = Endpoint::from_shared(format!("http://{address}")).map_err(|_| wrong())?.tcp_nodelay(true);
        let mut clients = Vec::with_capacity(CONNECTIONS);
        for _ in 0..CONNECTIONS {
            let channel = endpoint.connect().await;
            let channel = channel.map_err(|source| RemoteError::Connect { url: url.to_owned(), source })?;
            clients.push(GrpcInferenceServiceClient::new(channel).max_decoding_message_size(MAX_ANSWER_BYTES));
        }
        let failed = |reason| RemoteError::Model { url: url.to_owned(), model: model.to_owned(), reason };
        let ports = ports(&mut clients[0].clone(), model).await.map_err(failed)?;
        Ok(Self { clients, next: AtomicUsize::new(0), model: model.to_owned(), ports })
    }

    pub(super) fn ports(&self) -> &Ports {
        &self.ports
    }

    pub(super) async fn infer(&self, sample: &Sample) -> Result<Answer, String> {
        let turn = self.next.fetch_add(1, Ordering::Relaxed);
        let mut client = self.clients[turn % self.clients.len()].clone();
        let inputs = self.ports.inputs.iter().zip(&sample.inputs).map(|(port, tensor)| InferInputTensor {
            name: port.name.clone(),
            datatype: port.datatype.as_str().to_owned(),
            shape: tensor.shape.to_vec(),
            ..InferInputTensor::default()
        });
        let request = pb::ModelInferRequest {
            model_name: self.model.clone(),
            inputs: inputs.collect(),
            raw_input_contents: sample.inputs.iter().map(|tensor| tensor.data.clone()).collect(),
            ..pb::ModelInferRequest::default()
        };
        let answer = client.model_infer(request).await.map_err(told)?.into_inner();
        let by_port = self.ports.outputs.iter().map(|port| {
            let place = answer.outputs.iter().position(|output| output.name == port.name);
            let place = place.ok_or_else(|| format!("the answer lacks the output '{}'", port.name))?;
            let data = answer.raw_output_contents.get(place);
            let data = data.ok_or_else(|| format!("output '{}' has no raw contents", port.name))?.clone();
            Ok(OutputTensor { shape: Dims::from_slice(&answer.outputs[place].shape), data })
        });
        by_port.collect()
    }
}

/// Requests a model's ports: shapes from its metadata, the largest batch from its configuration.
async fn ports(client: &mut GrpcInferenceServiceClient<Channel>, model: &str) -> Result<Ports, String> {
    let request = pb::ModelMetadataRequest { name: model.to_owned(), ..Default::default() };
    let metadata = client.model_metadata(request).await.map_err(told)?.into_inner();
    let request = pb::ModelConfigRequest { name: model.to_owned(), ..Default::default() };
    let config = client.model_config(request).await.map_err(told)?.into_inner().config.unwrap_or_default();
    let batched = config.max_batch_size > 0;
    let port = |tensor: &TensorMetadata| {
        let datatype = DataType::from_wire(&tensor.datatype);
        let datatype = datatype.ok_or_else(|| format!("'{}' has the datatype '{}'", tensor.name, tensor.datatype))?;
        let dims = tensor.shape.get(usize::from(batched)..).unwrap_or_default();
        Ok(Port { name: tensor.name.clone(), datatype, dims: Dims::from_slice(dims) })
    };
    Ok(Ports {
        batched,
        max_rows: u32::try_from(config.max_batch_size).unwrap_or(1).max(1),
        inputs: metadata.inputs.iter().map(port).collect::<Result<_, String>>()?,
        outputs: metadata.outputs.iter().map(port).collect::<Result<_, String>>()?,
    })
}

fn told(status: Status) -> String {
    format!("{:?}: {}", status.code(), status.message())
}

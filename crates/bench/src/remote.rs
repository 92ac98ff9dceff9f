//! Servers over gRPC: any servers that implement KServe v2 as Triton does.

use std::{
    collections::HashMap,
    sync::atomic::{AtomicUsize, Ordering},
};

use paternoster_config::pb::model_config::SchedulingChoice;
use paternoster_executor::OutputTensor;
use paternoster_model::{CorrelationId, DataType, Dims, InSequence};
use paternoster_wire::{
    decode::EMPTY_FINAL_RESPONSE,
    pb::{
        self, grpc_inference_service_client::GrpcInferenceServiceClient, infer_parameter::ParameterChoice,
        model_infer_request::InferInputTensor, model_metadata_response::TensorMetadata,
    },
    stream::FINAL_RESPONSE,
};
use tonic::{
    Code, Status,
    transport::{Channel, Endpoint},
};

use crate::{
    ResponseTensors,
    samples::{Ports, Sample, SamplePort},
};

/// Number of connections. More than one, because the server parses each connection on a single thread.
const CONNECTIONS: usize = 8;
/// Maximum size of a response, in bytes.
const MAX_RESPONSE_BYTES: usize = i32::MAX as usize;

/// A model on a server.
#[derive(Debug)]
pub struct Remote {
    url: String,
    clients: Vec<GrpcInferenceServiceClient<Channel>>,
    next: AtomicUsize,
    model: String,
    ports: Ports,
}

/// Reasons why a server cannot be measured.
#[derive(Debug, thiserror::Error)]
pub enum RemoteError {
    /// The address is malformed.
    #[error("'{url}' is not an address: expected host:port, such as 'localhost:8001'")]
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
    /// Two servers that are to be compared have different models of that name.
    #[error("'{url}' and '{first}' have different models of the name '{model}': {difference}")]
    Differs {
        /// As given.
        url: String,
        /// The server that it is compared with, as given.
        first: String,
        /// The model.
        model: String,
        /// What differs, and what was expected.
        difference: String,
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
            clients.push(GrpcInferenceServiceClient::new(channel).max_decoding_message_size(MAX_RESPONSE_BYTES));
        }
        let failed = |reason| RemoteError::Model { url: url.to_owned(), model: model.to_owned(), reason };
        let ports = ports(&mut clients[0].clone(), model).await.map_err(failed)?;
        Ok(Self { url: url.to_owned(), clients, next: AtomicUsize::new(0), model: model.to_owned(), ports })
    }

    /// The same model, to be sent what `first` is sent, with inputs and outputs in the order of `first`.
    ///
    /// # Errors
    /// When requests to `first` are none for this server, or their answers cannot be compared.
    pub fn beside(mut self, first: &Self) -> Result<Self, RemoteError> {
        let (url, model) = (self.url.clone(), self.model.clone());
        let differs = |difference| RemoteError::Differs { url, first: first.url.clone(), model, difference };
        if let Some(difference) = difference(&self.ports, &first.ports) {
            return Err(differs(difference));
        }
        self.ports = first.ports.clone();
        Ok(self)
    }

    pub(super) fn ports(&self) -> &Ports {
        &self.ports
    }

    pub(super) async fn infer(&self, sample: &Sample, sequence: Option<InSequence>) -> Result<ResponseTensors, String> {
        let turn = self.next.fetch_add(1, Ordering::Relaxed);
        let mut client = self.clients[turn % self.clients.len()].clone();
        let given =
            || self.ports.inputs.iter().zip(&sample.inputs).filter_map(|(port, input)| Some((port, input.as_ref()?)));
        let inputs = given().map(|(port, tensor)| InferInputTensor {
            name: port.name.clone(),
            datatype: port.datatype.as_str().to_owned(),
            shape: tensor.shape.to_vec(),
            ..InferInputTensor::default()
        });
        let request = pb::ModelInferRequest {
            model_name: self.model.clone(),
            inputs: inputs.collect(),
            raw_input_contents: given().map(|(_, tensor)| tensor.data.clone()).collect(),
            parameters: sequence.map(parameters).unwrap_or_default(),
            ..pb::ModelInferRequest::default()
        };
        if self.ports.decoupled {
            return self.all_responses(&mut client, request).await;
        }
        let answer = client.model_infer(request).await.map_err(status_text)?.into_inner();
        self.outputs_of(&answer)
    }

    /// Sends a request on a stream of its own, and joins its responses: those of an output one after the other.
    async fn all_responses(
        &self,
        client: &mut GrpcInferenceServiceClient<Channel>,
        mut request: pb::ModelInferRequest,
    ) -> Result<ResponseTensors, String> {
        let flag = pb::InferParameter { parameter_choice: Some(ParameterChoice::BoolParam(true)) };
        request.parameters.insert(EMPTY_FINAL_RESPONSE.to_owned(), flag);
        let responses = client.model_stream_infer(tokio_stream::once(request)).await;
        let mut responses = responses.map_err(status_text)?.into_inner();
        let mut joined: Option<ResponseTensors> = None;
        while let Some(message) = responses.message().await.map_err(status_text)? {
            if !message.error_message.is_empty() {
                return Err(message.error_message);
            }
            let response = message.infer_response.unwrap_or_default();
            if !response.outputs.is_empty() {
                let outputs = self.outputs_of(&response)?;
                joined = Some(match joined {
                    None => outputs,
                    Some(before) => before.into_iter().zip(outputs).map(appended).collect(),
                });
            }
            let is_final =
                response.parameters.get(FINAL_RESPONSE).and_then(|parameter| parameter.parameter_choice.as_ref());
            if is_final == Some(&ParameterChoice::BoolParam(true)) {
                break;
            }
        }
        joined.ok_or_else(|| "the server ended the stream without a response".to_owned())
    }

    fn outputs_of(&self, answer: &pb::ModelInferResponse) -> Result<ResponseTensors, String> {
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

/// Appends a tensor along its first axis.
fn appended((mut before, next): (OutputTensor, OutputTensor)) -> OutputTensor {
    match (before.shape.first_mut(), next.shape.first()) {
        (Some(rows), Some(more)) => *rows += more,
        _ => before.shape = Dims::from_slice(&[2]),
    }
    before.data = [before.data, next.data].concat().into();
    before
}

/// Returns the parameters that put a request into its sequence.
fn parameters(InSequence { id, starts, ends }: InSequence) -> HashMap<String, pb::InferParameter> {
    let id = match id {
        CorrelationId::Number(number) => ParameterChoice::Int64Param(number.cast_signed()),
        CorrelationId::Text(text) => ParameterChoice::StringParam(text.to_string()),
    };
    let flag = ParameterChoice::BoolParam;
    let named = [("sequence_id", id), ("sequence_start", flag(starts)), ("sequence_end", flag(ends))];
    let parameter = |choice| pb::InferParameter { parameter_choice: Some(choice) };
    named.map(|(name, choice)| (name.to_owned(), parameter(choice))).into()
}

/// Requests a model's ports: shapes from its metadata, the largest batch from its configuration.
async fn ports(client: &mut GrpcInferenceServiceClient<Channel>, model: &str) -> Result<Ports, String> {
    let request = pb::ModelMetadataRequest { name: model.to_owned(), ..Default::default() };
    let metadata = client.model_metadata(request).await.map_err(|status| {
        // What is no gRPC server breaks the connection.
        let is_broken = matches!(status.code(), Code::Unknown | Code::Cancelled | Code::Unavailable);
        status_text(status) + if is_broken { "; is that its gRPC port?" } else { "" }
    })?;
    let metadata = metadata.into_inner();
    let request = pb::ModelConfigRequest { name: model.to_owned(), ..Default::default() };
    let config = client.model_config(request).await.map_err(status_text)?.into_inner().config.unwrap_or_default();
    let batched = config.max_batch_size > 0;
    let port = |tensor: &TensorMetadata| {
        let datatype = DataType::from_wire(&tensor.datatype);
        let datatype = datatype.ok_or_else(|| format!("'{}' has the datatype '{}'", tensor.name, tensor.datatype))?;
        let dims = tensor.shape.get(usize::from(batched)..).unwrap_or_default();
        let optional = config.input.iter().any(|input| input.name == tensor.name && input.optional);
        Ok(SamplePort { name: tensor.name.clone(), datatype, dims: Dims::from_slice(dims), optional })
    };
    Ok(Ports {
        batched,
        max_rows: u32::try_from(config.max_batch_size).unwrap_or(1).max(1),
        inputs: metadata.inputs.iter().map(port).collect::<Result<_, String>>()?,
        outputs: metadata.outputs.iter().map(port).collect::<Result<_, String>>()?,
        decoupled: config.model_transaction_policy.is_some_and(|policy| policy.decoupled),
        sequences: matches!(config.scheduling_choice, Some(SchedulingChoice::SequenceBatching(_))),
    })
}

/// What requests for `first` and their answers would not find in `own`; the order of tensors does not count, nor how
/// outputs are declared, which the answers show.
fn difference(own: &Ports, first: &Ports) -> Option<String> {
    if own.batched != first.batched {
        let with = |batched| if batched { "with" } else { "without" };
        return Some(format!("{} a batch axis, expected one {} it", with(own.batched), with(first.batched)));
    }
    if own.sequences != first.sequences {
        let with = |sequences| if sequences { "with" } else { "without" };
        return Some(format!("{} sequences, expected one {} them", with(own.sequences), with(first.sequences)));
    }
    if own.inputs.len() != first.inputs.len() {
        return Some(format!("{} inputs, expected {}", own.inputs.len(), first.inputs.len()));
    }
    let shown = |port: &SamplePort| format!("{} {:?}", port.datatype.as_str(), port.dims.as_slice());
    let input = first.inputs.iter().find_map(|expected| {
        let found = own.inputs.iter().find(|port| port.name == expected.name);
        let named = found.map_or_else(|| "none".to_owned(), shown);
        let of = |port: &SamplePort| (port.datatype, port.dims.clone());
        let is_other = found.map(of) != Some(of(expected));
        is_other.then(|| format!("input '{}' is {named}, expected {}", expected.name, shown(expected)))
    });
    let output = first.outputs.iter().find_map(|expected| {
        let found = own.outputs.iter().find(|port| port.name == expected.name).map(|port| port.datatype);
        let named = found.map_or("none", |datatype| datatype.as_str());
        let is_other = found != Some(expected.datatype);
        is_other.then(|| format!("output '{}' is {named}, expected {}", expected.name, expected.datatype.as_str()))
    });
    input.or(output)
}

fn status_text(status: Status) -> String {
    format!("{:?}: {}", status.code(), status.message())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port(name: &str, datatype: DataType, dims: &[i64]) -> SamplePort {
        SamplePort { name: name.to_owned(), datatype, dims: Dims::from_slice(dims), optional: false }
    }

    fn ports(inputs: Vec<SamplePort>, outputs: Vec<SamplePort>) -> Ports {
        Ports { batched: true, max_rows: 8, inputs, outputs, sequences: false, decoupled: false }
    }

    #[test]
    fn servers_are_compared_that_take_the_same_requests() {
        let [ids, mask, y] = [("ids", DataType::Int64), ("mask", DataType::Int64), ("y", DataType::Fp32)]
            .map(|(name, datatype)| port(name, datatype, &[-1]));
        let first = ports(vec![ids.clone(), mask.clone()], vec![y.clone()]);
        let differs = |own: &Ports| difference(own, &first);

        assert_eq!(differs(&ports(vec![mask.clone(), ids.clone()], vec![y.clone()])), None, "another order");
        assert_eq!(differs(&ports(first.inputs.clone(), vec![port("y", DataType::Fp32, &[384])])), None);
        let more = port("z", DataType::Fp32, &[1]);
        assert_eq!(
            differs(&ports(first.inputs.clone(), vec![more, y.clone()])),
            None,
            "an output that is not compared"
        );

        let difference = |own: &Ports| differs(own).expect("they differ");
        assert_eq!(
            difference(&Ports { batched: false, ..first.clone() }),
            "without a batch axis, expected one with it"
        );
        assert_eq!(difference(&ports(vec![ids.clone()], vec![y.clone()])), "1 inputs, expected 2");
        let named = ports(vec![ids.clone(), port("attention", DataType::Int64, &[-1])], vec![y.clone()]);
        assert_eq!(difference(&named), "input 'mask' is none, expected INT64 [-1]");
        let typed = ports(vec![ids.clone(), port("mask", DataType::Int32, &[-1])], vec![y]);
        assert_eq!(difference(&typed), "input 'mask' is INT32 [-1], expected INT64 [-1]");
        let halved = ports(vec![ids, mask], vec![port("y", DataType::Fp16, &[-1])]);
        assert_eq!(difference(&halved), "output 'y' is FP16, expected FP32");
    }
}

//! Converts a body of JSON and binary data to ModelInferRequest.

use bytes::Bytes;
use paternoster_model::DataType;

use super::{
    Forms, elements,
    fault::{InputFault, JsonFault},
    header::{self, Header, Input, Parameters},
};
use crate::{
    RequestError,
    pb::{
        ModelInferRequest,
        infer_parameter::ParameterChoice,
        model_infer_request::{InferInputTensor, InferRequestedOutputTensor},
    },
};

const BINARY_SIZE: &str = "binary_data_size";
const REGION: &str = "shared_memory_region";

/// A request whose structure has been read.
#[derive(Debug)]
pub struct Request<'a> {
    header: Header<'a>,
    /// Memory for the entries of the structure.
    entries_bytes: usize,
    /// The bytes after the JSON.
    binary: Bytes,
}

impl<'a> Request<'a> {
    /// Reads the structure of a body whose first `json_bytes` bytes are JSON; all of it if `None`.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the JSON is not an inference request, or has too many entries.
    pub fn read(body: &'a Bytes, json_bytes: Option<usize>) -> Result<Self, RequestError> {
        let json_bytes = json_bytes.unwrap_or(body.len());
        let too_long = || JsonFault::HeaderLength { json: json_bytes, body: body.len() };
        let json = body.get(..json_bytes).ok_or_else(too_long)?;
        let (header, entries_bytes) = header::read(json)?;
        Ok(Self { header, entries_bytes, binary: body.slice(json_bytes..) })
    }

    /// Returns the maximum bytes that the request takes in addition to its body, as read and as built.
    pub fn built_bytes(&self) -> usize {
        let inputs = self.header.inputs.iter().map(|input| {
            let text = input.name.0.len() + input.datatype.0.len();
            let data = input.data.zip(DataType::from_wire(&input.datatype.0));
            text.saturating_add(data.map_or(0, |(text, datatype)| elements::built_bytes(text, datatype, &input.shape)))
        });
        let outputs = self.header.outputs.iter().map(|output| 2 * output.name.0.len());
        inputs.chain(outputs).fold(self.entries_bytes + self.header.id.0.len(), usize::saturating_add)
    }

    /// Builds the message for a model, and returns the requested forms of its outputs.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if an input has no data or more than one source, or if elements do not fit its datatype or
    /// shape.
    pub fn build(self, model: &str, version: &str) -> Result<(ModelInferRequest, Forms), RequestError> {
        let Header { id, mut parameters, inputs, outputs } = self.header;
        let id = id.0.into_owned();
        let named = |fault: JsonFault| RequestError::from(fault).with_id(&*id);

        let mut forms = Forms::of_request(&mut parameters).map_err(named)?;
        let mut requested = Vec::with_capacity(outputs.len());
        for mut output in outputs {
            forms.ask(&mut output).map_err(named)?;
            let name = output.name.0.into_owned();
            requested.push(InferRequestedOutputTensor { name, parameters: output.parameters });
        }

        let mut tensors = Vec::with_capacity(inputs.len());
        let mut raw = Vec::with_capacity(inputs.len());
        let mut binary = self.binary;
        for mut input in inputs {
            let data = data(&mut input, &mut binary);
            let data = data.map_err(|fault| named(JsonFault::of_input(&input.name.0, fault)))?;
            raw.extend(data);
            tensors.push(InferInputTensor {
                name: input.name.0.into_owned(),
                datatype: input.datatype.0.into_owned(),
                shape: input.shape,
                parameters: input.parameters,
                contents: None,
            });
        }
        if !binary.is_empty() {
            return Err(named(JsonFault::BinaryLeft { left: binary.len() }));
        }
        let message = ModelInferRequest {
            model_name: model.to_owned(),
            model_version: version.to_owned(),
            id,
            parameters,
            inputs: tensors,
            outputs: requested,
            raw_input_contents: raw,
        };
        Ok((message, forms))
    }
}

/// Returns the elements of an input; `None` if they are in shared memory. Binary data is taken from the front of
/// `binary`.
fn data(input: &mut Input<'_>, binary: &mut Bytes) -> Result<Option<Bytes>, InputFault> {
    let size = binary_size(&mut input.parameters)?;
    let in_region = input.parameters.contains_key(REGION);
    match (input.data, size, in_region) {
        (Some(text), None, false) => match DataType::from_wire(&input.datatype.0) {
            Some(datatype) => elements::read(text, datatype, &input.shape).map(Some),
            // No model has such a datatype, so the check against the model will report it.
            None => Ok(Some(Bytes::new())),
        },
        (None, Some(size), false) => {
            let left = binary.len();
            let fits = usize::try_from(size).ok().filter(|size| *size <= left);
            let size = fits.ok_or(InputFault::BinaryData { wanted: size, left })?;
            Ok(Some(binary.split_to(size)))
        }
        (None, None, true) => Ok(None),
        (None, None, false) => Err(InputFault::Sources { got: "none" }),
        _ => Err(InputFault::Sources { got: "more than one" }),
    }
}

fn binary_size(parameters: &mut Parameters) -> Result<Option<i64>, InputFault> {
    match parameters.remove(BINARY_SIZE).map(|parameter| parameter.parameter_choice) {
        None => Ok(None),
        Some(Some(ParameterChoice::Int64Param(size))) => Ok(Some(size)),
        Some(_) => Err(InputFault::BinarySizeType),
    }
}

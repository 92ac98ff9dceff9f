//! Converts ModelInferResponse to JSON and binary data.

use std::collections::HashMap;

use bytes::Bytes;
use paternoster_model::DataType;

use super::{
    Forms,
    elements::{self, WriteFault, string},
};
use crate::{
    Kind, RequestError,
    pb::{
        InferParameter, ModelInferResponse, infer_parameter::ParameterChoice, model_infer_response::InferOutputTensor,
    },
};

/// Maximum size of a response's JSON in bytes, the same as of a gRPC message.
const MOST_JSON_BYTES: usize = i32::MAX as usize;

/// A response.
#[derive(Clone, Debug, Default)]
pub struct JsonResponse {
    /// The JSON.
    pub json: Vec<u8>,
    /// The outputs sent as binary data, which follow the JSON and share the batch's memory.
    pub binary: Vec<Bytes>,
}

/// Writes a response with its outputs in the requested forms.
///
/// # Errors
/// INVALID_ARGUMENT for an output that has no JSON form or is too long.
pub fn response(response: ModelInferResponse, forms: &Forms) -> Result<JsonResponse, RequestError> {
    let ModelInferResponse { model_name, model_version, id, parameters, outputs, raw_output_contents } = response;
    let mut reply = JsonResponse::default();
    let json = &mut reply.json;
    write_names(&id, &model_name, &model_version, json);
    if !parameters.is_empty() {
        json.extend_from_slice(b",\"parameters\":");
        let written = serde_json::to_writer(&mut *json, &values(&parameters));
        debug_assert!(written.is_ok(), "values can be written to memory");
    }
    json.extend_from_slice(b",\"outputs\":[");
    for (index, (output, data)) in outputs.iter().zip(raw_output_contents).enumerate() {
        if index > 0 {
            reply.json.push(b',');
        }
        let written = write_output(output, data, forms.is_binary(&output.name), &mut reply);
        written.map_err(|fault| {
            let kind = match fault {
                WriteFault::Inconsistent { .. } => Kind::Internal,
                WriteFault::NotText | WriteFault::TooLong { .. } => Kind::InvalidArgument,
            };
            RequestError::new(kind, format!("output '{}' for model '{model_name}': {fault}", output.name))
        })?;
    }
    reply.json.extend_from_slice(b"]}");
    Ok(reply)
}

/// Opens the object of a response and writes the names in it.
pub(super) fn write_names(id: &str, model_name: &str, model_version: &str, json: &mut Vec<u8>) {
    json.push(b'{');
    if !id.is_empty() {
        field("id", id, json);
        json.push(b',');
    }
    field("model_name", model_name, json);
    json.push(b',');
    field("model_version", model_version, json);
}

/// Writes elements, separated by commas.
pub(super) fn write_data(data: &[u8], datatype: &str, json: &mut Vec<u8>) -> Result<(), WriteFault> {
    let inconsistent = WriteFault::Inconsistent { datatype: DataType::Bytes, bytes: data.len() };
    let datatype = DataType::from_wire(datatype).ok_or(inconsistent)?;
    elements::write(data, datatype, json, MOST_JSON_BYTES)
}

fn write_output(
    output: &InferOutputTensor,
    data: Bytes,
    binary: bool,
    reply: &mut JsonResponse,
) -> Result<(), WriteFault> {
    let json = &mut reply.json;
    json.push(b'{');
    field("name", &output.name, json);
    json.push(b',');
    field("datatype", &output.datatype, json);
    json.extend_from_slice(b",\"shape\":[");
    for (index, dimension) in output.shape.iter().enumerate() {
        let comma = if index > 0 { "," } else { "" };
        json.extend_from_slice(format!("{comma}{dimension}").as_bytes());
    }
    json.push(b']');
    // Only outputs in shared memory have parameters. As in Triton they are not written: the client knows them, and
    // Triton's C++ client would read an output with parameters as binary data.
    let in_shared_memory = !output.parameters.is_empty();
    if in_shared_memory {
        debug_assert!(data.is_empty(), "the data are in the region");
    } else if binary {
        let size = data.len();
        json.extend_from_slice(format!(",\"parameters\":{{\"binary_data_size\":{size}}}").as_bytes());
        reply.binary.push(data);
    } else {
        json.extend_from_slice(b",\"data\":[");
        write_data(&data, &output.datatype, json)?;
        json.push(b']');
    }
    reply.json.push(b'}');
    Ok(())
}

fn field(name: &str, value: &str, json: &mut Vec<u8>) {
    string(name, json);
    json.push(b':');
    string(value, json);
}

/// Returns parameters as JSON has them, by name.
pub(super) fn values(parameters: &HashMap<String, InferParameter>) -> serde_json::Map<String, serde_json::Value> {
    let values = parameters.iter().filter_map(|(key, parameter)| {
        let value = match parameter.parameter_choice.as_ref()? {
            ParameterChoice::BoolParam(value) => (*value).into(),
            ParameterChoice::Int64Param(value) => (*value).into(),
            ParameterChoice::Uint64Param(value) => (*value).into(),
            ParameterChoice::DoubleParam(value) => (*value).into(),
            ParameterChoice::StringParam(value) => value.as_str().into(),
        };
        Some((key.clone(), value))
    });
    values.collect()
}

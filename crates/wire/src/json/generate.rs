//! The generate extension: the request is a flat object whose fields are inputs and parameters; the response is one
//! whose fields are outputs.

use std::fmt;

use bytes::Bytes;
use paternoster_model::{ModelSpec, TensorSpec, element_count};
use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::{
    elements,
    fault::{InputFault, JsonFault},
    header::{Limits, Parameter, Text, whole},
    response,
};
use crate::{
    Kind, RequestError,
    decode::size::MOST_ENTRIES,
    pb::{InferParameter, ModelInferRequest, ModelInferResponse, model_infer_request::InferInputTensor},
};

/// The field that holds further parameters and inputs.
const PARAMETERS: &str = "parameters";

/// The field that holds the request id, unless the model has an input with this name.
const ID: &str = "id";

/// Returns the maximum bytes that [`generate`] allocates for a body of this size, in addition to the body.
pub fn generate_built_bytes(body_bytes: usize) -> usize {
    // An entry has at least five bytes of text, `"":0,`, and takes less than 1 KiB.
    let entries = (body_bytes / 5 + 1).min(MOST_ENTRIES);
    entries.saturating_mul(1 << 10).saturating_add(body_bytes.saturating_mul(8))
}

/// Builds the message for a model. Fields named after inputs hold one element or a list of them, for one row; all
/// others are parameters of the request.
///
/// # Errors
/// INVALID_ARGUMENT if the body is not such an object, if a field does not fit, or if an input occurs twice.
pub fn generate(body: &[u8], spec: &ModelSpec) -> Result<ModelInferRequest, RequestError> {
    let limits = Limits::default();
    let mut request = ModelInferRequest {
        model_name: spec.name.clone(),
        model_version: spec.version.to_string(),
        ..ModelInferRequest::default()
    };
    let mut given = Vec::new();
    let fields = Fields { spec, limits: &limits, request: &mut request, given: &mut given, nested: false };
    whole(body, fields)?;
    for (input, text) in given {
        let (shape, data) = tensor(input, text, spec.has_batch_axis())
            .map_err(|fault| RequestError::from(JsonFault::of_input(&input.name, fault)).with_id(&*request.id))?;
        request.inputs.push(InferInputTensor {
            name: input.name.clone(),
            datatype: input.datatype.as_str().to_owned(),
            shape,
            ..InferInputTensor::default()
        });
        request.raw_input_contents.push(data);
    }
    Ok(request)
}

/// Returns the shape and elements of one row. The shape is the input's, with at most one variable dimension replaced;
/// one-dimensional if several vary.
fn tensor(input: &TensorSpec, text: &RawValue, batched: bool) -> Result<(Vec<i64>, Bytes), InputFault> {
    let count = elements::count(text, input.datatype)?;
    let length = i64::try_from(count).unwrap_or(i64::MAX);
    let mut dims = input.dims.to_vec();
    match dims.iter().filter(|dim| **dim < 0).count() {
        0 => {}
        1 => {
            let fixed: Vec<i64> = dims.iter().copied().filter(|dim| *dim >= 0).collect();
            let row = element_count(&fixed).and_then(|row| i64::try_from(row).ok()).unwrap_or(0);
            dims.iter_mut().filter(|dim| **dim < 0).for_each(|dim| *dim = length.checked_div(row).unwrap_or(0));
        }
        _ => dims = vec![length],
    }
    let shape: Vec<i64> = batched.then_some(1).into_iter().chain(dims).collect();
    let data = elements::read_one_or_many(text, input.datatype, &shape)?;
    Ok((shape, data))
}

/// The fields of the object, or of its parameters.
struct Fields<'f, 's, 'de> {
    spec: &'s ModelSpec,
    limits: &'f Limits,
    request: &'f mut ModelInferRequest,
    given: &'f mut Vec<(&'s TensorSpec, &'de RawValue)>,
    nested: bool,
}

impl<'de> DeserializeSeed<'de> for Fields<'_, '_, 'de> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Fields<'_, '_, 'de> {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(if self.nested { "parameters: an object" } else { "a request to generate: an object" })
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<(), A::Error> {
        let Self { spec, limits, request, given, nested } = self;
        while let Some(key) = fields.next_key::<Text<'de>>()? {
            limits.count_parameter()?;
            let key = &*key.0;
            if let Some(index) = spec.input_index(key) {
                let input = &spec.inputs[index];
                if given.iter().any(|(before, _)| before.name == input.name) {
                    return Err(A::Error::custom(format!("input '{key}' already exists in request")));
                }
                given.push((input, fields.next_value()?));
            } else if key == PARAMETERS && !nested {
                fields.next_value_seed(Fields { spec, limits, request, given, nested: true })?;
            } else if key == ID && !nested {
                request.id = fields.next_value()?;
            } else {
                let parameter_choice = fields.next_value_seed(Parameter(key))?;
                // It may be meant as an input.
                if parameter_choice.is_none() {
                    let inputs = spec.inputs.iter().map(|input| format!("'{}'", input.name)).collect::<Vec<_>>();
                    let text = format!(
                        "expected parameter '{key}' to be a number, a boolean or a string; the model's inputs are {}",
                        inputs.join(", ")
                    );
                    return Err(A::Error::custom(text));
                }
                request.parameters.insert(key.to_owned(), InferParameter { parameter_choice });
            }
        }
        Ok(())
    }
}

/// Writes a response as an object. An output with one element is written as that element, others as lists.
///
/// # Errors
/// INVALID_ARGUMENT for an output that has no JSON form or is too long.
pub fn generated(response: ModelInferResponse) -> Result<Vec<u8>, RequestError> {
    let ModelInferResponse { model_name, model_version, id, parameters, outputs, raw_output_contents } = response;
    let mut json = Vec::new();
    response::write_names(&id, &model_name, &model_version, &mut json);
    // As in Triton, parameters are fields too. An output's field comes before a parameter of its name.
    for (name, value) in response::values(&parameters) {
        if outputs.iter().all(|output| output.name != name) {
            json.push(b',');
            elements::string(&name, &mut json);
            json.push(b':');
            json.extend_from_slice(value.to_string().as_bytes());
        }
    }
    for (output, data) in outputs.iter().zip(raw_output_contents) {
        json.push(b',');
        elements::string(&output.name, &mut json);
        json.push(b':');
        let lone = element_count(&output.shape) == Some(1);
        json.extend_from_slice(if lone { b"" } else { b"[" });
        let datatype = output.datatype.as_str();
        response::write_data(&data, datatype, &mut json).map_err(|fault| {
            let text = format!("output '{}' for model '{model_name}': {fault}", output.name);
            RequestError::new(Kind::InvalidArgument, text).with_id(&*id)
        })?;
        json.extend_from_slice(if lone { b"" } else { b"]" });
    }
    json.push(b'}');
    Ok(json)
}

//! Raw binary requests: the whole body is the data of the model's only input.

use bytes::{BufMut, Bytes, BytesMut};
use paternoster_model::{DataType, ModelSpec, TensorSpec, element_count};

use super::{Forms, fault::JsonFault};
use crate::{
    RequestError,
    pb::{ModelInferRequest, model_infer_request::InferInputTensor},
};

/// Builds the message for a body without JSON. The shape follows from the model and the length: one row, and at most
/// one variable dimension. The body of a BYTES input is its single element, without a length. All outputs are sent as
/// binary data.
///
/// # Errors
/// INVALID_ARGUMENT if the model has several inputs, or if the shape cannot be determined.
pub fn raw(body: Bytes, spec: &ModelSpec) -> Result<(ModelInferRequest, Forms), RequestError> {
    let [input] = spec.inputs.as_slice() else {
        let (model, count) = (&spec.name, spec.inputs.len());
        return Err(refused(format!("model '{model}' has {count} inputs, expected one")));
    };
    let (dims, data) = match input.datatype.size_bytes() {
        None => (string_dims(input)?, with_length(&body)?),
        Some(size) => (dims(input, body.len(), size)?, body),
    };
    let batch = spec.has_batch_axis().then_some(1);
    let tensor = InferInputTensor {
        name: input.name.clone(),
        datatype: input.datatype.as_str().to_owned(),
        shape: batch.into_iter().chain(dims).collect(),
        ..InferInputTensor::default()
    };
    let message = ModelInferRequest {
        model_name: spec.name.clone(),
        model_version: spec.version.to_string(),
        inputs: vec![tensor],
        raw_input_contents: vec![data],
        ..ModelInferRequest::default()
    };
    Ok((message, Forms { binary: true, ..Forms::default() }))
}

fn refused(text: String) -> RequestError {
    JsonFault::Raw(text).into()
}

fn dims(input: &TensorSpec, bytes: usize, element_bytes: usize) -> Result<Vec<i64>, RequestError> {
    let mut dims = input.dims.to_vec();
    let mut variable = dims.iter_mut().filter(|dim| **dim < 0);
    let (first, second) = (variable.next(), variable.next());
    if second.is_some() {
        let dims = &input.dims;
        let text = format!("input '{}' has more than one variable dimension in {dims:?}", input.name);
        return Err(refused(text));
    }
    if let Some(first) = first {
        *first = 1;
        let fixed = element_count(&dims).and_then(|count| count.checked_mul(element_bytes)).unwrap_or(0);
        // A length that does not divide evenly is rejected later by the size check.
        let length = i64::try_from(bytes.checked_div(fixed).unwrap_or(0)).unwrap_or(i64::MAX);
        dims.iter_mut().zip(&input.dims).filter(|(_, wanted)| **wanted < 0).for_each(|(dim, _)| *dim = length);
    }
    Ok(dims)
}

fn string_dims(input: &TensorSpec) -> Result<Vec<i64>, RequestError> {
    debug_assert_eq!(input.datatype, DataType::Bytes);
    if element_count(&input.dims) != Some(1) {
        let (name, dims) = (&input.name, &input.dims);
        return Err(refused(format!("BYTES input '{name}' has dims {dims:?}, expected one element")));
    }
    Ok(input.dims.to_vec())
}

fn with_length(body: &[u8]) -> Result<Bytes, RequestError> {
    let length = u32::try_from(body.len());
    let length = length.map_err(|_| refused(format!("a string of {} bytes is too long", body.len())))?;
    let mut data = BytesMut::with_capacity(4 + body.len());
    data.put_u32_le(length);
    data.put_slice(body);
    Ok(data.freeze())
}

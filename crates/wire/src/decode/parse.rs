//! Parses the bytes of a message to ModelInferRequest.

use bytes::Bytes;
use prost::{DecodeError, Message};

use super::{
    super::pb::{InferTensorContents, ModelInferRequest, model_infer_request::InferInputTensor},
    fields::{Fields, Wire},
    size::{CONTENTS, INPUTS, elements},
};

/// Decodes a request. Allocates no more than [`measure`](super::size::measure) has determined: lists of typed contents
/// are allocated at their exact size, while a growing list would take up to three times as much.
///
/// # Errors
/// If the bytes are not such a message.
pub fn parse(message: Bytes) -> Result<ModelInferRequest, DecodeError> {
    if !has_contents(&message) {
        return ModelInferRequest::decode(message);
    }
    let mut request = ModelInferRequest::default();
    let mut fields = Fields::of(&message);
    for field in fields.by_ref() {
        if (field.number, field.wire) == (INPUTS, Wire::Bytes) {
            request.inputs.push(input(&message.slice_ref(field.value))?);
        } else {
            // An encoded message may be decoded in parts and merged.
            request.merge(message.slice_ref(field.whole))?;
        }
    }
    // The bytes after the last valid field, which the decoder then rejects.
    request.merge(message.slice_ref(fields.rest()))?;
    Ok(request)
}

fn has_contents(message: &[u8]) -> bool {
    let mut inputs = Fields::of(message).filter(|field| (field.number, field.wire) == (INPUTS, Wire::Bytes));
    inputs.any(|input| Fields::of(input.value).any(|field| field.number == CONTENTS && !field.value.is_empty()))
}

fn input(message: &Bytes) -> Result<InferInputTensor, DecodeError> {
    let mut input = InferInputTensor::default();
    let mut fields = Fields::of(message);
    for field in fields.by_ref() {
        if (field.number, field.wire) == (CONTENTS, Wire::Bytes) {
            let contents = input.contents.get_or_insert_default();
            reserve(contents, field.value);
            contents.merge(message.slice_ref(field.value))?;
        } else {
            input.merge(message.slice_ref(field.whole))?;
        }
    }
    input.merge(message.slice_ref(fields.rest()))?;
    Ok(input)
}

fn reserve(contents: &mut InferTensorContents, message: &[u8]) {
    let mut counts = [0; 9];
    for field in Fields::of(message) {
        let Some(count) = usize::try_from(field.number).ok().and_then(|number| counts.get_mut(number)) else {
            continue;
        };
        // A string of bytes_contents is one element, however long.
        *count += if field.number == 8 { 1 } else { elements(field.number, &field) };
    }
    contents.bool_contents.reserve_exact(counts[1]);
    contents.int_contents.reserve_exact(counts[2]);
    contents.int64_contents.reserve_exact(counts[3]);
    contents.uint_contents.reserve_exact(counts[4]);
    contents.uint64_contents.reserve_exact(counts[5]);
    contents.fp32_contents.reserve_exact(counts[6]);
    contents.fp64_contents.reserve_exact(counts[7]);
    contents.bytes_contents.reserve_exact(counts[8]);
}

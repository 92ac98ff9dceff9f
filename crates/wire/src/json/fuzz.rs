//! The fuzz target for requests over HTTP: reading stays within the announced memory, admitted requests are consistent,
//! and written elements read back as the same.

use bytes::Bytes;
use paternoster_model::{DataType, ModelSpec};
use serde_json::value::RawValue;

use super::{Request, elements, generate, generate_built_bytes, prepare, raw};
use crate::{fuzz::check_request, models, pb::ModelInferRequest};

/// The fuzz target. The first byte says how much of the rest is JSON (255: all of it); the rest is the body of a
/// request.
pub fn rest(bytes: &[u8]) {
    let Some((share, body)) = bytes.split_first() else { return };
    let mut body = Bytes::copy_from_slice(body);
    let json_bytes = (*share < u8::MAX).then(|| body.len() * usize::from(*share) / 254);
    if prepare(&mut body, json_bytes).is_err() {
        return;
    }
    for spec in models::all() {
        check(&body, json_bytes, &spec);
    }
}

fn check(body: &Bytes, json_bytes: Option<usize>, spec: &ModelSpec) {
    if let Ok(request) = Request::read(body, json_bytes) {
        let announced = request.built_bytes();
        if let Ok((message, _)) = request.build(&spec.name, "") {
            assert!(built(&message, body) <= announced, "{announced} were announced");
            check_elements(&message);
            check_request(message, spec);
        }
    }
    if let Ok(message) = generate(body, spec) {
        let announced = generate_built_bytes(body.len());
        assert!(built(&message, body) <= announced, "{announced} were announced");
        check_request(message, spec);
    }
    if let Ok((message, _)) = raw(body.clone(), spec) {
        check_request(message, spec);
    }
}

/// Returns the bytes of elements that are not part of the body.
fn built(message: &ModelInferRequest, body: &Bytes) -> usize {
    let within = body.as_ptr_range();
    let apart = message.raw_input_contents.iter().filter(|data| !within.contains(&data.as_ptr()));
    apart.map(Bytes::len).sum()
}

/// Checks that elements that can be written read back as the same.
fn check_elements(message: &ModelInferRequest) {
    for (input, data) in message.inputs.iter().zip(&message.raw_input_contents) {
        let Some(datatype) = DataType::from_wire(&input.datatype) else { continue };
        let Some(text) = list(data, datatype) else { continue };
        let mut prepared = text.clone();
        prepare(&mut prepared, None).expect("a list");
        let written: &RawValue = serde_json::from_slice(&prepared).expect("what is written can be read");
        let Ok(again) = elements::read(written, datatype, &input.shape) else { continue };
        // As text, because every byte except 0 is true, and all NaN are alike.
        assert_eq!(list(&again, datatype), Some(text), "{datatype}");
    }
}

/// Returns elements as a list in JSON, if they can be written.
fn list(data: &[u8], datatype: DataType) -> Option<Bytes> {
    let mut text = vec![b'['];
    elements::write(data, datatype, &mut text, usize::MAX).ok()?;
    text.push(b']');
    Some(text.into())
}

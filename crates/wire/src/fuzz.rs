//! The fuzz target for request decoding: an admitted request is consistent, and equal in every form.

use paternoster_executor::{InferRequest, OutputTensor, Response};
use paternoster_model::{Dims, InputTensor, ModelSpec, element_count};
use prost::Message;

use super::{
    ResponsePlan, SharedMemory,
    decode::decode,
    encode::encode,
    models,
    pb::{ModelInferRequest, model_infer_request::InferInputTensor},
    plan::SelectedOutputs,
};

/// Maximum growth of typed contents: a varint of one byte becomes an INT64.
const GROWTH: usize = 8;

/// The fuzz target: bytes as protobuf, decoded for models of all kinds.
pub fn infer(bytes: &[u8]) {
    let Ok(request) = ModelInferRequest::decode(bytes) else { return };
    for spec in models::all() {
        check_request(request.clone(), &spec);
    }
}

/// Decodes a request for a model, and checks it if it is admitted.
pub(super) fn check_request(request: ModelInferRequest, spec: &ModelSpec) {
    let message_bytes = request.encoded_len();
    let Ok((request, reply)) = decode(request, spec, &SharedMemory::new(true)) else { return };
    check_admitted(&request, spec);
    let payload: usize = request.inputs.iter().flatten().map(|input| input.data.len()).sum();
    assert!(payload <= GROWTH * message_bytes, "{payload} bytes of payload from a message of {message_bytes}");
    check_raw_form(&request, spec);
    check_reply(&reply, request.rows, spec);
}

/// Checks that the same inputs as raw contents decode to the same request.
fn check_raw_form(request: &InferRequest, spec: &ModelSpec) {
    let mut raw = ModelInferRequest::default();
    for (input, wanted) in request.inputs.iter().zip(&spec.inputs) {
        let Some(input) = input else { continue };
        raw.inputs.push(InferInputTensor {
            name: wanted.name.clone(),
            datatype: wanted.datatype.as_str().to_owned(),
            shape: input.shape.to_vec(),
            ..InferInputTensor::default()
        });
        raw.raw_input_contents.push(input.data.clone());
    }
    let sent = ModelInferRequest::decode(raw.encode_to_vec().as_slice()).expect("what is encoded can be decoded");
    assert_eq!(sent, raw);
    let (again, _) = decode(sent, spec, &SharedMemory::new(true)).expect("raw contents say the same");
    assert_eq!(again.rows, request.rows);
    for (again, input) in again.inputs.iter().zip(&request.inputs) {
        let content = |input: &InputTensor| (input.shape.clone(), input.data.clone());
        assert_eq!(again.as_ref().map(content), input.as_ref().map(content));
    }
}

/// Checks that a response for `rows` rows has the requested contents.
fn check_reply(reply: &ResponsePlan, rows: u32, spec: &ModelSpec) {
    let outputs = spec.outputs.iter().map(|output| {
        let batch = spec.has_batch_axis().then_some(i64::from(rows.min(4)));
        let shape: Dims = batch.into_iter().chain(output.dims.iter().map(|dim| (*dim).max(0))).collect();
        let bytes = element_count(&shape).unwrap_or(0) * output.datatype.size_bytes().unwrap_or(0);
        OutputTensor { shape, data: vec![0; bytes].into() }
    });
    let response = encode(spec, reply, Response { outputs: outputs.collect() }).expect("outputs of this model");
    assert_eq!(response.outputs.len(), response.raw_output_contents.len(), "clients count by position");
    let expected = match &reply.outputs {
        SelectedOutputs::All => spec.outputs.len(),
        SelectedOutputs::Some(plans) => plans.len(),
    };
    assert_eq!(response.outputs.len(), expected);
}

/// Checks everything that the executor relies on.
fn check_admitted(request: &InferRequest, spec: &ModelSpec) {
    assert_eq!(request.inputs.len(), spec.inputs.len());
    assert!(request.rows >= 1 && request.rows <= spec.max_batch_size.max(1), "{} rows", request.rows);
    let mut lengths = vec![None; spec.symbols.len()];
    for (input, wanted) in request.inputs.iter().zip(&spec.inputs) {
        let Some(input) = input else {
            assert!(wanted.optional, "'{}' is required", wanted.name);
            continue;
        };
        let dims = if spec.has_batch_axis() { &input.shape[1..] } else { &input.shape[..] };
        if spec.has_batch_axis() {
            assert_eq!(input.shape[0], i64::from(request.rows));
        }
        assert_eq!(dims.len(), wanted.dims.len());
        for (dim, wanted) in dims.iter().zip(&wanted.dims) {
            assert!(*dim >= 0 && (*wanted < 0 || dim == wanted), "{:?}", input.shape);
        }
        let elements = element_count(&input.shape).expect("countable");
        match wanted.datatype.size_bytes() {
            Some(size) => assert_eq!(Some(input.data.len()), elements.checked_mul(size)),
            None => assert_eq!(count_strings(&input.data), elements),
        }
        for (symbol, dim) in wanted.symbols.iter().zip(dims) {
            let Some(symbol) = symbol else { continue };
            let length = lengths[usize::from(symbol.0)].get_or_insert(*dim);
            assert_eq!(length, dim, "lengths along one axis agree");
        }
    }
}

fn count_strings(mut data: &[u8]) -> usize {
    let mut count = 0;
    while let Some((indicator, rest)) = data.split_first_chunk::<4>() {
        data = &rest[u32::from_le_bytes(*indicator) as usize..];
        count += 1;
    }
    assert!(data.is_empty(), "nothing is left behind the last element");
    count
}

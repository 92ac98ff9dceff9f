//! Memory that decoding and encoding allocate: next to nothing for an ordinary request, and never more than a fixed
//! multiple of the message, however hostile.

use std::fs;

use allocation_counter::{AllocationInfo, measure};
use bytes::Bytes;
use paternoster_executor::{OutputTensor, Response};
use paternoster_model::{DataType, Dims, ModelSpec, TensorSpec};
use paternoster_wire::{
    SharedMemory,
    decode::decode,
    encode::encode,
    pb::{
        InferTensorContents, ModelInferRequest,
        model_infer_request::{InferInputTensor, InferRequestedOutputTensor},
    },
};
use prost::Message;

/// Maximum bytes allocated for each byte of a message. A varint of one byte becomes an INT64, and an error's text may
/// be built from the client's text before it is cut.
const GROWTH: u64 = 8;

/// Maximum bytes that any request allocates in addition: plans, positions of inputs, texts.
const FIXED_BYTES: u64 = 16 * 1024;

fn identity(datatype: DataType, dims: &[i64]) -> ModelSpec {
    ModelSpec {
        name: "identity".to_owned(),
        version: 1,
        max_batch_size: 64,
        inputs: vec![TensorSpec::new("INPUT0", datatype, dims)],
        outputs: vec![TensorSpec::new("OUTPUT0", datatype, dims)],
        symbols: Vec::new(),
        decoupled: false,
    }
}

fn input(datatype: &str, shape: &[i64]) -> InferInputTensor {
    let (name, datatype, shape) = ("INPUT0".to_owned(), datatype.to_owned(), shape.to_vec());
    InferInputTensor { name, datatype, shape, ..InferInputTensor::default() }
}

fn small() -> ModelInferRequest {
    ModelInferRequest {
        model_name: "identity".to_owned(),
        id: "7".to_owned(),
        inputs: vec![input("FP32", &[1, 16])],
        raw_input_contents: vec![Bytes::from_static(&[0; 64])],
        ..ModelInferRequest::default()
    }
}

fn decoding(request: ModelInferRequest, spec: &ModelSpec) -> AllocationInfo {
    let regions = SharedMemory::new(true);
    let mut request = Some(request);
    measure(|| drop(decode(request.take().expect("measured once"), spec, &regions)))
}

#[test]
fn decoding_a_small_raw_request_allocates_the_list_of_its_inputs_alone() {
    let allocated = decoding(small(), &identity(DataType::Fp32, &[16]));
    assert_eq!(allocated.count_total, 1, "{allocated:?}");
}

#[test]
fn encoding_a_small_response_allocates_the_fields_of_the_message_alone() {
    let spec = identity(DataType::Fp32, &[16]);
    let (_, reply) = decode(small(), &spec, &SharedMemory::new(true)).expect("a valid request");
    let output = OutputTensor { shape: Dims::from_slice(&[1, 16]), data: Bytes::from_static(&[0; 64]) };
    let mut response = Some(Response { outputs: vec![output] });
    let allocated = measure(|| drop(encode(&spec, &reply, response.take().expect("measured once"))));
    // Model, version, id, name, datatype and shape; the list of outputs and that of their payloads.
    assert_eq!(allocated.count_total, 8, "{allocated:?}");
}

#[test]
fn hostile_requests_allocate_no_more_than_they_are_worth() {
    let floats = identity(DataType::Fp32, &[-1]);
    let int64s = identity(DataType::Int64, &[-1]);
    let strings = identity(DataType::Bytes, &[-1]);
    let typed = |contents, datatype, shape: &[i64]| {
        let contents = Some(contents);
        let inputs = vec![InferInputTensor { contents, ..input(datatype, shape) }];
        ModelInferRequest { inputs, ..ModelInferRequest::default() }
    };
    let raw = |datatype, shape: &[i64], payload: Vec<u8>| ModelInferRequest {
        inputs: vec![input(datatype, shape)],
        raw_input_contents: vec![payload.into()],
        ..ModelInferRequest::default()
    };
    let huge = i64::MAX / 64;
    let int64_contents = vec![1; 100_000];
    let bytes_contents = vec![Bytes::new(); 100_000];
    let long_name = InferInputTensor { name: "x".repeat(1_000_000), ..input("FP32", &[1]) };
    let output = InferRequestedOutputTensor { name: "OUTPUT0".to_owned(), ..InferRequestedOutputTensor::default() };
    let requests = [
        ("a huge shape", &floats, raw("FP32", &[1, huge], vec![0; 4])),
        ("a shape of many dimensions", &floats, raw("FP32", &vec![1; 100_000], vec![0; 4])),
        ("a huge string", &strings, raw("BYTES", &[1, 1], u32::MAX.to_le_bytes().to_vec())),
        ("many strings, none there", &strings, raw("BYTES", &[1, huge], vec![0; 4])),
        (
            "one-byte varints",
            &int64s,
            typed(InferTensorContents { int64_contents, ..<_>::default() }, "INT64", &[1, 100_000]),
        ),
        (
            "empty strings",
            &strings,
            typed(InferTensorContents { bytes_contents, ..<_>::default() }, "BYTES", &[1, 100_000]),
        ),
        ("a long name", &floats, ModelInferRequest { inputs: vec![long_name], ..<_>::default() }),
        ("a long id", &floats, ModelInferRequest { id: "x".repeat(1_000_000), ..<_>::default() }),
        (
            "many raw entries",
            &floats,
            ModelInferRequest { raw_input_contents: vec![Bytes::new(); 100_000], ..<_>::default() },
        ),
        ("an output many times", &floats, ModelInferRequest { outputs: vec![output; 100_000], ..<_>::default() }),
        (
            "an input many times",
            &floats,
            ModelInferRequest { inputs: vec![input("FP32", &[1, 0]); 100_000], ..<_>::default() },
        ),
    ];
    for (what, spec, request) in requests {
        let message_bytes = request.encoded_len() as u64;
        let allocated = decoding(request, spec).bytes_max;
        let most = GROWTH * message_bytes + FIXED_BYTES;
        assert!(allocated <= most, "{what}: {allocated} bytes for a message of {message_bytes}");
    }
}

#[test]
fn measured_requests_allocate_no_more_than_they_are_worth() {
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/corpus/infer");
    let mut seen = 0;
    for entry in fs::read_dir(directory).expect("the corpus is part of the sources") {
        let path = entry.expect("a readable directory").path();
        if path.extension().is_some_and(|extension| extension == "pb") {
            let bytes = fs::read(&path).expect("a readable file");
            for spec in [identity(DataType::Fp32, &[16]), identity(DataType::Int64, &[-1])] {
                let request = ModelInferRequest::decode(bytes.as_slice()).expect("a request of a real client");
                let allocated = decoding(request, &spec).bytes_max;
                assert!(allocated <= GROWTH * bytes.len() as u64 + FIXED_BYTES, "{}: {allocated}", path.display());
            }
            seen += 1;
        }
    }
    assert!(seen >= 59, "one file for every measured request, {seen} found");
}

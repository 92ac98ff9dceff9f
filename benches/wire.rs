//! What the wire costs per request: decoding and encoding a small FP32 `[1, 16]` tensor and one of 4 MB.
//!
//! `protobuf` is prost's share, for comparison: reading the message from a frame, and writing the response into one.

use bytes::{Bytes, BytesMut};
use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use paternoster_executor::{OutputTensor, Response};
use paternoster_model::{DataType, Dims, ModelSpec, TensorSpec};
use paternoster_wire::{
    SharedMemory,
    decode::decode,
    encode::encode,
    pb::{ModelInferRequest, model_infer_request::InferInputTensor},
};
use prost::Message;

fn identity() -> ModelSpec {
    ModelSpec {
        name: "identity".to_owned(),
        version: 1,
        max_batch_size: 64,
        inputs: vec![TensorSpec::new("INPUT0", DataType::Fp32, &[-1])],
        outputs: vec![TensorSpec::new("OUTPUT0", DataType::Fp32, &[-1])],
        symbols: Vec::new(),
        decoupled: false,
    }
}

fn frame(elements: i64) -> Bytes {
    let input = InferInputTensor {
        name: "INPUT0".to_owned(),
        datatype: "FP32".to_owned(),
        shape: vec![1, elements],
        ..InferInputTensor::default()
    };
    let request = ModelInferRequest {
        model_name: "identity".to_owned(),
        id: "request-1".to_owned(),
        inputs: vec![input],
        raw_input_contents: vec![vec![0; elements as usize * 4].into()],
        ..ModelInferRequest::default()
    };
    request.encode_to_vec().into()
}

fn message(frame: &Bytes) -> ModelInferRequest {
    ModelInferRequest::decode(frame.clone()).expect("a valid frame")
}

fn wire(criterion: &mut Criterion) {
    let spec = identity();
    let regions = SharedMemory::new(true);
    for (size, elements) in [("small", 16), ("4MB", 1 << 20)] {
        let frame = frame(elements);
        let (request, plan) = decode(message(&frame), &spec, &regions).expect("a valid request");
        let response = || Response {
            outputs: request
                .inputs
                .iter()
                .flatten()
                .map(|input| OutputTensor { shape: Dims::from_slice(&input.shape), data: input.data.clone() })
                .collect(),
        };
        let reply = encode(&spec, &plan, response()).expect("outputs of this model");

        let mut group = criterion.benchmark_group(size);
        group.bench_function("protobuf-decode", |bencher| bencher.iter(|| message(&frame)));
        group.bench_function("decode", |bencher| {
            let setup = || message(&frame);
            bencher.iter_batched(setup, |request| decode(request, &spec, &regions), BatchSize::SmallInput);
        });
        group.bench_function("encode", |bencher| {
            let run = |response| encode(&spec, &plan, response);
            bencher.iter_batched(response, run, BatchSize::SmallInput);
        });
        group.bench_function("protobuf-encode", |bencher| {
            let mut buffer = BytesMut::with_capacity(reply.encoded_len());
            bencher.iter(|| {
                buffer.clear();
                reply.encode(&mut buffer).expect("the buffer grows");
            });
        });
        group.finish();
    }
}

criterion_group!(benches, wire);
criterion_main!(benches);

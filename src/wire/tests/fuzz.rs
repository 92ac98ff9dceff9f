//! Arbitrary requests and arbitrary bytes against models of every sort: never a panic, and what is admitted is
//! consistent.

use proptest::{collection::vec, prelude::*, sample::select, strategy::ValueTree, test_runner::TestRunner};
use prost::Message;

use super::{arbitrary, cases::corpus, models};
use crate::{
    executor::{InferRequest, OutputTensor, Response},
    model::{Dims, ModelSpec, element_count},
    wire::{Decoded, SharedMemory, decode::decode, encode::encode, pb::ModelInferRequest, plan::Selection},
};

/// Eight bytes for one is what typed contents can grow by: a varint of one byte becomes an INT64.
const GROWTH: usize = 8;

/// The fuzz body: decodes a request for a model and checks whatever is admitted.
fn check_request(request: ModelInferRequest, spec: &ModelSpec, regions: &SharedMemory) {
    let message_bytes = request.encoded_len();
    let Ok(Decoded { request, reply }) = decode(request, spec, regions) else { return };
    check_admitted(&request, spec);
    let payload: usize = request.inputs.iter().flatten().map(|input| input.data.len()).sum();
    assert!(payload <= GROWTH * message_bytes, "{payload} bytes of payload from a message of {message_bytes}");

    let outputs = spec.outputs.iter().map(|output| {
        let batch = spec.has_batch_axis().then_some(i64::from(request.rows.min(4)));
        let shape: Dims = batch.into_iter().chain(output.dims.iter().map(|dim| (*dim).max(0))).collect();
        let bytes = element_count(&shape).unwrap_or(0) * output.datatype.size_bytes().unwrap_or(0);
        OutputTensor { shape, data: vec![0; bytes].into() }
    });
    let response = encode(spec, &reply, Response { outputs: outputs.collect() }).expect("outputs of this model");
    assert_eq!(response.outputs.len(), response.raw_output_contents.len(), "clients count by position");
    let expected = match &reply.outputs {
        Selection::All => spec.outputs.len(),
        Selection::Some(plans) => plans.len(),
    };
    assert_eq!(response.outputs.len(), expected);
}

/// What the executor relies on.
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

/// The fuzz body for bytes: whatever protobuf makes of them, for every model.
fn check_bytes(bytes: &[u8]) {
    let regions = SharedMemory::new(true);
    let Ok(request) = ModelInferRequest::decode(bytes) else { return };
    for spec in models::all() {
        check_request(request.clone(), &spec, &regions);
    }
}

proptest! {
    #[test]
    fn arbitrary_requests_are_refused_or_consistent(
        (request, spec) in select(models::all()).prop_flat_map(arbitrary::request)
    ) {
        check_request(request, &spec, &SharedMemory::new(true));
    }

    #[test]
    fn valid_requests_with_some_bytes_changed_are_refused_or_consistent(
        spec in select(models::all()),
        changes in vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
    ) {
        let mut bytes = arbitrary::valid(&spec).encode_to_vec();
        for (index, value) in changes {
            let position = index.index(bytes.len());
            bytes[position] = value;
        }
        check_bytes(&bytes);
    }

    #[test]
    fn arbitrary_bytes_are_refused_or_consistent(bytes in vec(any::<u8>(), 0..256)) {
        check_bytes(&bytes);
    }

    #[test]
    fn measured_requests_with_some_bytes_changed_are_refused_or_consistent(
        (_, bytes) in select(corpus()),
        changes in vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
    ) {
        let mut bytes = bytes;
        for (index, value) in changes {
            let position = index.index(bytes.len());
            bytes[position] = value;
        }
        check_bytes(&bytes);
    }
}

#[test]
fn the_corpus_is_refused_or_consistent() {
    for (_, bytes) in corpus() {
        check_bytes(&bytes);
    }
}

#[test]
fn the_valid_requests_that_fuzzing_starts_from_are_valid() {
    for spec in models::all() {
        let decoded = decode(arbitrary::valid(&spec), &spec, &SharedMemory::new(true));
        assert!(decoded.is_ok(), "{}: {decoded:?}", spec.name);
    }
}

#[test]
fn arbitrary_requests_are_often_admitted_and_often_refused() {
    let mut runner = TestRunner::deterministic();
    let strategy = select(models::all()).prop_flat_map(arbitrary::request);
    let regions = SharedMemory::new(true);
    let drawn = 400;
    let mut admitted = 0;
    for _ in 0..drawn {
        let (request, spec) = strategy.new_tree(&mut runner).expect("nothing is filtered out").current();
        admitted += usize::from(decode(request, &spec, &regions).is_ok());
    }
    assert!((drawn / 4..drawn * 3 / 4).contains(&admitted), "{admitted} of {drawn} were admitted");
}

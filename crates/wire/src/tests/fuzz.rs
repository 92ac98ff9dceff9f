//! Arbitrary requests and arbitrary bytes against models of all kinds: decoding never panics, and accepted requests are
//! consistent.

use proptest::{collection::vec, prelude::*, sample::select, strategy::ValueTree, test_runner::TestRunner};
use prost::Message;

use super::{arbitrary, cases::corpus, models};
use crate::{
    SharedMemory,
    decode::decode,
    fuzz::{check_request, infer},
};

proptest! {
    #[test]
    fn arbitrary_requests_are_refused_or_consistent(
        (request, spec) in select(models::all()).prop_flat_map(arbitrary::request)
    ) {
        check_request(request, &spec);
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
        infer(&bytes);
    }

    #[test]
    fn arbitrary_bytes_are_refused_or_consistent(bytes in vec(any::<u8>(), 0..256)) {
        infer(&bytes);
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
        infer(&bytes);
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

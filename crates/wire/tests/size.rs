//! Parsing takes no more memory than was computed beforehand, for any message, and that is a small multiple of the
//! message.

use allocation_counter::measure as allocations;
use bytes::Bytes;
use paternoster_wire::{
    Kind,
    decode::{
        parse,
        size::{INFER_REQUEST, LOAD_REQUEST, MOST_DIMENSIONS, MOST_ENTRIES, SizeError, measure},
    },
    pb::{
        InferParameter, InferTensorContents, ModelInferRequest, ModelRepositoryParameter, RepositoryModelLoadRequest,
        infer_parameter::ParameterChoice,
        model_infer_request::{InferInputTensor, InferRequestedOutputTensor},
        model_repository_parameter::ParameterChoice as LoadChoice,
    },
};
use proptest::{collection::vec, prelude::*};
use prost::{Message, encoding::encode_varint};

/// Maximum bytes that any message allocates in addition to what was computed: shared ownership of the message, errors.
const FIXED_BYTES: usize = 512;

/// Maximum bytes of memory for each byte of a large message. The worst case is an empty string of typed contents.
const MOST_FOR_A_BYTE: usize = 20;

/// Maximum bytes of entries whose number is limited.
const MOST_FOR_ENTRIES: usize = 16 << 20;

/// Returns the computed bytes that parsing will take; `None` if the bytes are not such a message.
fn found(message: &[u8]) -> Option<usize> {
    match measure(INFER_REQUEST, message, usize::MAX) {
        Ok(found) => Some(found.expect("there are steps enough")),
        Err(SizeError::Broken) => None,
        Err(error) => panic!("no limit is exceeded: {error}"),
    }
}

/// Returns the peak bytes that parsing takes.
fn taken(message: &[u8]) -> usize {
    let message = Bytes::copy_from_slice(message);
    let taken = allocations(|| drop(parse(message))).bytes_max;
    usize::try_from(taken).expect("an address")
}

fn check(message: &[u8]) -> Result<(), TestCaseError> {
    // A malformed message is not parsed.
    let Some(found) = found(message) else { return Ok(()) };
    let taken = taken(message);
    prop_assert!(taken <= found + FIXED_BYTES, "{taken} bytes taken, {found} found");
    prop_assert!(found <= MOST_FOR_A_BYTE * message.len() + MOST_FOR_ENTRIES);
    Ok(())
}

fn parameters() -> impl Strategy<Value = std::collections::HashMap<String, InferParameter>> {
    let choice = prop_oneof![
        any::<i64>().prop_map(ParameterChoice::Int64Param),
        any::<f64>().prop_map(ParameterChoice::DoubleParam),
        ".{0,40}".prop_map(ParameterChoice::StringParam),
    ];
    let value = proptest::option::of(choice).prop_map(|parameter_choice| InferParameter { parameter_choice });
    proptest::collection::hash_map(".{0,12}", value, 0..9)
}

fn contents() -> impl Strategy<Value = InferTensorContents> {
    let bytes = vec(vec(any::<u8>(), 0..9).prop_map(Bytes::from), 0..40);
    let numbers = (vec(any::<bool>(), 0..40), vec(any::<i32>(), 0..40), vec(any::<i64>(), 0..40));
    let more = (vec(any::<u32>(), 0..40), vec(any::<u64>(), 0..40), vec(any::<f32>(), 0..40), vec(any::<f64>(), 0..40));
    (numbers, more, bytes).prop_map(|(numbers, more, bytes_contents)| InferTensorContents {
        bool_contents: numbers.0,
        int_contents: numbers.1,
        int64_contents: numbers.2,
        uint_contents: more.0,
        uint64_contents: more.1,
        fp32_contents: more.2,
        fp64_contents: more.3,
        bytes_contents,
    })
}

prop_compose! {
    fn input()(
        name in ".{0,12}",
        datatype in "[A-Z0-9]{0,5}",
        shape in vec(any::<i64>(), 0..9),
        parameters in parameters(),
        contents in proptest::option::of(contents()),
    ) -> InferInputTensor {
        InferInputTensor { name, datatype, shape, parameters, contents }
    }
}

prop_compose! {
    fn request()(
        names in (".{0,12}", ".{0,5}", ".{0,12}"),
        parameters in parameters(),
        inputs in vec(input(), 0..9),
        outputs in vec((".{0,12}", parameters()), 0..9),
        raw in vec(vec(any::<u8>(), 0..90), 0..9),
    ) -> ModelInferRequest {
        let outputs = outputs.into_iter().map(|(name, parameters)| InferRequestedOutputTensor { name, parameters });
        ModelInferRequest {
            model_name: names.0,
            model_version: names.1,
            id: names.2,
            parameters,
            inputs,
            outputs: outputs.collect(),
            raw_input_contents: raw.into_iter().map(Bytes::from).collect(),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn a_request_takes_what_was_found_and_is_parsed_as_by_the_decoder(request in request()) {
        let message = request.encode_to_vec();
        prop_assert!(found(&message).is_some(), "it is whole");
        check(&message)?;
        // Compared as text, because NaN equals nothing.
        let parsed = parse(message.into()).expect("a whole message");
        prop_assert_eq!(parsed.inputs.len(), request.inputs.len());
        let decoded = ModelInferRequest::decode(request.encode_to_vec().as_slice()).expect("a whole message");
        prop_assert_eq!(format!("{:?}", parsed.inputs.iter().map(|input| &input.contents).collect::<Vec<_>>()),
            format!("{:?}", decoded.inputs.iter().map(|input| &input.contents).collect::<Vec<_>>()));
        prop_assert_eq!(parsed.raw_input_contents, decoded.raw_input_contents);
        prop_assert_eq!(parsed.parameters.len(), decoded.parameters.len());
    }

    #[test]
    fn a_changed_request_takes_what_was_found_and_is_read_as_by_the_decoder(
        request in request(),
        changes in vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let mut message = request.encode_to_vec();
        for (place, byte) in changes {
            if !message.is_empty() {
                let place = place.index(message.len());
                message[place] = byte;
            }
        }
        check(&message)?;
        if found(&message).is_some() {
            let (parsed, decoded) = (parse(message.clone().into()), ModelInferRequest::decode(message.as_slice()));
            prop_assert_eq!(parsed.is_ok(), decoded.is_ok());
        }
    }

    #[test]
    fn arbitrary_bytes_take_what_was_found(message in vec(any::<u8>(), 0..200)) {
        check(&message)?;
    }
}

#[test]
fn two_bytes_become_at_most_a_stated_multiple() {
    let typed = |fields: &[u8]| -> Vec<u8> {
        let contents = length_prefixed(0x2a, fields);
        length_prefixed(0x2a, &contents)
    };
    let many = 100_000;
    for (what, message, most) in [
        ("numbers of one byte", typed(&length_prefixed(0x1a, &vec![1; many])), 8),
        ("the same, not packed", typed(&[0x18, 1].repeat(many)), 4),
        ("floats", typed(&length_prefixed(0x32, &vec![0; 4 * many])), 1),
        ("empty strings", typed(&[0x42, 0].repeat(many)), 18),
        ("unknown fields", [0x7a, 0].repeat(many), 0),
    ] {
        let (found, taken) = (found(&message).expect("a whole message"), taken(&message));
        assert!(taken <= found + FIXED_BYTES, "{what}: {taken} bytes taken, {found} found");
        let bound = most * message.len() + 4 * size_of::<InferInputTensor>();
        assert!(found <= bound, "{what}: {found} bytes for a message of {}", message.len());
    }
}

#[test]
fn entries_are_limited_in_number_wherever_they_are() {
    let limit = |what: &str, most: usize, message: &dyn Fn(usize) -> Vec<u8>| {
        let within = message(most);
        let found = found(&within).expect("a whole message");
        assert!(taken(&within) <= found + FIXED_BYTES, "{what}: within the limit");
        let Err(SizeError::TooMany(error)) = measure(INFER_REQUEST, &message(most + 1), usize::MAX) else {
            panic!("{what}: beyond the limit");
        };
        assert_eq!(error.kind(), Kind::InvalidArgument);
        assert!(error.message().contains(what) && error.message().contains(&most.to_string()), "{}", error.message());
    };
    limit("parameters", MOST_ENTRIES, &|count| [0x22, 0].repeat(count));
    limit("inputs", MOST_ENTRIES, &|count| [0x2a, 0].repeat(count));
    limit("outputs", MOST_ENTRIES, &|count| [0x32, 0].repeat(count));
    limit("raw_input_contents", MOST_ENTRIES, &|count| [0x3a, 0].repeat(count));
    // In an input, in an output, and in several inputs together.
    limit("parameters", MOST_ENTRIES, &|count| length_prefixed(0x2a, &[0x22, 0].repeat(count)));
    limit("parameters", MOST_ENTRIES, &|count| length_prefixed(0x32, &[0x12, 0].repeat(count)));
    limit("parameters", MOST_ENTRIES, &|count| {
        [length_prefixed(0x2a, &[0x22, 0].repeat(count - 1)), vec![0x2a, 2, 0x22, 0]].concat()
    });
    limit("shape", MOST_DIMENSIONS, &|count| length_prefixed(0x2a, &length_prefixed(0x1a, &vec![1; count])));
    limit("shape", MOST_DIMENSIONS, &|count| length_prefixed(0x2a, &[0x18, 1].repeat(count)));
}

#[test]
fn what_reaches_beyond_the_part_that_holds_it_is_refused_before_it_is_built() {
    // An output of two bytes, whose name claims a length of a million.
    let mut message = vec![0x32, 2, 0x0a];
    encode_varint(1 << 20, &mut message);
    message.extend(vec![b'x'; 1 << 20]);
    assert!(taken(&message) > 1 << 20, "a decoder copies the name before it looks at what holds it");
    assert_eq!(found(&message), None);
    assert!(matches!(measure(LOAD_REQUEST, &[0x0a, 9, b'x'], usize::MAX), Err(SizeError::Broken)), "it is cut short");
}

#[test]
fn looking_ends_after_the_given_steps() {
    let message = length_prefixed(0x2a, &length_prefixed(0x2a, &[0x42, 0].repeat(1000)));
    assert_eq!(measure(INFER_REQUEST, &message, 500).expect("no limit is exceeded"), None);
    assert!(measure(INFER_REQUEST, &message, 1002).expect("no limit is exceeded").is_some());
}

#[test]
fn the_files_of_a_load_count_and_its_parameters_are_limited() {
    let parameter = ModelRepositoryParameter { parameter_choice: Some(LoadChoice::BytesParam(vec![0; 1 << 20])) };
    let request = RepositoryModelLoadRequest {
        parameters: [("file:1/model.onnx".to_owned(), parameter)].into(),
        ..RepositoryModelLoadRequest::default()
    };
    let message = Bytes::from(request.encode_to_vec());
    let found = measure(LOAD_REQUEST, &message, usize::MAX).expect("no limit is exceeded").expect("steps");
    let taken = allocations(|| drop(RepositoryModelLoadRequest::decode(message.clone()))).bytes_max;
    assert!(taken <= (found + FIXED_BYTES) as u64, "{taken} bytes taken, {found} found");
    let error = measure(LOAD_REQUEST, &[0x1a, 0].repeat(MOST_ENTRIES + 1), usize::MAX).expect_err("too many");
    assert!(error.to_string().contains("parameters"), "{error}");
}

/// Encodes a field of bytes: its tag, its length and its contents.
fn length_prefixed(tag: u8, value: &[u8]) -> Vec<u8> {
    let mut field = vec![tag];
    prost::encode_length_delimiter(value.len(), &mut field).expect("memory");
    field.extend_from_slice(value);
    field
}

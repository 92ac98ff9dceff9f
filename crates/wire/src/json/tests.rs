//! Elements of every datatype to JSON and back, and arbitrary requests.

use bytes::Bytes;
use paternoster_model::DataType;
use proptest::{collection::vec, prelude::*, sample::select};
use serde_json::value::RawValue;

use super::{elements, fuzz::rest, generated, prepare};
use crate::pb::{
    InferParameter, ModelInferResponse, infer_parameter::ParameterChoice, model_infer_response::InferOutputTensor,
};

const NUMBERS: [DataType; 10] = [
    DataType::Uint8,
    DataType::Uint16,
    DataType::Uint32,
    DataType::Uint64,
    DataType::Int8,
    DataType::Int16,
    DataType::Int32,
    DataType::Int64,
    DataType::Fp32,
    DataType::Fp64,
];

fn read(text: &str, datatype: DataType, shape: &[i64]) -> Result<Bytes, String> {
    let mut text = Bytes::copy_from_slice(text.as_bytes());
    prepare(&mut text, None).map_err(|error| error.message().to_owned())?;
    let text: &RawValue = serde_json::from_slice(&text).expect("JSON");
    elements::read(text, datatype, shape).map_err(|fault| fault.to_string())
}

fn written(data: &[u8], datatype: DataType) -> String {
    let mut text = vec![b'['];
    elements::write(data, datatype, &mut text, usize::MAX).expect("it can be written");
    text.push(b']');
    String::from_utf8(text).expect("JSON is UTF-8")
}

/// Generates requests as text, with some of the possible fields.
fn request() -> impl Strategy<Value = String> {
    let value =
        select(vec!["1", "-1", "0.5", "true", "\"a\"", "null", "[]", "[1,[2]]", "{}", "1e400", "[\"\\u0000\"]"]);
    let field = select(vec!["name", "datatype", "shape", "data", "parameters", "id", "inputs", "outputs", "INPUT0"]);
    let datatype = select(DataType::ALL.to_vec());
    let input = (datatype, vec(0_i64..4, 0..3), vec(value.clone(), 0..4), vec((field.clone(), value.clone()), 0..2));
    let input = input.prop_map(|(datatype, shape, data, more)| {
        let more: String = more.iter().map(|(field, value)| format!(",\"{field}\":{value}")).collect();
        let data = data.join(",");
        format!("{{\"name\":\"INPUT0\",\"datatype\":\"{datatype}\",\"shape\":{shape:?},\"data\":[{data}]{more}}}")
    });
    (vec(input, 0..3), vec((field, value), 0..3)).prop_map(|(inputs, more)| {
        let more: String = more.iter().map(|(field, value)| format!(",\"{field}\":{value}")).collect();
        format!("{{\"inputs\":[{}]{more}}}", inputs.join(","))
    })
}

#[test]
fn generated_fields_are_outputs_and_parameters() {
    let output = InferOutputTensor {
        name: "score".to_owned(),
        datatype: "INT8".to_owned(),
        shape: vec![1, 1],
        ..Default::default()
    };
    let parameter = |choice| InferParameter { parameter_choice: Some(choice) };
    let response = ModelInferResponse {
        parameters: [
            ("sequence_id".to_owned(), parameter(ParameterChoice::Int64Param(7))),
            ("score".to_owned(), parameter(ParameterChoice::BoolParam(true))),
        ]
        .into(),
        outputs: vec![output],
        raw_output_contents: vec![Bytes::from_static(&[5])],
        ..Default::default()
    };
    let json = String::from_utf8(generated(response).expect("it has JSON")).expect("JSON is UTF-8");
    let expected = r#"{"model_name":"","model_version":"","sequence_id":7,"score":5}"#;
    assert_eq!(json, expected, "an output comes before a parameter of its name");
}

proptest! {
    #[test]
    fn numbers_are_read_as_they_are_written(datatype in select(NUMBERS.to_vec()), bytes in vec(any::<u8>(), 0..128)) {
        let size = datatype.size_bytes().expect("numbers have a size");
        let count = bytes.len() / size;
        let data = &bytes[..count * size];
        let text = written(data, datatype);
        let shape = [i64::try_from(count).expect("a few")];
        let again = read(&text, datatype, &shape).expect("it was written");
        // The text, because a NaN may have other bits.
        prop_assert_eq!(written(&again, datatype), text.clone());
        if !text.contains("NaN") {
            prop_assert_eq!(&*again, data);
        }
    }

    #[test]
    fn requests_with_some_characters_changed_are_refused_or_consistent(
        text in request(),
        share in any::<u8>(),
        changes in vec((any::<prop::sample::Index>(), any::<u8>()), 0..3),
    ) {
        let mut bytes = [&[share], text.as_bytes()].concat();
        for (index, value) in changes {
            let position = index.index(bytes.len());
            bytes[position] = value;
        }
        rest(&bytes);
    }
}

#[test]
fn values_at_the_ends_of_each_datatype_fit_and_those_beyond_do_not() {
    let cases = [
        (DataType::Uint8, "255", "256"),
        (DataType::Uint8, "0", "-1"),
        (DataType::Uint16, "65535", "65536"),
        (DataType::Uint32, "4294967295", "4294967296"),
        (DataType::Uint64, "18446744073709551615", "18446744073709551616"),
        (DataType::Int8, "-128", "-129"),
        (DataType::Int16, "32767", "32768"),
        (DataType::Int32, "-2147483648", "-2147483649"),
        (DataType::Int64, "9223372036854775807", "9223372036854775808"),
        (DataType::Int64, "1", "1.0"),
        (DataType::Int32, "0", "NaN"),
        (DataType::Uint8, "0", "Infinity"),
        (DataType::Bool, "false", "null"),
        (DataType::Fp32, "NaN", "null"),
        (DataType::Fp64, "-Infinity", "{}"),
        (DataType::Bytes, "\"NaN\"", "NaN"),
        (DataType::Fp32, "3.4028235e38", "3.4028236e38"),
        (DataType::Fp32, "1", "\"1\""),
        (DataType::Fp64, "1e308", "true"),
        (DataType::Bool, "true", "1"),
        (DataType::Bytes, "\"\"", "0"),
    ];
    for (datatype, fits, beyond) in cases {
        assert!(read(&format!("[{fits}]"), datatype, &[1]).is_ok(), "{datatype} {fits}");
        let refused = read(&format!("[{beyond}]"), datatype, &[1]).expect_err(beyond);
        assert!(refused.contains("does not fit the datatype"), "{datatype} {beyond}: {refused}");
    }
}

#[test]
fn elements_that_do_not_fit_are_named_with_what_was_expected() {
    for (text, datatype, expected) in [
        ("[1,1.0]", DataType::Int32, "value 1.0 at index 1 does not fit the datatype, expected an integer from"),
        ("[1,null]", DataType::Fp32, "value null at index 1 does not fit the datatype, expected a number up to"),
        (
            "[null]",
            DataType::Bytes,
            "value null at index 0 does not fit the datatype, expected a string, or {\"b64\": …} with",
        ),
        (
            "[{\"b64\":\"****\"}]",
            DataType::Bytes,
            "value {…} at index 0 does not fit the datatype, expected a string, or",
        ),
        ("[{\"b64\":1}]", DataType::Bytes, "value {…} at index 0 does not fit the datatype, expected a string, or"),
        ("[{\"b64\":\"YQ==\",\"b\":1}]", DataType::Bytes, "value {…} at index 0 does not fit the datatype, expected"),
        (
            "[{\"b64\":\"YQ==\"}]",
            DataType::Uint8,
            "value {…} at index 0 does not fit the datatype, expected an integer",
        ),
        ("[{\"a\":[1]}]", DataType::Bool, "value {…} at index 0 does not fit the datatype, expected true or false"),
        ("[NaN]", DataType::Uint8, "the value NaN does not fit the datatype, expected an integer from 0 to 255"),
        ("[\"a\",-Infinity]", DataType::Bytes, "the value -Infinity does not fit the datatype, expected a string"),
        ("[NaN,\"0E0\"]", DataType::Fp32, "value '0E0' at index 1 does not fit the datatype, expected a number"),
        ("[NaN,1e300]", DataType::Fp32, "value 1e300 at index 1 does not fit the datatype, expected a number up to"),
        ("NaN", DataType::Fp32, "expected a list, got"),
    ] {
        let shape = [if text.contains(',') { 2 } else { 1 }];
        let refused = read(text, datatype, &shape).expect_err(text);
        assert!(refused.contains(expected), "{text}: {refused}");
    }
}

#[test]
fn bytes_that_are_no_text_come_as_base64() {
    let elements = r#"[{"b64":"AP8="},"a",{"b64":""}]"#;
    let expected: &[u8] = &[2, 0, 0, 0, 0, 0xff, 1, 0, 0, 0, b'a', 0, 0, 0, 0];
    assert_eq!(read(elements, DataType::Bytes, &[3]), Ok(Bytes::from_static(expected)));
}

#[test]
fn numbers_that_are_not_finite_are_read_in_any_nesting_beside_others() {
    let shape = [2, 3];
    let expected = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 0.0, 1.5, 16_777_217.0];
    let read = read("[[NaN, Infinity,-Infinity],[0E0,15e-1,16777217]]", DataType::Fp32, &shape).expect("numbers");
    let values: Vec<f32> = read.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
    assert_eq!(format!("{values:?}"), format!("{expected:?}"));
}

#[test]
fn lists_may_be_nested_in_any_way_and_their_elements_are_counted() {
    let flat = read("[1,2,3,4]", DataType::Uint8, &[2, 2]);
    assert_eq!(flat, Ok(Bytes::from_static(&[1, 2, 3, 4])));
    assert_eq!(read("[[1,2],[3,4]]", DataType::Uint8, &[2, 2]), flat);
    assert_eq!(read("[[[1],2,[]],[[3,4]]]", DataType::Uint8, &[2, 2]), flat);
    for (text, got) in [("[]", 0), ("[1,2,3]", 3), ("[1,[2,3,4,5]]", 5)] {
        let refused = read(text, DataType::Uint8, &[2, 2]).expect_err(text);
        assert!(refused.ends_with(&format!("expected 4, got {got}")), "{refused}");
    }
    assert!(read("1", DataType::Uint8, &[1]).expect_err("no list").contains("expected a list, got 1"));
    let deep = |depth: usize| format!("{}1{}", "[".repeat(depth), "]".repeat(depth));
    assert_eq!(read(&deep(102), DataType::Uint8, &[1]), Ok(Bytes::from_static(&[1])));
    let refused = read(&deep(103), DataType::Uint8, &[1]).expect_err("too deep");
    assert_eq!(refused, "JSON nesting depth exceeds maximum allowed limit (100)");
}

#[test]
fn a_shape_alone_takes_no_memory() {
    let huge = [1 << 20, 1 << 20, 1 << 20];
    let refused = read("[1]", DataType::Fp64, &huge).expect_err("one element of many");
    assert!(refused.contains("expected 1152921504606846976, got 1"), "{refused}");
    let text: &RawValue = serde_json::from_str("[1]").expect("JSON");
    assert!(elements::built_bytes(text, DataType::Fp64, &huge) <= 16);
}

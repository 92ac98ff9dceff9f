use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use paternoster_model::TensorSpec;

use super::*;
use crate::{
    Kind,
    pb::{InferTensorContents, infer_parameter::ParameterChoice},
    plan::{OutputForm, SelectedOutputs},
    tests::{
        models,
        requests::{Request, fp32, region},
        shm::Object,
        strings,
    },
};

fn decoded(request: Request, spec: &ModelSpec) -> (InferRequest, ResponsePlan) {
    decode(request.0, spec, &SharedMemory::new(true)).expect("a valid request")
}

fn refused(request: Request, spec: &ModelSpec) -> RequestError {
    let refusal = decode(request.0, spec, &SharedMemory::new(true)).expect_err("an invalid request");
    assert_eq!(refusal.kind(), Kind::InvalidArgument, "{refusal}");
    refusal
}

fn data((request, _): &(InferRequest, ResponsePlan), index: usize) -> &Bytes {
    &request.inputs[index].as_ref().expect("the input is there").data
}

#[test]
fn a_raw_payload_is_moved_and_not_copied() {
    let payload = fp32(16);
    let request = Request::new("7").raw("INPUT0", "FP32", &[1, 16], payload.clone());
    let decoded = decoded(request, &models::identity_onnx());
    assert_eq!(data(&decoded, 0).as_ptr(), payload.as_ptr());
    assert_eq!(decoded.0.rows, 1);
    assert_eq!(decoded.0.deadline, None);
    assert_eq!(decoded.1.id, "7");
}

#[test]
fn a_raw_string_payload_is_checked_where_it_is() {
    let payload = Bytes::from(strings::join(&[b"a", b"", b"bc", b"d"]));
    let request = Request::new("").raw("INPUT0", "BYTES", &[2, 2], payload.clone());
    assert_eq!(data(&decoded(request, &models::ident_str()), 0).as_ptr(), payload.as_ptr());
}

#[test]
fn inputs_take_the_order_of_the_model_and_raw_entries_that_of_the_request() {
    let request =
        Request::new("").raw("INPUT1", "FP32", &[1, 16], vec![1; 64]).raw("INPUT0", "FP32", &[1, 16], vec![0; 64]);
    let decoded = decoded(request, &models::addsub());
    assert_eq!(data(&decoded, 0), &vec![0; 64]);
    assert_eq!(data(&decoded, 1), &vec![1; 64]);
}

#[test]
fn the_inputs_of_a_request_share_what_it_may_read_from_shared_memory() {
    let object = Object::new("decode-limit", &[9; 128]);
    let regions = SharedMemory::new(true).with_request_limit(127);
    regions.register("region", object.key(), 0, 128).expect("the object is that long");
    let one = |name, offset| Request::new("").shared(name, "FP32", &[1, 16], region("region", offset, 64));
    let both = one("INPUT0", 0).shared("INPUT1", "FP32", &[1, 16], region("region", 64, 64));
    let refusal = decode(both.0, &models::addsub(), &regions).expect_err("128 bytes of 127");
    assert_eq!(refusal.kind(), Kind::ResourceExhausted);
    assert!(refusal.message().contains("'INPUT1'") && refusal.message().contains("'region'"), "{refusal}");
    decode(one("INPUT0", 64).0, &models::identity_onnx(), &regions).expect("64 bytes of 127");
}

#[test]
fn an_input_in_shared_memory_takes_no_raw_entry() {
    let object = Object::new("decode-mixed", &[9; 128]);
    let regions = SharedMemory::new(true);
    regions.register("region", object.key(), 0, 128).expect("the object is that long");
    let request = Request::new("").shared("INPUT0", "FP32", &[1, 16], region("region", 64, 64)).raw(
        "INPUT1",
        "FP32",
        &[1, 16],
        vec![1; 64],
    );
    let decoded = decode(request.0, &models::addsub(), &regions).expect("a valid request");
    assert_eq!(data(&decoded, 0), &vec![9; 64]);
    assert_eq!(data(&decoded, 1), &vec![1; 64]);
}

#[test]
fn shared_memory_is_checked_as_raw_entries_are() {
    let mut content = strings::join(&[b"a", b"bc"]);
    let length = content.len() as i64;
    content.resize(64, 0);
    let object = Object::new("decode-strings", &content);
    let regions = SharedMemory::new(true);
    regions.register("region", object.key(), 0, 64).expect("the object is that long");
    let strings = |byte_size| {
        let request = Request::new("").shared("INPUT0", "BYTES", &[1, 2], region("region", 0, byte_size));
        decode(request.0, &models::ident_str(), &regions)
    };
    assert_eq!(data(&strings(length).expect("two strings"), 0), &content[..length as usize]);
    assert!(strings(length + 4).expect_err("a third string").message().contains("expected 2 string elements, got 3"));

    let floats = |shape: &[i64], byte_size| {
        let request = Request::new("").shared("INPUT0", "FP32", shape, region("region", 0, byte_size));
        decode(request.0, &models::identity_onnx(), &regions).err().map(|error| error.kind())
    };
    assert_eq!(floats(&[1, 16], 64), None);
    assert_eq!(floats(&[1, 16], 60), Some(Kind::InvalidArgument), "shorter than the shape");
    assert_eq!(floats(&[2, 16], 128), Some(Kind::InvalidArgument), "longer than the region");
}

#[test]
fn an_unknown_region_is_not_found() {
    let request = Request::new("r").shared("INPUT0", "FP32", &[1, 16], region("absent", 0, 64));
    let refusal = decode(request.0, &models::identity_onnx(), &SharedMemory::new(true)).expect_err("unknown");
    assert_eq!(refusal.kind(), Kind::NotFound);
    assert!(refusal.message().contains("'absent'") && refusal.message().contains("'INPUT0'"), "{refusal}");
    assert_eq!(refusal.id(), "r");
}

#[test]
fn contents_go_with_neither_raw_entries_nor_shared_memory() {
    let contents = || InferTensorContents { fp32_contents: vec![0.0; 16], ..InferTensorContents::default() };
    let other_raw =
        Request::new("").typed("INPUT0", "FP32", &[1, 16], contents()).raw("INPUT1", "FP32", &[1, 16], fp32(16));
    assert_eq!(
        refused(other_raw, &models::addsub()).message(),
        "contents field must not be specified when using raw_input_contents for 'INPUT0' for model 'addsub'",
        "official examples compare it"
    );

    let object = Object::new("decode-contents", &[0; 64]);
    let regions = SharedMemory::new(true);
    regions.register("region", object.key(), 0, 64).expect("the object is that long");
    let mut request = Request::new("").shared("INPUT0", "FP32", &[1, 16], region("region", 0, 64));
    request.0.inputs[0].contents = Some(contents());
    let refusal = decode(request.0, &models::identity_onnx(), &regions).expect_err("two payloads");
    assert!(refusal.message().contains("shared memory"), "{refusal}");
}

#[test]
fn an_input_without_payload_is_refused() {
    let mut request = Request::new("").raw("INPUT0", "FP32", &[1, 16], fp32(16));
    request.0.raw_input_contents.clear();
    assert!(refused(request, &models::identity_onnx()).message().contains("unable to find data"));
}

#[test]
fn typed_contents_equal_raw_for_every_datatype_that_has_a_field() {
    let none = InferTensorContents::default;
    let ints = [-128, -1, 0, 1, 127];
    let uints = [0, 1, 2, 254, 255];
    let le = |values: &[i64], size: usize| -> Vec<u8> {
        values.iter().flat_map(|value| value.to_le_bytes()[..size].to_vec()).collect()
    };
    let int64s: Vec<i64> = ints.iter().map(|value| i64::from(*value)).collect();
    let uint64s: Vec<i64> = uints.iter().map(|value| i64::from(*value)).collect();
    let floats = [-1.5, 0.0, 1e-30, f32::MAX, f32::INFINITY];
    let doubles = [-1.5, 0.0, 1e-300, f64::MAX, f64::NEG_INFINITY];
    let texts: [&[u8]; 5] = [b"a", b"", b"bc", b"\xff\x00", b"d"];
    let int = || InferTensorContents { int_contents: ints.to_vec(), ..none() };
    let uint = || InferTensorContents { uint_contents: uints.to_vec(), ..none() };
    let cases = [
        (
            DataType::Bool,
            InferTensorContents { bool_contents: vec![true, false, true, true, false], ..none() },
            vec![1, 0, 1, 1, 0],
        ),
        (DataType::Int8, int(), le(&int64s, 1)),
        (DataType::Int16, int(), le(&int64s, 2)),
        (DataType::Int32, int(), le(&int64s, 4)),
        (DataType::Int64, InferTensorContents { int64_contents: int64s.clone(), ..none() }, le(&int64s, 8)),
        (DataType::Uint8, uint(), le(&uint64s, 1)),
        (DataType::Uint16, uint(), le(&uint64s, 2)),
        (DataType::Uint32, uint(), le(&uint64s, 4)),
        (
            DataType::Uint64,
            InferTensorContents { uint64_contents: uints.map(u64::from).to_vec(), ..none() },
            le(&uint64s, 8),
        ),
        (
            DataType::Fp32,
            InferTensorContents { fp32_contents: floats.to_vec(), ..none() },
            floats.iter().flat_map(|value| value.to_le_bytes()).collect(),
        ),
        (
            DataType::Fp64,
            InferTensorContents { fp64_contents: doubles.to_vec(), ..none() },
            doubles.iter().flat_map(|value| value.to_le_bytes()).collect(),
        ),
        (
            DataType::Bytes,
            InferTensorContents { bytes_contents: texts.map(Bytes::from_static).to_vec(), ..none() },
            strings::join(&texts),
        ),
    ];
    for (datatype, contents, raw) in cases {
        let spec = models::identity("typed", 0, datatype, &[5]);
        let name = datatype.as_str();
        let from_typed = decoded(Request::new("").typed("INPUT0", name, &[5], contents), &spec);
        let from_raw = decoded(Request::new("").raw("INPUT0", name, &[5], raw), &spec);
        assert_eq!(data(&from_typed, 0), data(&from_raw, 0), "{name}");
    }
}

#[test]
fn half_floats_have_no_field() {
    let contents = InferTensorContents { fp32_contents: vec![0.0; 2], ..InferTensorContents::default() };
    for datatype in [DataType::Fp16, DataType::Bf16] {
        let spec = models::identity("half", 0, datatype, &[2]);
        let typed = Request::new("").typed("INPUT0", datatype.as_str(), &[2], contents.clone());
        let refusal = refused(typed, &spec);
        assert!(refusal.message().contains("'FP32'") && refusal.message().contains(datatype.as_str()), "{refusal}");
        decoded(Request::new("").raw("INPUT0", datatype.as_str(), &[2], vec![0; 4]), &spec);
    }
}

#[test]
fn typed_values_that_do_not_fit_their_datatype_are_refused() {
    let none = InferTensorContents::default;
    let cases = [
        (DataType::Int8, InferTensorContents { int_contents: vec![0, 128], ..none() }, "128 at index 1"),
        (DataType::Int16, InferTensorContents { int_contents: vec![-32_769, 0], ..none() }, "-32769 at index 0"),
        (DataType::Uint8, InferTensorContents { uint_contents: vec![256, 0], ..none() }, "256 at index 0"),
        (DataType::Uint16, InferTensorContents { uint_contents: vec![0, 65_536], ..none() }, "65536 at index 1"),
    ];
    for (datatype, contents, fact) in cases {
        let spec = models::identity("narrow", 0, datatype, &[2]);
        let refusal = refused(Request::new("").typed("INPUT0", datatype.as_str(), &[2], contents), &spec);
        assert!(refusal.message().contains(fact), "{refusal}");
    }
}

#[test]
fn a_model_without_batch_axis_has_one_row() {
    let request = Request::new("").raw("INPUT0", "FP32", &[1, 16], fp32(16));
    assert_eq!(decoded(request, &models::identity_nobatch()).0.rows, 1);
}

#[test]
fn rows_are_the_batch_dimension() {
    let request = Request::new("").raw("INPUT0", "FP32", &[64, 16], fp32(64 * 16));
    assert_eq!(decoded(request, &models::identity_onnx()).0.rows, 64);
}

#[test]
fn shapes_that_cannot_be_counted_are_refused_without_overflow() {
    let spec = models::identity("huge", u32::MAX, DataType::Fp64, &[-1, -1, -1]);
    for shape in [
        [1, 1 << 31, 1 << 31, 1 << 31],
        [1, i64::MAX, i64::MAX, i64::MAX],
        [1, -1, -1, 1],
        [1, i64::MIN, 1, 1],
        [u32::MAX.into(), 1 << 40, 1, 1],
        [1, 1 << 62, 1 << 62, 0],
        [1, i64::MAX, 0, 0],
        [0, 1, 1, 1],
        [-1, 1, 1, 1],
        [i64::MAX, 1, 1, 1],
    ] {
        refused(Request::new("").raw("INPUT0", "FP64", &shape, vec![]), &spec);
    }
}

#[test]
fn a_variable_dimension_may_be_zero() {
    let request = Request::new("").raw("INPUT0", "INT64", &[2, 0], vec![]);
    assert_eq!(decoded(request, &models::ident_var()).0.rows, 2);
}

#[test]
fn an_input_may_not_come_twice() {
    let request = Request::new("").raw("INPUT0", "FP32", &[1, 16], fp32(16)).raw("INPUT0", "FP32", &[1, 16], fp32(16));
    assert!(refused(request, &models::identity_onnx()).message().contains("'INPUT0'"));
}

#[test]
fn an_unknown_input_is_named() {
    let request = Request::new("").raw("INPUT0", "FP32", &[1, 16], fp32(16)).raw("X", "FP32", &[1, 16], fp32(16));
    let refusal = refused(request, &models::identity_onnx());
    assert_eq!(
        refusal.message(),
        "[request id: <id_unknown>] expected 1 inputs but got 2 inputs for model 'identity_onnx'. Got input(s) \
         ['INPUT0','X'], but missing required input(s) []"
    );
}

#[test]
fn an_unknown_input_in_the_place_of_another_is_named_without_the_request_as_triton_names_it() {
    let refusal = refused(Request::new("q").raw("X", "FP32", &[1, 16], fp32(16)), &models::identity_onnx());
    assert_eq!(refusal.message(), "unexpected inference input 'X' for model 'identity_onnx'");
    assert_eq!(refusal.id(), "q");
}

#[test]
fn missing_inputs_are_listed_and_optional_ones_are_not() {
    let request = Request::new("").raw("attention_mask", "INT64", &[1, 2], vec![0; 16]);
    let refusal = refused(request, &models::padded());
    assert!(refusal.message().contains("expected number of inputs between 2 and 3 but got 1 inputs"), "{refusal}");
    assert!(refusal.message().contains("Got input(s) ['attention_mask']"), "{refusal}");
    assert!(refusal.message().contains("missing required input(s) ['input_ids']"), "{refusal}");
}

#[test]
fn an_optional_input_may_be_left_out() {
    let request = Request::new("").raw("input_ids", "INT64", &[1, 2], vec![0; 16]).raw(
        "attention_mask",
        "INT64",
        &[1, 2],
        vec![0; 16],
    );
    assert!(decoded(request, &models::padded()).0.inputs[2].is_none());
}

#[test]
fn a_request_of_optional_inputs_alone_may_be_empty_and_is_one_row() {
    let optional = TensorSpec { optional: true, ..TensorSpec::new("INPUT0", DataType::Fp32, &[1]) };
    let spec = models::model("optional", 8, vec![optional], Vec::new());
    assert_eq!(decoded(Request::new(""), &spec).0.rows, 1);
}

#[test]
fn lengths_along_one_padded_axis_agree() {
    let request = Request::new("").raw("input_ids", "INT64", &[1, 3], vec![0; 24]).raw(
        "attention_mask",
        "INT64",
        &[1, 2],
        vec![0; 16],
    );
    let refusal = refused(request, &models::padded());
    for fact in ["'attention_mask'", "'sequence'", "length 2", "from 3"] {
        assert!(refusal.message().contains(fact), "{fact}: {refusal}");
    }
}

#[test]
fn a_padded_length_fits_the_core_even_where_the_tensor_is_empty() {
    let mut spec = models::padded();
    for tensor in &mut spec.inputs {
        tensor.dims.push(-1);
        tensor.symbols.push(None);
    }
    let shape = [1, 1 << 32, 0];
    let request =
        Request::new("").raw("input_ids", "INT64", &shape, vec![]).raw("attention_mask", "INT64", &shape, vec![]);
    assert!(refused(request, &spec).message().contains("'sequence' is too large"));
}

#[test]
fn priority_and_timeout_reach_the_executor() {
    let request = Request::new("")
        .raw("INPUT0", "FP32", &[1, 16], fp32(16))
        .with("priority", ParameterChoice::Uint64Param(u64::MAX))
        .with("timeout", ParameterChoice::Int64Param(250));
    let decoded = decoded(request, &models::identity_onnx());
    assert_eq!(decoded.0.priority, u64::MAX);
    assert_eq!(decoded.0.queue_timeout, Some(Duration::from_micros(250)));
}

#[test]
fn an_empty_final_response_is_had_on_request_only() {
    let request = || Request::new("").raw("INPUT0", "FP32", &[1, 16], fp32(16));
    assert!(!decoded(request(), &models::decoupled_py()).1.enable_empty_final_response);
    let asked = request().with("triton_enable_empty_final_response", ParameterChoice::BoolParam(true));
    assert!(decoded(asked, &models::decoupled_py()).1.enable_empty_final_response);
}

fn addsub_request() -> Request {
    Request::new("").raw("INPUT0", "FP32", &[1, 16], fp32(16)).raw("INPUT1", "FP32", &[1, 16], fp32(16))
}

fn selected((_, reply): (InferRequest, ResponsePlan)) -> Vec<(usize, OutputForm)> {
    match reply.outputs {
        SelectedOutputs::All => panic!("some outputs were asked for"),
        SelectedOutputs::Some(plans) => plans.into_iter().map(|plan| (plan.index, plan.form)).collect(),
    }
}

#[test]
fn without_requested_outputs_all_are_sent() {
    assert!(matches!(decoded(addsub_request(), &models::addsub()).1.outputs, SelectedOutputs::All));
}

#[test]
fn requested_outputs_take_the_order_of_the_model() {
    let request = addsub_request()
        .output("OUTPUT1", vec![])
        .output("OUTPUT0", vec![("binary_data", ParameterChoice::BoolParam(false))]);
    let plans = selected(decoded(request, &models::addsub()));
    assert_eq!(plans, [(0, OutputForm::Raw), (1, OutputForm::Raw)]);
}

fn classes(count: i64) -> Vec<(&'static str, ParameterChoice)> {
    vec![("classification", ParameterChoice::Int64Param(count))]
}

#[test]
fn a_classification_has_a_count_and_an_output_with_an_order() {
    let request = addsub_request().output("OUTPUT1", classes(3));
    assert_eq!(
        selected(decoded(request, &models::addsub())),
        [(1, OutputForm::Classes { count: 3, labels: Arc::default() })]
    );
    for count in [0, -1] {
        refused(addsub_request().output("OUTPUT1", classes(count)), &models::addsub());
    }
    let text = vec![("classification", ParameterChoice::StringParam("3".to_owned()))];
    refused(addsub_request().output("OUTPUT1", text), &models::addsub());
    let payload = strings::join(&[b"", b""]);
    let bytes = Request::new("").raw("INPUT0", "BYTES", &[1, 2], payload).output("OUTPUT0", classes(1));
    assert!(refused(bytes, &models::ident_str()).message().contains("'BYTES'"));
}

#[test]
fn an_output_cannot_be_asked_for_twice_or_in_two_forms() {
    for second in [vec![], classes(3)] {
        let twice = addsub_request().output("OUTPUT1", classes(3)).output("OUTPUT1", second);
        let refusal = refused(twice, &models::addsub());
        assert!(refusal.message().ends_with("output 'OUTPUT1' already exists in request"), "{}", refusal.message());
    }

    let object = Object::new("decode-two-forms", &[0; 64]);
    let regions = SharedMemory::new(true);
    regions.register("region", object.key(), 0, 64).expect("the object is that long");
    let both = classes(3).into_iter().chain(region("region", 0, 64)).collect();
    let refusal = decode(addsub_request().output("OUTPUT1", both).0, &models::addsub(), &regions);
    assert_eq!(refusal.expect_err("two forms").kind(), Kind::InvalidArgument);
}

#[test]
fn an_output_region_is_looked_up_before_the_request_runs() {
    let request = addsub_request().output("OUTPUT0", region("absent", 0, 64));
    let refusal = decode(request.0, &models::addsub(), &SharedMemory::new(true)).expect_err("unknown");
    assert_eq!(refusal.kind(), Kind::NotFound);
}

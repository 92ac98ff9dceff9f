use std::sync::Arc;

use paternoster_model::{CorrelationId, Dims, InSequence};

use super::*;
use crate::{
    SharedMemory,
    plan::OutputPlan,
    tests::{models, shm::Object, strings},
};

fn tensor(shape: &[i64], data: &[u8]) -> OutputTensor {
    OutputTensor { shape: Dims::from_slice(shape), data: Bytes::copy_from_slice(data) }
}

fn response() -> Response {
    Response { outputs: vec![tensor(&[1, 16], &[1; 64]), tensor(&[1, 16], &[2; 64])] }
}

fn plan(outputs: SelectedOutputs) -> ResponsePlan {
    ResponsePlan { id: "7".to_owned(), outputs, enable_empty_final_response: false, parameters: HashMap::new() }
}

fn only(index: usize, form: OutputForm) -> ResponsePlan {
    plan(SelectedOutputs::Some([OutputPlan { index, form }].into_iter().collect()))
}

fn names(response: &ModelInferResponse) -> Vec<&str> {
    response.outputs.iter().map(|output| output.name.as_str()).collect()
}

#[test]
fn all_outputs_are_sent_raw_and_share_the_memory_of_the_batch() {
    let outputs = response();
    let batch: Vec<*const u8> = outputs.outputs.iter().map(|output| output.data.as_ptr()).collect();
    let reply = encode(&models::addsub(), &plan(SelectedOutputs::All), outputs).expect("outputs of this model");
    assert_eq!((reply.id.as_str(), reply.model_name.as_str(), reply.model_version.as_str()), ("7", "addsub", "1"));
    assert_eq!(names(&reply), ["OUTPUT0", "OUTPUT1"]);
    assert_eq!(reply.outputs[0].datatype, "FP32");
    assert_eq!(reply.outputs[0].shape, [1, 16]);
    assert_eq!(reply.outputs[0].contents, None);
    let sent: Vec<*const u8> = reply.raw_output_contents.iter().map(|raw| raw.as_ptr()).collect();
    assert_eq!(sent, batch);
}

#[test]
fn a_selection_leaves_the_other_outputs_out() {
    let reply = encode(&models::addsub(), &only(1, OutputForm::Raw), response()).expect("outputs of this model");
    assert_eq!(names(&reply), ["OUTPUT1"]);
    assert_eq!(reply.raw_output_contents, [vec![2; 64]]);
}

#[test]
fn a_classification_is_a_tensor_of_strings() {
    let labels = ["zero".to_owned(), "one".to_owned()].into();
    let values: Vec<u8> = [0.25_f32, 0.75].iter().flat_map(|value| value.to_le_bytes()).collect();
    let outputs = vec![tensor(&[1, 2], &values), tensor(&[1, 2], &values)];
    let reply = encode(&models::addsub(), &only(0, OutputForm::Classes { count: 1, labels }), Response { outputs });
    let reply = reply.expect("outputs of this model");
    assert_eq!(reply.outputs[0].datatype, "BYTES");
    assert_eq!(reply.outputs[0].shape, [1, 1]);
    assert_eq!(strings::split(&reply.raw_output_contents[0]), ["0.750000:1:one"]);
}

#[test]
fn a_reply_names_the_sequence_if_it_is_to() {
    let named = |sequence: Option<InSequence>| {
        let mut plan = plan(SelectedOutputs::All);
        plan.name_sequence(sequence.as_ref());
        let reply = encode(&models::addsub(), &plan, response()).expect("outputs of this model");
        let value = |key: &str| reply.parameters[key].parameter_choice.clone().expect("a value");
        assert_eq!(reply.parameters.len(), 3);
        ["sequence_id", "sequence_start", "sequence_end"].map(value)
    };
    let (int64, flag) = (ParameterChoice::Int64Param, ParameterChoice::BoolParam);
    assert_eq!(named(None), [int64(0), flag(false), flag(false)]);
    let first = InSequence { id: CorrelationId::Number(u64::MAX), starts: true, ends: false };
    assert_eq!(named(Some(first)), [int64(-1), flag(true), flag(false)], "as it was sent");
    let last = InSequence { id: CorrelationId::Text("one".into()), starts: false, ends: true };
    assert_eq!(named(Some(last)), [ParameterChoice::StringParam("one".to_owned()), flag(false), flag(true)]);
}

#[test]
fn a_row_of_more_than_a_million_elements_is_not_ranked() {
    let classify = |rows: i64, elements: i64| {
        let output = tensor(&[rows, elements], &vec![0; (rows * elements * 4) as usize]);
        let outputs = vec![output.clone(), output];
        encode(
            &models::addsub(),
            &only(0, OutputForm::Classes { count: 1, labels: Arc::default() }),
            Response { outputs },
        )
    };
    assert_eq!(classify(2, 1_000_000).expect("a million in each row").outputs[0].shape, [2, 1]);
    let refusal = classify(1, 1_000_001).expect_err("one more");
    assert_eq!(refusal.kind(), Kind::InvalidArgument);
    assert!(refusal.message().contains("output 'OUTPUT0' for model 'addsub': classification output tensor too large"));
}

#[test]
fn an_output_in_shared_memory_leaves_an_empty_entry_that_says_where_it_is() {
    let object = Object::new("encode-shared", &[0; 128]);
    let regions = SharedMemory::new(true);
    regions.register("region", object.key(), 0, 128).expect("the object is that long");
    let region = regions.slice("region", 32, 96).expect("within the region");
    let form = |index, form| OutputPlan { index, form };
    let outputs = [form(0, OutputForm::SharedMemory(region)), form(1, OutputForm::Raw)];
    let plan = plan(SelectedOutputs::Some(outputs.into_iter().collect()));
    let reply = encode(&models::addsub(), &plan, response()).expect("outputs of this model");

    assert_eq!(names(&reply), ["OUTPUT0", "OUTPUT1"]);
    assert_eq!(reply.raw_output_contents, [vec![], vec![2; 64]], "raw entries stay at their output's position");
    let parameter = |key: &str| reply.outputs[0].parameters[key].parameter_choice.clone();
    assert_eq!(parameter("shared_memory_region"), Some(ParameterChoice::StringParam("region".to_owned())));
    assert_eq!(parameter("shared_memory_offset"), Some(ParameterChoice::Int64Param(32)));
    assert_eq!(parameter("shared_memory_byte_size"), Some(ParameterChoice::Int64Param(64)));
    assert_eq!(object.content(), [vec![0; 32], vec![1; 64], vec![0; 32]].concat());
}

#[test]
fn a_region_that_is_too_small_is_refused_with_both_sizes() {
    let object = Object::new("encode-small", &[0; 64]);
    let regions = SharedMemory::new(true);
    regions.register("region", object.key(), 0, 64).expect("the object is that long");
    let region = regions.slice("region", 0, 63).expect("within the region");
    let refusal = encode(&models::addsub(), &only(0, OutputForm::SharedMemory(region)), response());
    let refusal = refusal.expect_err("64 bytes do not fit");
    assert_eq!(refusal.kind(), Kind::InvalidArgument);
    assert_eq!(refusal.id(), "7");
    for fact in ["'OUTPUT0'", "63 bytes", "64 bytes", "'region'"] {
        assert!(refusal.message().contains(fact), "{fact}: {refusal}");
    }
    assert_eq!(object.content(), [0; 64]);
}

#[test]
fn a_request_in_flight_keeps_its_region_when_it_is_unregistered() {
    let object = Object::new("encode-unregistered", &[0; 64]);
    let regions = SharedMemory::new(true);
    regions.register("region", object.key(), 0, 64).expect("the object is that long");
    let plan = only(0, OutputForm::SharedMemory(regions.slice("region", 0, 64).expect("within the region")));
    regions.unregister("region");
    encode(&models::addsub(), &plan, response()).expect("the plan holds the region");
    assert_eq!(object.content(), [1; 64]);
}

#[test]
fn a_response_of_another_model_is_an_internal_error() {
    let outputs = vec![tensor(&[1, 16], &[0; 64])];
    let wrong = encode(&models::addsub(), &plan(SelectedOutputs::All), Response { outputs });
    assert_eq!(wrong.expect_err("one output of two").kind(), Kind::Internal);
    let outputs = vec![tensor(&[1, 16], &[0; 60]), tensor(&[1, 16], &[0; 64])];
    let wrong = encode(
        &models::addsub(),
        &only(0, OutputForm::Classes { count: 1, labels: Arc::default() }),
        Response { outputs },
    );
    assert_eq!(wrong.expect_err("fewer bytes than its shape").kind(), Kind::Internal);
}

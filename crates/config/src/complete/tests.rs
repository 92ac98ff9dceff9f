use paternoster_batching::PolicyKind;
use paternoster_model::DataType;
use serde_json::json;

use super::*;
use crate::{ConfigErrorKind::Graph, json as config_json, pbtxt, tests::refusals::Refusals, yaml};

fn symbol(name: &str) -> PortDim {
    PortDim::Symbol(name.to_owned())
}

fn identity(dims: &[PortDim]) -> Signature {
    let [input, output] = ["INPUT0", "OUTPUT0"].map(|name| Port::tensor(name, DataType::Fp32, dims));
    Signature { inputs: vec![input], outputs: vec![output], ..Signature::default() }
}

fn completed(model: &str, text: &str, signature: &Signature) -> serde_json::Value {
    let (mut config, origin) = pbtxt::parse("config.pbtxt", text.as_bytes()).unwrap();
    defaults(&mut config, model);
    kinds(&mut config.config, false);
    from_graph(&mut config, signature, DEFAULT_MAX_BATCH_SIZE, &origin).unwrap();
    name_axes(&mut config, signature);
    scheduler(&mut config);
    config_json::write(&config.shown()).unwrap()
}

#[test]
fn the_default_largest_batch_is_that_of_models_that_can_batch_and_do_not_say() {
    let sized = |text: &str, default_size: i32, dims: &[PortDim]| {
        let (mut config, origin) = pbtxt::parse("config.pbtxt", text.as_bytes()).unwrap();
        defaults(&mut config, "m");
        from_graph(&mut config, &identity(dims), default_size, &origin).unwrap();
        let config = config.config;
        let dims = config.input[0].dims.clone();
        (config.max_batch_size, config.scheduling_choice.is_some(), dims)
    };
    let batching = [symbol("batch"), PortDim::Fixed(16)];
    assert_eq!(sized("", 32, &batching), (32, true, vec![16]));
    assert_eq!(sized("", 1, &batching), (1, false, vec![16]));
    assert_eq!(sized("", 0, &batching), (0, false, vec![-1, 16]));
    assert_eq!(sized("max_batch_size: 2", 32, &batching), (2, true, vec![16]), "it says its own");
    assert_eq!(sized("", 32, &[PortDim::Fixed(1), PortDim::Fixed(16)]), (0, false, vec![1, 16]), "it cannot batch");
}

#[test]
fn a_model_without_configuration_looks_as_triton_shows_it() {
    let signature = identity(&[symbol("batch"), PortDim::Fixed(16)]);
    let measured = json!({
        "backend": "onnxruntime",
        "default_model_filename": "model.onnx",
        "dynamic_batching": {"preferred_batch_size": [4]},
        "input": [{"data_type": "TYPE_FP32", "dims": ["16"], "name": "INPUT0"}],
        "instance_group": [{"count": 2, "kind": "KIND_CPU", "name": "identity_auto"}],
        "max_batch_size": 4,
        "name": "identity_auto",
        "optimization": {"input_pinned_memory": {"enable": true}, "output_pinned_memory": {"enable": true}},
        "output": [{"data_type": "TYPE_FP32", "dims": ["16"], "name": "OUTPUT0"}],
        "platform": "onnxruntime_onnx",
        "version_policy": {"latest": {"num_versions": 1}}
    });
    assert_eq!(completed("identity_auto", "", &signature), measured);
}

#[test]
fn a_model_without_a_batch_axis_looks_as_triton_shows_it() {
    let signature = identity(&[PortDim::Fixed(1), PortDim::Fixed(16)]);
    let text = "backend: \"onnxruntime\" input [ { name: \"INPUT0\" data_type: TYPE_FP32 dims: [ 1, 16 ] } ]
                output [ { name: \"OUTPUT0\" data_type: TYPE_FP32 dims: [ 1, 16 ] } ]";
    let measured = json!({
        "backend": "onnxruntime",
        "default_model_filename": "model.onnx",
        "input": [{"data_type": "TYPE_FP32", "dims": ["1", "16"], "name": "INPUT0"}],
        "instance_group": [{"count": 2, "kind": "KIND_CPU", "name": "identity_nobatch"}],
        "name": "identity_nobatch",
        "optimization": {"input_pinned_memory": {"enable": true}, "output_pinned_memory": {"enable": true}},
        "output": [{"data_type": "TYPE_FP32", "dims": ["1", "16"], "name": "OUTPUT0"}],
        "platform": "onnxruntime_onnx",
        "version_policy": {"latest": {"num_versions": 1}}
    });
    assert_eq!(completed("identity_nobatch", text, &signature), measured);
}

#[test]
fn a_decoupled_model_of_another_backend_has_one_instance_and_no_platform() {
    let text = "backend: \"repeat\" max_batch_size: 8 model_transaction_policy { decoupled: true }";
    let shown = completed("r", text, &Signature::default());
    assert_eq!(shown["instance_group"], json!([{"count": 1, "kind": "KIND_CPU", "name": "r"}]));
    assert_eq!((&shown["platform"], &shown["default_model_filename"]), (&json!(null), &json!(null)));
}

#[test]
fn a_partial_configuration_keeps_what_it_says() {
    let signature = identity(&[symbol("batch"), PortDim::Fixed(16)]);
    let shown = completed("m", "max_batch_size: 2", &signature);
    assert_eq!(shown["max_batch_size"], 2);
    assert_eq!(
        shown["dynamic_batching"],
        json!({"preferred_batch_size": [2]}),
        "batching is completed with the tensors"
    );
    let shown = completed("m", "max_batch_size: 1", &signature);
    assert_eq!(shown.get("dynamic_batching"), None, "nothing to batch");
    let named = "input { name: \"INPUT0\" } output { name: \"OUTPUT0\" } max_batch_size: 8";
    let shown = completed("m", named, &signature);
    assert_eq!(shown["input"], json!([{"data_type": "TYPE_FP32", "dims": ["16"], "name": "INPUT0"}]));
    assert_eq!(shown.get("dynamic_batching"), None, "with its tensors listed a model stays serial");
    let grouped = completed("m", "instance_group [ { count: 3 }, { kind: KIND_CPU } ]", &signature);
    let groups = json!([
        {"count": 3, "kind": "KIND_CPU", "name": "m_0"},
        {"count": 2, "kind": "KIND_CPU", "name": "m_1"}
    ]);
    assert_eq!(grouped["instance_group"], groups);
}

#[test]
fn a_fixed_first_axis_on_any_tensor_is_no_batch() {
    let mut signature = identity(&[symbol("batch"), PortDim::Fixed(16)]);
    assert!(can_batch(&signature));
    signature.outputs[0].dims = Some(vec![PortDim::Fixed(16)]);
    assert!(!can_batch(&signature));
    signature.outputs[0].dims = Some(vec![PortDim::Fixed(-1)]);
    assert!(can_batch(&signature), "some exporters write -1 for a size that varies");
    signature.outputs[0].dims = Some(Vec::new());
    assert!(!can_batch(&signature), "a scalar");
    signature.outputs[0].dims = None;
    assert!(!can_batch(&signature), "a shape that is not known");
    assert!(!can_batch(&Signature::default()), "no tensors at all");
    let square = Signature { needs_square: true, ..identity(&[symbol("n"), symbol("n")]) };
    assert!(!can_batch(&square), "requests of other sizes do not fit");
}

#[test]
fn a_tensor_of_batch_rows_alone_is_reshaped() {
    let shown = completed("m", "", &identity(&[PortDim::Unknown]));
    assert_eq!(shown["input"][0]["dims"], json!(["1"]));
    assert_eq!(shown["input"][0]["reshape"], json!({}));
}

#[test]
fn without_a_batch_axis_a_scalar_is_one_element() {
    let mut signature = identity(&[symbol("n")]);
    signature.inputs[0].dims = Some(Vec::new());
    let shown = completed("m", "", &signature);
    assert_eq!(shown["input"], json!([{"data_type": "TYPE_FP32", "dims": ["1"], "name": "INPUT0"}]));
    assert_eq!(shown["output"][0]["dims"], json!(["-1"]));
}

#[test]
fn an_output_of_unknown_rank_has_any_length() {
    let mut signature = identity(&[symbol("n")]);
    signature.outputs[0].dims = None;
    let shown = completed("m", "", &signature);
    assert_eq!(shown["output"], json!([{"data_type": "TYPE_FP32", "dims": ["-1"], "name": "OUTPUT0"}]));
    let listed = "input { name: \"INPUT0\" } output { name: \"OUTPUT0\" data_type: TYPE_FP32 dims: 1 }";
    for (text, asks) in [("", true), ("output { name: \"OUTPUT0\" dims: 1 }", true), (listed, false)] {
        let (config, _) = pbtxt::parse("config.pbtxt", text.as_bytes()).expect("it is sound");
        assert_eq!(lacks_shapes(&config.config, &signature), asks, "{text}");
    }
}

#[test]
fn inputs_with_a_default_are_completed_only_where_they_are_listed() {
    let mut signature = identity(&[PortDim::Fixed(2)]);
    let bias = Port { name: "BIAS".to_owned(), ..signature.inputs[0].clone() };
    signature.optional_inputs.push(bias);
    assert_eq!(completed("m", "", &signature)["input"].as_array().map(Vec::len), Some(1));
    let listed = "input { name: \"INPUT0\" } input { name: \"BIAS\" optional: true }";
    let bias = json!({"data_type": "TYPE_FP32", "dims": ["2"], "name": "BIAS", "optional": true});
    assert_eq!(completed("m", listed, &signature)["input"][1], bias);
}

pub(crate) fn refusals(all: &mut Refusals) {
    all.title("what the graph does not say");
    let complete = |text: &str, signature: &Signature| {
        let (mut config, origin) = pbtxt::parse("config.pbtxt", text.as_bytes())?;
        from_graph(&mut config, signature, DEFAULT_MAX_BATCH_SIZE, &origin)
    };
    let mut typed = identity(&[symbol("batch"), PortDim::Fixed(16)]);
    typed.inputs[0].datatype = None;
    all.add(Graph, "input[0]", "an input of a type that the protocol lacks", complete("", &typed));
    let mut ranked = identity(&[symbol("n")]);
    ranked.outputs[0].dims = None;
    all.add(Graph, "output[0]", "an output of unknown rank in a batch", complete("max_batch_size: 2", &ranked));
}

#[test]
fn the_graphs_names_stand_for_padded_axes() {
    let signature = identity(&[symbol("batch"), symbol("seq"), PortDim::Fixed(2)]);
    let plain = completed("m", "", &signature);
    assert_eq!(plain.get("parameters"), None, "nothing is padded");
    let padded = "parameters { key: \"pad.INPUT0\" value { string_value: \"seq\" } }";
    let shown = completed("m", padded, &signature);
    assert_eq!(shown["parameters"]["axes.INPUT0"]["string_value"], "seq,-");
    assert_eq!(shown["parameters"]["axes.OUTPUT0"]["string_value"], "seq,-");
}

#[test]
fn auto_batches_where_the_model_can() {
    let shown = |text: &str| {
        let (mut config, _) = yaml::parse("model.yaml", text.as_bytes()).unwrap();
        scheduler(&mut config);
        config_json::write(&config.shown()).unwrap()
    };
    assert_eq!(shown("max_batch_size: 8")["dynamic_batching"], json!({"preferred_batch_size": [8]}));
    assert_eq!(shown("max_batch_size: 0").get("dynamic_batching"), None);
    assert_eq!(shown("{ max_batch_size: 8, batching: { policy: serial } }").get("dynamic_batching"), None);
}

#[test]
fn policies_without_a_window_get_no_preferred_size() {
    let windows = [PolicyKind::Serial, PolicyKind::Window, PolicyKind::Cellular];
    for policy in PolicyKind::ALL.iter().filter(|kind| !windows.contains(kind)).map(|kind| kind.name()) {
        let text = format!(
            "max_batch_size: 8 parameters {{ key: \"batching.policy\" value {{ string_value: \"{policy}\" }} }}"
        );
        let (mut config, _) = pbtxt::parse("config.pbtxt", text.as_bytes()).unwrap();
        scheduler(&mut config);
        assert_eq!(config_json::write(&config.shown()).unwrap()["dynamic_batching"], json!({}), "{policy}");
    }
}

/// Returns the axes of the output of a padded model. The output's axis is `name` in the graph, and its inferred length
/// `inferred`. `padded` is the padded axis, which the graph calls T.
fn output_axes(padded: &str, name: &str, inferred: Option<&str>, more: &str) -> Option<String> {
    let input = Port::tensor("speech", DataType::Fp32, &[symbol("batch"), symbol("T"), symbol("L")]);
    let output = Port::tensor("probs", DataType::Fp32, &[symbol("batch"), symbol(name)]);
    let lengths = inferred.map(|length| ("probs".to_owned(), vec![None, Some(length.to_owned())]));
    let inferred_lengths = lengths.into_iter().collect();
    let signature = Signature { inputs: vec![input], outputs: vec![output], inferred_lengths, ..Signature::default() };
    let pad = format!("parameters {{ key: \"pad.speech\" value {{ string_value: \"{padded}\" }} }}");
    let shown = completed("m", &format!("max_batch_size: 4 {pad} {more}"), &signature);
    shown["parameters"]["axes.probs"]["string_value"].as_str().map(str::to_owned)
}

#[test]
fn outputs_of_a_padded_model_are_named_by_their_lengths() {
    let axes = |name: &str, inferred: Option<&str>| output_axes("T", name, inferred, "");
    assert_eq!(axes("T", None).as_deref(), Some("T"));
    assert_eq!(axes("L", None).as_deref(), Some("L"), "the axis of an input");
    assert_eq!(axes("frames", Some("((1 + T)//2)")).as_deref(), Some("((1 + T)//2)"));
    assert_eq!(axes("frames", Some("L")).as_deref(), Some("L"));
    assert_eq!(axes("frames", Some("29")).as_deref(), Some("frames"), "it does not vary");
    assert_eq!(axes("T//2", Some("((1 + T)//2)")).as_deref(), Some("((1 + T)//2)"), "operators count, not names");
    assert_eq!(axes("T//2", None).as_deref(), Some("T//2"));
    assert_eq!(axes("batch", None), None, "the number of rows is no length of a request");
    for unknown in ["frames", "frames//2", "T + L"] {
        assert_eq!(axes(unknown, None), None, "{unknown} may depend on T");
    }
    let own = "parameters { key: \"axes.probs\" value { string_value: \"own\" } }";
    let named = output_axes("T", "frames", Some("((1 + T)//2)"), own);
    assert_eq!(named.as_deref(), Some("own"), "the configuration says so");
}

#[test]
fn lengths_of_outputs_use_the_names_that_the_configuration_gives_to_inputs() {
    let renamed = "parameters { key: \"axes.speech\" value { string_value: \"tokens,-\" } }";
    let axes = |name: &str, inferred: Option<&str>| output_axes("tokens", name, inferred, renamed);
    assert_eq!(axes("T", None).as_deref(), Some("tokens"));
    assert_eq!(axes("frames", Some("((1 + T)//2)")).as_deref(), Some("((1 + tokens)//2)"));
}

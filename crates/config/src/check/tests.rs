use paternoster_model::DataType;
use paternoster_onnx::{Port, PortDim, Signature};

use super::*;
use crate::{
    ConfigErrorKind::{Unknown, Value},
    pbtxt,
    tests::refusals::{Refusals, part},
    values::stays_inside,
};

const INPUT: &str = "input { name: \"x\" data_type: TYPE_FP32 dims: [ 4 ] }\n";
/// What identifies a metric of Triton's.
const FAMILY: &str = "metric_identifier { family: \"nv_inference_first_response_histogram_ms\" }";
const OUTPUT: &str = "output { name: \"y\" data_type: TYPE_FP32 dims: [ 4 ] }\n";

fn read(text: &str) -> (Settings, Origin) {
    pbtxt::parse("config.pbtxt", text.as_bytes()).unwrap_or_else(|fault| panic!("{fault}"))
}

fn consistently(text: &str) -> Result<(), ConfigError> {
    let (config, origin) = pbtxt::parse("config.pbtxt", text.as_bytes())?;
    consistent(&config, None, &origin)
}

fn agrees(text: &str) {
    let (config, origin) = read(text);
    supported(&config.config, "m", &origin).unwrap_or_else(|fault| panic!("{fault}"));
    consistent(&config, None, &origin).unwrap_or_else(|fault| panic!("{fault}"));
}

#[test]
fn metric_controls_have_a_family_and_buckets() {
    agrees(&format!(
        "{INPUT}{OUTPUT}model_metrics {{ metric_control {{ {FAMILY} histogram_options {{ buckets: [ 1, 2 ] }} }} }}"
    ));
}

/// Reads dims of an input whose shape the graph does not say.
fn of_unknown_shape(dims: &str) -> Result<(), ConfigError> {
    let port = |name: &str| Port { dims: None, ..Port::tensor(name, DataType::Fp32, &[]) };
    let signature = Signature { inputs: vec![port("x")], outputs: vec![port("y")], ..Signature::default() };
    against(&format!("{INPUT}{OUTPUT}").replace("[ 4 ]", dims), &signature)
}

#[test]
fn an_input_without_a_shape_in_the_graph_is_a_scalar() {
    assert_eq!(of_unknown_shape("[ 1 ]"), Ok(()));
    assert_eq!(of_unknown_shape("[ 1, 1 ]"), Ok(()));
}

#[test]
fn file_names_stay_in_their_directories() {
    for name in ["../x", "/etc/passwd", "a/../../b", ""] {
        assert!(!stays_inside(name), "{name:?}");
    }
    assert!(stays_inside("labels.txt") && stays_inside("sub/labels.txt") && stays_inside("./labels.txt"));
}

#[test]
fn hints_are_listed_and_nothing_else() {
    let (config, _) = read(
        "instance_group { kind: KIND_GPU gpus: [ 0 ] host_policy: \"p\" rate_limiter { priority: 1 } }
         optimization { graph { level: 1 } input_pinned_memory { enable: true } }
         response_cache { enable: true } parameters { key: \"intra_op_thread_count\" value { string_value: \"2\" } }
         parameters { key: \"mine\" value { string_value: \"2\" } }",
    );
    let keys: Vec<String> = hints(&config.config).into_iter().map(|hint| hint.key).collect();
    let expected = ["instance_group[0].host_policy", "optimization.graph", "parameters[intra_op_thread_count]"];
    assert_eq!(keys, expected);
    let (ensemble, _) = read("ensemble_scheduling { max_inflight_requests: 2 step { model_name: \"m\" } }");
    let keys: Vec<String> = hints(&ensemble.config).into_iter().map(|hint| hint.key).collect();
    assert_eq!(keys, ["ensemble_scheduling.max_inflight_requests"]);
    let (plain, _) = read("instance_group { kind: KIND_CPU } dynamic_batching { } response_cache { }");
    assert_eq!(hints(&plain.config), []);
}

#[test]
fn tables_of_fields_name_fields_of_the_schema() {
    let pool = crate::model_config::descriptor().expect("the descriptors are sound");
    for (name, _) in features::UNSUPPORTED.iter().chain(&features::WITHOUT_EFFECT) {
        let (message, field) = name.rsplit_once('.').expect("a message and its field");
        let message = pool.parent_pool().get_message_by_name(&format!("inference.{message}"));
        assert!(message.is_some_and(|message| message.get_field_by_name(field).is_some()), "{name}");
    }
}

fn reshaped(dims_and_shape: &str) -> Result<(), ConfigError> {
    let (dims, shape) = dims_and_shape.split_once(" to ").expect("both");
    consistently(&format!(
        "max_batch_size: 2 {OUTPUT} input {{ name: \"x\" data_type: TYPE_FP32 dims: {dims} reshape {{ shape: {shape} }} }}"
    ))
}

#[test]
fn a_reshape_keeps_the_elements() {
    for reshape in ["[ 4 ] to [ 2, 2 ]", "[ 1 ] to [ ]", "[ -1, 4 ] to [ -1, 2, 2 ]", "[ 4, 1 ] to [ 4 ]"] {
        assert_eq!(reshaped(reshape), Ok(()), "{reshape}");
    }
}

fn of_scalar(dims: &str) -> Result<(), ConfigError> {
    against(&format!("{INPUT}{OUTPUT}").replace("[ 4 ]", dims), &graph(Vec::new()))
}

#[test]
fn a_scalar_of_the_graph_has_the_dims_of_one_element() {
    assert_eq!(of_scalar("[ 1 ]"), Ok(()));
}

/// A model whose input may be left out.
fn optional() -> String {
    format!("{INPUT}{OUTPUT}").replacen("dims: [ 4 ]", "dims: [ 4 ] optional: true", 1)
}

#[test]
fn only_an_input_with_a_default_may_be_left_out() {
    let mut signature = graph(vec![PortDim::Fixed(4)]);
    let optional = optional();
    signature.optional_inputs = std::mem::take(&mut signature.inputs);
    assert_eq!(against(&optional, &signature), Ok(()));
    assert_eq!(against(&format!("{INPUT}{OUTPUT}"), &signature), Ok(()), "a request may have to give it");
}

fn padded(parameters: &[(&str, &str)], input: &str, output: &str) -> Result<(), ConfigError> {
    let parameters = parameters
        .iter()
        .map(|(key, value)| format!("parameters {{ key: \"{key}\" value {{ string_value: \"{value}\" }} }}\n"));
    let text = format!(
        "max_batch_size: 4 input {{ name: \"x\" {input} }} input {{ name: \"mask\" data_type: TYPE_INT64 dims: -1 }}
         output {{ name: \"y\" data_type: TYPE_FP32 {output} }} {}",
        parameters.collect::<String>()
    );
    consistently(&text)
}

const INT: &str = "data_type: TYPE_INT64 dims: -1";
/// Pads of both inputs, and names for all axes.
const WHOLE: [(&str, &str); 5] =
    [("pad.x", "n=1"), ("axes.x", "n"), ("pad.mask", "n"), ("axes.mask", "n"), ("axes.y", "n")];

#[test]
fn a_pad_needs_a_name_on_every_tensor_it_touches() {
    assert_eq!(padded(&WHOLE, INT, "dims: -1"), Ok(()));
    assert_eq!(padded(&WHOLE[..4], INT, "dims: 384"), Ok(()), "an output that does not vary");
    assert_eq!(padded(&[("pad.x", "n"), ("axes.x", "n")], INT, "dims: 1"), Ok(()), "a mask of another length");
}

#[test]
fn an_output_may_have_a_length_that_follows_from_a_padded_one() {
    let with = |axes: &str, output: &str| padded(&[("pad.x", "n"), ("axes.x", "n"), ("axes.y", axes)], INT, output);
    for axes in ["(n + 1)//2", "floor(n/2)", "frames", "3*4"] {
        assert_eq!(with(axes, "dims: -1"), Ok(()), "{axes}");
    }
    assert_eq!(with("n,n", "dims: -1 dims: -1"), Ok(()), "each is cut back by itself");
}

/// A model with a sequence's START, and these fields more.
fn with_start(strategy: &str, more: &str) -> String {
    let start = "control_input { name: \"START\" control { kind: CONTROL_SEQUENCE_START fp32_false_true: [ 0, 1 ] } }";
    format!("max_batch_size: 2\n{INPUT}{OUTPUT}sequence_batching {{ {strategy} {start} }}\n{more}")
}

#[test]
fn there_may_be_as_many_levels_as_a_number_can_say() {
    let most = u64::MAX;
    agrees(&format!(
        "max_batch_size: 2\n{INPUT}{OUTPUT}dynamic_batching {{ priority_levels: {most} default_priority_level: {most} \
         priority_queue_policy {{ key: {most} value {{ max_queue_size: 1 }} }} }}"
    ));
}

fn graph(dims: Vec<PortDim>) -> Signature {
    let port = |name: &str| Port::tensor(name, DataType::Fp32, &dims);
    Signature { inputs: vec![port("x")], outputs: vec![port("y")], ..Signature::default() }
}

fn against(text: &str, signature: &Signature) -> Result<(), ConfigError> {
    let (config, origin) = read(text);
    consistent(&config, Some(signature), &origin)
}

#[test]
fn a_configuration_must_fit_its_graph() {
    let batched = graph(vec![PortDim::Unknown, PortDim::Fixed(4)]);
    let fixed = graph(vec![PortDim::Fixed(4)]);
    let batch = format!("max_batch_size: 2\n{INPUT}{OUTPUT}");
    assert_eq!(against(&batch, &batched), Ok(()));
    assert_eq!(against(&format!("{INPUT}{OUTPUT}"), &fixed), Ok(()));
    let anything = Signature { inputs: vec![Port { dims: None, ..batched.inputs[0].clone() }], ..batched.clone() };
    assert_eq!(against(&batch, &anything), Ok(()), "a graph that does not say its shapes");
}

#[test]
fn only_where_the_graph_has_no_elements_may_dims_be_0() {
    let empty = graph(vec![PortDim::Fixed(2), PortDim::Fixed(0)]);
    assert_eq!(against(&format!("{INPUT}{OUTPUT}").replace("[ 4 ]", "[ 2, 0 ]"), &empty), Ok(()));
}

#[test]
fn numbers_at_their_bounds_agree() {
    agrees(&format!("{INPUT}{OUTPUT}max_batch_size: 1 dynamic_batching {{ preferred_batch_size: 1 }}"));
    agrees("input { name: \"x\" data_type: TYPE_FP32 dims: 1 } output { name: \"x\" data_type: TYPE_FP32 dims: 1 }");
    agrees(&format!("max_batch_size: 2\n{INPUT}{OUTPUT}{}{}", runs(9_999), runs(0)));
    let ordered = |more| agrees(&format!("max_batch_size: 2\n{INPUT}{OUTPUT}{}", ordered(more)));
    ordered(ONE_LEVEL);
    ordered("default_queue_policy { timeout_action: DELAY }");
    ordered("default_queue_policy { default_timeout_microseconds: 5 }");
    agrees(&sample_of_start("key: \"START\" value { data_type: TYPE_FP32 dims: 1 zero_data: true }"));
}

const ONE_LEVEL: &str = "priority_levels: 1 default_priority_level: 1";

fn ordered(more: &str) -> String {
    format!("dynamic_batching {{ preserve_ordering: true {more} }}")
}

/// A warm-up sample that runs this number of times.
fn runs(count: u32) -> String {
    let x = "inputs { key: \"x\" value { data_type: TYPE_FP32 dims: 4 zero_data: true } }";
    format!("model_warmup {{ name: \"s\" batch_size: 1 count: {count} {x} }}\n")
}

/// A warm-up sample of a sequence's model, and what it gives for the program's START.
fn sample_of_start(start: &str) -> String {
    let x = "inputs { key: \"x\" value { data_type: TYPE_FP32 dims: 4 zero_data: true } }";
    with_start("", &format!("model_warmup {{ name: \"s\" batch_size: 2 {x} inputs {{ {start} }} }}"))
}

pub(crate) fn refusals(all: &mut Refusals) {
    let unsupported = |text: &str| {
        let (config, origin) = read(text);
        supported(&config.config, "m", &origin)
    };
    part(all, "not supported", unsupported).refuses(&[
        (Value, "2:2 backend", "\n backend: \"python\""),
        (Value, "1:1 backend", "backend: \"tensorrt\""),
        (Value, "1:1 platform", "platform: \"tensorrt_plan\""),
        (Value, "1:1 batch_input", "batch_input { kind: BATCH_ELEMENT_COUNT }"),
        (Value, "1:1 batch_output", "batch_output { target_name: \"y\" }"),
        (Value, "1:19 input[0].allow_ragged_batch", "input { name: \"x\" allow_ragged_batch: true }"),
        (Value, "1:19 input[0].is_shape_tensor", "input { name: \"x\" is_shape_tensor: true }"),
        (Value, "1:10 output[0].is_shape_tensor", "output { is_shape_tensor: true }"),
        (Value, "1:21 sequence_batching.iterative_sequence", "sequence_batching { iterative_sequence: true }"),
        (Value, "1:27 model_repository_agents.agents", "model_repository_agents { agents { name: \"a\" } }"),
        (Value, "1:1 name", "name: \"other\""),
        (Value, "1:18 version_policy.latest.num_versions", "version_policy { latest { } }"),
        (Value, "1:18 instance_group[0].count", "instance_group { count: -1 }"),
        (Value, "1:18 instance_group[0].profile", "instance_group { profile: \"1\" }"),
        (Value, "1:33 instance_group[0].gpus", "instance_group { kind: KIND_CPU gpus: [ 0 ] }"),
        (Value, "1:23 response_cache", "sequence_batching { } response_cache { enable: true }"),
        (Value, "1:1 response_cache", "response_cache { enable: true } model_transaction_policy { decoupled: true }"),
        (Value, "1:10 output[0].label_filename", "output { label_filename: \"../../secret\" }"),
        (Value, "1:1 default_model_filename", "default_model_filename: \"../2/model.onnx\""),
        (Value, "1:1 default_model_filename", "default_model_filename: \"sub/model.onnx\""),
        (
            Value,
            "1:17 model_metrics.metric_control[0]",
            "model_metrics { metric_control { histogram_options { buckets: [ 1 ] } } }",
        ),
        (
            Value,
            "1:17 model_metrics.metric_control[0]",
            "model_metrics { metric_control { metric_identifier { } histogram_options { buckets: [ 1 ] } } }",
        ),
        (Value, "1:17 model_metrics.metric_control[0]", &format!("model_metrics {{ metric_control {{ {FAMILY} }} }}")),
        (
            Value,
            "1:17 model_metrics.metric_control[0]",
            &format!("model_metrics {{ metric_control {{ {FAMILY} histogram_options {{ }} }} }}"),
        ),
    ]);
    part(all, "inputs", |inputs| consistently(&format!("{inputs}\n{OUTPUT}"))).refuses(&[
        (Value, "input", ""),
        (Value, "1:40 input[0].dims", "input { name: \"x\" data_type: TYPE_FP32 dims: [ 4, 0 ] }"),
        (Value, "1:40 input[0].dims", "input { name: \"x\" data_type: TYPE_FP32 dims: [ -2 ] }"),
        (Value, "1:1 input[0].dims", "input { name: \"x\" data_type: TYPE_FP32 }"),
        (Value, "1:1 input[0].data_type", "input { name: \"x\" dims: 1 }"),
        (Value, "1:1 input[0].name", "input { data_type: TYPE_FP32 dims: 1 }"),
        (Value, "2:9 input[1].name", &format!("{INPUT}{INPUT}")),
        (Value, "1:48 input[0].reshape", "input { name: \"x\" data_type: TYPE_FP32 dims: 1 reshape { } }"),
    ]);
    part(all, "reshapes", reshaped).refuses(&[
        (Value, "2:53 input[0].reshape", "[ 4 ] to [ 3 ]"),
        (Value, "2:53 input[0].reshape", "[ 2 ] to [ ]"),
        (Value, "2:57 input[0].reshape", "[ -1, 4 ] to [ 4 ]"),
        (Value, "2:57 input[0].reshape", "[ -1, 4 ] to [ 4, -1 ]"),
        (Value, "2:54 input[0].reshape", "[ -1 ] to [ -1, -1 ]"),
        (Value, "2:53 input[0].reshape", "[ 4 ] to [ 0 ]"),
    ]);
    let with = |text: &str| consistently(&format!("{INPUT}{OUTPUT}{text}"));
    part(all, "numbers of batching", with).refuses(&[
        (Value, "3:1 max_batch_size", "max_batch_size: -1"),
        (Value, "3:20 dynamic_batching.preferred_batch_size", "dynamic_batching { preferred_batch_size: 1 }"),
    ]);
    let with = |text: &str| consistently(&format!("{INPUT}{OUTPUT}max_batch_size: 4\ndynamic_batching {{ {text} }}"));
    part(all, "numbers of dynamic_batching, of batches of four", with).refuses(&[
        (Value, "4:20 dynamic_batching.preferred_batch_size", "preferred_batch_size: [ 4, 8 ]"),
        (Value, "4:20 dynamic_batching.preferred_batch_size", "preferred_batch_size: [ 0 ]"),
        (Value, "4:1 dynamic_batching.default_priority_level", "priority_levels: 2"),
        (Value, "4:39 dynamic_batching.default_priority_level", "priority_levels: 2 default_priority_level: 3"),
        (Value, "4:20 dynamic_batching.default_priority_level", "default_priority_level: 1"),
        (
            Value,
            "4:87 dynamic_batching.priority_queue_policy[2]",
            "priority_levels: 1 default_priority_level: 1 priority_queue_policy { key: 2 value { } }",
        ),
    ]);
    let with = |given: &str| {
        let (key, value) = given.split_once(": ").expect("a key and a value");
        consistently(&format!("{INPUT}{OUTPUT}parameters {{ key: \"{key}\" value {{ string_value: \"{value}\" }} }}"))
    };
    part(all, "parameters of a model without batches", with).refuses(&[
        (Unknown, "3:12 parameters[batching.bucketwidth]", "batching.bucketwidth: 1"),
        (Value, "3:12 parameters[batching.bucket_width]", "batching.bucket_width: wide"),
        (Value, "3:12 parameters[batching.policy]", "batching.policy: cellular"),
        (Value, "3:12 parameters[batching.policy]", "batching.policy: lazy"),
        (Value, "3:12 parameters[batching.latency_objective_ms]", "batching.latency_objective_ms: 0"),
        (Unknown, "3:12 parameters[batching.lazy.max_dept]", "batching.lazy.max_dept: 1"),
        (Value, "3:12 parameters[batching.adaptive.headroom]", "batching.adaptive.headroom: much"),
        (Value, "3:12 parameters[stages]", "stages: 2"),
        (Value, "3:12 parameters[batching.latencies]", "batching.latencies: ../latencies.csv"),
        (Value, "3:12 parameters[batching.latencies]", "batching.latencies: /etc/passwd"),
        (Value, "3:12 parameters[pad.z]", "pad.z: n"),
    ]);
    all.title("pads");
    let both = [("pad.x", "n"), ("axes.x", "n")];
    let other = [("pad.x", "n"), ("axes.x", "m")];
    let shared = [both[0], both[1], ("axes.mask", "n")];
    let half = [("pad.x", "n=0.5"), ("axes.x", "n")];
    let lengths = |axes| [both[0], both[1], ("axes.y", axes)];
    let mask = [both[0], both[1], ("axes.mask", "n//2"), ("axes.y", "n")];
    all.add(Value, "2:71 parameters[pad.x]", "an axis without a name", padded(&both[..1], INT, "dims: 1"));
    all.add(Value, "2:71 parameters[pad.x]", "an axis with another name", padded(&other, INT, "dims: 1"));
    all.add(Value, "1:70 input[1]", "an axis of another input", padded(&shared, INT, "dims: 1"));
    all.add(Value, "2:10 output[0]", "an output that varies", padded(&both, INT, "dims: -1"));
    all.add(Value, "2:71 parameters[pad.x]", "strings", padded(&both, "data_type: TYPE_STRING dims: -1", "dims: 1"));
    all.add(Value, "2:71 parameters[pad.x]", "integers filled with 0.5", padded(&half, INT, "dims: 1"));
    all.add(
        Value,
        "2:71 parameters[axes.x]",
        "an axis that does not vary",
        padded(&both[1..], "data_type: TYPE_INT64 dims: 4", "dims: 1"),
    );
    all.add(Value, "2:71 parameters[axes.x]", "more names than axes", padded(&[("axes.x", "n,m")], INT, "dims: 1"));
    all.add(Value, "2:10 output[0]", "a reshaped output", padded(&WHOLE, INT, "dims: -1 reshape { shape: -1 }"));
    all.add(
        Value,
        "2:10 output[0]",
        "an output of no padded length",
        padded(&lengths("(n + frames)//2"), INT, "dims: -1"),
    );
    all.add(
        Value,
        "2:10 output[0]",
        "a reshaped length",
        padded(&lengths("n//2"), INT, "dims: -1 reshape { shape: -1 }"),
    );
    all.add(Value, "1:70 input[1]", "an input whose length follows", padded(&mask, INT, "dims: -1"));
    let sample = |inputs: &str| {
        consistently(&format!("max_batch_size: 2\n{INPUT}{OUTPUT}model_warmup {{ name: \"s\" {inputs} }}"))
    };
    part(all, "samples", sample).refuses(&[
        (Value, "4:1 model_warmup[0]", ""),
        (Value, "4:26 model_warmup[0].batch_size", "batch_size: 3"),
        (Value, "4:33 model_warmup[0].inputs[x]", "inputs { key: \"x\" value { data_type: TYPE_INT8 dims: 4 } }"),
        (Value, "4:33 model_warmup[0].inputs[x]", "inputs { key: \"x\" value { data_type: TYPE_FP32 dims: 5 } }"),
        (
            Value,
            "4:33 model_warmup[0].inputs[x]",
            "inputs { key: \"x\" value { data_type: TYPE_FP32 dims: 4 input_data_file: \"../../x\" } }",
        ),
        (Value, "4:33 model_warmup[0].inputs[z]", "inputs { key: \"z\" value { } }"),
        (Value, "4:33 model_warmup[0].inputs[x]", "inputs { key: \"x\" value { data_type: TYPE_FP32 dims: -1 } }"),
        (Value, "4:33 model_warmup[0].inputs[x]", "inputs { key: \"x\" value { data_type: TYPE_FP32 dims: 4 } }"),
    ]);
    part(all, "samples: runs", |text| consistently(&format!("max_batch_size: 2\n{INPUT}{OUTPUT}{text}"))).refuses(&[
        (Value, "5:40 model_warmup[1].count", &format!("{}{}", runs(9_999), runs(2))),
        (Value, "4:40 model_warmup[0].count", &runs(u32::MAX)),
    ]);
    part(all, "samples of a sequence's START", |start| consistently(&sample_of_start(start))).refuses(&[
        (
            Value,
            "5:122 model_warmup[0].inputs[START]",
            "key: \"START\" value { data_type: TYPE_INT32 dims: 1 zero_data: true }",
        ),
        (
            Value,
            "5:122 model_warmup[0].inputs[START]",
            "key: \"START\" value { data_type: TYPE_FP32 dims: -1 zero_data: true }",
        ),
        (
            Value,
            "5:122 model_warmup[0].inputs[END]",
            "key: \"END\" value { data_type: TYPE_FP32 dims: 1 zero_data: true }",
        ),
    ]);
    let delay = "timeout_action: DELAY default_timeout_microseconds: 5";
    part(all, "ordered queues", |more| consistently(&format!("max_batch_size: 2\n{INPUT}{OUTPUT}{}", ordered(more))))
        .refuses(&[
            (Value, "4:44 dynamic_batching.priority_levels", "priority_levels: 2 default_priority_level: 1"),
            (
                Value,
                "4:67 dynamic_batching.default_queue_policy.timeout_action",
                &format!("default_queue_policy {{ {delay} }}"),
            ),
            (
                Value,
                "4:111 dynamic_batching.priority_queue_policy[1].timeout_action",
                &format!("{ONE_LEVEL} priority_queue_policy {{ key: 1 value {{ {delay} }} }}"),
            ),
        ]);
    part(all, "sequences with a START", |strategy| consistently(&with_start(strategy, ""))).refuses(&[
        (
            Value,
            "4:147 sequence_batching.control_input[1].control",
            "control_input { name: \"S\" control { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } }",
        ),
        (
            Value,
            "4:57 sequence_batching.oldest.preferred_batch_size",
            "oldest { max_candidate_sequences: 4 preferred_batch_size: [ 1, 3 ] }",
        ),
        (Value, "4:30 sequence_batching.direct.minimum_slot_utilization", "direct { minimum_slot_utilization: 1.5 }"),
    ]);
    part(all, "dims of an input without a shape in the graph", of_unknown_shape).refuses(&[
        (Value, "1:40 input[0].dims", "[ 2 ]"),
        (Value, "1:40 input[0].dims", "[ -1 ]"),
        (Value, "1:40 input[0].dims", "[ 1, 2 ]"),
    ]);
    part(all, "dims of a scalar", of_scalar).refuses(&[
        (Value, "1:40 input[0].dims", "[ 2 ]"),
        (Value, "1:40 input[0].dims", "[ -1 ]"),
        (Value, "1:40 input[0].dims", "[ 1, 1 ]"),
    ]);
    all.title("graphs");
    let batched = graph(vec![PortDim::Unknown, PortDim::Fixed(4)]);
    let batch = format!("max_batch_size: 2\n{INPUT}{OUTPUT}");
    all.add(Value, "1:1 max_batch_size", &batch, against(&batch, &graph(vec![PortDim::Fixed(4)])));
    let changes = [("\"x\"", "\"X\""), ("FP32", "INT8"), ("4 ]", "5 ]"), ("4 ]", "-1 ]")];
    let changed = changes.map(|(from, to)| batch.replacen(from, to, 1));
    part(all, "graphs: a batch and 4 elements", |text| against(text, &batched)).refuses(&[
        (Value, "2:9 input[0].name", &changed[0]),
        (Value, "2:19 input[0].data_type", &changed[1]),
        (Value, "2:40 input[0].dims", &changed[2]),
        (Value, "2:40 input[0].dims", &changed[3]),
    ]);
    let mut two = batched.clone();
    two.inputs.push(Port { name: "z".to_owned(), ..two.inputs[0].clone() });
    all.add(Value, "2:1 input", "a graph with two inputs", against(&batch, &two));
    let signature = graph(vec![PortDim::Fixed(4)]);
    all.add(
        Value,
        "1:52 input[0].optional",
        "an input without a default that may be left out",
        against(&optional(), &signature),
    );
    let defaults = Signature { inputs: Vec::new(), optional_inputs: signature.inputs.clone(), ..signature };
    let named = optional().replace("\"x\"", "\"X\"");
    all.add(Value, "1:9 input[0].name", "an input that may be left out with another name", against(&named, &defaults));
    let dims = |dims: &str, last| {
        let graph = graph(vec![PortDim::Fixed(2), last]);
        against(&format!("{INPUT}{OUTPUT}").replace("[ 4 ]", dims), &graph)
    };
    all.add(Value, "1:40 input[0].dims", "[ 0, 0 ] where the graph has [ 2, 0 ]", dims("[ 0, 0 ]", PortDim::Fixed(0)));
    all.add(Value, "1:40 input[0].dims", "[ 2, 0 ] where the graph has [ 2, -1 ]", dims("[ 2, 0 ]", PortDim::Unknown));
}

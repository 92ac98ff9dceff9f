use paternoster_model::DataType;
use paternoster_onnx::{Port, PortDim, Signature};

use super::*;
use crate::{pbtxt, values::stays_inside};

const INPUT: &str = "input { name: \"x\" data_type: TYPE_FP32 dims: [ 4 ] }\n";
const OUTPUT: &str = "output { name: \"y\" data_type: TYPE_FP32 dims: [ 4 ] }\n";

fn read(text: &str) -> (Settings, Origin) {
    pbtxt::parse("config.pbtxt", text.as_bytes()).unwrap_or_else(|fault| panic!("{fault}"))
}

fn unsupported(text: &str) -> String {
    let (config, origin) = read(text);
    supported(&config.config, "m", &origin).expect_err("it should be refused").to_string()
}

fn contradiction(text: &str) -> String {
    let read = pbtxt::parse("config.pbtxt", format!("{INPUT}{OUTPUT}{text}").as_bytes());
    let refused = read.and_then(|(config, origin)| consistent(&config, None, &origin));
    refused.expect_err("it should be refused").to_string()
}

fn agrees(text: &str) {
    let (config, origin) = read(text);
    supported(&config.config, "m", &origin).unwrap_or_else(|fault| panic!("{fault}"));
    consistent(&config, None, &origin).unwrap_or_else(|fault| panic!("{fault}"));
}

#[test]
fn a_refused_backend_says_what_to_do_instead() {
    let python = unsupported("backend: \"python\"");
    assert!(python.contains("built-in steps of pipelines replace Python around texts (docs/pipelines.md)"), "{python}");
    for text in ["backend: \"tensorrt\"", "platform: \"tensorrt_plan\""] {
        assert!(unsupported(text).ends_with("export the model to ONNX (docs/moving-from-triton.md)"), "{text}");
    }
}

#[test]
fn what_changes_results_and_is_not_supported_is_refused_by_name() {
    let cases = [
        ("\n backend: \"python\"", "config.pbtxt:2:2: backend: the backend 'python' is not supported"),
        ("platform: \"tensorrt_plan\"", "config.pbtxt:1:1: platform: the platform 'tensorrt_plan' is not supported"),
        ("batch_input { kind: BATCH_ELEMENT_COUNT }", "config.pbtxt:1:1: batch_input: "),
        ("batch_output { target_name: \"y\" }", "config.pbtxt:1:1: batch_output: "),
        ("input { name: \"x\" allow_ragged_batch: true }", "config.pbtxt:1:19: input[0].allow_ragged_batch: "),
        ("input { name: \"x\" is_shape_tensor: true }", "config.pbtxt:1:19: input[0].is_shape_tensor: "),
        ("sequence_batching { iterative_sequence: true }", "config.pbtxt:1:21: sequence_batching.iterative_sequence: "),
        ("output { is_shape_tensor: true }", "config.pbtxt:1:10: output[0].is_shape_tensor: "),
        ("model_repository_agents { agents { name: \"a\" } }", "config.pbtxt:1:27: model_repository_agents.agents: "),
        ("name: \"other\"", "config.pbtxt:1:1: name: expected the directory's name 'm', but found 'other'"),
        ("version_policy { latest { } }", "config.pbtxt:1:18: version_policy.latest.num_versions: expected at least 1"),
        ("instance_group { count: -1 }", "config.pbtxt:1:18: instance_group[0].count: "),
        ("instance_group { profile: \"1\" }", "config.pbtxt:1:18: instance_group[0].profile: profiles are TensorRT's"),
        (
            "instance_group { kind: KIND_CPU gpus: [ 0 ] }",
            "config.pbtxt:1:33: instance_group[0].gpus: expected none, since the kind is KIND_CPU, but found [0]",
        ),
        (
            "sequence_batching { } response_cache { enable: true }",
            "config.pbtxt:1:23: response_cache: a response cache does not go with sequence_batching",
        ),
        (
            "response_cache { enable: true } model_transaction_policy { decoupled: true }",
            "config.pbtxt:1:1: response_cache: a response cache does not go with a decoupled model",
        ),
    ];
    for (text, expected) in cases {
        let refusal = unsupported(text);
        assert!(refusal.starts_with(expected), "{text}: {refusal}");
    }
}

#[test]
fn metric_controls_are_whole_in_tritons_words() {
    let control = |inside: &str| unsupported(&format!("model_metrics {{ metric_control {{ {inside} }} }}"));
    let family = "metric_identifier { family: \"nv_inference_first_response_histogram_ms\" }";
    for (inside, expected) in [
        ("histogram_options { buckets: [ 1 ] }", "metric control must specify 'metric_identifier'"),
        (
            "metric_identifier { } histogram_options { buckets: [ 1 ] }",
            "metric identifier must specify non-empty 'family'",
        ),
        (family, "metric control must specify 'histogram_options'"),
        (&format!("{family} histogram_options {{ }}"), "histogram options must specify non-empty 'buckets'"),
    ] {
        let refusal = control(inside);
        assert!(refusal.ends_with(&format!("model_metrics.metric_control[0]: {expected}")), "{refusal}");
    }
    let whole = format!("model_metrics {{ metric_control {{ {family} histogram_options {{ buckets: [ 1, 2 ] }} }} }}");
    agrees(&format!("{INPUT}{OUTPUT}{whole}"));
}

#[test]
fn an_input_without_a_shape_in_the_graph_is_a_scalar() {
    let port = |name: &str, dims| Port { dims, ..Port::tensor(name, DataType::Fp32, &[]) };
    let signature = Signature { inputs: vec![port("x", None)], outputs: vec![port("y", None)], ..Signature::default() };
    let checked = |dims: &str| {
        let tensor =
            |kind: &str, name: &str| format!("{kind} {{ name: \"{name}\" data_type: TYPE_FP32 dims: {dims} }}\n");
        let (config, origin) = read(&format!("{}{}", tensor("input", "x"), tensor("output", "y")));
        consistent(&config, Some(&signature), &origin)
    };
    assert_eq!(checked("[ 1 ]"), Ok(()));
    assert_eq!(checked("[ 1, 1 ]"), Ok(()));
    for wrong in ["[ 2 ]", "[ -1 ]", "[ 1, 2 ]"] {
        let refusal = checked(wrong).expect_err("it holds one element").to_string();
        assert!(
            refusal.contains("input[0].dims: the graph gives 'x' no shape, so that it is a scalar tensor"),
            "{refusal}"
        );
    }
}

#[test]
fn file_names_stay_in_their_directories() {
    for name in ["../x", "/etc/passwd", "a/../../b", ""] {
        assert!(!stays_inside(name), "{name:?}");
    }
    assert!(stays_inside("labels.txt") && stays_inside("sub/labels.txt") && stays_inside("./labels.txt"));
    assert!(unsupported("output { label_filename: \"../../secret\" }").contains("label_filename: expected a file in"));
    assert!(unsupported("default_model_filename: \"../2/model.onnx\"").contains("default_model_filename: expected"));
    assert!(unsupported("default_model_filename: \"sub/model.onnx\"").contains("default_model_filename: expected"));
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

#[test]
fn batching_numbers_must_agree() {
    let window = |knobs: &str| contradiction(&format!("max_batch_size: 4\ndynamic_batching {{ {knobs} }}"));
    assert_eq!(
        window("preferred_batch_size: [ 4, 8 ]"),
        "config.pbtxt:4:20: dynamic_batching.preferred_batch_size: expected sizes from 1 to max_batch_size 4, but \
         found 8"
    );
    assert!(window("preferred_batch_size: [ 0 ]").contains("found 0"));
    assert!(
        window("priority_levels: 2").contains("default_priority_level: expected a level from 1 to priority_levels 2")
    );
    assert!(window("priority_levels: 2 default_priority_level: 3").contains("but found 3"));
    assert!(window("default_priority_level: 1").contains("expected priority_levels to be given"));
    let level = "priority_levels: 1 default_priority_level: 1 priority_queue_policy { key: 2 value { } }";
    assert!(window(level).contains("priority_queue_policy[2]: expected a level from 1 to priority_levels 1"));
    assert_eq!(
        contradiction("dynamic_batching { preferred_batch_size: 1 }"),
        "config.pbtxt:3:20: dynamic_batching.preferred_batch_size: expected sizes from 1 to max_batch_size 0, but \
         found 1"
    );
    assert!(contradiction("max_batch_size: -1").contains("expected 0 or more, but found -1"));
    agrees(&format!("{INPUT}{OUTPUT}max_batch_size: 1 dynamic_batching {{ preferred_batch_size: 1 }}"));
}

#[test]
fn our_parameters_must_mean_something() {
    let parameter = |key: &str, value: &str| {
        contradiction(&format!("parameters {{ key: \"{key}\" value {{ string_value: \"{value}\" }} }}"))
    };
    assert!(parameter("batching.bucketwidth", "1").contains("did you mean 'bucket_width'?"));
    assert!(parameter("batching.bucket_width", "wide").contains("expected a whole number from 0 to 4294967295"));
    assert_eq!(
        parameter("batching.policy", "cellular"),
        "config.pbtxt:3:12: parameters[batching.policy]: the policy 'cellular' needs a max_batch_size of at least \
         1, but it is 0"
    );
    assert_eq!(
        parameter("batching.policy", "lazy"),
        "config.pbtxt:3:12: parameters[batching.policy]: the policy 'lazy' needs a max_batch_size of at least 1, but \
         it is 0"
    );
    assert!(parameter("batching.latency_objective_ms", "0").contains("expected a number above 0"));
    assert_eq!(
        parameter("batching.lazy.max_dept", "1"),
        "config.pbtxt:3:12: parameters[batching.lazy.max_dept]: unknown key 'max_dept'; did you mean 'max_depth'?"
    );
    let unchosen = parameter("batching.adaptive.headroom", "much");
    assert!(unchosen.contains("expected a number from 0 to 10, but found 'much'"), "{unchosen}");
    assert!(parameter("stages", "2").contains("expected a max_batch_size of at least 1, but it is 0"));
    for name in ["../latencies.csv", "/etc/passwd"] {
        let expected = format!("[batching.latencies]: expected a file in the model's directory, but found '{name}'");
        assert!(parameter("batching.latencies", name).ends_with(&expected), "{name}");
    }
    assert!(parameter("pad.z", "n").contains("the model has no input 'z'"));
}

#[test]
fn tensors_must_be_whole() {
    let both = |input: &str| {
        let (config, origin) = read(&format!("{input}\n{OUTPUT}"));
        consistent(&config, None, &origin).expect_err("it should be refused").to_string()
    };
    assert_eq!(
        both("input { name: \"x\" data_type: TYPE_FP32 dims: [ 4, 0 ] }"),
        "config.pbtxt:1:40: input[0].dims: expected sizes above 0, or -1, for 'x', but found 0"
    );
    assert!(both("input { name: \"x\" data_type: TYPE_FP32 dims: [ -2 ] }").contains("found -2"));
    assert!(both("input { name: \"x\" data_type: TYPE_FP32 }").contains("input[0].dims: expected dims for 'x'"));
    assert!(both("input { name: \"x\" dims: 1 }").contains("expected a data_type for 'x'"));
    assert!(both("input { data_type: TYPE_FP32 dims: 1 }").contains("expected a name for this input"));
    assert!(both(&format!("{INPUT}{INPUT}")).contains("config.pbtxt:2:9: input[1].name: the input 'x' is given twice"));
    assert!(both("").contains("the model has no inputs"));
    agrees(
        "input { name: \"x\" data_type: TYPE_FP32 dims: [ 1 ] } output { name: \"x\" data_type: TYPE_FP32 dims: \
         [ 1 ] }",
    );
}

#[test]
fn a_reshape_keeps_the_elements() {
    let reshape = |dims: &str, shape: &str| {
        let text = format!(
            "max_batch_size: 2 {OUTPUT} input {{ name: \"x\" data_type: TYPE_FP32 dims: [ {dims} ] reshape {{ shape: \
             [ {shape} ] }} }}"
        );
        let (config, origin) = read(&text);
        consistent(&config, None, &origin)
    };
    for (dims, shape) in [("4", "2, 2"), ("1", ""), ("-1, 4", "-1, 2, 2"), ("4, 1", "4")] {
        assert_eq!(reshape(dims, shape), Ok(()), "[{dims}] to [{shape}]");
    }
    for (dims, shape) in [("4", "3"), ("2", ""), ("-1, 4", "4"), ("-1, 4", "4, -1"), ("-1", "-1, -1"), ("4", "0")] {
        let refusal = reshape(dims, shape).expect_err("it should be refused").to_string();
        assert!(refusal.contains("input[0].reshape: "), "[{dims}] to [{shape}]: {refusal}");
    }
    let scalar = format!("{OUTPUT} input {{ name: \"x\" data_type: TYPE_FP32 dims: 1 reshape {{ }} }}");
    let (config, origin) = read(&scalar);
    assert!(consistent(&config, None, &origin).is_err(), "no scalars without a batch");
}

#[test]
fn a_scalar_of_the_graph_has_the_dims_of_one_element() {
    let scalar = graph(Vec::new());
    let config = |dims: &str| format!("{INPUT}{OUTPUT}").replace("[ 4 ]", dims);
    assert_eq!(against(&config("[ 1 ]"), &scalar), Ok(()));
    for dims in ["[ 2 ]", "[ -1 ]", "[ 1, 1 ]"] {
        let refusal = against(&config(dims), &scalar).expect_err(dims).to_string();
        assert!(refusal.contains("input[0].dims: the graph has the shape [] for 'x'"), "{refusal}");
        assert!(refusal.ends_with(": expected [1] for a scalar"), "{refusal}");
    }
}

#[test]
fn only_an_input_with_a_default_may_be_left_out() {
    let mut signature = graph(vec![PortDim::Fixed(4)]);
    let optional = format!("{INPUT}{OUTPUT}").replacen("dims: [ 4 ]", "dims: [ 4 ] optional: true", 1);
    let refusal = against(&optional, &signature).expect_err("nothing is in its place").to_string();
    assert!(
        refusal.ends_with(
            "input[0].optional: the graph needs 'x': it has no initializer of this name to use in its place"
        ),
        "{refusal}"
    );
    signature.optional_inputs = std::mem::take(&mut signature.inputs);
    assert_eq!(against(&optional, &signature), Ok(()));
    assert_eq!(against(&format!("{INPUT}{OUTPUT}"), &signature), Ok(()), "a request may have to give it");
    let named = optional.replace("\"x\"", "\"X\"");
    let refusal = against(&named, &signature).expect_err("it has another name").to_string();
    assert!(refusal.contains("the graph has no input 'X', only x"), "{refusal}");
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
    let (config, origin) = read(&text);
    consistent(&config, None, &origin)
}

#[test]
fn a_pad_needs_a_name_on_every_tensor_it_touches() {
    let int = "data_type: TYPE_INT64 dims: -1";
    let whole = [("pad.x", "n=1"), ("axes.x", "n"), ("pad.mask", "n"), ("axes.mask", "n"), ("axes.y", "n")];
    assert_eq!(padded(&whole, int, "dims: -1"), Ok(()));
    assert_eq!(padded(&whole[..4], int, "dims: 384"), Ok(()), "an output that does not vary");
    assert_eq!(padded(&[("pad.x", "n"), ("axes.x", "n")], int, "dims: 1"), Ok(()), "a mask of another length");

    let refused = |parameters: &[(&str, &str)], input: &str, output: &str| {
        padded(parameters, input, output).expect_err("it should be refused").to_string()
    };
    assert!(refused(&[("pad.x", "n")], int, "dims: 1").contains("'x' has no axis 'n'; it has no axis with a name"));
    let other = [("pad.x", "n"), ("axes.x", "m")];
    assert!(refused(&other, int, "dims: 1").contains("'x' has no axis 'n'; it has only m"));
    let shared = [("pad.x", "n"), ("axes.x", "n"), ("axes.mask", "n")];
    assert!(refused(&shared, int, "dims: 1").contains("'mask' needs a pad for it too"));
    let unnamed = [("pad.x", "n"), ("axes.x", "n")];
    let open = refused(&unnamed, int, "dims: -1");
    assert!(open.contains("dimension 0 of 'y' varies and does not follow from the inputs"), "{open}");
    assert!(open.contains("'axes.y', as its length follows from padded axes, such as '(n + 1)//2'"), "{open}");
    assert!(refused(&unnamed, "data_type: TYPE_STRING dims: -1", "dims: 1").contains("cannot be filled with 0"));
    let half = [("pad.x", "n=0.5"), ("axes.x", "n")];
    assert!(refused(&half, int, "dims: 1").contains("INT64 cannot be filled with 0.5"));
    let fixed = [("axes.x", "n")];
    assert!(refused(&fixed, "data_type: TYPE_INT64 dims: 4", "dims: 1").contains("the fixed size 4"));
    let too_many = [("axes.x", "n,m")];
    assert!(refused(&too_many, int, "dims: 1").contains("expected 1 names for dims [-1] of 'x', but found 2"));
    let cut = refused(&whole, int, "dims: -1 reshape { shape: -1 }");
    assert!(cut.contains("cannot be reshaped"), "{cut}");
}

#[test]
fn an_output_may_have_a_length_that_follows_from_a_padded_one() {
    let int = "data_type: TYPE_INT64 dims: -1";
    let with = |axes: &str, output: &str| padded(&[("pad.x", "n"), ("axes.x", "n"), ("axes.y", axes)], int, output);
    for axes in ["(n + 1)//2", "floor(n/2)", "frames", "3*4"] {
        assert_eq!(with(axes, "dims: -1"), Ok(()), "{axes}");
    }
    assert_eq!(with("n,n", "dims: -1 dims: -1"), Ok(()), "each is cut back by itself");
    let refused = with("(n + frames)//2", "dims: -1").expect_err("frames is no padded axis").to_string();
    assert!(refused.contains("the axis '(n + frames)//2' of 'y' is no length that follows from padded axes"));
    assert!(refused.contains("expected a whole number, a padded axis or a parenthesis, but found 'frames)//2'"));
    let reshaped = with("n//2", "dims: -1 reshape { shape: -1 }").expect_err("it is cut").to_string();
    assert!(reshaped.contains("cannot be reshaped"), "{reshaped}");
    let mask = [("pad.x", "n"), ("axes.x", "n"), ("axes.mask", "n//2"), ("axes.y", "n")];
    let refused = padded(&mask, int, "dims: -1").expect_err("the mask would have to be padded too").to_string();
    assert!(refused.contains("the axis 'n//2' of the input 'mask' follows from padded axes"), "{refused}");
}

#[test]
fn warm_up_samples_fit_the_inputs() {
    let sample = |input: &str| contradiction(&format!("max_batch_size: 2\nmodel_warmup {{ name: \"s\" {input} }}"));
    let x = |fields: &str| format!("inputs {{ key: \"x\" value {{ {fields} }} }}");
    assert!(sample("").contains("model_warmup[0]: the sample lacks the input 'x'"));
    assert!(sample("batch_size: 3").contains("expected at most 2 rows, but found 3"));
    assert!(
        sample(&x("data_type: TYPE_INT8 dims: 4")).contains("expected the datatype TYPE_FP32, but found TYPE_INT8")
    );
    assert!(sample(&x("data_type: TYPE_FP32 dims: 5")).contains("expected dims that fit [4], but found [5]"));
    let escape = x("data_type: TYPE_FP32 dims: 4 input_data_file: \"../../x\"");
    assert!(sample(&escape).contains("warmup directory, but found '../../x'"));
    assert!(sample("inputs { key: \"z\" value { } }").contains("the model has no input 'z'"));
    assert!(sample(&x("data_type: TYPE_FP32 dims: -1")).contains("expected fixed dims, but found -1"));
    assert!(sample(&x("data_type: TYPE_FP32 dims: 4")).contains("expected zero_data, random_data or input_data_file"));
}

#[test]
fn warm_up_runs_are_bounded_over_all_samples() {
    let x = "inputs { key: \"x\" value { data_type: TYPE_FP32 dims: 4 zero_data: true } }";
    let sample = |count: u32| format!("model_warmup {{ name: \"s\" batch_size: 1 count: {count} {x} }}");
    agrees(&format!("max_batch_size: 2\n{INPUT}{OUTPUT}{}{}", sample(9_999), sample(0)));
    let refused = contradiction(&format!("max_batch_size: 2\n{}{}", sample(9_999), sample(2)));
    assert!(refused.contains("model_warmup[1].count"), "{refused}");
    assert!(refused.contains("expected at most 10000 runs of all samples together, but found 10001"), "{refused}");
    assert!(contradiction(&format!("max_batch_size: 2\n{}", sample(u32::MAX))).contains("found 4294967295"));
}

/// A model with a sequence's START, and these fields more.
fn with_start(strategy: &str, more: &str) -> String {
    let start = "control_input { name: \"START\" control { kind: CONTROL_SEQUENCE_START fp32_false_true: [ 0, 1 ] } }";
    format!("max_batch_size: 2\n{INPUT}{OUTPUT}sequence_batching {{ {strategy} {start} }}\n{more}")
}

#[test]
fn warm_up_samples_of_sequences_may_name_what_the_program_reads_beside_the_models_inputs() {
    let sample = |start: &str| {
        let x = "inputs { key: \"x\" value { data_type: TYPE_FP32 dims: 4 zero_data: true } }";
        let start = format!("inputs {{ key: \"START\" value {{ {start} zero_data: true }} }}");
        with_start("", &format!("model_warmup {{ name: \"s\" batch_size: 2 {x} {start} }}"))
    };
    let refused = |text: &str| {
        let (config, origin) = read(text);
        consistent(&config, None, &origin).expect_err("it should be refused").to_string()
    };
    agrees(&sample("data_type: TYPE_FP32 dims: 1"));
    assert!(refused(&sample("data_type: TYPE_INT32 dims: 1")).contains("expected the datatype TYPE_FP32"));
    assert!(refused(&sample("data_type: TYPE_FP32 dims: -1")).contains("expected fixed dims"));
    let end = sample("data_type: TYPE_FP32 dims: 1").replace("key: \"START\"", "key: \"END\"");
    assert!(refused(&end).contains("the model has no input 'END'"), "the model has no input for its end");
}

#[test]
fn what_triton_refuses_of_queues_and_sequences_is_refused() {
    let refused = |text: &str| {
        let (config, origin) = read(text);
        consistent(&config, None, &origin).expect_err("it should be refused").to_string()
    };
    let ordered =
        |more: &str| format!("max_batch_size: 2\n{INPUT}{OUTPUT}dynamic_batching {{ preserve_ordering: true {more} }}");
    let one_level = "priority_levels: 1 default_priority_level: 1";
    let delay = "timeout_action: DELAY default_timeout_microseconds: 5";
    agrees(&ordered(one_level));
    agrees(&ordered("default_queue_policy { timeout_action: DELAY }"));
    agrees(&ordered("default_queue_policy { default_timeout_microseconds: 5 }"));
    let cases = [
        (
            ordered("priority_levels: 2 default_priority_level: 1"),
            "dynamic_batching.priority_levels: expected one level, since preserve_ordering is true, but found 2",
        ),
        (
            ordered(&format!("default_queue_policy {{ {delay} }}")),
            "dynamic_batching.default_queue_policy.timeout_action: expected REJECT, since preserve_ordering is true, \
             but found DELAY",
        ),
        (
            ordered(&format!("{one_level} priority_queue_policy {{ key: 1 value {{ {delay} }} }}")),
            "dynamic_batching.priority_queue_policy[1].timeout_action: expected REJECT",
        ),
        (
            with_start(
                "control_input { name: \"S\" control { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } }",
                "",
            ),
            "sequence_batching.control_input[1].control: expected one input of the kind CONTROL_SEQUENCE_START, but \
             'S' is one too",
        ),
        (
            with_start("oldest { max_candidate_sequences: 4 preferred_batch_size: [ 1, 3 ] }", ""),
            "sequence_batching.oldest.preferred_batch_size: expected sizes from 1 to max_batch_size 2, but found 3",
        ),
        (
            with_start("direct { minimum_slot_utilization: 1.5 }", ""),
            "sequence_batching.direct.minimum_slot_utilization: expected a share from 0 to 1, but found 1.5",
        ),
    ];
    for (text, expected) in cases {
        let refusal = refused(&text);
        assert!(refusal.contains(expected), "{text}\n{refusal}");
    }
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

    let refused =
        |text: &str, signature: &Signature| against(text, signature).expect_err("it should be refused").to_string();
    assert_eq!(
        refused(&batch, &fixed),
        "config.pbtxt:1:1: max_batch_size: the first dimension of 'x' is no batch: the graph has the shape [4], \
         but max_batch_size is 2"
    );
    assert_eq!(
        refused(&batch.replace("\"x\"", "\"X\""), &batched),
        "config.pbtxt:2:9: input[0].name: the graph has no input 'X', only x; did you mean 'x'?"
    );
    assert_eq!(
        refused(&batch.replacen("FP32", "INT8", 1), &batched),
        "config.pbtxt:2:19: input[0].data_type: the graph has the datatype FP32 for 'x', but the configuration INT8"
    );
    assert_eq!(
        refused(&batch.replacen("4 ]", "5 ]", 1), &batched),
        "config.pbtxt:2:40: input[0].dims: the graph has the shape [4] behind the batch dimension for 'x', \
         but the configuration [5]"
    );
    assert!(refused(&batch.replacen("4 ]", "-1 ]", 1), &batched).contains("configuration [-1]"));
    let mut two = batched.clone();
    two.inputs.push(Port { name: "z".to_owned(), ..two.inputs[0].clone() });
    assert!(refused(&batch, &two).contains("the graph has an input 'z' that is not listed"));
}

#[test]
fn only_where_the_graph_has_no_elements_may_dims_be_0() {
    let config = |dims: &str| format!("{INPUT}{OUTPUT}").replace("[ 4 ]", dims);
    let empty = graph(vec![PortDim::Fixed(2), PortDim::Fixed(0)]);
    assert_eq!(against(&config("[ 2, 0 ]"), &empty), Ok(()));
    let refusal = against(&config("[ 0, 0 ]"), &empty).expect_err("the graph has others").to_string();
    assert!(refusal.contains("the graph has the shape [2, 0] for 'x', but the configuration [0, 0]"), "{refusal}");
    let refusal = against(&config("[ 2, 0 ]"), &graph(vec![PortDim::Fixed(2), PortDim::Unknown]))
        .expect_err("as Triton")
        .to_string();
    assert!(refusal.contains("expected sizes above 0, or -1, for 'x', but found 0"), "{refusal}");
}

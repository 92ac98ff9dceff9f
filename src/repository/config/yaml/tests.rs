use super::*;
use crate::repository::config::{params, pb::model_config::SchedulingChoice};

fn read(text: &str) -> pb::ModelConfig {
    parse("model.yaml", text.as_bytes()).unwrap_or_else(|fault| panic!("{fault}")).0
}

fn refusal_of(text: &str) -> String {
    parse("model.yaml", text.as_bytes()).expect_err("it should be refused").to_string()
}

const FULL: &str = include_str!("../../../../tests/corpus/yaml/ok_full.yaml");

#[test]
fn every_key_ends_in_the_model_config() {
    let config = read(FULL);
    assert_eq!((config.name.as_str(), config.backend.as_str(), config.max_batch_size), ("bert", "onnxruntime", 16));
    let latest = version_policy::Latest { num_versions: 2 };
    assert_eq!(config.version_policy.unwrap().policy_choice, Some(version_policy::PolicyChoice::Latest(latest)));
    assert_eq!(config.input[0].dims, [-1]);
    assert_eq!(config.parameters["axes.input_ids"].string_value, "tokens");
    assert_eq!(config.parameters["axes.hidden"].string_value, "tokens,-");
    assert_eq!(config.parameters["pad.attention_mask"].string_value, "tokens=0");
    assert_eq!(config.parameters["owner"].string_value, "me");
    assert_eq!(config.output[1].label_filename, "labels.txt");
    assert_eq!(config.output[1].reshape.as_ref().unwrap().shape, [1, 3]);
    assert_eq!(config.instance_group[0].count, 3);
    assert_eq!(config.parameters[params::POLICY].string_value, "window");
    assert_eq!(config.parameters[params::BUCKET_WIDTH].string_value, "32");
    let Some(SchedulingChoice::DynamicBatching(batching)) = config.scheduling_choice else {
        panic!("window is dynamic batching");
    };
    assert_eq!(batching.max_queue_delay_microseconds, 500);
    assert_eq!(batching.preferred_batch_size, [4, 8]);
    assert_eq!(batching.priority_queue_policy[&1].timeout_action, 1);
    assert_eq!(batching.default_queue_policy.unwrap().max_queue_size, 10);
    assert_eq!(config.model_warmup[0].inputs.len(), 2);
    assert_eq!(config.model_warmup[0].count, 3);
}

#[test]
fn an_empty_file_says_nothing_but_auto() {
    let config = read("");
    assert_eq!(config.parameters[params::POLICY].string_value, "auto");
    assert_eq!(config.scheduling_choice, None, "until the largest batch is known");
    assert_eq!(read("# only a comment\n"), config);
}

#[test]
fn unknown_keys_are_named_with_file_line_and_neighbour() {
    assert_eq!(
        refusal_of("name: m\nmax_batchsize: 4\n"),
        "model.yaml:2:1: max_batchsize: unknown key 'max_batchsize'; did you mean 'max_batch_size'?"
    );
    assert_eq!(
        refusal_of("inputs:\n  - name: x\n  - name: y\n    dimz: [1]\n"),
        "model.yaml:4:5: inputs[1].dimz: unknown key 'dimz'; did you mean 'dims'?"
    );
    assert_eq!(
        refusal_of("batching:\n  policy: window\n  window:\n    max_queue_delay_ms: 1\n"),
        "model.yaml:4:5: batching.window.max_queue_delay_ms: unknown key 'max_queue_delay_ms'; \
         did you mean 'max_queue_delay_us'?"
    );
}

#[test]
fn repeated_keys_are_named_with_both_lines() {
    assert_eq!(
        refusal_of("max_batch_size: 4\nname: m\nmax_batch_size: 5\n"),
        "model.yaml:3:1: max_batch_size: the key 'max_batch_size' is there twice, first in line 1"
    );
    assert_eq!(
        refusal_of("inputs:\n- { name: x, name: y }\n"),
        "model.yaml:2:14: inputs[0].name: the key 'name' is there twice, first in line 2"
    );
}

#[test]
fn what_a_later_version_will_know_is_refused_by_name() {
    assert_eq!(refusal_of("name: m\nstages: auto\n"), "model.yaml:2:1: stages: not supported by this version");
    assert_eq!(refusal_of("cells: {}\n"), "model.yaml:1:1: cells: not supported by this version");
    assert_eq!(refusal_of("unfold: []\n"), "model.yaml:1:1: unfold: not supported by this version");
    assert_eq!(
        refusal_of("batching:\n  policy: diversity\n"),
        "model.yaml:2:3: batching.policy: the policy 'diversity' is not supported by this version"
    );
    assert_eq!(
        refusal_of("batching: { lazy: { } }\n"),
        "model.yaml:1:13: batching.lazy: not supported by this version"
    );
    assert!(refusal_of("instance: { devices: [cuda] }").contains("'cuda' is not supported by this version"));
}

#[test]
fn wrong_values_say_what_was_expected() {
    assert_eq!(
        refusal_of("max_batch_size: many"),
        "model.yaml:1:1: max_batch_size: expected a whole number from 0 to 2147483647, but found 'many'"
    );
    assert_eq!(refusal_of("name: 5"), "model.yaml:1:1: name: expected a string (put it in quotes), but found 5");
    assert_eq!(
        refusal_of("inputs:\n- { name: x, dims: [1, 0.5] }"),
        "model.yaml:2:24: inputs[0].dims[1]: expected a whole number from -1 to 9223372036854775807, but found 0.5"
    );
    assert!(refusal_of("inputs:\n- { name: x, dtype: FP31 }").contains("did you mean 'FP3"), "a datatype");
    assert_eq!(refusal_of("inputs:\n- { dims: [1] }"), "model.yaml:2:3: inputs[0]: expected the key 'name'");
    assert_eq!(refusal_of("decoupled: yes"), "model.yaml:1:1: decoupled: expected true or false, but found 'yes'");
    assert_eq!(refusal_of("inputs: {}"), "model.yaml:1:1: inputs: expected a list, but found a mapping");
    assert!(refusal_of("- a\n").contains("expected a mapping of keys to values, but found a list"));
}

#[test]
fn broken_yaml_is_refused_with_its_place() {
    let fault = parse("model.yaml", b"name: m\nbatching: [\n").unwrap_err();
    assert_eq!(fault.position.map(|place| place.line), Some(3), "{fault}");
    assert!(refusal_of("--- {}\n--- {}\n").contains("one YAML document"));
    assert!(refusal_of("name: !secret x\n").starts_with("model.yaml:1:7"));
}

#[test]
fn auto_has_no_window_knobs() {
    assert_eq!(
        refusal_of("batching:\n  window: { max_queue_delay_us: 1 }\n"),
        "model.yaml:2:3: batching.window: these knobs need 'policy: window'; auto has none"
    );
    let serial = read("batching: { policy: serial, window: { max_queue_delay_us: 1, bucket_width: 4 } }");
    assert_eq!(serial.scheduling_choice, None, "the window's knobs wait for the window");
    assert!(!serial.parameters.contains_key(params::BUCKET_WIDTH));
}

#[test]
fn pads_need_names() {
    let pad = |text: &str| format!("inputs:\n- {{ name: x, dims: [n], pad: {text} }}");
    assert_eq!(read(&pad("{ axis: n, value: -1.5 }")).parameters["pad.x"].string_value, "n=-1.5");
    assert!(refusal_of(&pad("{ value: 0 }")).contains("either 'axis' (a name) or 'axes'"));
    assert!(refusal_of(&pad("{ axis: 0 }")).contains("give it a name in dims"));
    assert!(refusal_of(&pad("{ axes: [] }")).contains("at least one axis"));
}

#[test]
fn our_parameters_have_keys_of_their_own() {
    let refusal = refusal_of("parameters:\n  pad.x: n\n");
    assert!(refusal.starts_with("model.yaml:2:3: parameters.pad.x: expected as a key of its own"), "{refusal}");
}

#[test]
fn later_checks_find_the_users_key_and_line() {
    let (_, origin) = parse("f", FULL.as_bytes()).unwrap();
    let place = |path: &str| origin.error(path, "x").to_string();
    assert_eq!(place("max_batch_size"), "f:4:1: max_batch_size: x");
    assert_eq!(place("input[1].dims"), "f:10:5: inputs[1].dims: x");
    assert_eq!(place("input[1].data_type"), "f:9:5: inputs[1].dtype: x");
    assert_eq!(place("parameters[pad.attention_mask]"), "f:11:5: inputs[1].pad: x");
    assert_eq!(place("dynamic_batching.preferred_batch_size"), "f:22:5: batching.window.preferred_batch_sizes: x");
    assert_eq!(place("output[1].label_filename"), "f:15:61: outputs[1].labels: x");
}

use super::*;
use crate::{
    ConfigErrorKind::{Syntax, Unknown, Value},
    pb::model_config::SchedulingChoice,
    settings::POLICY,
    tests::refusals::{Refusals, part},
};

fn read(text: &str) -> pb::ModelConfig {
    parse("model.yaml", text.as_bytes()).unwrap_or_else(|fault| panic!("{fault}")).0.shown()
}

const BUCKET_WIDTH: &str = "batching.bucket_width";

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
    assert_eq!(config.parameters[POLICY].string_value, "window");
    assert_eq!(config.parameters[BUCKET_WIDTH].string_value, "32");
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
fn devices_are_instance_groups() {
    let groups = |devices: &str| {
        let config = read(&format!("instance: {{ devices: [{devices}], count: 2 }}"));
        let groups = config.instance_group.into_iter();
        groups.map(|group| (group.kind(), group.gpus, group.count)).collect::<Vec<_>>()
    };
    assert_eq!(groups("cpu"), [(Kind::Cpu, vec![], 2)]);
    assert_eq!(groups("cuda, cpu"), [(Kind::Gpu, vec![], 2), (Kind::Cpu, vec![], 2)]);
    assert_eq!(groups("'cuda:0', 'cuda:3'"), [(Kind::Gpu, vec![0, 3], 2)]);
    let left_open = read("instance: { count: 2 }").instance_group.remove(0);
    assert_eq!((left_open.kind(), left_open.count), (Kind::Auto, 2));
}

#[test]
fn an_empty_file_says_nothing_but_auto() {
    let config = read("");
    assert_eq!(config.parameters[POLICY].string_value, "auto");
    assert_eq!(config.scheduling_choice, None, "until the largest batch is known");
    assert_eq!(read("# only a comment\n"), config);
}

#[test]
fn a_window_waits_for_its_policy() {
    let serial = read("batching: { policy: serial, window: { max_queue_delay_us: 1, bucket_width: 4 } }");
    assert_eq!(serial.scheduling_choice, None, "the window's knobs wait for the window");
    assert!(!serial.parameters.contains_key(BUCKET_WIDTH));
}

/// Parameters of a text, without the policy's name.
fn parameters_of(text: &str) -> Vec<(String, String)> {
    let read = read(text).parameters.into_iter().filter(|(key, _)| key != POLICY);
    read.map(|(key, parameter)| (key, parameter.string_value)).collect()
}

fn pairs(expected: &[(&str, &str)]) -> Vec<(String, String)> {
    expected.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

#[test]
fn every_knob_becomes_a_parameter_of_its_name() {
    let adaptive = "batching:
  policy: adaptive
  latency_objective_ms: 100
  weight: 2
  buffer_pairs: 3
  task_time_limit_ms: 600000
  latencies: latencies.csv
  adaptive: { headroom: 0.2, average_ms: 30, max_queue_delay_us: 100, mode: default }
  lazy: { max_depth: 2 }
";
    let expected = [
        ("batching.adaptive.average_ms", "30"),
        ("batching.adaptive.headroom", "0.2"),
        ("batching.adaptive.max_queue_delay_us", "100"),
        ("batching.adaptive.mode", "default"),
        ("batching.buffer_pairs", "3"),
        ("batching.latencies", "latencies.csv"),
        ("batching.latency_objective_ms", "100"),
        ("batching.task_time_limit_ms", "600000"),
        ("batching.weight", "2"),
    ];
    assert_eq!(parameters_of(adaptive), pairs(&expected), "and the section of 'lazy' waits for its choice");
    let lazy =
        "batching: { policy: lazy, lazy: { predictor: table, max_depth: 2, max_catch_up_ms: 0.5, reject_late: true } }";
    let expected = [
        ("batching.lazy.max_catch_up_ms", "0.5"),
        ("batching.lazy.max_depth", "2"),
        ("batching.lazy.predictor", "table"),
        ("batching.lazy.reject_late", "true"),
    ];
    assert_eq!(parameters_of(lazy), pairs(&expected));
    let diversity = "batching:
  policy: diversity
  diversity:
    input: { bounds: [32, 64], window_us: 5 }
    operator: { threshold: 0.9, order: depth-first, mode: default }
    load: false
";
    let expected = [
        ("batching.diversity.input", "true"),
        ("batching.diversity.input.bounds", "32,64"),
        ("batching.diversity.input.window_us", "5"),
        ("batching.diversity.load", "false"),
        ("batching.diversity.operator", "true"),
        ("batching.diversity.operator.mode", "default"),
        ("batching.diversity.operator.order", "depth-first"),
        ("batching.diversity.operator.threshold", "0.9"),
    ];
    assert_eq!(parameters_of(diversity), pairs(&expected));
}

#[test]
fn stages_and_exits_become_one_parameter() {
    assert_eq!(parameters_of("stages: 4"), pairs(&[("stages", "4")]));
    assert_eq!(parameters_of("stages: auto"), pairs(&[("stages", "auto")]));
    let exits = "stages: [a, \"123\"]
exits:
- { stage: 1, value: t, at_least: 0.9, outputs: { logits: exit1_logits } }
- { stage: 0, value: u, at_least: 1, skip_to: 2 }
";
    let expected = concat!(
        r#"{"exits":[{"at_least":0.9,"outputs":{"logits":"exit1_logits"},"stage":1,"value":"t"},"#,
        r#"{"at_least":1.0,"outputs":{},"skip_to":2,"stage":0,"value":"u"}],"stages":["a","123"]}"#,
    );
    assert_eq!(parameters_of(exits), pairs(&[("paternoster", expected)]));
}

/// A model of one cell, whose parameters stand beside those of its text.
const CELL: &str = "cells: { c: { program: c.onnx } }\nunfold: [ stage: c ]\n";

#[test]
fn cells_and_segments_become_one_parameter() {
    let text = "cells:
  step: { program: step.onnx, batch_sizes: [1, 512], min_followup: 128, priority: 1 }
unfold:
- stage: conv
- stage: { cell: conv, name: two, inputs: { x: frames }, length: { n: frames }, emit: { y: all(y) } }
- chain: { cell: step, over: tokens, as: x, carry: { h: h_next }, start: { h: 0.5, c: two.y }, reverse: true, steps: 4,
           hold: { memory: encoder.hidden }, emit: { hidden: last(h_next) }, stream: false }
- decode: { cell: step, feed: { token: next }, until: { next: -2 }, max_steps: \"len(source) + 50\",
            emit: { y.1: all(next) }, grow: { keys: key }, length: { past: grow.keys } }
- tree: { leaf: leaf, internal: node, children: table, over: { a: tokens, b: other }, child: { left: 0.h },
          max_nodes: 256, emit: { root: root(h) } }
";
    let expected = serde_json::json!({
        "cells": { "step": { "program": "step.onnx", "batch_sizes": [1, 512], "min_followup": 128, "priority": 1 } },
        "unfold": [
            { "stage": { "cell": "conv" } },
            { "stage": { "cell": "conv", "name": "two", "inputs": { "x": "frames" }, "length": { "n": "frames" },
                         "emit": { "y": "all(y)" } } },
            { "chain": { "cell": "step", "over": { "x": "tokens" }, "carry": { "h": "h_next" },
                         "start": { "h": 0.5, "c": "two.y" }, "reverse": true, "steps": 4,
                         "hold": { "memory": "encoder.hidden" }, "emit": { "hidden": "last(h_next)" },
                         "stream": false } },
            { "decode": { "cell": "step", "feed": { "token": "next" }, "until": { "next": -2 },
                          "max_steps": "len(source) + 50", "emit": { "y.1": "all(next)" }, "grow": { "keys": "key" },
                          "length": { "past": "grow.keys" } } },
            { "tree": { "leaf": "leaf", "internal": "node", "children": "table",
                        "over": { "a": "tokens", "b": "other" }, "child": { "left": "0.h" }, "max_nodes": 256,
                        "emit": { "root": "root(h)" } } },
        ],
    });
    assert_eq!(parameters_of(text), pairs(&[("paternoster", expected.to_string().as_str())]));
    let batch = |text: &str| read(text).max_batch_size;
    assert_eq!([batch(CELL), batch(&format!("max_batch_size: 0\n{CELL}"))], [1, 0]);
}

#[test]
fn auto_is_cellular_where_there_are_cells() {
    let knobs = "batching: { cellular: { slots: 9, mode: paper, frontier: false, merge_requests: 64 } }";
    let expected = [
        ("batching.cellular.frontier", "false"),
        ("batching.cellular.merge_requests", "64"),
        ("batching.cellular.mode", "paper"),
        ("batching.cellular.slots", "9"),
        ("paternoster", r#"{"cells":{"c":{"program":"c.onnx"}},"unfold":[{"stage":{"cell":"c"}}]}"#),
    ];
    assert_eq!(parameters_of(&format!("{CELL}{knobs}")), pairs(&expected));
    assert_eq!(parameters_of(knobs), pairs(&expected[..4]), "a graph may have recurrent layers");
}

#[test]
fn a_latency_table_is_a_file_or_a_list() {
    let table = "batching:
  latencies:
  - { stage: 0, rows: 1, latency_us: 120.5 }
  - { stage: 1, rows: 8, length: 64, latency_us: 900 }
";
    let text = "stage,rows,length,latency_us\n0,1,0,120.5\n1,8,64,900\n";
    assert_eq!(parameters_of(table), pairs(&[("batching.latencies", text)]));
}

#[test]
fn the_queue_is_common_to_all_policies() {
    let keys = "preserve_ordering: true, priority_levels: 2, default_priority_level: 1, bucket_width: 8";
    let queue = |config: pb::ModelConfig| match config.scheduling_choice {
        Some(SchedulingChoice::DynamicBatching(batching)) => {
            let width = config.parameters.get(BUCKET_WIDTH).map(|width| width.string_value.clone());
            (batching.preserve_ordering, batching.priority_levels, batching.default_priority_level, width)
        }
        other => panic!("{other:?}"),
    };
    let expected = (true, 2, 1, Some("8".to_owned()));
    for policy in ["auto", "window", "adaptive", "lazy", "diversity"] {
        let text = format!("batching: {{ policy: {policy}, queueing: {{ {keys} }} }}");
        assert_eq!(queue(read(&text)), expected, "{policy}");
    }
    let without_width = keys.replace(", bucket_width: 8", "");
    let serial = read(&format!("batching: {{ policy: serial, queueing: {{ {without_width} }} }}"));
    assert_eq!(queue(serial), (true, 2, 1, None));
    assert_eq!(queue(read(&format!("batching: {{ policy: window, window: {{ {keys} }} }}"))), expected);
    let elsewhere = read(&format!("batching: {{ policy: lazy, window: {{ {keys} }} }}"));
    assert_eq!(queue(elsewhere), (false, 0, 0, None), "the window's keys wait for the window");
    let (_, origin) = parse("f", format!("batching: {{ policy: lazy, window: {{ {keys} }} }}").as_bytes()).unwrap();
    let place = origin.error("dynamic_batching.priority_levels", "x").to_string();
    assert_eq!(place, "f:1:1: batching.priority_levels: x", "and no refusal is placed at them");
    let own = read("batching: { policy: window, queueing: {}, window: { max_queue_delay_us: 5 } }");
    assert!(matches!(own.scheduling_choice, Some(SchedulingChoice::DynamicBatching(batching))
        if batching.max_queue_delay_microseconds == 5));
}

#[test]
fn later_checks_find_knobs_stages_and_exits() {
    let text = "stages: [a]\nexits:\n- { stage: 0, value: t, at_least: 1, outputs: { y: u } }\nbatching:\n  \
                policy: diversity\n  queueing: { priority_levels: 1 }\n  window: {}\n  \
                diversity:\n    load:\n      max_stage: 1\n";
    let (_, origin) = parse("f", text.as_bytes()).unwrap();
    let place = |path: &str| origin.error(path, "x").to_string();
    assert_eq!(place("stages[0]"), "f:1:10: stages[0]: x");
    assert_eq!(place("exits[0].outputs.y"), "f:3:49: exits[0].outputs.y: x");
    assert_eq!(place("dynamic_batching.priority_levels"), "f:6:15: batching.queueing.priority_levels: x");
    assert_eq!(place("batching.diversity.load.max_stage"), "f:10:7: batching.diversity.load.max_stage: x");
}

#[test]
fn a_pad_is_a_parameter() {
    let config = read("inputs:\n- { name: x, dims: [n], pad: { axis: n, value: -1.5 } }");
    assert_eq!(config.parameters["pad.x"].string_value, "n=-1.5");
}

#[test]
fn lengths_go_by_axis() {
    let config = read("instance: { devices: [cuda], lengths: { tokens: [16, 64], n: [3] } }");
    assert_eq!(config.parameters["lengths.tokens"].string_value, "16,64");
    assert_eq!(config.parameters["lengths.n"].string_value, "3");
    assert_eq!(config.instance_group[0].kind(), Kind::Gpu);
}

#[test]
fn the_model_and_each_cell_name_an_engine() {
    let config = read("engine: openvino\ncells: { c: { program: c.onnx, engine: onnxruntime, precision: fp32 } }");
    let given = ["engine", "paternoster"].map(|key| config.parameters[key].string_value.as_str());
    let cells = r#"{"cells":{"c":{"engine":"onnxruntime","precision":"ieee","program":"c.onnx"}}}"#;
    assert_eq!(given, ["openvino", cells]);
}

#[test]
fn the_precision_is_a_parameter() {
    let config = read("instance: { precision: bf16 }");
    assert_eq!(config.parameters["instance.precision"].string_value, "bf16");
}

#[test]
fn later_checks_find_the_users_key_and_line() {
    let (_, origin) = parse("f", FULL.as_bytes()).unwrap();
    let place = |path: &str| origin.error(path, "x").to_string();
    assert_eq!(place("max_batch_size"), "f:4:1: max_batch_size: x");
    assert_eq!(place("input[1].dims"), "f:10:5: inputs[1].dims: x");
    assert_eq!(place("input[1].data_type"), "f:9:5: inputs[1].dtype: x");
    assert_eq!(place("pad.attention_mask"), "f:11:5: inputs[1].pad: x");
    assert_eq!(place("dynamic_batching.preferred_batch_size"), "f:22:5: batching.window.preferred_batch_sizes: x");
    assert_eq!(place("output[1].label_filename"), "f:15:61: outputs[1].labels: x");
}

pub(crate) fn refusals(all: &mut Refusals) {
    let read = |text: &str| parse("model.yaml", text.as_bytes());
    part(all, "model.yaml: keys", read).refuses(&[
        (Unknown, "2:1 max_batchsize", "name: m\nmax_batchsize: 4\n"),
        (Unknown, "4:5 inputs[1].dimz", "inputs:\n  - name: x\n  - name: y\n    dimz: [1]\n"),
        (
            Unknown,
            "4:5 batching.window.max_queue_delay_ms",
            "batching:\n  policy: window\n  window:\n    max_queue_delay_ms: 1\n",
        ),
        (Value, "3:1 max_batch_size", "max_batch_size: 4\nname: m\nmax_batch_size: 5\n"),
        (Value, "2:14 inputs[0].name", "inputs:\n- { name: x, name: y }\n"),
        (Value, "2:3 inputs[0]", "inputs:\n- { dims: [1] }"),
        (Value, "2:3 parameters.pad.x", "parameters:\n  pad.x: n\n"),
        (Value, "1:15 parameters.axes.x", "parameters: { axes.x: n }"),
        (Value, "1:15 parameters.lengths.x", "parameters: { lengths.x: n }"),
        (Value, "1:15 parameters.instance.precision", "parameters: { instance.precision: n }"),
        (Value, "1:15 parameters.batching.weight", "parameters: { batching.weight: n }"),
        (Value, "1:15 parameters.stages", "parameters: { stages: n }"),
        (Value, "1:15 parameters.exits.0.stage", "parameters: { exits.0.stage: n }"),
        (Value, "1:15 parameters.cells.c.program", "parameters: { cells.c.program: n }"),
        (Value, "1:15 parameters.unfold.0.kind", "parameters: { unfold.0.kind: n }"),
        (Value, "1:15 parameters.paternoster", "parameters: { paternoster: n }"),
    ]);
    part(all, "model.yaml: broken YAML", read).refuses(&[
        (Syntax, "2:11", "name: m\nbatching: [\n"),
        (Syntax, "2:1", "--- {}\n--- {}\n"),
        (Syntax, "1:15", "name: !secret x\n"),
        (Value, "", "- a\n"),
    ]);
    part(all, "model.yaml: values", read).refuses(&[
        (Value, "1:1 max_batch_size", "max_batch_size: many"),
        (Value, "1:1 name", "name: 5"),
        (Value, "2:24 inputs[0].dims[1]", "inputs:\n- { name: x, dims: [1, 0.5] }"),
        (Value, "2:14 inputs[0].dtype", "inputs:\n- { name: x, dtype: FP31 }"),
        (Value, "1:1 decoupled", "decoupled: yes"),
        (Value, "1:1 inputs", "inputs: {}"),
        (Value, "2:25 inputs[0].pad", "inputs:\n- { name: x, dims: [n], pad: { value: 0 } }"),
        (Value, "2:25 inputs[0].pad", "inputs:\n- { name: x, dims: [n], pad: { axis: 0 } }"),
        (Value, "2:25 inputs[0].pad", "inputs:\n- { name: x, dims: [n], pad: { axes: [] } }"),
        (Value, "1:23 instance.devices[0]", "instance: { devices: ['tpu'] }"),
        (Value, "1:23 instance.devices[0]", "instance: { devices: ['cuda:'] }"),
        (Value, "1:23 instance.devices[0]", "instance: { devices: ['cuda:-1'] }"),
        (Value, "1:23 instance.devices[0]", "instance: { devices: ['cuda:x'] }"),
        (Value, "2:27 instance.lengths.tokens[1]", "instance:\n  lengths: { tokens: [16, 0] }\n"),
        (Value, "1:13 instance.lengths", "instance: { lengths: 16 }"),
        (Value, "2:3 instance.precision", "instance:\n  precision: half\n"),
        (Value, "1:1 engine", "engine: tensorrt\n"),
        (Value, "2:25 cells.c.engine", "cells:\n  c: { program: c.onnx, engine: tensorrt }\n"),
    ]);
    part(all, "model.yaml: stages and exits", read).refuses(&[
        (Value, "1:1 stages", "stages: 0"),
        (Value, "1:1 stages", "stages: many"),
        (Value, "1:1 stages", "stages: 257"),
        (Value, "1:1 stages", "stages: 2.5"),
        (Value, "1:1 stages", "stages: []"),
        (Value, "1:10 stages[0]", "stages: [1]"),
        (Value, "2:3 exits[0]", "exits:\n- { stage: 1, value: t }"),
        (Unknown, "1:21 exits[0].skipto", "exits: [{ stage: 1, skipto: 2 }]"),
    ]);
    part(all, "model.yaml: knobs", read).refuses(&[
        (Value, "2:3 batching.window", "batching:\n  window: { max_queue_delay_us: 1 }\n"),
        (Value, "3:5 batching.latencies[0]", "batching:\n  latencies:\n  - { stage: 0, rows: 1 }\n"),
        (Value, "1:13 batching.latencies", "batching: { latencies: 5 }"),
        (
            Value,
            "1:25 batching.cellular.slots",
            "batching: { cellular: { slots: 0 } }\ncells: { c: { program: c.onnx } }\nunfold: [ stage: c ]",
        ),
        (Value, "1:27 batching.latency_objective_ms", "batching: { policy: lazy, latency_objective_ms: 0 }"),
        (Value, "1:27 batching.latency_objective_ms", "batching: { policy: lazy, latency_objective_ms: fast }"),
        (Value, "1:27 batching.task_time_limit_ms", "batching: { policy: lazy, task_time_limit_ms: -1 }"),
        (Value, "1:27 batching.buffer_pairs", "batching: { policy: lazy, buffer_pairs: 0 }"),
        (Value, "1:27 batching.buffer_pairs", "batching: { policy: lazy, buffer_pairs: 1.5 }"),
        (Value, "1:35 batching.lazy.reject_late", "batching: { policy: lazy, lazy: { reject_late: yes } }"),
        (Value, "1:35 batching.lazy.predictor", "batching: { policy: lazy, lazy: { predictor: oracle } }"),
        (Unknown, "1:35 batching.lazy.max_dept", "batching: { policy: lazy, lazy: { max_dept: 1 } }"),
        (Unknown, "1:39 batching.adaptive.mode", "batching: { policy: lazy, adaptive: { mode: fast } }"),
        (Value, "1:40 batching.diversity.load", "batching: { policy: lazy, diversity: { load: 5 } }"),
        (
            Value,
            "1:49 batching.diversity.input.bounds",
            "batching: { policy: lazy, diversity: { input: { bounds: [64, 32] } } }",
        ),
        (
            Value,
            "1:58 batching.diversity.input.bounds[0]",
            "batching: { policy: lazy, diversity: { input: { bounds: [x] } } }",
        ),
        (Unknown, "1:27 batching.bucket_width", "batching: { policy: lazy, bucket_width: 1 }"),
    ]);
    part(all, "model.yaml: the queue", read).refuses(&[
        (Value, "4:13 batching.window.bucket_width", "batching:\n  policy: window\n  queueing: {}\n  window: { bucket_width: 8 }\n"),
        (Value, "3:15 batching.queueing.bucket_width", "batching:\n  policy: serial\n  queueing: { bucket_width: 8 }\n"),
        (Value, "4:13 batching.window.priority_queues", "batching:\n  policy: diversity\n  queueing: { priority_levels: 1 }\n  window: { priority_queues: { 1: } }\n"),
    ]);
}

//! What `model.yaml` says, the `ModelConfig` that comes of it says too: printed as `config.pbtxt` or JSON and read
//! again, it gives the same specification, knobs, stages, cells and latencies.

pub(crate) mod refusals;

use std::collections::BTreeMap;

use paternoster_batching::PolicyKind;
use proptest::{option, prelude::*, sample::select};
use serde_json::{Value as Json, json};

use crate::{
    fuzz::{check_forms, load},
    model::{Batching, MAX_STAGES, PolicyName},
    values::Keywords,
    yaml,
};

/// Values of a schema: each keyword, both flags, the bounds of numbers, lists of one and two items, and mappings of one
/// key.
fn values(schema: &Json, definitions: &Json) -> Vec<Json> {
    let of = |schema: &Json| values(schema, definitions);
    if let Some(name) = schema["$ref"].as_str() {
        return of(&definitions[name.trim_start_matches("#/$defs/")]);
    }
    if let Some(kinds) = schema["anyOf"].as_array().or(schema["oneOf"].as_array()) {
        return kinds.iter().flat_map(of).collect();
    }
    if let Some(words) = schema["enum"].as_array() {
        return words.iter().filter(|word| !word.is_null()).cloned().collect();
    }
    if !schema["const"].is_null() {
        return vec![schema["const"].clone()];
    }
    let kind = schema["type"].as_str().or(schema["type"][0].as_str());
    let bounds = ["minimum", "maximum"].map(|bound| schema[bound].clone());
    match kind {
        Some("boolean") => vec![json!(true), json!(false)],
        Some("integer") => bounds.into_iter().filter(|bound| !bound.is_null()).collect(),
        Some("number") => {
            let more = bounds[0].as_f64().or(schema["exclusiveMinimum"].as_f64()).map(|least| json!(least + 0.25));
            bounds.into_iter().filter(|bound| !bound.is_null()).chain(more).collect()
        }
        Some("array") => {
            let items = of(&schema["items"]);
            let first = items.first().cloned();
            let both = (items.len() > 1).then_some(Json::Array(items));
            first.map(|first| json!([first])).into_iter().chain(both).collect()
        }
        Some("object") => {
            let keys = schema["properties"].as_object().into_iter().flatten();
            keys.flat_map(|(key, schema)| of(schema).into_iter().map(move |value| json!({ key: value }))).collect()
        }
        _ => Vec::new(),
    }
}

/// The keys of mappings that have only one each.
fn path(section: &Json) -> String {
    match section.as_object().and_then(|keys| keys.iter().next()) {
        Some((key, value)) => format!("{key}.{}", path(value)),
        None => String::new(),
    }
}

/// The mappings of one knob in a policy's section, by the path of the knob.
fn knobs(kind: PolicyKind) -> BTreeMap<String, Vec<Json>> {
    let schema = schemars::schema_for!(Batching);
    let definitions = &schema.as_value()["$defs"];
    let mut knobs: BTreeMap<String, Vec<Json>> = BTreeMap::new();
    for section in values(&schema.as_value()["properties"][kind.name()], definitions) {
        knobs.entry(path(&section)).or_default().push(section);
    }
    knobs
}

/// Policies whose sections have the knobs of nothing else: the queue's keys depend on each other, and cells are
/// another model.
fn with_knobs() -> impl Iterator<Item = PolicyKind> {
    let others = [PolicyKind::Serial, PolicyKind::Window, PolicyKind::Cellular];
    PolicyKind::ALL.iter().copied().filter(move |kind| !others.contains(kind))
}

/// Sections of knobs for each policy over batches, some empty.
fn sections() -> impl Strategy<Value = Vec<(&'static str, Option<String>)>> {
    let section = |kind: PolicyKind| {
        // As few stages as a model of `text` has.
        let sections: Vec<Json> =
            knobs(kind).into_values().flatten().filter(|section| works(kind, section, 3)).collect();
        option::of(select(sections).prop_map(|section| section.to_string())).prop_map(move |text| (kind.name(), text))
    };
    with_knobs().map(section).collect::<Vec<_>>()
}

/// A model that has what knobs may need: stages, a padded axis, an objective.
fn with_section(kind: PolicyKind, section: &Json, stages: u16) -> String {
    let name = kind.name();
    format!(
        "max_batch_size: 8
inputs: [ {{ name: x, dtype: INT64, dims: [n], pad: {{ axis: n, value: 0 }} }} ]
outputs: [ {{ name: y, dtype: FP32, dims: [2] }} ]
stages: {stages}
batching: {{ policy: {name}, latency_objective_ms: 5, {name}: {section} }}
"
    )
}

/// Whether a policy is read with one of its knobs alone.
fn works(kind: PolicyKind, section: &Json, stages: u16) -> bool {
    let read = yaml::parse("model.yaml", with_section(kind, section, stages).as_bytes());
    read.is_ok_and(|(mut settings, origin)| load(&mut settings, &origin).is_ok())
}

#[test]
fn every_knob_of_every_policy_says_the_same_in_both_forms() {
    for kind in with_knobs() {
        for (knob, sections) in knobs(kind) {
            let working: Vec<&Json> = sections.iter().filter(|section| works(kind, section, MAX_STAGES)).collect();
            assert!(!working.is_empty(), "no value of '{knob}' of '{}' is accepted, of {sections:?}", kind.name());
            working.iter().for_each(|section| says_the_same(&with_section(kind, section, MAX_STAGES)));
        }
    }
}

/// `{ key: value, … }` of the keys that are given.
fn section(keys: Vec<(&str, Option<String>)>) -> String {
    let given = keys.into_iter().filter_map(|(key, value)| Some(format!("{key}: {}", value?)));
    format!("{{ {} }}", given.collect::<Vec<_>>().join(", "))
}

fn maybe<T: std::fmt::Display>(value: impl Strategy<Value = T>) -> impl Strategy<Value = Option<String>> {
    option::of(value.prop_map(|value| value.to_string()))
}

fn word(words: &'static [&'static str]) -> impl Strategy<Value = Option<String>> {
    maybe(select(words))
}

fn queue() -> impl Strategy<Value = String> {
    let keys = (word(&["reject", "delay"]), maybe(any::<u64>()), maybe(any::<bool>()), maybe(any::<u32>()));
    keys.prop_map(|(action, timeout, allow, size)| {
        section(vec![
            ("timeout_action", action),
            ("default_timeout_us", timeout),
            ("allow_timeout_override", allow),
            ("max_queue_size", size),
        ])
    })
}

fn queueing() -> impl Strategy<Value = String> {
    let levels = option::of(prop_oneof![1_u64..9, Just(u64::MAX)]);
    (maybe(any::<bool>()), maybe(any::<u32>()), levels, queue(), queue()).prop_map(
        |(ordering, width, levels, default, first)| {
            // Both change the order.
            let is_ordered = levels.is_none_or(|levels| levels == 1) && !format!("{default}{first}").contains("delay");
            section(vec![
                ("preserve_ordering", ordering.filter(|_| is_ordered)),
                ("bucket_width", width),
                ("priority_levels", levels.map(|levels| levels.to_string())),
                ("default_priority_level", levels.map(|levels| levels.to_string())),
                ("queue", Some(default)),
                ("priority_queues", levels.map(|_| format!("{{ 1: {first} }}"))),
            ])
        },
    )
}

/// Stages, at least two, and exits behind the first.
fn stages() -> impl Strategy<Value = String> {
    let tensors = || select(&["conv1", "123", "a,b", "x.y[0]", "ü \\\"q\\\"", "auto"][..]);
    let cuts = prop_oneof![
        (3_u16..9).prop_map(|count| count.to_string()),
        (tensors(), tensors())
            .prop_filter("twice the same", |(first, second)| first != second)
            .prop_map(|(first, second)| format!("[\"{first}\", \"{second}\"]")),
    ];
    let to = prop_oneof![
        Just("outputs: {}".to_owned()),
        tensors().prop_map(|tensor| format!("outputs: {{ y.1: \"{tensor}\" }}")),
        Just("skip_to: 2".to_owned()),
    ];
    let exit = (tensors(), any::<f32>().prop_filter("a number", |value| value.is_finite()), to);
    let exit =
        exit.prop_map(|(value, least, to)| format!("{{ stage: 0, value: \"{value}\", at_least: {least:?}, {to} }}"));
    (cuts, prop::collection::vec(exit, 0..3))
        .prop_map(|(cuts, exits)| format!("stages: {cuts}\nexits: [{}]\n", exits.join(", ")))
}

fn latency_table() -> impl Strategy<Value = String> {
    let line = (0_u16..3, 0.001_f64..1e6);
    let lines = prop::collection::btree_map((1_u32..9, 0_u32..600), line, 1..5);
    let list = lines.prop_map(|lines| {
        let lines = lines.into_iter().map(|((rows, length), (stage, latency))| {
            format!("{{ stage: {stage}, rows: {rows}, length: {length}, latency_us: {latency} }}")
        });
        format!("[{}]", lines.collect::<Vec<_>>().join(", "))
    });
    prop_oneof![list, Just("latencies.csv".to_owned())]
}

/// A `model.yaml` that is accepted, with every kind of knob.
fn text() -> impl Strategy<Value = String> {
    let policies = PolicyName::keywords().into_iter().filter(|name| *name != PolicyKind::Cellular.name());
    let policy = select(policies.collect::<Vec<_>>());
    let sections = (sections(), queueing(), maybe(0_u64..1_000_000));
    let common = (0.5_f64..1e4, maybe(1_u32..1_000), maybe(1_u16..16), option::of(latency_table()), maybe(0_u32..9));
    (policy, sections, common, stages()).prop_map(|(policy, sections, common, stages)| {
        let (sections, queueing, delay) = sections;
        let (objective, weight, pairs, table, limit) = common;
        let named = policy != "auto";
        let window = section(vec![("max_queue_delay_us", delay), ("preferred_batch_sizes", Some("[4, 2]".to_owned()))]);
        let mut batching = vec![
            ("policy", Some(policy.to_owned())),
            ("latency_objective_ms", Some(objective.to_string())),
            ("weight", weight),
            ("buffer_pairs", pairs),
            ("task_time_limit_ms", limit),
            ("latencies", table),
            ("queueing", (policy != "serial").then_some(queueing)),
            ("window", named.then_some(window)),
        ];
        batching.extend(sections.into_iter().filter(|_| named));
        let batching = section(batching);
        format!(
            "max_batch_size: 8
inputs: [ {{ name: x, dtype: INT64, dims: [n], pad: {{ axis: n, value: 0 }} }} ]
outputs: [ {{ name: y.1, dtype: FP32, dims: [2] }} ]
{stages}batching: {batching}
"
        )
    })
}

/// Names of a program's inputs and outputs, and of emits: anything but nothing.
fn port() -> impl Strategy<Value = String> {
    select(&["h", "y.1", "123", "h:0", "ü 'q'", "h.", ".h", "#h", "#text", "#map"][..]).prop_map(str::to_owned)
}

fn cell() -> impl Strategy<Value = String> {
    let sizes =
        prop::collection::btree_set(16_u32..65_536, 1..6).prop_map(|sizes| sizes.into_iter().collect::<Vec<_>>());
    let sizes = option::of(sizes.prop_map(|sizes| format!("{sizes:?}")));
    (sizes, maybe(1_u32..16), maybe(1_u32..9)).prop_map(|(sizes, least, priority)| {
        let program = Some("cell.onnx".to_owned());
        section(vec![("program", program), ("batch_sizes", sizes), ("min_followup", least), ("priority", priority)])
    })
}

/// A chain over the model's input, and what comes behind it.
fn segments() -> impl Strategy<Value = String> {
    let start = prop_oneof![
        any::<i32>().prop_map(|start| start.to_string()),
        (-1e9_f64..1e9).prop_map(|start| start.to_string()),
        select(&["x", "08", "\"+1.50\"", "088888888888888888888"][..]).prop_map(str::to_owned)
    ];
    let steps = word(&["len(x) / 2 + 1", "08", "\"+8\"", "8"]);
    let chain = (port(), start, maybe(any::<bool>()), steps);
    let chain = chain.prop_map(|(port, start, reverse, steps)| {
        let keys = vec![
            ("cell", Some("one".to_owned())),
            ("name", Some("first".to_owned())),
            ("over", Some("x".to_owned())),
            ("as", Some("x".to_owned())),
            ("carry", Some(format!("{{ \"{port}\": \"{port}\" }}"))),
            ("start", Some(format!("{{ \"{port}\": {start} }}"))),
            ("reverse", reverse.clone()),
            // As good as any coin.
            ("chunk", reverse.map(|_| "{ lengths: n }".to_owned())),
            ("steps", steps),
            ("emit", Some(format!("{{ all: \"all({port})\", last: \"last({port})\" }}"))),
        ];
        format!("- chain: {}\n", section(keys))
    });
    let decode = (port(), maybe(any::<i64>()), option::of(port())).prop_map(|(port, until, hold)| {
        let keys = vec![
            ("cell", Some("two".to_owned())),
            ("feed", Some(format!("{{ \"{port}\": \"{port}\" }}"))),
            ("until", until.map(|until| format!("{{ \"{port}\": {until} }}"))),
            ("hold", hold.map(|hold| format!("{{ \"of {hold}\": first.all }}"))),
            ("length", Some("{ n: first.all }".to_owned())),
            ("max_steps", Some("\"len(first.all) * 2\"".to_owned())),
            ("emit", Some(format!("{{ y.1: \"all({port})\" }}"))),
        ];
        format!("- decode: {}\n", section(keys))
    });
    let tree = (port(), maybe(1_u32..1_000)).prop_map(|(port, most)| {
        let keys = vec![
            ("leaf", Some("two".to_owned())),
            ("internal", Some("one".to_owned())),
            ("children", Some("table".to_owned())),
            ("over", Some(format!("{{ \"{port}\": x, b: first.all }}"))),
            ("child", Some(format!("{{ left: \"0.{port}\", right: \"1.{port}\" }}"))),
            ("max_nodes", most),
            ("emit", Some(format!("{{ y.1: \"root({port})\" }}"))),
        ];
        format!("- tree: {}\n", section(keys))
    });
    let stage = Just("- stage: { cell: two, inputs: { a: first.last }, emit: { y.1: all(b) } }\n".to_owned());
    (chain, prop_oneof![decode, tree, stage]).prop_map(|(chain, behind)| format!("{chain}{behind}"))
}

/// A `model.yaml` of cells that is accepted.
fn cells_text() -> impl Strategy<Value = String> {
    let knobs = (maybe(1_u32..1_000_000), maybe(1_u16..1_000), maybe(any::<bool>()), maybe(1_u32..65_536));
    let knobs = knobs.prop_map(|(slots, tasks, frontier, merged)| {
        let mode = Some("paper".to_owned());
        let keys = [("mode", mode), ("slots", slots), ("max_tasks", tasks), ("frontier", frontier)];
        section(keys.into_iter().chain([("merge_requests", merged)]).collect())
    });
    let policy = select(&["auto", "cellular"][..]);
    (select(&["", "max_batch_size: 0\n", "max_batch_size: 1\n"][..]), cell(), cell(), segments(), policy, knobs)
        .prop_map(|(batch, one, two, segments, policy, knobs)| {
            format!(
                "inputs:
- {{ name: x, dtype: FP32, dims: [n] }}
- {{ name: table, dtype: INT64, dims: [n, 2] }}
outputs: [ {{ name: y.1, dtype: FP32, dims: [2] }} ]
{batch}cells: {{ one: {one}, two: {two} }}
unfold:
{segments}batching:
  {{ policy: {policy}, latency_objective_ms: 5, queueing: {{ preserve_ordering: true }}, cellular: {knobs} }}
"
            )
        })
}

fn says_the_same(text: &str) {
    let (mut config, origin) = yaml::parse("model.yaml", text.as_bytes()).unwrap();
    let loaded = load(&mut config, &origin);
    assert!(loaded.is_ok(), "{loaded:?}\n{text}");
    check_forms(&config, &loaded);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn both_forms_of_a_configuration_say_the_same(text in text()) {
        says_the_same(&text);
    }

    #[test]
    fn both_forms_say_the_same_of_cells(text in cells_text()) {
        says_the_same(&text);
    }
}

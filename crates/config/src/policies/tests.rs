use paternoster_batching::{
    AdaptiveKnobs, CustomPolicy, DeferredKnobs, DiversityKnobs, InputDiversity, LoadDiversity, OperatorDiversity,
    PartOrder, Predictor,
};

use super::*;
use crate::{
    ConfigErrorKind::{Unknown, Value},
    CustomPolicies, complete, json, pbtxt, stages,
    tests::refusals::{Refusals, part},
    yaml,
};

/// Reads a configuration of one input, whose `parameters` stand in pairs.
fn policy(text: &str, parameters: &[(&str, &str)]) -> Result<Policy, ConfigError> {
    policy_of(8, text, parameters)
}

/// Returns the text of such a configuration.
fn text_of(max_batch_size: u32, text: &str, parameters: &[(&str, &str)]) -> String {
    let parameters: String = parameters
        .iter()
        .map(|(key, value)| format!("parameters {{ key: \"{key}\" value {{ string_value: \"{value}\" }} }}\n"))
        .collect();
    format!("max_batch_size: {max_batch_size} input {{ name: \"x\" }} {text}\n{parameters}")
}

fn policy_of(max_batch_size: u32, text: &str, parameters: &[(&str, &str)]) -> Result<Policy, ConfigError> {
    let text = text_of(max_batch_size, text, parameters);
    let (mut config, origin) = pbtxt::parse("config.pbtxt", text.as_bytes())?;
    complete::scheduler(&mut config);
    let stages = stages::read(&config, &origin).unwrap();
    read(&config, &stages, &origin)
}

fn named(name: &str, parameters: &[(&str, &str)]) -> Result<Policy, ConfigError> {
    policy("", &[&[("batching.policy", name)], parameters].concat())
}

const PAD: (&str, &str) = ("pad.x", "n=0");

#[test]
fn a_policy_without_knobs_has_the_defaults() {
    assert_eq!(policy("", &[]), Ok(Policy::Serial));
    let dynamic = WindowKnobs { preferred_batch_sizes: vec![8], max_queue_delay_ns: 0 };
    assert_eq!(policy("dynamic_batching { }", &[]), Ok(Policy::Window(dynamic.clone())));
    assert_eq!(named("auto", &[]), Ok(Policy::Auto(AutoKnobs::default())));
    assert_eq!(named("serial", &[]), Ok(Policy::Serial));
    assert_eq!(named("adaptive", &[]), Ok(Policy::Adaptive(AdaptiveKnobs::default())));
    assert_eq!(named("lazy", &[]), Ok(Policy::Lazy(LazyKnobs::default())));
}

#[test]
fn padded_axes_make_no_difference_to_auto_and_window() {
    let window = WindowKnobs { preferred_batch_sizes: vec![8], max_queue_delay_ns: 0 };
    let auto = Policy::Auto(AutoKnobs::default());
    assert_eq!(named("auto", &[PAD]), Ok(auto.clone()));
    assert_eq!(named("auto", &[PAD, ("batching.bucket_width", "8")]), Ok(auto));
    assert_eq!(policy("dynamic_batching { }", &[PAD]), Ok(Policy::Window(window)));
    assert_eq!(policy("", &[PAD]), Ok(Policy::Serial), "Triton's meaning stays");
}

#[test]
fn auto_goes_by_slack_where_there_is_an_objective() {
    let objective = ("batching.latency_objective_ms", "5");
    let by_target = AutoKnobs { by_target: true };
    assert_eq!(named("auto", &[objective]), Ok(Policy::Auto(by_target.clone())));
    let auto = [("batching.policy", "auto"), objective];
    assert_eq!(policy("dynamic_batching { max_queue_delay_microseconds: 9 }", &auto), Ok(Policy::Auto(by_target)));
    let preferred = WindowKnobs { preferred_batch_sizes: vec![4], max_queue_delay_ns: 0 };
    assert_eq!(policy("dynamic_batching { preferred_batch_size: 4 }", &auto), Ok(Policy::Window(preferred)));
    let window = WindowKnobs { preferred_batch_sizes: vec![8], max_queue_delay_ns: 0 };
    assert_eq!(policy("dynamic_batching { }", &[objective]), Ok(Policy::Window(window)), "Triton's meaning stays");
    assert_eq!(policy_of(0, "dynamic_batching { }", &auto), Ok(Policy::Serial));
}

#[test]
fn each_knob_of_deferred_is_read_in_its_unit() {
    let margin = ("batching.deferred.margin_ms", "0.5");
    let knobs = [margin, ("batching.deferred.eager", "true"), ("batching.latency_objective_ms", "5")];
    let late = ("batching.deferred.reject_late", "true");
    let read = named("deferred", &[&knobs[..], &[late]].concat());
    let expected = DeferredKnobs { margin_ns: Some(500_000), eager: true, reject_late: true };
    assert_eq!(read, Ok(Policy::Deferred(expected)));
    assert_eq!(named("deferred", &[]), Ok(Policy::Deferred(DeferredKnobs::default())), "deadlines may be given");
}

#[test]
fn without_a_batch_axis_requests_run_one_by_one_from_the_queue() {
    for (text, name) in
        [("", None), ("", Some("auto")), ("", Some("window")), ("max_queue_delay_microseconds: 9", None)]
    {
        let parameters: Vec<(&str, &str)> = name.map(|name| ("batching.policy", name)).into_iter().collect();
        let found = policy_of(0, &format!("dynamic_batching {{ {text} }}"), &parameters);
        assert_eq!(found, Ok(Policy::Serial), "{name:?}");
    }
}

#[test]
fn serial_has_a_queue_but_no_window() {
    let serial = |text: &str| policy(text, &[("batching.policy", "serial")]);
    assert_eq!(serial("dynamic_batching { default_queue_policy { max_queue_size: 2 } }"), Ok(Policy::Serial));
}

#[test]
fn a_batching_policy_needs_no_dynamic_batching_but_bears_it() {
    let queue = "dynamic_batching { preserve_ordering: true }";
    let lazy = policy(queue, &[("batching.policy", "lazy")]);
    assert_eq!(lazy, Ok(Policy::Lazy(LazyKnobs::default())));
}

/// Parameters of a model of one cell.
const CELL: [(&str, &str); 1] = [("paternoster", "{ cells: { c: { program: c.onnx } }, unfold: [ stage: c ] }")];

#[test]
fn a_model_of_cells_is_cellular() {
    let cellular = |slots, max_tasks, frontier, merge_requests| {
        let (cells, segments) = (Vec::new(), Vec::new());
        let knobs =
            CellularKnobs { cells, segments, slots, max_tasks, frontier, merge_requests, ..CellularKnobs::default() };
        Ok(Policy::Cellular(knobs))
    };
    assert_eq!(policy("", &CELL), cellular(65_536, 5, true, None));
    assert_eq!(policy("dynamic_batching { preserve_ordering: true }", &CELL), cellular(65_536, 5, true, None));
    assert_eq!(named("auto", &CELL), cellular(65_536, 5, true, None));
    let given = [
        ("batching.cellular.slots", "9"),
        ("batching.cellular.mode", "paper"),
        ("batching.cellular.max_tasks", "2"),
        ("batching.cellular.frontier", "false"),
        ("batching.cellular.merge_requests", "64"),
    ];
    let expected = cellular(9, 2, false, Some(64)).map(|policy| match policy {
        Policy::Cellular(knobs) => Policy::Cellular(CellularKnobs { paper: true, ..knobs }),
        other => other,
    });
    assert_eq!(named("cellular", &[&CELL[..], &given].concat()), expected);
    let lazy = [("batching.lazy.reject_late", "true"), ("batching.latency_objective_ms", "5")];
    let lazy = [&lazy[..], &[("batching.cellular.slots", "9")]].concat();
    let knobs = LazyCellKnobs { reject_late: true };
    let expected = CellularKnobs { lazy: Some(knobs), slots: 9, ..CellularKnobs::default() };
    assert_eq!(named("lazy", &[&CELL[..], &lazy].concat()), Ok(Policy::Cellular(expected)));
    let chunk = ("batching.cellular.max_chunk_ms", "2.5");
    let expected = CellularKnobs { max_chunk_ns: Some(2_500_000), ..CellularKnobs::default() };
    assert_eq!(named("cellular", &[&CELL[..], &[chunk]].concat()), Ok(Policy::Cellular(expected)));
    let expected = Policy::Cellular(CellularKnobs { slots: 9, ..CellularKnobs::default() });
    assert_eq!(named("cellular", &[("batching.cellular.slots", "9")]), Ok(expected), "recurrent layers need no cells");
}

#[test]
fn each_knob_of_adaptive_is_read_in_its_unit() {
    let read = named(
        "adaptive",
        &[
            ("batching.adaptive.headroom", "0.25"),
            ("batching.adaptive.average_ms", "20.5"),
            ("batching.adaptive.max_queue_delay_us", "700"),
            ("batching.adaptive.mode", "default"),
        ],
    );
    let knobs = AdaptiveKnobs { headroom: 0.25, average_ns: 20_500_000, max_queue_delay_ns: 700_000, paper: false };
    assert_eq!(read, Ok(Policy::Adaptive(knobs)));
    let paper = named("adaptive", &[("batching.adaptive.mode", "paper")]);
    assert_eq!(paper, Ok(Policy::Adaptive(AdaptiveKnobs { paper: true, ..AdaptiveKnobs::default() })));
}

#[test]
fn each_knob_of_lazy_is_read_in_its_unit() {
    let read = named(
        "lazy",
        &[
            ("batching.latency_objective_ms", "100"),
            ("batching.lazy.predictor", "paper"),
            ("batching.lazy.max_depth", "2"),
            ("batching.lazy.max_catch_up_ms", "0.5"),
            ("batching.lazy.reject_late", "true"),
        ],
    );
    let knobs =
        LazyKnobs { predictor: Predictor::Paper, max_depth: 2, max_catch_up_ns: Some(500_000), reject_late: true };
    assert_eq!(read, Ok(Policy::Lazy(knobs)));
}

#[test]
fn each_knob_of_diversity_is_read_in_its_unit() {
    let read = named(
        "diversity",
        &[
            PAD,
            ("batching.diversity.input.bounds", "32, 128"),
            ("batching.diversity.input.window_us", "50"),
            ("batching.diversity.operator.threshold", "0.9"),
            ("batching.diversity.operator.order", "pipelined"),
        ],
    );
    let input = InputDiversity { bounds: vec![32, 128], window_ns: Some(50_000), ..InputDiversity::default() };
    let operator = OperatorDiversity { threshold: 0.9, order: PartOrder::Pipelined, paper: false };
    let knobs = DiversityKnobs { input: Some(input), operator: Some(operator), load: None };
    assert_eq!(read, Ok(Policy::Diversity(knobs)));

    let read = named(
        "diversity",
        &[
            ("stages", "4"),
            ("batching.diversity.operator.mode", "paper"),
            ("batching.diversity.load.max_age_ms", "2"),
            ("batching.diversity.load.max_stage", "3"),
            ("batching.diversity.load.mode", "paper"),
        ],
    );
    let operator = OperatorDiversity { paper: true, ..OperatorDiversity::default() };
    let load = LoadDiversity { max_age_ns: Some(2_000_000), max_stage: Some(3), paper: true };
    let knobs = DiversityKnobs { input: None, operator: Some(operator), load: Some(load) };
    assert_eq!(read, Ok(Policy::Diversity(knobs)));
    let groups = named("diversity", &[PAD, ("batching.diversity.input.groups", "6")]);
    let input = InputDiversity { max_groups: 6, ..InputDiversity::default() };
    assert_eq!(groups, Ok(Policy::Diversity(DiversityKnobs { input: Some(input), ..DiversityKnobs::default() })));
}

/// Which of input, operator and load are on.
fn kinds(parameters: &[(&str, &str)]) -> [bool; 3] {
    match named("diversity", parameters) {
        Ok(Policy::Diversity(knobs)) => [knobs.input.is_some(), knobs.operator.is_some(), knobs.load.is_some()],
        other => panic!("{other:?}"),
    }
}

#[test]
fn load_diversity_gives_way_to_input_diversity() {
    let (input, load) = ("batching.diversity.input", "batching.diversity.load");
    assert_eq!(kinds(&[]), [false, false, true], "nothing to group");
    assert_eq!(kinds(&[PAD]), [true, false, false]);
    assert_eq!(kinds(&[PAD, (load, "true")]), [false, false, true], "asked for by name");
    assert_eq!(kinds(&[PAD, (input, "false")]), [false, false, true]);
    assert_eq!(kinds(&[PAD, (load, "false")]), [true, false, false]);
    assert_eq!(kinds(&[("batching.diversity.operator", "true")]), [false, true, true]);
    assert_eq!(kinds(&[(load, "false"), ("batching.diversity.operator", "true")]), [false, true, false]);
}

#[test]
fn knobs_of_other_policies_play_no_part() {
    let elsewhere = [("batching.lazy.reject_late", "true"), ("batching.diversity.input", "true")];
    assert_eq!(named("adaptive", &elsewhere), Ok(Policy::Adaptive(AdaptiveKnobs::default())));
}

fn automatic(text: &str) -> (bool, bool) {
    let (config, origin) = yaml::parse("model.yaml", text.as_bytes()).expect("it is sound");
    let stages = stages::read(&config, &origin).expect("it is sound");
    let Automatic { stages, policy, .. } = Automatic::of(&config, &stages, &origin);
    (stages, policy)
}

#[test]
fn what_is_not_named_is_chosen_where_auto_is() {
    let with = |text: &str| automatic(&format!("max_batch_size: 4\n{text}"));
    assert_eq!(with(""), (false, false), "not requested");
    assert_eq!(with("batching: { latency_objective_ms: 9 }"), (false, false));
    assert_eq!(with("stages: auto"), (true, true));
    assert_eq!(with("batching: { policy: auto }"), (true, true));
    assert_eq!(with("stages: 3\nbatching: { policy: auto }"), (false, true));
    assert_eq!(with("stages: 1\nbatching: { policy: auto }"), (false, true));
    assert_eq!(with("stages: [a, b]\nbatching: { policy: auto }"), (false, true));
    assert_eq!(with("stages: auto\nbatching: { policy: lazy }"), (true, false));
}

#[test]
fn a_model_that_cannot_batch_has_nothing_to_choose() {
    assert_eq!(automatic("stages: auto"), (false, false));
    assert_eq!(automatic("max_batch_size: 4\ndecoupled: true\nstages: auto"), (false, false));
    let cells = "cells: { c: { program: c.onnx } }\nunfold: [ stage: c ]\nbatching: { policy: auto }";
    assert_eq!(automatic(cells), (false, false));
}

/// A policy of another crate.
fn with_pairs() -> (CustomPolicy, CustomPolicies) {
    let pairs = CustomPolicy::new("pairs", WindowKnobs::default());
    let mut policies = CustomPolicies::default();
    assert_eq!(policies.register(pairs.clone()), Ok(()));
    (pairs, policies)
}

#[test]
fn a_registered_policy_is_known_by_its_name_in_every_form() {
    let (pairs, policies) = with_pairs();
    let yaml = "max_batch_size: 8\nbatching: { policy: pairs }";
    let pbtxt = text_of(8, "", &[("batching.policy", "pairs")]);
    let json = r#"{"max_batch_size": 8, "parameters": {"batching.policy": {"string_value": "pairs"}}}"#;
    let forms = [
        yaml::parse_with("model.yaml", yaml.as_bytes(), &policies),
        pbtxt::parse_with("config.pbtxt", pbtxt.as_bytes(), &policies),
        json::parse_with(json, &policies),
    ];
    for form in forms {
        let (mut settings, origin) = form.unwrap_or_else(|fault| panic!("{fault}"));
        complete::scheduler(&mut settings);
        let stages = stages::read(&settings, &origin).unwrap();
        assert_eq!(read(&settings, &stages, &origin), Ok(Policy::Custom(pairs.clone())));
        assert_eq!(settings.shown().parameters["batching.policy"].string_value, "pairs");
    }
    assert!(yaml::parse("model.yaml", yaml.as_bytes()).is_err(), "it is registered nowhere else");
}

/// Reads the parameters of a policy, written `name; key: value; …`, behind others.
fn written(before: &[(&str, &str)], given: &str) -> Result<Policy, ConfigError> {
    let mut parts = given.split("; ");
    let name = parts.next().filter(|name| !name.is_empty()).map(|name| ("batching.policy", name));
    let parameters = parts.map(|part| part.split_once(": ").expect("a key and a value"));
    policy("", &before.iter().copied().chain(name).chain(parameters).collect::<Vec<_>>())
}

pub(crate) fn refusals(all: &mut Refusals) {
    part(all, "policies: knobs that contradict each other", |given| written(&[], given)).refuses(&[
        (Value, "3:12 parameters[batching.deferred.reject_late]", "deferred; batching.deferred.reject_late: true"),
        (Value, "3:12 parameters[batching.lazy.reject_late]", "lazy; batching.lazy.reject_late: true"),
        (
            Value,
            "4:12 parameters[batching.adaptive.headroom]",
            "adaptive; batching.adaptive.mode: paper; batching.adaptive.headroom: 0.1",
        ),
        (
            Value,
            "4:12 parameters[batching.adaptive.average_ms]",
            "adaptive; batching.adaptive.mode: paper; batching.adaptive.average_ms: 1",
        ),
        (
            Value,
            "4:12 parameters[batching.diversity.operator.threshold]",
            "diversity; batching.diversity.operator.mode: paper; batching.diversity.operator.threshold: 1",
        ),
        (Value, "3:12 parameters[batching.diversity.input.bounds]", "diversity; batching.diversity.input.bounds: 8,16"),
        (Value, "2:12 parameters[batching.policy]", "diversity; batching.diversity.load: false"),
        (
            Value,
            "4:12 parameters[batching.diversity.load.max_stage]",
            "diversity; batching.diversity.load: false; batching.diversity.load.max_stage: 0",
        ),
        (
            Value,
            "4:12 parameters[batching.diversity.load.max_stage]",
            "diversity; stages: 2; batching.diversity.load.max_stage: 2",
        ),
        (Value, "2:12 parameters[batching.lazy.reject_late]", "; batching.lazy.reject_late: true"),
        (Value, "3:12 parameters[batching.lazy.reject_late]", "auto; batching.lazy.reject_late: true"),
        (Value, "3:12 parameters[batching.diversity.input]", "auto; batching.diversity.input: true"),
        (Value, "3:12 parameters[batching.adaptive.headroom]", "auto; batching.adaptive.headroom: 0.1"),
        (
            Value,
            "3:12 parameters[paternoster]:1:13: batching.lazy",
            "auto; paternoster: batching: { lazy: { max_depth: 2 } }",
        ),
    ]);
    part(all, "policies: with a padded axis", |given| written(&[PAD], given)).refuses(&[
        (
            Value,
            "5:12 parameters[batching.diversity.load.max_age_ms]",
            "diversity; batching.diversity.input: true; batching.diversity.load.max_age_ms: 1",
        ),
        (
            Value,
            "5:12 parameters[batching.diversity.input.groups]",
            "diversity; batching.diversity.input.bounds: 8,16; batching.diversity.input.groups: 2",
        ),
    ]);
    part(all, "policies: with cells", |given| written(&CELL, given)).refuses(&[
        (Value, "4:12 parameters[batching.lazy.max_depth]", "lazy; batching.lazy.max_depth: 2"),
        (Value, "4:12 parameters[batching.lazy.max_catch_up_ms]", "lazy; batching.lazy.max_catch_up_ms: 2"),
        (Value, "4:12 parameters[batching.cellular.mode]", "lazy; batching.cellular.mode: paper"),
        (Value, "4:12 parameters[batching.cellular.max_tasks]", "cellular; batching.cellular.max_tasks: 2"),
        (
            Value,
            "4:12 parameters[batching.cellular.max_chunk_ms]",
            "cellular; batching.cellular.max_chunk_ms: 2.5; batching.cellular.mode: paper",
        ),
        (Value, "3:12 parameters[batching.policy]", "serial"),
        (Value, "3:12 parameters[batching.policy]", "window"),
        (Value, "3:12 parameters[batching.policy]", "adaptive"),
        (Value, "3:12 parameters[batching.policy]", "diversity"),
        (Value, "3:12 parameters[batching.policy]", "deferred"),
    ]);
    part(all, "policies: dynamic_batching with cells", |text| policy(text, &CELL)).refuses(&[
        (
            Value,
            "1:58 dynamic_batching.max_queue_delay_microseconds",
            "dynamic_batching { max_queue_delay_microseconds: 5 }",
        ),
        (Value, "1:58 dynamic_batching.preferred_batch_size", "dynamic_batching { preferred_batch_size: 1 }"),
    ]);
    let without_window = |given: &str| {
        let (name, text) = given.split_once("; ").expect("both");
        policy(&format!("dynamic_batching {{ {text} }}"), &[("batching.policy", name)])
    };
    part(all, "policies: dynamic_batching without a window", without_window).refuses(&[
        (Value, "1:58 dynamic_batching.preferred_batch_size", "serial; preferred_batch_size: 2"),
        (Value, "1:58 dynamic_batching.preferred_batch_size", "lazy; preferred_batch_size: 4"),
        (Value, "1:58 dynamic_batching.max_queue_delay_microseconds", "adaptive; max_queue_delay_microseconds: 4"),
        (Value, "1:58 dynamic_batching.max_queue_delay_microseconds", "diversity; max_queue_delay_microseconds: 4"),
    ]);
    let without_batches = |name: &str| policy_of(0, "", &[("batching.policy", name)]);
    part(all, "policies: without batches", without_batches).refuses(&[(
        Value,
        "2:12 parameters[batching.policy]",
        "lazy",
    )]);
    let of_other_crates = |text: &str| {
        let (settings, origin) = yaml::parse_with("model.yaml", text.as_bytes(), &with_pairs().1)?;
        read(&settings, &stages::read(&settings, &origin)?, &origin)
    };
    part(all, "policies: of other crates", of_other_crates).refuses(&[
        (Value, "1:13 batching.policy", "batching: { policy: pairs }"),
        (Unknown, "1:13 batching.policy", "batching: { policy: pair }"),
    ]);
}

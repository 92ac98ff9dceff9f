use paternoster_batching::{
    AdaptiveKnobs, CustomPolicy, DeferredKnobs, DiversityKnobs, InputDiversity, LoadDiversity, OperatorDiversity,
    PartOrder, Predictor,
};

use super::*;
use crate::{CustomPolicies, complete, json, pbtxt, stages, yaml};

/// Keys and values.
type Parameters = [(&'static str, &'static str)];

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
    let (mut config, origin) = pbtxt::parse("config.pbtxt", text.as_bytes()).unwrap();
    complete::scheduler(&mut config);
    let stages = stages::read(&config, &origin).unwrap();
    read(&config, &stages, &origin)
}

fn named(name: &str, parameters: &[(&str, &str)]) -> Result<Policy, ConfigError> {
    policy("", &[&[("batching.policy", name)], parameters].concat())
}

fn refusal(name: &str, parameters: &[(&str, &str)]) -> String {
    named(name, parameters).expect_err("it should be refused").to_string()
}

const PAD: (&str, &str) = ("pad.x", "n=0");

#[test]
fn a_policy_without_knobs_has_the_defaults() {
    assert_eq!(policy("", &[]), Ok(Policy::Serial));
    let dynamic = WindowKnobs { preferred_batch_sizes: vec![8], max_queue_delay_ns: 0 };
    assert_eq!(policy("dynamic_batching { }", &[]), Ok(Policy::Window(dynamic.clone())));
    assert_eq!(named("auto", &[]), Ok(Policy::Window(dynamic)));
    assert_eq!(named("serial", &[]), Ok(Policy::Serial));
    assert_eq!(named("adaptive", &[]), Ok(Policy::Adaptive(AdaptiveKnobs::default())));
    assert_eq!(named("lazy", &[]), Ok(Policy::Lazy(LazyKnobs::default())));
}

#[test]
fn padded_axes_make_no_difference_to_auto_and_window() {
    let window = WindowKnobs { preferred_batch_sizes: vec![8], max_queue_delay_ns: 0 };
    assert_eq!(named("auto", &[PAD]), Ok(Policy::Window(window.clone())));
    assert_eq!(named("auto", &[PAD, ("batching.bucket_width", "8")]), Ok(Policy::Window(window.clone())));
    assert_eq!(policy("dynamic_batching { }", &[PAD]), Ok(Policy::Window(window)));
    assert_eq!(policy("", &[PAD]), Ok(Policy::Serial), "Triton's meaning stays");
}

#[test]
fn auto_goes_by_slack_where_there_is_an_objective() {
    let objective = ("batching.latency_objective_ms", "5");
    let eager = DeferredKnobs { eager: true, ..DeferredKnobs::default() };
    assert_eq!(named("auto", &[objective]), Ok(Policy::Deferred(eager.clone())));
    let auto = [("batching.policy", "auto"), objective];
    assert_eq!(policy("dynamic_batching { max_queue_delay_microseconds: 9 }", &auto), Ok(Policy::Deferred(eager)));
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
    let refusal = refusal("deferred", &[late]);
    assert!(refusal.ends_with("give 'batching.latency_objective_ms', or remove this"), "{refusal}");
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
    let refusal = policy_of(0, "", &[("batching.policy", "lazy")]).expect_err("it has no batches").to_string();
    assert!(refusal.ends_with("the policy 'lazy' needs a max_batch_size of at least 1, but it is 0"), "{refusal}");
}

#[test]
fn serial_has_a_queue_but_no_window() {
    let serial = |text: &str| policy(text, &[("batching.policy", "serial")]);
    assert_eq!(serial("dynamic_batching { default_queue_policy { max_queue_size: 2 } }"), Ok(Policy::Serial));
    let refusal = serial("dynamic_batching { preferred_batch_size: 2 }").expect_err("it has no batches").to_string();
    assert!(refusal.ends_with("has no preferred sizes: remove them, or choose the policy 'window'"), "{refusal}");
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
    for of_batches in [("batching.lazy.max_depth", "2"), ("batching.lazy.max_catch_up_ms", "2")] {
        let found = refusal("lazy", &[&CELL[..], &[of_batches]].concat());
        let expected = "requests that unfold into cells are in no stack of batches: remove this";
        assert!(found.contains(of_batches.0) && found.ends_with(expected), "{found}");
    }
    let found = refusal("cellular", &[&CELL[..], &[("batching.cellular.max_tasks", "2")]].concat());
    let expected = "only algorithm 1 of BatchMaker uses this: remove it, or choose 'batching.cellular.mode: paper'";
    assert!(found.contains("batching.cellular.max_tasks") && found.ends_with(expected), "{found}");
    let chunk = ("batching.cellular.max_chunk_ms", "2.5");
    let expected = CellularKnobs { max_chunk_ns: Some(2_500_000), ..CellularKnobs::default() };
    assert_eq!(named("cellular", &[&CELL[..], &[chunk]].concat()), Ok(Policy::Cellular(expected)));
    let found = refusal("cellular", &[&CELL[..], &[chunk, ("batching.cellular.mode", "paper")]].concat());
    let expected = "algorithm 1 of BatchMaker runs single steps: remove this, or choose the mode 'default'";
    assert!(found.contains("batching.cellular.max_chunk_ms") && found.ends_with(expected), "{found}");
    let found = refusal("lazy", &[&CELL[..], &[("batching.cellular.mode", "paper")]].concat());
    let expected = "algorithm 1 of BatchMaker knows no slack: remove this, or choose the policy 'cellular'";
    assert!(found.contains("batching.cellular.mode") && found.ends_with(expected), "{found}");
    for other in ["serial", "window", "adaptive", "diversity", "deferred"] {
        let expected = format!("the policy '{other}' does not go with cells: expected auto, cellular or lazy");
        assert!(refusal(other, &CELL).ends_with(&expected), "{other}");
    }
    let window =
        policy("dynamic_batching { max_queue_delay_microseconds: 5 }", &CELL).expect_err("no window").to_string();
    assert!(window.ends_with("the policy 'cellular' has no such delay: remove it"), "{window}");
    let sizes = policy("dynamic_batching { preferred_batch_size: 1 }", &CELL).expect_err("no window").to_string();
    assert!(sizes.ends_with("the policy 'cellular' has no preferred sizes: remove them"), "{sizes}");
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
    let both = [PAD, (input, "true"), ("batching.diversity.load.max_age_ms", "1")];
    assert_eq!(
        refusal("diversity", &both),
        "config.pbtxt:5:12: parameters[batching.diversity.load.max_age_ms]: 'batching.diversity.input' and \
         'batching.diversity.load' are both on, but groups that run in parallel already take load diversity \
         (DVABatch section 7.2): expected one of the two"
    );
    assert_eq!(
        refusal("diversity", &[(load, "false")]),
        "config.pbtxt:2:12: parameters[batching.policy]: input, operator and load are all off: expected one of them, \
         or the policy 'window'"
    );
}

#[test]
fn knobs_that_contradict_each_other_are_refused_with_what_would_work() {
    let cases: [(&str, &Parameters, &str); 8] = [
        (
            "lazy",
            &[("batching.lazy.reject_late", "true")],
            "batching.lazy.reject_late]: late are requests that miss the objective, but there is none: give \
             'batching.latency_objective_ms', or remove this",
        ),
        (
            "adaptive",
            &[("batching.adaptive.mode", "paper"), ("batching.adaptive.headroom", "0.1")],
            "batching.adaptive.headroom]: the mode 'paper' has its own: remove this, or choose the mode 'default'",
        ),
        (
            "adaptive",
            &[("batching.adaptive.mode", "paper"), ("batching.adaptive.average_ms", "1")],
            "batching.adaptive.average_ms]: the mode 'paper' has its own: remove this, or choose the mode 'default'",
        ),
        (
            "diversity",
            &[("batching.diversity.operator.mode", "paper"), ("batching.diversity.operator.threshold", "1")],
            "batching.diversity.operator.threshold]: the mode 'paper' has its own: remove this, or choose the mode \
             'default'",
        ),
        (
            "diversity",
            &[("batching.diversity.input.bounds", "8,16")],
            "batching.diversity.input.bounds]: requests are grouped by their padded length, but no axis of the model \
             is padded: give an input a pad, or remove this",
        ),
        (
            "diversity",
            &[PAD, ("batching.diversity.input.bounds", "8,16"), ("batching.diversity.input.groups", "2")],
            "batching.diversity.input.groups]: the groups follow from 'batching.diversity.input.bounds': expected one \
             of the two",
        ),
        (
            "diversity",
            &[("batching.diversity.load", "false"), ("batching.diversity.load.max_stage", "0")],
            "batching.diversity.load.max_stage]: 'batching.diversity.load' is off: remove this, or switch it on",
        ),
        (
            "diversity",
            &[("stages", "2"), ("batching.diversity.load.max_stage", "2")],
            "batching.diversity.load.max_stage]: expected a stage from 0 to 1, the model's last, but found 2",
        ),
    ];
    for (name, parameters, expected) in cases {
        let refused = refusal(name, parameters);
        let (_, found) = refused.split_once("parameters[").expect("it names the key");
        assert_eq!(found, expected);
    }
}

#[test]
fn the_windows_own_knobs_belong_to_the_window() {
    let with = |name: &str, text: &str| {
        policy(text, &[("batching.policy", name)])
            .expect_err("it should be refused")
            .to_string()
            .split_off("config.pbtxt:".len())
    };
    let sizes = "dynamic_batching { preferred_batch_size: 4 }";
    assert_eq!(
        with("lazy", sizes),
        "1:58: dynamic_batching.preferred_batch_size: the policy 'lazy' has no preferred sizes: remove them, or choose \
         the policy 'window'"
    );
    let delay = "dynamic_batching { max_queue_delay_microseconds: 4 }";
    assert_eq!(
        with("adaptive", delay),
        "1:58: dynamic_batching.max_queue_delay_microseconds: the policy 'adaptive' has no such delay: give \
         'batching.adaptive.max_queue_delay_us' instead"
    );
    assert!(with("diversity", delay).ends_with("has no such delay: remove it, or choose the policy 'window'"));
}

#[test]
fn knobs_of_other_policies_play_no_part() {
    let elsewhere = [("batching.lazy.reject_late", "true"), ("batching.diversity.input", "true")];
    assert_eq!(named("adaptive", &elsewhere), Ok(Policy::Adaptive(AdaptiveKnobs::default())));
}

#[test]
fn knobs_whose_policy_is_not_named_are_refused() {
    let refused = |parameters: &Parameters| {
        let text = text_of(8, "", parameters);
        pbtxt::parse("config.pbtxt", text.as_bytes()).expect_err("they would have no effect").to_string()
    };
    let of_lazy = ("batching.lazy.reject_late", "true");
    let message = "parameters[batching.lazy.reject_late]: these knobs need the policy 'lazy': give its name in \
                   'batching.policy'";
    assert_eq!(refused(&[of_lazy]), format!("config.pbtxt:2:12: {message}"), "Triton's batcher has none");
    assert_eq!(refused(&[("batching.policy", "auto"), of_lazy]), format!("config.pbtxt:3:12: {message}"));
    for (key, value, name) in [
        ("batching.diversity.input", "true", "diversity"),
        ("batching.adaptive.headroom", "0.1", "adaptive"),
        ("paternoster", "batching: { lazy: { max_depth: 2 } }", "lazy"),
    ] {
        let refusal = refused(&[("batching.policy", "auto"), (key, value)]);
        let expected = format!("these knobs need the policy '{name}': give its name in 'batching.policy'");
        assert!(refusal.ends_with(&expected), "{key}: {refusal}");
    }
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

#[test]
fn a_registered_policy_is_known_by_its_name_in_every_form() {
    let pairs = CustomPolicy::new("pairs", WindowKnobs::default());
    let mut policies = CustomPolicies::default();
    assert_eq!(policies.register(pairs.clone()), Ok(()));
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
        settings.config.max_batch_size = 0;
        let refused = read(&settings, &stages, &origin).unwrap_err();
        assert_eq!(refused.message, "the policy 'pairs' needs a max_batch_size of at least 1, but it is 0");
    }
    let refused = yaml::parse_with("model.yaml", b"batching: { policy: pair }", &policies).unwrap_err().to_string();
    let known = "auto, serial, window, adaptive, lazy, diversity, deferred, cellular or pairs";
    let expected = format!("expected {known}, but found 'pair'; did you mean 'pairs'?");
    assert_eq!(refused, format!("model.yaml:1:13: batching.policy: {expected}"));
    assert!(yaml::parse("model.yaml", yaml.as_bytes()).is_err(), "it is registered nowhere else");
}

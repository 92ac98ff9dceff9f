//! `paternoster profile`.

use std::path::PathBuf;

use paternoster::cli::{
    DeviceArgs,
    model_args::ModelArgs,
    profile::{Cutting, PlotArgs, ProfileArgs, ProfileError, run_with},
};
use paternoster_model::DataType;
use paternoster_onnx::{
    PortDim,
    zoo::{self, Width},
};
use paternoster_testing::runtime::runtime;

use crate::profile::rig::{Place, text};

/// Returns the command's output for a model; `None` if ONNX Runtime is not installed.
pub(super) fn printed(place: &Place, model: &str, json: bool) -> Option<Result<String, ProfileError>> {
    // Ends earlier if all sizes are measured well enough. A busy machine has time for each size at least.
    printed_of(place, model, json, 2, 2)
}

fn printed_of(
    place: &Place,
    model: &str,
    json: bool,
    cpu_lanes: u16,
    budget_s: u64,
) -> Option<Result<String, ProfileError>> {
    let args = ProfileArgs {
        model: ModelArgs::of(place.repository(), model),
        budget_s,
        profile_directory: Some(place.profiles()),
        plots: PlotArgs { svg: Some(plot(place)) },
        cut: Cutting::default(),
        engines: false,
        sizes: Vec::new(),
        json,
        device: DeviceArgs {
            cpu_lanes,
            cpu_shards: 1,
            task_time_limit_secs: 60,
            last_lane_limit_ms: 50,
            cpu_threads: 1,
            max_output_bytes: None,
            max_sequence_state_bytes: None,
            max_memory_bytes: None,
            onnxruntime_library: None,
            openvino_library: None,
        },
    };
    let mut out = Vec::new();
    let done = run_with(&args, Ok(runtime()?.clone()), &mut out);
    Some(done.map(|()| String::from_utf8(out).expect("it is text")))
}

fn plot(place: &Place) -> PathBuf {
    place.repository().with_file_name("plot.svg")
}

#[test]
fn a_profile_is_printed_and_kept() {
    let place = Place::new();
    place.add("add_sub", "max_batch_size: 2\n", &zoo::add_sub().expect("it is sound"));
    let Some(shown) = printed(&place, "add_sub", false) else { return };
    let shown = shown.expect("it is measured");
    assert!(shown.starts_with("model 'add_sub' on "), "{shown}");
    assert!(shown.contains("| Stage | Length | Rows | Median µs |"), "{shown}");
    assert!(shown.contains("| 0     | -      | 2    | "), "{shown}");
    assert!(shown.contains("\nfound\n  input diversity: no\n"), "{shown}");
    let kept = place.kept();
    assert_eq!(kept.len(), 1);
    assert!(shown.contains(&kept[0].display().to_string()), "{shown}");

    let drawn = [plot(&place), plot(&place).with_file_name("plot-throughput.svg")].map(|path| text(&path));
    assert!(drawn.iter().all(|svg| svg.contains("rows of a batch")), "{drawn:?}");
    assert!(drawn[1].contains("rows a second"), "{}", drawn[1]);

    let json = printed(&place, "add_sub", true).expect("there is a runtime").expect("it is measured");
    let value: serde_json::Value = serde_json::from_str(&json).expect("it is JSON");
    assert_eq!(value["profile"]["cuts"][0]["stages"][0][1]["rows"], 2);
    assert!(value["choice"]["reasons"][0].as_str().is_some_and(|why| why.starts_with("batching gains")), "{json}");
    let stored: serde_json::Value = serde_json::from_str(&text(&kept[0])).expect("it is JSON");
    assert_eq!(stored["profile"], value["profile"], "the same model has the same file");
}

#[test]
fn a_profile_that_a_server_does_not_use_is_printed_as_such() {
    let place = Place::new();
    place.add("mobilenet", "max_batch_size: 2\n", &zoo::mobilenet(Width::QUARTER).expect("it is sound"));
    // Without time the smallest size runs once, and larger ones not at all.
    let Some(shown) = printed_of(&place, "mobilenet", false, 1, 0) else { return };
    let shown = shown.expect("it is measured");
    let last = shown.lines().last().expect("it has lines");
    assert!(last.starts_with("a server does not use it: of its 1 sizes 1 ran only once. Measure again"), "{shown}");
    let json = printed_of(&place, "mobilenet", true, 1, 0).expect("there is a runtime").expect("it is measured");
    let value: serde_json::Value = serde_json::from_str(&json).expect("it is JSON");
    assert_eq!(value["not_used"], "of its 1 sizes 1 ran only once");
}

#[test]
fn inputs_that_vary_and_are_not_padded_are_named_with_their_length() {
    let place = Place::new();
    let varies = [PortDim::from("batch"), PortDim::from("n")];
    place.add("varies", "max_batch_size: 2\n", &zoo::identity_of(DataType::Fp32, &varies).expect("it is sound"));
    let Some(shown) = printed(&place, "varies", false) else { return };
    let shown = shown.expect("it is measured");
    let expected = "the inputs 'INPUT0' vary in length and are not padded: measured at length 64 alone";
    assert!(shown.contains(expected), "{shown}");
}

#[test]
fn stages_that_the_configuration_names_are_measured() {
    let place = Place::new();
    place.add("mobilenet", "max_batch_size: 2\nstages: 3\n", &zoo::mobilenet(Width::QUARTER).expect("it is sound"));
    let Some(shown) = printed(&place, "mobilenet", false) else { return };
    let shown = shown.expect("it is measured");
    assert!(shown.contains("\nwhole\n") && shown.contains("\n3 stages of even time\n"), "{shown}");
    assert!(shown.contains("| 2     | -      | 1    | "), "{shown}");
    assert!(shown.contains("\nchosen: stages 3, policy "), "{shown}");
}

#[test]
fn lanes_are_measured_side_by_side() {
    let place = Place::new();
    place.add("mobilenet", "max_batch_size: 2\n", &zoo::mobilenet(Width::QUARTER).expect("it is sound"));
    let report = |cpu_lanes| -> Option<serde_json::Value> {
        let json = printed_of(&place, "mobilenet", true, cpu_lanes, 4)?.expect("it is measured");
        Some(serde_json::from_str(&json).expect("it is JSON"))
    };
    let Some(alone) = report(1) else { return };
    assert_eq!(alone["profile"]["side_by_side"], serde_json::json!([]), "one lane has none beside it");
    let two = report(2).expect("there is a runtime");
    let points = two["profile"]["side_by_side"].as_array().expect("it is a list");
    let rows: Vec<_> = points.iter().map(|point| point["rows"].as_u64()).collect();
    assert_eq!(rows, [Some(1), Some(2)]);
    // Which of them is faster depends on the machine.
    let serves_one_by_one = two["findings"]["preferred_side_by_side"] == 1;
    assert_eq!(two["choice"]["policy"] == "serial", serves_one_by_one, "{two}");
    assert_eq!(place.kept().len(), 2, "another number of lanes has another profile");
}

#[test]
fn another_model_file_has_another_profile() {
    let place = Place::new();
    place.add("model", "max_batch_size: 1\n", &zoo::add_sub().expect("it is sound"));
    let Some(first) = printed(&place, "model", false) else { return };
    first.expect("it is measured");
    place.add("model", "max_batch_size: 1\n", &zoo::identity().expect("it is sound"));
    printed(&place, "model", false).expect("there is a runtime").expect("it is measured");
    assert_eq!(place.kept().len(), 2);
}

#[test]
fn an_unknown_model_is_refused_with_those_there_are() {
    let place = Place::new();
    place.add("add_sub", "max_batch_size: 2\n", &zoo::add_sub().expect("it is sound"));
    let Some(refused) = printed(&place, "add_sup", false) else { return };
    let refused = refused.expect_err("there is no such model").to_string();
    assert!(refused.starts_with("there is no model 'add_sup' in '"), "{refused}");
    assert!(refused.ends_with("; it has add_sub"), "{refused}");
    assert!(place.kept().is_empty());
}

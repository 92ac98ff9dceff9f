//! Ranges of a network's operators: measured, shown, and followed where it is cut.

use std::{fs, time::Duration};

use paternoster::cli::{
    model_args::ModelArgs,
    slice::{self, SliceArgs},
};
use paternoster_config::stages::StageCuts;
use paternoster_onnx::{
    cut::legal_cuts,
    zoo::{self, Width},
};
use paternoster_profile::{CutTable, LatencyPoint, Profile, Store, choose};
use paternoster_repository::{Trials, read_model};
use paternoster_testing::runtime::runtime;

use crate::profile::rig::Place;

const YAML: &str = "max_batch_size: 4\nstages: auto\n";

/// Measures a network in ranges, whether batching gains on this machine or not.
fn measured(place: &Place) -> Option<Profile> {
    place.add("model", YAML, &zoo::mobilenet(Width::QUARTER).expect("it is sound"));
    let (_pool, loader) = place.loader(runtime()?);
    let request = read_model(&place.repository(), "model", &*loader).expect("it is there");
    let trials = Trials {
        budget: Duration::from_secs(2),
        before_run: &|_, _| true,
        wants_stages: &|_| true,
        by_operators: true,
    };
    Some(loader.measure(&request, trials).expect("it runs"))
}

#[test]
fn ranges_of_a_network_are_measured_and_shown() {
    let place = Place::new();
    let Some(profile) = measured(&place) else { return };
    let ranges = profile.ranges.as_ref().expect("it can be cut");
    assert!((4..=8).contains(&ranges.stages.len()) && ranges.at.len() + 1 == ranges.stages.len(), "{ranges:?}");
    let places = legal_cuts(&zoo::mobilenet(Width::QUARTER).expect("it is sound"));
    let order: Vec<usize> = ranges
        .at
        .iter()
        .map(|tensor| places.iter().position(|place| place.tensor == *tensor).expect("it may be cut there"))
        .collect();
    assert!(order.is_sorted(), "{order:?}");

    let file = place.repository().with_file_name("profile.json");
    let json = serde_json::json!({ "profile": profile }).to_string();
    fs::write(&file, json).expect("the folder is ours");
    let model = ModelArgs::of(place.repository(), "model");
    let mut out = Vec::new();
    let args = SliceArgs { model, profile: Some(file), ..SliceArgs::default() };
    slice::run_with(&args, &mut out).expect("it has ranges");
    let shown = String::from_utf8(out).expect("it is text");
    assert!(shown.contains("| Range | Ends with") && shown.contains("µs a row of 1 |"), "{shown}");
    assert!(ranges.at.iter().all(|tensor| shown.contains(&format!(" {tensor} "))), "{shown}");
}

#[tokio::test]
async fn a_network_is_cut_where_the_preferred_batches_of_its_ranges_change() {
    let place = Place::new();
    let Some(mut profile) = measured(&place) else { return };
    // Times of another device: the first ranges take as long for any batch, the others as long for each row.
    let at = profile.ranges.as_ref().expect("it can be cut").at.clone();
    let (count, middle) = (at.len() + 1, at.len().div_ceil(2));
    let us = |range: usize, rows: u32| if range < middle { 1000 } else { 200 * u64::from(rows) };
    let of = |ranges: std::ops::Range<usize>, rows: u32| ranges.map(|range| us(range, rows)).sum::<u64>();
    let points = |us_of: &dyn Fn(u32) -> u64| {
        [1, 2, 4].map(|rows| {
            let ns = 1000 * us_of(rows);
            LatencyPoint { rows, length: 0, median_ns: ns, p99_ns: ns, runs: 20 }
        })
    };
    let table = |at: &[String], stages: Vec<[LatencyPoint; 3]>| {
        let stages = stages.into_iter().map(Vec::from).collect();
        CutTable { at: at.to_vec(), stages, scatter: Vec::new() }
    };
    let tensor = &at[middle - 1..middle];
    profile.cuts = vec![table(&[], vec![points(&|rows| of(0..count, rows))])];
    profile.side_by_side.clear();
    profile.ranges = Some(table(&at, (0..count).map(|range| points(&|rows| us(range, rows))).collect()));
    let halves = [0..middle, middle..count].map(|half| points(&|rows| of(half.clone(), rows)));
    profile.by_operators = Some(table(tensor, halves.to_vec()));
    let choice = choose(&profile, None).expect("one row was measured");
    assert_eq!((choice.stages, &choice.cut_at[..]), (2, tensor), "{:?}", choice.reasons);

    let runtime = runtime().expect("there is a runtime");
    let (_pool, loader) = place.loader(runtime);
    let request = read_model(&place.repository(), "model", &*loader).expect("it is there");
    let key = loader.profile_key(&request).expect("it has a file");
    Store::new(place.profiles()).write(&key, &profile).expect("the directory is ours");
    let advised = loader.by_profile(&request).expect("its profile is trusted");
    assert_eq!(advised.stages.cuts, StageCuts::At(tensor.to_vec()));
    let latencies = advised.knobs.latencies.expect("they are measured");
    assert_eq!(latencies.stages[1][0].took_ns, 1000 * of(middle..count, 1), "of the second stage of this cut");
    let served = place.serve(runtime).await;
    assert_eq!(served.stages(), 2);
    served.classify().await;
}

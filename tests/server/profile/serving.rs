//! Models whose configuration leaves stages or policy to the server follow their profile's recommendations.

use std::fs;

use paternoster_bench::{Target, local::Local};
use paternoster_executor::PoolOptions;
use paternoster_onnx::zoo::{self, Width};
use paternoster_profile::{CutTable, LatencyPoint, Profile, Store, choose};
use paternoster_repository::read_model;
use paternoster_testing::runtime::runtime;

use crate::profile::rig::Place;

/// Returns the profile of a model whose batches of eight take twice as long as a row alone, in 1, 2, 4 and 8 stages.
fn profile() -> Profile {
    let point = |rows, us| LatencyPoint { rows, length: 0, median_ns: us * 1000, p99_ns: us * 1000, runs: 20 };
    let stage = |count: u64| vec![point(1, 8000 / count), point(8, 16000 / count)];
    let cut = |count: u64| CutTable {
        at: Vec::new(),
        stages: (0..count).map(|_| stage(count)).collect(),
        scatter: Vec::new(),
    };
    let cuts = [1, 2, 4, 8].map(cut).to_vec();
    Profile { model: "model".to_owned(), max_rows: 8, padded_axes: 0, cuts, ..Profile::default() }
}

/// Stores the profile as that of the model with its configuration.
fn keep(place: &Place, yaml: &str) -> Option<()> {
    keep_as(place, yaml, &profile())
}

fn keep_as(place: &Place, yaml: &str, profile: &Profile) -> Option<()> {
    place.add("model", yaml, &zoo::mobilenet(Width::QUARTER).expect("it is sound"));
    let (_pool, loader) = place.loader(runtime()?);
    let request = read_model(&place.repository(), "model", &*loader).expect("it can be loaded");
    let key = loader.profile_key(&request).expect("it has a file");
    Store::new(place.profiles()).write(&key, profile).expect("the directory is ours");
    Some(())
}

#[tokio::test]
async fn stages_are_as_many_as_the_profile_advises() {
    let advised = [
        ("max_batch_size: 8\nstages: auto\n", 8),
        ("max_batch_size: 8\nbatching: { policy: auto }\n", 8),
        ("max_batch_size: 8\nstages: auto\nbatching: { policy: diversity }\n", 8),
        ("max_batch_size: 8\nstages: auto\nbatching: { policy: window }\n", 1),
        ("max_batch_size: 8\nstages: 2\nbatching: { policy: auto }\n", 2),
        ("max_batch_size: 8\n", 1),
    ];
    for (yaml, stages) in advised {
        let place = Place::new();
        let Some(()) = keep(&place, yaml) else { return };
        let served = place.serve(runtime().expect("there is a runtime")).await;
        assert_eq!(served.stages(), stages, "{yaml}");
        served.classify().await;
    }
}

#[tokio::test]
async fn a_model_is_measured_as_it_would_be_served() {
    let chosen = choose(&profile(), None).expect("it advises").policy.knobs().name();
    for (yaml, stages, policy) in [
        ("name: model\nmax_batch_size: 8\n", 1, "auto"),
        ("max_batch_size: 8\nstages: auto\nbatching: { policy: lazy }\n", 8, "lazy"),
        ("max_batch_size: 8\nbatching: { policy: auto }\n", 8, chosen),
    ] {
        let place = Place::new();
        let Some(()) = keep(&place, yaml) else { return };
        let profiles = Some(Store::new(place.profiles()));
        let runtime = Ok(runtime().expect("there is a runtime").clone());
        let local = Local::open(&place.repository(), "model", runtime, &PoolOptions::default(), profiles).await;
        let loaded = local.expect("it is there").load(None).await.expect("it loads");
        let Target::Local(handle, _) = &loaded.target else { panic!("it is in this process") };
        assert_eq!(handle.stats().reading().stages.len().max(1), stages, "{yaml}");
        assert_eq!(handle.policy(), policy, "the policy that it gets: {yaml}");
    }
}

#[tokio::test]
async fn without_a_profile_the_model_is_served_whole() {
    let yaml = "max_batch_size: 8\nstages: auto\n";
    let place = Place::new();
    let Some(()) = keep(&place, yaml) else { return };
    for damaged in ["", "{\"format\":0}"] {
        fs::write(&place.kept()[0], damaged).expect("the file is ours");
        let served = place.serve(runtime().expect("there is a runtime")).await;
        assert_eq!(served.stages(), 1, "'{damaged}' is no profile");
        served.classify().await;
    }
    // The profile is not used for another model.
    place.add("model", yaml, &zoo::resnet50(Width::QUARTER).expect("it is sound"));
    let served = place.serve(runtime().expect("there is a runtime")).await;
    assert_eq!(served.stages(), 1);
}

#[tokio::test]
async fn a_profile_that_is_not_believed_advises_nothing() {
    let yaml = "max_batch_size: 8\nstages: auto\n";
    let (mut once, mut falling) = (profile(), profile());
    once.cuts.iter_mut().flat_map(|cut| &mut cut.stages).flatten().for_each(|point| point.runs = 1);
    falling.cuts[0].stages[0][1].median_ns = 5_000_000;
    for doubtful in [once, falling] {
        let place = Place::new();
        let Some(()) = keep_as(&place, yaml, &doubtful) else { return };
        let served = place.serve(runtime().expect("there is a runtime")).await;
        assert_eq!(served.stages(), 1, "{:?}", doubtful.doubt());
        served.classify().await;
    }
}

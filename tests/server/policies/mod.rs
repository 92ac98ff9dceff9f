//! Batched = unbatched. Whatever a policy does with requests that arrive and leave at random (batches stretched, split,
//! merged, padded, rows that leave early, tasks that fail), each response equals the one that the whole model gives for
//! the request alone.
//!
//! Models are loaded from directories, as a server loads them, and run on ONNX Runtime, from `ORT_DYLIB_PATH` or where
//! `make` puts it. Without the library each test prints a note and passes. No test depends on how long anything takes.
//! Which requests meet in a batch does, so the policies' actions are asserted over many combinations.

mod combinations;
mod custom;
mod exits;
mod failures;
mod networks;
mod rig;

use paternoster_observe::MetaCounters;
use paternoster_testing::runtime::runtime;

use self::{
    combinations::{Combination, combinations},
    networks::Network,
    rig::Place,
};

/// Number of requests of a network, each submitted once under each combination.
const REQUESTS: usize = if cfg!(debug_assertions) { 24 } else { 40 };

/// Runs a network's requests under every policy, each with two of the ways to cut it, chosen by `turn`.
async fn batched_equals_unbatched(network: Network, turn: usize) {
    let Some(runtime) = runtime() else { return };
    let place = Place::new(&network.model);
    let exchanges = network.exchanges(runtime, REQUESTS);
    let mut done = MetaCounters::default();
    let mut cancelled = 0;
    for (number, combination) in combinations(&network, turn).into_iter().enumerate() {
        let Combination { name, yaml, stages } = combination;
        let context = format!("{} in {stages}, {name}", network.name);
        let served = place.serve(runtime, &network.yaml(&yaml), &context).await;
        let counts = served.drive(&exchanges, number as u64, &context).await;
        assert_eq!(counts.answered + counts.cancelled, REQUESTS, "{context}: every request ends");
        cancelled += counts.cancelled;
        let meta = served.stop(&context);
        done.stretches += meta.stretches;
        done.splits += meta.splits;
        done.merges += meta.merges;
    }
    assert!(cancelled > REQUESTS, "requests were cancelled under all combinations: {cancelled}");
    assert!(
        done.stretches > 0 && done.splits > 0 && done.merges > 0,
        "{}: too little happened: {done:?}",
        network.name
    );
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "one network of many: make nightly"]
async fn resnet50_answers_the_same_under_every_policy() {
    batched_equals_unbatched(networks::resnet50(), 0).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "one network of many: make nightly"]
async fn vgg19_answers_the_same_under_every_policy() {
    batched_equals_unbatched(networks::vgg19(), 1).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "one network of many: make nightly"]
async fn unet_answers_the_same_under_every_policy() {
    batched_equals_unbatched(networks::unet(), 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn linknet_answers_the_same_under_every_policy() {
    batched_equals_unbatched(networks::linknet(), 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn bert_answers_the_same_under_every_policy() {
    batched_equals_unbatched(networks::bert(), 0).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "one network of many: make nightly"]
async fn minilm_answers_the_same_under_every_policy() {
    let Some(minilm) = networks::minilm() else { return };
    batched_equals_unbatched(minilm, 1).await;
}

//! The benchmark's gRPC client, run against the server.

use std::{sync::Arc, time::Duration};

use paternoster_bench::{
    Remote, RemoteError, Sizes, Target,
    checked_requests::CheckedRequests,
    compare::{self, Subject},
    load::{self, LoadPattern, Timing},
    samples::Recipe,
};
use paternoster_lab::workload::{Arrivals, LengthDistribution};

use crate::grpc::support::{Server, soon};

const TIMING: Timing = Timing {
    warm_up: Duration::ZERO,
    measured: Some(Duration::from_millis(300)),
    patience: Duration::from_secs(60),
    keeps_each: false,
    interval: Duration::ZERO,
};

fn recipe() -> Recipe {
    let sizes = Some(Sizes::Lengths(LengthDistribution::Recorded(vec![3, 1, 7])));
    Recipe { rows: 2, sizes, integers_below: 10, fills: [].into(), shapes: [].into(), seed: 1 }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_is_measured_over_its_own_protocol() {
    let server = Server::start(|_| {}).await;
    let remote = soon(Remote::connect(&server.address().to_string(), "identity")).await.expect("it serves the model");
    let target = Target::Remote(Arc::new(remote));
    assert_eq!((target.ports().max_rows, target.ports().vary()), (8, true), "from metadata and configuration");
    let samples = recipe().samples(target.ports(), 12).expect("the recipe suits the model");
    let work = Arc::new(CheckedRequests::prepare(&target, samples, 1, None).await.expect("it answers"));

    let at_once = LoadPattern::Open(Arrivals::At(vec![0; 200]));
    let open = load::run(&target, &work, &at_once, TIMING, 1).await;
    assert_eq!((open.latencies.count(), open.errors()), (200, 0), "{:?}", open.first_fault);
    let closed = load::run(&target, &work, &LoadPattern::Closed { concurrency: 20 }, TIMING, 1).await;
    assert!(closed.latencies.count() > 0 && closed.errors() == 0, "{:?}", closed.first_fault);
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_that_a_server_fails_are_counted() {
    let server = Server::start(|_| {}).await;
    let remote = soon(Remote::connect(&server.address().to_string(), "identity")).await.expect("it serves the model");
    let target = Target::Remote(Arc::new(remote));
    let samples = recipe().samples(target.ports(), 3).expect("the recipe suits the model");
    let work = Arc::new(CheckedRequests::prepare(&target, samples, 1, None).await.expect("it answers"));
    server.repository.shutdown();
    let figures = load::run(&target, &work, &LoadPattern::Open(Arrivals::At(vec![0; 30])), TIMING, 1).await;
    assert_eq!((figures.failed, figures.latencies.count()), (30, 0));
    let fault = figures.first_fault.expect("there was one");
    assert!(fault.starts_with("failed request: "), "{fault}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_that_the_server_does_not_have_is_named() {
    let server = Server::start(|_| {}).await;
    let refusal = soon(Remote::connect(&server.address().to_string(), "nobody")).await.expect_err("there is none");
    assert!(matches!(refusal, RemoteError::Model { .. }), "{refusal}");
    assert!(refusal.to_string().contains("'nobody'"), "{refusal}");
}

#[tokio::test(flavor = "multi_thread")]
async fn two_servers_are_sent_the_same_and_expected_to_answer_the_same() {
    let servers = [Server::start(|_| {}).await, Server::start(|_| {}).await];
    let addresses = servers.each_ref().map(|server| server.address().to_string());
    let first = soon(Remote::connect(&addresses[0], "identity")).await.expect("it serves the model");
    let second = soon(Remote::connect(&addresses[1], "identity")).await.expect("it serves the model");
    let second = second.beside(&first).expect("it takes what the first takes");
    let subjects = addresses.iter().zip([first, second]);
    let subjects = subjects.map(|(name, server)| Subject {
        name: name.clone(),
        target: Target::Remote(server.into()),
        meter: None,
    });
    let subjects: Vec<Subject> = subjects.collect();
    let target = &subjects[0].target;
    let samples = recipe().samples(target.ports(), 12).expect("the recipe suits the model");
    let work = Arc::new(CheckedRequests::prepare(target, samples, 1, None).await.expect("it answers"));
    let load = async || LoadPattern::Open(Arrivals::At(vec![0; 20]));
    let outcomes = compare::measure(&subjects, &work, load, TIMING, 2, 1, || {}).await;
    for (outcome, address) in outcomes.iter().zip(&addresses) {
        let total = outcome.total();
        assert_eq!(
            (&outcome.name, total.latencies.count(), total.errors()),
            (address, 40, 0),
            "{:?}",
            total.first_fault
        );
    }
}

//! The batches that policies form on a card's measured times (`benches/tables/h200`), in virtual time.

use std::{fs, path::Path};

use paternoster_batching::{DiversityKnobs, InputDiversity, OperatorDiversity};

use super::*;

const NS_PER_S: Ns = 1_000_000_000;

/// Returns a model of the card's tables, in this many stages.
fn measured(file: &str, name: &str, stages: usize) -> ModelTable {
    let tables = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../benches/tables/h200");
    let text = fs::read_to_string(tables.join(file)).expect("it can be read");
    let card = DeviceTable::from_json(&text).expect("it is a table");
    card.model(name).expect("it is in the table").sliced(stages).expect("it has as many parts")
}

/// Returns the card with one model, which has no objective.
fn card(table: ModelTable, policy: Policy, bucket_width: Option<u32>) -> Setup {
    let mut setup = setup(table, policy);
    let knobs = &mut setup.models[0].knobs;
    (knobs.objective_ns, knobs.max_in_flight) = (None, 1);
    knobs.queueing.bucket_width = bucket_width;
    setup
}

/// The policies that batch, and so what `auto` chooses: `window` without a profile, Policies I and II with one.
fn policies() -> Vec<(&'static str, Policy)> {
    let diversity = |operator: bool| {
        let (input, operator) = (Some(InputDiversity::default()), operator.then(OperatorDiversity::default));
        Policy::Diversity(DiversityKnobs { input, operator, load: None })
    };
    vec![
        ("window", window()),
        ("lazy", Policy::Lazy(LazyKnobs::default())),
        ("diversity", diversity(false)),
        ("diversity with operator", diversity(true)),
    ]
}

fn at_rate(rate: f64, lengths: &str) -> SimulatedLoad {
    let lengths = LengthDistribution::named(lengths).expect("it is published");
    let models = vec![(1.0, RequestInputs::OfLength(lengths))];
    SimulatedLoad { arrivals: Arrivals::Poisson { rate }, models, traced: None, backlog: 0 }
}

/// Where larger batches make the fixed time of a run seem smaller, and rows that are left behind dearer, batches stay
/// large for ever, at four times the latency.
#[test]
fn lengths_that_share_batches_wait_hardly_longer_than_in_the_best_fixed_buckets() {
    mixed_lengths_wait_hardly_longer(6_000);
}

#[test]
#[ignore = "the full size: make nightly"]
fn over_many_requests_lengths_that_share_batches_wait_hardly_longer() {
    mixed_lengths_wait_hardly_longer(20_000);
}

/// Counts the second half of this many requests.
fn mixed_lengths_wait_hardly_longer(requests: u64) {
    let bert = || measured("bert-base.json", "bert-base-fp16", 1);
    for backlog in [0, 2_000] {
        let mean_ms = |policy, bucket_width| {
            let setup = Setup { warm_up: requests / 2, ..card(bert(), policy, bucket_width) };
            let load = SimulatedLoad { backlog, ..at_rate(8_500.0, "glue-pair") };
            run(&setup, 1, load.requests(1, requests)).all().latencies.mean_ns() / 1e6
        };
        let bucketed = mean_ms(window(), Some(64));
        for (name, policy) in policies() {
            let mean = mean_ms(policy, None);
            assert!(mean <= 1.15 * bucketed, "{name} after {backlog} that waited: {mean} ms beside {bucketed}");
        }
    }
}

/// While hardly any requests seem to come, batches are divided as if nothing waited behind them, and a queue builds up.
#[test]
fn a_load_that_has_just_begun_waits_hardly_longer_than_under_window() {
    let linknet = || measured("linknet-128.json", "linknet-128-ieee", 1);
    let waiting = SimulatedLoad { backlog: 10_000, ..at_rate(1.0, "fixed-24") };
    let figures = run(&card(linknet(), window(), None), 1, waiting.requests(1, 10_000));
    let rate = 0.9 * figures.throughput(&figures.all());
    let mean_ms = |policy, from: Ns| {
        let setup = Setup { warm_up: u64::from(from > 0), ..card(linknet(), policy, None) };
        let before = (from > 0).then(Offered::default);
        let load = at_rate(rate, "fixed-24");
        let first = load.requests(1, u64::MAX).take_while(|offered| offered.at < Instant::from_ns(NS_PER_S));
        let first = first.map(|offered| Offered { at: offered.at + from, ..offered });
        run(&setup, 1, before.into_iter().chain(first)).all().latencies.mean_ns() / 1e6
    };
    for from in [0, 10 * NS_PER_S] {
        let beside = mean_ms(window(), from);
        for (name, policy) in policies() {
            let mean = mean_ms(policy, from);
            assert!(mean <= 1.1 * beside, "{name} from {from} ns on: {mean} ms beside {beside} of window");
        }
    }
}

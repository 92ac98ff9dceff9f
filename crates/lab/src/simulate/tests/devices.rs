//! Several devices: their joint capacity, and how requests continue when a device is idle or lost.

use paternoster_batching::PolicyKind;
use rand::RngExt;
use rand_chacha::{ChaCha8Rng, rand_core::SeedableRng};

use super::*;

#[test]
fn four_devices_carry_almost_four_times_as_much_as_one() {
    let mut setup = setup(model(&[(100_000, 120_000)]), window());
    let span_ns = |setup: &Setup| run(setup, 1, at(&[0; 40_000])).run_ns;
    let one = span_ns(&setup);
    setup.devices = 4;
    let four = span_ns(&setup);
    assert!(one * 10 >= four * 39, "{one} ns on one, {four} on four");
}

#[test]
fn a_lost_device_loses_what_it_ran_and_nothing_else() {
    let mut setup = setup(model(&[(100, 120), (100, 120)]), window());
    setup.devices = 4;
    let load = poisson(60e6);
    let requests = || load.requests(5, 4_000);
    assert_eq!(run(&setup, 1, requests()).all().refused, 0);
    setup.lost = vec![(Instant::from_ns(10_000), 2), (Instant::from_ns(20_000), 0)];
    let figures = run(&setup, 1, requests()).all();
    let aboard = u64::from(setup.models[0].knobs.max_batch_rows * u32::from(setup.models[0].knobs.buffer_pairs));
    assert_eq!(figures.completed + figures.refused, 4_000, "each ends once");
    assert!((1..=2 * aboard).contains(&figures.refused), "{} were aboard", figures.refused);
    setup.lost = (0..4).map(|device| (Instant::from_ns(30_000), device)).collect();
    let figures = run(&setup, 1, requests()).all();
    assert_eq!(figures.completed + figures.refused, 4_000, "also where no device is left");
    assert!(figures.refused > 1_000 && figures.completed > 100);
}

#[test]
fn requests_that_wait_behind_a_slow_batch_move_to_a_device_that_idles() {
    let policy = Policy::Window(WindowKnobs::default());
    let mut setup = setup(model(&[(1_000, 1_000)]), policy);
    setup.models[0].knobs.max_batch_rows = 1;
    setup.devices = 2;
    // Two requests run and four wait; they end at 1,000, 2,000 and 3,000 on both devices.
    assert_eq!(sum_ns(&run(&setup, 1, at(&[0; 6])).all()), 2 * (1_000 + 2_000 + 3_000));
    setup.lost = vec![(Instant::from_ns(1_500), 1)];
    let figures = run(&setup, 1, at(&[0; 6])).all();
    assert_eq!((figures.completed, figures.refused), (5, 1));
    assert_eq!(sum_ns(&figures), 1_000 + 1_000 + 2_000 + 3_000 + 4_000, "what waited there goes to the other");
}

/// Creates a random setup from a seed: devices, lanes, stages, policies, load and losses. Also returns the number of
/// requests.
fn world(seed: u64) -> (Setup, SimulatedLoad, u64) {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let stages: Vec<(Ns, Ns)> = (0..random.random_range(1..4))
        .map(|_| {
            let one = random.random_range(50..500);
            (one, one + random.random_range(0..=one))
        })
        .collect();
    let policies: Vec<Policy> = PolicyKind::over_batches().collect();
    let mut setup = setup(model(&stages), policies[random.random_range(0..policies.len())].clone());
    setup.devices = random.random_range(1..5);
    setup.lanes = random.random_range(1..4);
    if random.random_bool(0.3) {
        setup.ahead = LaneKnobs { horizon_ns: 400, depth: 3 };
    }
    let queueing = &mut setup.models[0].knobs.queueing;
    queueing.preserve_ordering = random.random_bool(0.1);
    if random.random_bool(0.2) {
        queueing.default_queue.max_queue_size = random.random_range(1..20);
    }
    if random.random_bool(0.2) {
        queueing.default_queue.default_timeout_ns = random.random_range(100..5_000);
    }
    setup.models[0].table.scatter = vec![0.5, 1.0, 1.5, 4.0];
    setup.lost =
        (0..setup.devices).filter(|_| random.random_bool(0.15)).map(|device| (Instant::ZERO, device)).collect();
    setup.lost.iter_mut().for_each(|(at, _)| *at = Instant::from_ns(random.random_range(0..20_000)));
    let whole_ns: Ns = stages.iter().map(|(one, _)| one).sum();
    let rate = 1e9 / whole_ns as f64 * f64::from(setup.devices) * random.random_range(0.2..3.0);
    (setup, poisson(rate), random.random_range(20..200))
}

/// Returns how many requests moved, and how many were lost with a device.
fn plays(seed: u64) -> (u64, u64) {
    let (setup, load, requests) = world(seed);
    let all = run(&setup, seed, load.requests(seed, requests)).all();
    let ends = all.completed + all.refused;
    assert_eq!((all.offered, ends), (requests, requests), "seed {seed}: each ends once: {setup:?}");
    let counted = all.counters;
    assert_eq!((counted.live_requests, counted.pending_requests), (0, 0), "seed {seed}: no core keeps any");
    let is_last = setup.lost.len() == usize::from(setup.devices);
    let refused = counted.failed + counted.queue_full + counted.queue_timeout + counted.late;
    assert!(is_last || all.refused == refused, "seed {seed}: {} and {refused} of {counted:?}, {setup:?}", all.refused);
    (counted.recalled, counted.failed)
}

/// Worlds of a run by day.
const SEEDS: u64 = 120;

#[test]
fn whatever_happens_to_devices_every_request_ends_once() {
    let (mut moved, mut failed) = (0, 0);
    for seed in 0..SEEDS {
        let (own_moved, own_failed) = plays(seed);
        (moved, failed) = (moved + own_moved, failed + own_failed);
    }
    assert!(3 * moved > SEEDS && 3 * failed > SEEDS, "{moved} moved, {failed} failed");
}

#[test]
#[ignore = "minutes: the long run by hand, in release"]
fn many_worlds_of_several_devices() {
    let seeds: Vec<u64> = (0..100_000).collect();
    let played = on_all_cores(cores(), &seeds, |&seed| plays(seed), || {});
    let (moved, failed) = played.into_iter().fold((0, 0), |sum, own| (sum.0 + own.0, sum.1 + own.1));
    println!("100,000 worlds: {moved} requests moved, {failed} failed with their device");
}

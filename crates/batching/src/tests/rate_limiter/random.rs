//! Random runs of cores that share a rate limiter.

use std::collections::BTreeMap;

use super::cluster::{Cluster, amount, demand, needs};
use crate::{Event, Knobs, LaneId, LaneKnobs, ModelId, Ns, Policy, WindowKnobs};

/// A generator of random numbers (Knuth's MMIX).
struct Random(u64);

impl Random {
    fn below(&mut self, most: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % most
    }
}

/// Plays random events, each followed by all checks, and lets everything finish. Returns how often a task waited.
fn play(seed: u64) -> u64 {
    let random = &mut Random(seed);
    let devices = &["cpu", "cpu", "0", "1"][..=random.below(4)];
    let lanes = 1 + random.below(3) as u16;
    let amounts = if random.below(2) == 0 { vec![] } else { vec![amount("a", 5, None), amount("g", 4, None)] };
    let mut cluster = Cluster::new(devices, lanes, &amounts, |model| 5 + 7 * Ns::from(model.0 % 5));
    let knobs: Vec<Knobs> = (0..5)
        .map(|_| {
            let mut resources = Vec::new();
            for (name, is_global) in [("a", false), ("b", false), ("g", true)] {
                let count = random.below(4) as u32;
                resources.extend((random.below(2) == 0).then(|| demand(name, is_global, count)));
            }
            let delay = Policy::Window(WindowKnobs { max_queue_delay_ns: 6, preferred_batch_sizes: vec![] });
            let policy = if random.below(2) == 0 { Policy::Serial } else { delay };
            let max_in_flight = 1 + random.below(4) as u32;
            Knobs { max_in_flight, max_batch_rows: 3, policy, ..needs(&resources, random.below(4) as u32) }
        })
        .collect();
    let mut loaded: BTreeMap<u32, Knobs> = BTreeMap::new();
    let (mut next_model, mut lost) = (0, Vec::new());
    for _ in 0..300 {
        let core = random.below(devices.len());
        match random.below(20) {
            0..8 if !loaded.is_empty() => {
                let model = *loaded.keys().nth(random.below(loaded.len())).expect("one is loaded");
                cluster.send(core, model);
            }
            8..12 if !cluster.running.is_empty() => {
                let (at, fails) = (random.below(cluster.running.len()), random.below(6) == 0);
                cluster.now += 1;
                cluster.end(at, fails);
            }
            12 | 13 if !cluster.open.is_empty() => {
                let (core, req) = cluster.open[random.below(cluster.open.len())];
                cluster.step(core, Event::Cancelled(req));
            }
            14 => {
                let lane = (core, LaneId(random.below(usize::from(lanes)) as u16));
                if !lost.contains(&lane) {
                    lost.push(lane);
                    cluster.running.retain(|(at, _, task)| (*at, task.lane) != lane);
                    cluster.step(core, Event::LaneLost(lane.1));
                }
            }
            15 if !lost.is_empty() => {
                let (core, lane) = lost.swap_remove(random.below(lost.len()));
                cluster.step(core, Event::LaneUp(lane, LaneKnobs::default()));
            }
            16 if loaded.len() > 1 => {
                let model = *loaded.keys().nth(random.below(loaded.len())).expect("one is loaded");
                loaded.remove(&model);
                (0..devices.len()).for_each(|core| cluster.step(core, Event::ModelDraining(ModelId(model))));
            }
            17 if loaded.len() < 5 => {
                let knobs = &knobs[random.below(5)];
                cluster.up(next_model, knobs.clone()).expect("a model needs at most three units");
                loaded.insert(next_model, knobs.clone());
                next_model += 1;
            }
            _ => _ = cluster.pass(),
        }
    }
    for (core, lane) in lost {
        cluster.step(core, Event::LaneUp(lane, LaneKnobs::default()));
    }
    cluster.run_out();
    let resources = cluster.limiter.resources();
    assert!(resources.iter().all(|resource| resource.in_use == 0), "{resources:?}");
    for model in loaded.into_keys() {
        (0..devices.len()).for_each(|core| cluster.step(core, Event::ModelDraining(ModelId(model))));
    }
    assert_eq!(cluster.limiter.resources(), [], "no model is left");
    resources.iter().map(|resource| u64::from(resource.waited_ns > 0)).sum()
}

#[test]
fn random_runs_hold_no_more_units_than_there_are_and_give_back_all() {
    random_runs_give_back_all(150);
}

#[test]
#[ignore = "many runs: make nightly"]
fn many_random_runs_hold_no_more_units_than_there_are_and_give_back_all() {
    random_runs_give_back_all(4_000);
}

fn random_runs_give_back_all(runs: u64) {
    let waited: u64 = (0..runs).map(play).sum();
    assert!(2 * waited > runs, "tasks waited for {waited} resources in {runs} runs");
}

//! Small cases in every order of events: arrivals, ends of tasks, one cancellation, one fault.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

use parking_lot::Mutex;
use paternoster_batching::{
    Arrival, DiversityKnobs, Instant, Knobs, LaneId, LaneKnobs, LazyKnobs, LoadDiversity, ModelId, OperatorDiversity,
    PartOrder, Policy, Predictor, ReqId, StageKnobs,
};
use paternoster_testing::runs::Counts as _;

use super::{
    behaviour::Faults,
    counts::Counts,
    planted::Planted,
    rng::Rng,
    run::Run,
    scenario::{Model, Scenario},
    world::World,
};

/// Maximum orders of one case; a case that has more is too large to be exhausted.
const MOST: u64 = 3_000_000;

/// The choices of one run: the given ones, then always the first.
#[derive(Debug, Default)]
struct Choices {
    /// Each choice made, and the number of alternatives.
    made: Vec<(u64, u64)>,
    at: usize,
}

impl Choices {
    fn choose(&mut self, of: u64) -> u64 {
        if self.at == self.made.len() {
            self.made.push((0, of));
        }
        self.at += 1;
        self.made[self.at - 1].0
    }

    /// Advances to the next run; returns false after the last.
    fn advance(&mut self) -> bool {
        self.at = 0;
        while let Some((chosen, of)) = self.made.pop() {
            if chosen + 1 < of {
                self.made.push((chosen + 1, of));
                return true;
            }
        }
        false
    }
}

/// An event that can happen next.
#[derive(Clone, Copy, Debug)]
enum Can {
    Arrive,
    /// The oldest task of a lane ends.
    End(u16),
    Cancel(u64),
}

/// A small case.
struct Case {
    name: String,
    world: Arc<World>,
    /// Whether one request is cancelled: any request, at any time.
    cancel: bool,
    /// Whether one task fails: any task.
    fault: bool,
}

/// Plays one order of events. Tasks end at once; the order varies when the pool receives their ends.
fn play(case: &Case, choices: &Arc<Mutex<Choices>>, planted: Option<Planted>) -> Result<Counts, String> {
    let faults = || -> Faults {
        let (mut may_fail, choices) = (case.fault, Arc::clone(choices));
        Box::new(move |_| {
            let fails = may_fail && choices.lock().choose(2) == 1;
            may_fail &= !fails;
            fails
        })
    };
    let mut run = Run::new(&case.world, planted, faults)?;
    let mut may_cancel = case.cancel;
    loop {
        let mut can: Vec<Can> = Vec::new();
        can.extend((run.sent < case.world.requests.len()).then_some(Can::Arrive));
        let lanes = 0..case.world.scenario.lanes;
        can.extend(lanes.filter(|&lane| run.floors[0].lock().may_end(LaneId(lane))).map(Can::End));
        can.extend(run.open.keys().filter(|_| may_cancel).map(|&number| Can::Cancel(number)));
        let alarm = run.alarm(0);
        if can.is_empty() || alarm.is_some_and(|at| at <= run.now) {
            let Some(alarm) = alarm else { return run.end() };
            run.pass_to(alarm);
            run.ring(0);
        } else {
            run.pass_to(run.now + 1);
            let chosen = choices.lock().choose(can.len() as u64);
            match can[chosen as usize] {
                Can::Arrive => run.send(),
                Can::Cancel(number) => {
                    may_cancel = false;
                    run.cancel(number);
                }
                Can::End(lane) => run.end_of(lane)?,
            }
        }
        run.look(false)?;
    }
}

/// Plays all orders of a case. Returns how many there are, and what happened in them.
fn exhaust(case: &Case, planted: Option<Planted>) -> Result<(u64, Counts), String> {
    let choices = Arc::<Mutex<Choices>>::default();
    let (mut orders, mut sum) = (0, Counts::default());
    loop {
        let played = play(case, &choices, planted);
        sum.add(&played.map_err(|broken| format!("{}: {broken}\nchoices {:?}", case.name, choices.lock().made))?);
        orders += 1;
        if !choices.lock().advance() {
            return Ok((orders, sum));
        }
        if orders == MOST {
            return Err(format!("{}: more than {MOST} orders", case.name));
        }
    }
}

fn policies() -> [(&'static str, Policy); 4] {
    let load = Some(LoadDiversity { paper: true, ..LoadDiversity::default() });
    let operator = |order| Some(OperatorDiversity { threshold: 0.3, order, paper: false });
    let diversity = |load, operator| Policy::Diversity(DiversityKnobs { load, operator, input: None });
    [
        ("stretch", diversity(load.clone(), None)),
        ("split depth first", diversity(load.clone(), operator(PartOrder::DepthFirst))),
        ("split pipelined", diversity(load, operator(PartOrder::Pipelined))),
        ("lazy", Policy::Lazy(LazyKnobs { predictor: Predictor::Paper, ..LazyKnobs::default() })),
    ]
}

/// Returns a case of three requests of one row each, which form at most three batches.
fn case(policy: &(&str, Policy), stages: u16, pairs: u16, lanes: u16, ahead: bool) -> Case {
    let knobs = Knobs {
        max_batch_rows: 3,
        max_in_flight: 4,
        stages: StageKnobs::chain(stages),
        buffer_pairs: pairs,
        policy: policy.1.clone(),
        ..Knobs::default()
    };
    let model = Model { knobs, skip: None, costs: vec![(0, 0); usize::from(stages)] };
    let arrival = |req| Arrival::new(ReqId(req), ModelId(0), 1);
    let scenario = Scenario {
        seed: 0,
        models: vec![model],
        lanes,
        lane_knobs: if ahead { LaneKnobs { horizon_ns: 1_000, depth: 2 } } else { LaneKnobs::default() },
        arrivals: (0..3).map(|req| (Instant::ZERO, arrival(req))).collect(),
        faults: 0,
        bad_rows: 0,
        lane_losses: 0,
        cancels: 0,
    };
    let ahead = if ahead { "looking ahead" } else { "one task each" };
    let name = format!("{}, {stages} stages, {pairs} pairs, {lanes} lanes {ahead}", policy.0);
    let world = World { output_losses: 0, most_take_ns: 0, ..World::of_stages(scenario, &mut Rng::new(0)) };
    Case { name, world: Arc::new(world), cancel: true, fault: true }
}

/// Plays every order of all cases, on as many threads as there are cores.
fn is_sound(cases: impl IntoIterator<Item = Case>) -> Counts {
    let cases: Vec<Case> = cases.into_iter().collect();
    let next = AtomicUsize::new(0);
    let work = || {
        let mut own = Counts::default();
        while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
            match exhaust(case, None) {
                Ok((orders, rare)) => {
                    println!("{orders:>9} orders of {} (cancel {}, fault {})", case.name, case.cancel, case.fault);
                    own.add(&rare);
                }
                Err(broken) => panic!("{broken}"),
            }
        }
        own
    };
    let mut sum = Counts::default();
    thread::scope(|scope| {
        let threads = thread::available_parallelism().map_or(1, usize::from);
        let working: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        for thread in working {
            match thread.join() {
                Ok(own) => sum.add(&own),
                Err(panicked) => std::panic::resume_unwind(panicked),
            }
        }
    });
    sum
}

#[test]
fn every_order_of_two_stages_on_one_lane_is_sound() {
    // By night every policy has both.
    let variants = [(2, true), (1, false)].into_iter().cycle();
    let sum =
        is_sound(policies().iter().zip(variants).map(|(policy, (pairs, ahead))| case(policy, 2, pairs, 1, ahead)));
    let met = [sum.stretches, sum.splits, sum.merges, sum.newcomers_cancelled, sum.fault_while_waiting, sum.retries];
    assert!(met.iter().all(|&count| count > 0), "{met:?}\n{sum:?}");
}

#[test]
fn every_order_finds_a_completion_that_is_lost() {
    let [stretch, ..] = policies();
    let found = exhaust(&case(&stretch, 2, 1, 1, false), Some(Planted::LostCredit));
    assert!(found.is_err_and(|broken| broken.contains("deadlock")));
}

#[test]
#[ignore = "minutes without optimisation: make nightly"]
fn every_order_of_all_small_cases_is_sound() {
    let mut cases = Vec::new();
    for policy in policies() {
        for (stages, pairs, lanes) in
            [(2, 1, 1), (2, 2, 1), (2, 1, 2), (2, 2, 2), (3, 1, 1), (3, 2, 1), (3, 1, 2), (3, 2, 2)]
        {
            for ahead in [false, true] {
                let both = case(&policy, stages, pairs, lanes, ahead);
                if stages == 2 || lanes == 1 {
                    cases.push(both);
                    continue;
                }
                cases.push(Case { fault: false, ..both });
                cases.push(Case { cancel: false, ..case(&policy, stages, pairs, lanes, ahead) });
            }
        }
    }
    is_sound(cases);
}

//! Small cases in every order of events: arrivals, ends of tasks, one cancellation, one fault.

use std::{
    cell::RefCell,
    sync::atomic::{AtomicUsize, Ordering},
    thread,
};

use paternoster_batching::{
    Arrival, DiversityKnobs, Knobs, LaneKnobs, LazyKnobs, LoadDiversity, ModelId, OperatorDiversity, PartOrder, Policy,
    Predictor, ReqId, StageKnobs,
};
use paternoster_device::StreamId;

use super::{
    driver::Driver,
    planted::Planted,
    rare::Rare,
    rng::Rng,
    scenario::{Model, Scenario},
};

/// Maximum orders of one case; a case that has more is too large to be exhausted.
const MOST: u64 = 3_000_000;

/// Steps between two checks of the invariants. In debug builds the core itself checks states as small as these.
const CHECK_EVERY: u64 = if cfg!(debug_assertions) { u64::MAX } else { 1 };

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
    Cancel(ReqId),
}

/// A small case.
struct Case {
    name: String,
    scenario: Scenario,
    /// Whether one request is cancelled: any request, at any time.
    cancel: bool,
    /// Whether one task fails: any task.
    fault: bool,
}

/// Plays one order of events. Tasks end at once; the order varies when the core receives their ends.
fn play(case: &Case, choices: &RefCell<Choices>, planted: Option<Planted>) -> Result<Rare, String> {
    let scenario = &case.scenario;
    let mut may_fail = case.fault;
    let fails = move |_: &mut Rng| {
        let fails = may_fail && choices.borrow_mut().choose(2) == 1;
        may_fail &= !fails;
        fails
    };
    let mut driver = Driver::new(scenario, planted, CHECK_EVERY, Box::new(fails))?;
    let (mut arrived, mut may_cancel) = (0, case.cancel);
    loop {
        let mut can: Vec<Can> = Vec::new();
        can.extend(scenario.arrivals.get(arrived).map(|_| Can::Arrive));
        can.extend((0..scenario.lanes.len() as u16).filter(|&lane| may_end(&driver, lane)).map(Can::End));
        can.extend(driver.live.iter().filter(|_| may_cancel).map(|&req| Can::Cancel(req)));
        if can.is_empty() || driver.wake.is_some_and(|wake| wake <= driver.now) {
            let Some(wake) = driver.wake else { return driver.end() };
            driver.now = driver.now.max(wake);
            driver.wake()?;
            continue;
        }
        driver.now += 1;
        let chosen = choices.borrow_mut().choose(can.len() as u64);
        match can[chosen as usize] {
            Can::Arrive => {
                arrived += 1;
                driver.arrive(&scenario.arrivals[arrived - 1].1)?;
            }
            Can::Cancel(req) => {
                may_cancel = false;
                driver.cancel(req)?;
            }
            Can::End(lane) => {
                let completion = driver.floor.sim.poll(StreamId(lane)).map_err(|error| error.to_string())?;
                driver.ended(completion.ok_or("a task that has ended is not told of")?)?;
            }
        }
    }
}

/// Returns whether the oldest task of a lane may end next: every task that it waited for has ended.
fn may_end(driver: &Driver<'_>, lane: u16) -> bool {
    let mut own = driver.floor.tasks.iter().filter(|flight| flight.task.lane.0 == lane);
    let running = |id| driver.floor.tasks.iter().any(|flight| flight.task.id == id);
    own.next().is_some_and(|oldest| !oldest.task.after.iter().any(|&id| running(id)))
}

/// Plays all orders of a case. Returns how many there are, and what happened in them.
fn exhaust(case: &Case, planted: Option<Planted>) -> Result<(u64, Rare), String> {
    let choices = RefCell::new(Choices::default());
    let (mut orders, mut sum) = (0, Rare::default());
    loop {
        let played = play(case, &choices, planted);
        sum.add(&played.map_err(|broken| format!("{}: {broken}\nchoices {:?}", case.name, choices.borrow().made))?);
        orders += 1;
        if !choices.borrow_mut().advance() {
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
fn case(policy: &(&str, Policy), stages: u16, pairs: u16, lanes: usize, ahead: bool) -> Case {
    let knobs = Knobs {
        max_batch_rows: 3,
        max_in_flight: 4,
        stages: StageKnobs::chain(stages),
        buffer_pairs: pairs,
        policy: policy.1.clone(),
        ..Knobs::default()
    };
    let model = Model { knobs, skip: None, costs: vec![(0, 0); usize::from(stages)] };
    let lane = if ahead { LaneKnobs { horizon_ns: 1_000, depth: 2 } } else { LaneKnobs::default() };
    let arrival = |req| Arrival {
        req: ReqId(req),
        model: ModelId(0),
        rows: 1,
        lengths: Default::default(),
        key: Default::default(),
        priority: 0,
        board_by: None,
        deadline: None,
        graph: Box::default(),
        sequence: None,
        first: None,
    };
    let scenario = Scenario {
        seed: 0,
        models: vec![model],
        lanes: vec![lane; lanes],
        arrivals: (0..3).map(|req| (0, arrival(req))).collect(),
        faults: 0,
        bad_rows: 0,
        lane_losses: 0,
        cancels: 0,
    };
    let ahead = if ahead { "looking ahead" } else { "one task each" };
    let name = format!("{}, {stages} stages, {pairs} pairs, {lanes} lanes {ahead}", policy.0);
    Case { name, scenario, cancel: true, fault: true }
}

/// Plays every order of all cases, on as many threads as there are cores.
fn is_sound(cases: impl IntoIterator<Item = Case>) -> Rare {
    let cases: Vec<Case> = cases.into_iter().collect();
    let next = AtomicUsize::new(0);
    let work = || {
        let mut own = Rare::default();
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
    let mut sum = Rare::default();
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
    let variants = [(1, false), (2, false), (1, true), (2, true)];
    let cases =
        policies().into_iter().flat_map(|policy| variants.map(|(pairs, ahead)| case(&policy, 2, pairs, 1, ahead)));
    let sum = is_sound(cases);
    let met = [sum.stretches, sum.splits, sum.merges, sum.newcomers_cancelled, sum.fault_while_waiting, sum.retries];
    assert!(met.iter().all(|&count| count > 0), "{met:?}\n{sum}");
}

#[test]
fn every_order_finds_a_completion_that_is_lost() {
    let [stretch, ..] = policies();
    let found = exhaust(&case(&stretch, 2, 1, 1, false), Some(Planted::LostCredit));
    assert!(found.is_err_and(|broken| broken.contains("deadlock")));
}

#[test]
fn every_order_of_all_small_cases_is_sound() {
    let mut cases = Vec::new();
    for policy in policies() {
        for (stages, pairs, lanes) in [(2, 1, 2), (2, 2, 2), (3, 1, 1), (3, 2, 1), (3, 1, 2), (3, 2, 2)] {
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

//! Random runs: a few in every test run, more by hand.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
};

use parking_lot::Mutex;
use paternoster_batching::{LaneId, ReqId};
use paternoster_device::StreamId;

use super::{
    driver::Driver,
    planted::Planted,
    rare::Rare,
    rng::Rng,
    scenario::{REQUESTS, Scenario},
};

/// Number of runs in every test run.
const SHARE: u64 = if cfg!(debug_assertions) { 200 } else { 2_000 };

/// Steps between two checks of the invariants. In debug builds the core itself checks small states after every step.
const CHECK_EVERY: u64 = 1;

/// Plays the scenario of a seed, with or without a planted fault.
pub(crate) fn play(seed: u64, planted: Option<Planted>, check_every: u64) -> Result<Rare, String> {
    let scenario = Scenario::random(seed);
    let fails = Box::new(|rng: &mut Rng| rng.permille(scenario.faults));
    let driver = Driver::new(&scenario, planted, check_every, fails)?;
    Run { driver, arrived: 0, back: Vec::new(), planted }.play()
}

struct Run<'s> {
    driver: Driver<'s>,
    arrived: usize,
    /// When lost lanes return.
    back: Vec<(u64, LaneId)>,
    planted: Option<Planted>,
}

impl Run<'_> {
    fn play(mut self) -> Result<Rare, String> {
        while let Some(now) = self.next() {
            self.driver.now = now;
            let completion = self.driver.floor.sim.advance_to(now);
            let arrivals = &self.driver.scenario.arrivals;
            if let Some(completion) = completion {
                self.driver.ended(completion)?;
            } else if let Some((_, arrival)) = arrivals.get(self.arrived).filter(|(at, _)| *at <= now) {
                self.arrived += 1;
                self.driver.arrive(arrival)?;
            } else if self.driver.wake.is_some_and(|wake| wake <= now) {
                self.driver.wake()?;
            } else if let Some(at) = self.back.iter().position(|&(at, _)| at <= now) {
                let (_, lane) = self.back.remove(at);
                self.driver.lane_up(lane)?;
            }
            self.disturb()?;
        }
        self.driver.end()
    }

    /// Returns the time of the next event.
    fn next(&self) -> Option<u64> {
        let arrival = self.driver.scenario.arrivals.get(self.arrived).map(|&(at, _)| at);
        let end = self.driver.floor.sim.next_end_ns();
        let back = self.back.iter().map(|&(at, _)| at).min();
        // A wake-up whose time has passed meanwhile is due now.
        let next = [arrival, end, back, self.driver.wake].into_iter().flatten().min();
        next.map(|next| next.max(self.driver.now))
    }

    /// Cancels requests, loses lanes, slows them down.
    fn disturb(&mut self) -> Result<(), String> {
        let driver = &mut self.driver;
        if self.planted == Some(Planted::EarlyCompletion) && driver.rng.permille(200) {
            driver.tell_early()?;
        }
        let owed = driver.rare.cancelled * 100 < driver.rare.requests * driver.scenario.cancels;
        if owed && driver.rng.permille(300) {
            let newcomers = driver.tracker.newcomers().map(<[ReqId]>::to_vec);
            match newcomers.filter(|_| driver.rng.coin()) {
                Some(all) => all.into_iter().try_for_each(|req| driver.cancel(req))?,
                None if !driver.live.is_empty() => {
                    let any = driver.rng.below(driver.live.len() as u64) as usize;
                    let req = driver.live[any];
                    driver.cancel(req)?;
                }
                None => {}
            }
        }
        if driver.rng.permille(driver.scenario.lane_losses) {
            let lane = driver.rng.below(driver.lanes_up.len() as u64) as u16;
            if driver.lanes_up[usize::from(lane)] {
                self.back.push((driver.now + driver.rng.exponential(2_000), LaneId(lane)));
                driver.lose_lane(LaneId(lane))?;
            }
        }
        if driver.rng.permille(3) {
            driver.recall()?;
        }
        if driver.moves() && (driver.floor.tasks.is_empty() || driver.rng.permille(200)) {
            driver.take_in()?;
        }
        if driver.rng.permille(3) {
            let lane = driver.rng.below(driver.lanes_up.len() as u64) as u16;
            let factor = driver.rng.within(1, 5) as u32;
            driver.rare.slow_lanes += u64::from(factor > 1);
            driver.floor.sim.slow(StreamId(lane), factor).map_err(|error| error.to_string())?;
        }
        Ok(())
    }
}

/// Plays seeds on as many threads as there are cores. Returns the sum of what happened, or the first failure with its
/// seed.
fn play_all(seeds: std::ops::Range<u64>, check_every: u64) -> Result<Rare, String> {
    let (next, stop) = (AtomicU64::new(seeds.start), AtomicBool::new(false));
    let sum = Mutex::new(Ok(Rare::default()));
    let work = || {
        let mut own = Rare::default();
        while !stop.load(Ordering::Relaxed) {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.end {
                break;
            }
            let played = catch_unwind(AssertUnwindSafe(|| play(seed, None, check_every)));
            match played.unwrap_or_else(|_| Err("it panicked".to_owned())) {
                Ok(rare) => own.add(&rare),
                Err(broken) => {
                    stop.store(true, Ordering::Relaxed);
                    let failure = format!("{broken}\nreplay with PATERNOSTER_SEED={seed}");
                    *sum.lock() = Err(failure);
                    return;
                }
            }
        }
        if let Ok(sum) = sum.lock().as_mut() {
            sum.add(&own);
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        (0..threads).for_each(|_| {
            scope.spawn(work);
        });
    });
    sum.into_inner()
}

pub(crate) fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

/// Checks that each rare event has happened at least `at_least` times, and that each run has its defined load.
fn judge(sum: &Rare, runs: u64, at_least: u64) {
    println!("{runs} runs\n{sum}");
    assert!(sum.requests >= runs * REQUESTS, "a run has {REQUESTS} requests");
    assert!(sum.cancelled * 10 >= sum.requests, "a tenth of the requests is cancelled");
    assert!(sum.faults * 100 >= sum.tasks, "a hundredth of the tasks fails");
    for (rare, count) in sum.rows() {
        assert!(count >= at_least, "only {count} in {runs} runs: {rare}");
    }
}

#[test]
fn random_runs_answer_every_request_once_and_with_its_own_rows() {
    let (seeds, at_least) = match number("PATERNOSTER_SEED") {
        Some(seed) => (seed..seed + 1, 0),
        None => (0..SHARE, 3),
    };
    let runs = seeds.end - seeds.start;
    match play_all(seeds, CHECK_EVERY) {
        Ok(sum) => {
            if at_least > 0 {
                judge(&sum, runs, at_least);
            }
        }
        Err(failure) => panic!("{failure}"),
    }
}

#[test]
fn a_seed_replays_its_run() {
    assert_eq!(play(7, None, 1), play(7, None, 1));
    let mut rng = Rng::new(1);
    assert_ne!(rng.next(), rng.next());
}

/// The long run: 100,000 runs, or as many as `PATERNOSTER_RUNS` says, from seed `PATERNOSTER_START` on.
#[test]
#[ignore = "two minutes in a release build"]
fn long() {
    let runs = number("PATERNOSTER_RUNS").unwrap_or(100_000);
    let start = number("PATERNOSTER_START").unwrap_or(0);
    match play_all(start..start + runs, CHECK_EVERY) {
        Ok(sum) => judge(&sum, runs, if runs >= 100_000 { 1_000 } else { 1 }),
        Err(failure) => panic!("{failure}"),
    }
}

use std::{
    ops::Range,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
};

use parking_lot::Mutex;

use super::{
    behaviour::Planted,
    run::{Happened, play},
};

/// Number of runs in a normal test run.
const SHARE: u64 = if cfg!(debug_assertions) { 100 } else { 1_000 };

/// Plays seeds on as many threads as there are cores. Returns the sum of what happened, or the first failure with its
/// seed.
fn play_all(seeds: Range<u64>) -> Result<Happened, String> {
    let (next, stop) = (AtomicU64::new(seeds.start), AtomicBool::new(false));
    let sum = Mutex::new(Ok(Happened::default()));
    let work = || {
        while !stop.load(Ordering::Relaxed) {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.end {
                return;
            }
            let played = catch_unwind(AssertUnwindSafe(|| play(seed, None)));
            match played.unwrap_or_else(|_| Err("it panicked".to_owned())) {
                Ok(happened) => sum.lock().iter_mut().for_each(|sum: &mut Happened| sum.add(&happened)),
                Err(broken) => {
                    stop.store(true, Ordering::Relaxed);
                    *sum.lock() = Err(format!("{broken}\nreplay with PATERNOSTER_SEED={seed}"));
                }
            }
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

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

/// Checks that each kind of event happened `at_least` times.
fn judge(played: Result<Happened, String>, runs: u64, at_least: u64) {
    let sum = played.unwrap_or_else(|failure| panic!("{failure}"));
    println!("{runs} runs");
    for (says, count) in sum.rows() {
        println!("{count:>12} {says}");
    }
    for (says, count) in sum.rows() {
        assert!(count >= at_least, "only {count} in {runs} runs: {says}");
    }
}

#[test]
fn pools_over_simulated_devices_answer_every_request_once_and_with_its_own_rows() {
    let (seeds, at_least) = match number("PATERNOSTER_SEED") {
        Some(seed) => (seed..seed + 1, 0),
        None => (0..SHARE, 1),
    };
    let runs = seeds.end - seeds.start;
    judge(play_all(seeds), runs, at_least);
}

#[test]
fn a_seed_replays_its_run() {
    let once = play(11, None).expect("nothing is wrong with it");
    assert_eq!(play(11, None), Ok(once));
}

#[test]
fn what_a_device_does_wrong_is_found() {
    for planted in Planted::ALL {
        let found = (0..40).find_map(|seed| {
            let played = catch_unwind(AssertUnwindSafe(|| play(seed, Some(planted))));
            played.unwrap_or_else(|_| Err("it panicked".to_owned())).err().map(|broken| (seed, broken))
        });
        let (seed, broken) = found.unwrap_or_else(|| panic!("{planted:?} is not found"));
        println!("{planted:?}, seed {seed}: {broken}");
    }
}

/// The long run: 100,000 runs, or `PATERNOSTER_RUNS`, starting with seed `PATERNOSTER_START`.
#[test]
#[ignore = "minutes in a release build"]
fn long() {
    let runs = number("PATERNOSTER_RUNS").unwrap_or(100_000);
    let start = number("PATERNOSTER_START").unwrap_or(0);
    judge(play_all(start..start + runs), runs, if runs >= 100_000 { 1_000 } else { 1 });
}

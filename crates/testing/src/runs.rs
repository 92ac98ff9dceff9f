//! Random runs: many seeds on all cores, counts of what happened in them, and the faults that they must find.

use std::{
    fmt::Debug,
    ops::Range,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::atomic::{AtomicU64, Ordering},
    thread,
};

use parking_lot::Mutex;

/// Counts of the events of a run, or of many runs; declared by [`counts!`](crate::counts).
pub trait Counts: Default + Send {
    /// Adds those of another run.
    fn add(&mut self, other: &Self);

    /// Returns each count, and what it counts.
    fn rows(&self) -> Vec<(&'static str, u64)>;
}

/// Declares [`Counts`](crate::runs::Counts) of events, each of which must happen in the random runs.
#[macro_export]
macro_rules! counts {
    ($(#[$about:meta])* $visible:vis struct $name:ident { $($field:ident: $says:literal,)+ }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        $visible struct $name {
            $($visible $field: u64,)+
        }

        impl $crate::runs::Counts for $name {
            fn add(&mut self, other: &Self) {
                $(self.$field += other.$field;)+
            }

            fn rows(&self) -> Vec<(&'static str, u64)> {
                vec![$(($says, self.$field)),+]
            }
        }
    };
}

fn caught<C>(run: impl FnOnce() -> Result<C, String>) -> Result<C, String> {
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|_| Err("it panicked".to_owned()))
}

/// Plays seeds on as many threads as there are cores, and returns the sum of what happened.
///
/// # Panics
/// If a run fails; the message has its seed.
fn play_all<C: Counts>(seeds: Range<u64>, play: impl Fn(u64) -> Result<C, String> + Sync) -> C {
    let next = AtomicU64::new(seeds.start);
    let sum = Mutex::new(Ok(C::default()));
    let work = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.end {
                return;
            }
            let played = caught(|| play(seed));
            let mut sum = sum.lock();
            match (&mut *sum, played) {
                (Ok(sum), Ok(counts)) => sum.add(&counts),
                (_, Ok(_)) | (Err(_), _) => return,
                (_, Err(broken)) => *sum = Err(format!("{broken}\nreplay with PATERNOSTER_SEED={seed}")),
            }
        }
    };
    let threads = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        (0..threads).for_each(|_| {
            scope.spawn(work);
        });
    });
    sum.into_inner().unwrap_or_else(|failure| panic!("{failure}"))
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

fn judge<C: Counts>(sum: &C, runs: u64, at_least: u64) {
    println!("{runs} runs");
    sum.rows().iter().for_each(|(says, count)| println!("{count:>14} {says}"));
    for (says, count) in sum.rows() {
        assert!(count >= at_least, "only {count} in {runs} runs: {says}");
    }
}

/// Plays the first `runs` seeds, in which each event must happen `at_least` times, and returns the sum of what
/// happened. If `PATERNOSTER_SEED` is set, plays only that seed, and returns nothing.
///
/// # Panics
/// If a run fails, or an event is too rare.
pub fn some<C: Counts>(runs: u64, at_least: u64, play: impl Fn(u64) -> Result<C, String> + Sync) -> Option<C> {
    if let Some(seed) = number("PATERNOSTER_SEED") {
        play_all(seed..seed + 1, play);
        return None;
    }
    let sum = play_all(0..runs, play);
    judge(&sum, runs, at_least);
    Some(sum)
}

/// Plays 100,000 seeds, or as many as `PATERNOSTER_RUNS` says, from `PATERNOSTER_START` on.
///
/// # Panics
/// If a run fails, or an event is too rare.
pub fn many<C: Counts>(play: impl Fn(u64) -> Result<C, String> + Sync) {
    let runs = number("PATERNOSTER_RUNS").unwrap_or(100_000);
    let start = number("PATERNOSTER_START").unwrap_or(0);
    judge(&play_all(start..start + runs, play), runs, if runs >= 100_000 { 500 } else { 1 });
}

/// Plays up to 60 seeds with each planted fault until it is found with the first of its words. Any earlier finding must
/// have one of the others. A fault shows only where its victim occurs, so a single run may miss it.
///
/// # Panics
/// If a fault is not found, or found by something else.
pub fn find<F: Copy + Debug, C>(faults: &[(F, &[&str])], play: impl Fn(u64, F) -> Result<C, String>) {
    let mut missed = Vec::new();
    for &(planted, by) in faults {
        let mut found = (0..60).filter_map(|seed| caught(|| play(seed, planted)).err());
        // Of findings by others, those that may come first are passed over.
        let last = found.find(|found| found.contains(by[0]) || !by.iter().any(|words| found.contains(words)));
        if !last.as_ref().is_some_and(|found| found.contains(by[0])) {
            missed.push(format!("{planted:?} is found with {last:?}, expected {by:?}"));
        }
    }
    assert!(missed.is_empty(), "{}", missed.join("\n"));
}

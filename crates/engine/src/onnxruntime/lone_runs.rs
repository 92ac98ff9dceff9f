//! How many threads a run takes that is the only one in progress: all, or the calling one.
//!
//! All threads are faster where the cores are free, and may be slower where other work needs some of them, inside this
//! process or outside: a run waits at every operator for a thread that has lost its core. Which of them is so is
//! learned from the runs, for each size of their inputs.

use parking_lot::Mutex;

/// Runs of a size before the calling thread is tried.
const FIRST_TRY: u32 = 16;
/// While the calling thread is preferred, one of this many runs tries all threads.
const RETRY: u32 = 32;
/// All threads count as slowed by other work when they take this many times as long as they did.
const SLOWED: f32 = 1.5;
/// The calling thread is preferred where it takes at most this share of the time of all threads.
const FASTER: f32 = 0.85;
/// Runs whose shortest time is the first estimate: the first of them also warm up caches and allocate memory.
const FIRST: u32 = 3;
/// Weight of a further run in the estimate.
const WEIGHT: f32 = 0.25;
/// Share of the estimate by which a run changes it at most, so that no single slow run turns a preference.
const STEP: f32 = 0.1;
/// Sizes are told apart by quarters of powers of two, up to this power.
const QUARTERS: usize = 4;
const POWERS: usize = 40;

/// Which threads a run takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Threads {
    All,
    /// The calling thread.
    One,
}

/// The times of runs that were alone, by the size of their inputs.
#[derive(Debug)]
pub(super) struct LoneRuns(Box<[Mutex<Size>]>);

/// What is known of runs of about one size.
#[derive(Debug, Default)]
struct Size {
    all: Estimate,
    one: Estimate,
    /// The lowest estimate of all threads so far.
    least_ns: Option<f32>,
    /// Runs since the last one that took the threads that are not preferred.
    runs: u32,
}

/// The time of a run, in nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
struct Estimate {
    ns: f32,
    runs: u32,
}

impl Default for LoneRuns {
    fn default() -> Self {
        Self((0..POWERS * QUARTERS).map(|_| Mutex::default()).collect())
    }
}

impl LoneRuns {
    /// Returns which threads a run should take whose inputs have `bytes`, and whether the calling thread is worth
    /// preparing for such runs. `one_is_ready` says whether that can be taken yet.
    pub(super) fn choose(&self, bytes: usize, one_is_ready: bool) -> (Threads, bool) {
        // At most one run is alone, so only the end of another may hold the lock.
        let Some(mut size) = self.of(bytes).try_lock() else { return (Threads::All, false) };
        size.choose(one_is_ready)
    }

    /// Records how long a run took that was alone from its start to its end.
    pub(super) fn record(&self, bytes: usize, threads: Threads, ns: u64) {
        self.of(bytes).lock().record(threads, ns as f32);
    }

    fn of(&self, bytes: usize) -> &Mutex<Size> {
        let bytes = bytes.max(1);
        let power = bytes.ilog2() as usize;
        // The two bits behind the highest one.
        let quarter = ((bytes as u128 * QUARTERS as u128) >> power) as usize % QUARTERS;
        &self.0[(power * QUARTERS + quarter).min(self.0.len() - 1)]
    }
}

impl Size {
    fn choose(&mut self, one_is_ready: bool) -> (Threads, bool) {
        self.runs = self.runs.saturating_add(1);
        let Some(all) = self.all.known() else { return (Threads::All, false) };
        let is_slowed = self.least_ns.is_some_and(|least| all > SLOWED * least);
        let threads = match self.one.known() {
            _ if !one_is_ready => Threads::All,
            None if self.runs >= FIRST_TRY || is_slowed => Threads::One,
            Some(one) if one < FASTER * all && self.runs < RETRY => Threads::One,
            Some(one) if one < FASTER * all => {
                self.runs = 0;
                Threads::All
            }
            _ => Threads::All,
        };
        (threads, is_slowed)
    }

    fn record(&mut self, threads: Threads, ns: f32) {
        match threads {
            Threads::One => self.one.add(ns),
            Threads::All => {
                self.all.add(ns);
                let lower = self.all.known().filter(|&now| self.least_ns.is_none_or(|least| now < least));
                self.least_ns = lower.or(self.least_ns);
            }
        }
    }
}

impl Estimate {
    fn known(self) -> Option<f32> {
        (self.runs >= FIRST).then_some(self.ns)
    }

    fn add(&mut self, ns: f32) {
        self.ns = match self.runs {
            0 => ns,
            1..FIRST => self.ns.min(ns),
            _ => self.ns + (WEIGHT * (ns - self.ns)).clamp(-STEP * self.ns, STEP * self.ns),
        };
        self.runs = self.runs.saturating_add(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: usize = 100;

    /// Runs whose times are `all` and `one`, in nanoseconds. Returns how many took the calling thread.
    fn run(runs: &LoneRuns, count: usize, one_is_ready: bool, (all, one): (u64, u64)) -> usize {
        let took = (0..count).filter(|_| {
            let (threads, _) = runs.choose(BYTES, one_is_ready);
            runs.record(BYTES, threads, if threads == Threads::All { all } else { one });
            threads == Threads::One
        });
        took.count()
    }

    #[test]
    fn all_threads_are_kept_where_they_are_faster() {
        let runs = LoneRuns::default();
        assert_eq!(run(&runs, 1000, false, (20, 30)), 0, "the calling thread cannot be taken");
        assert_eq!(run(&runs, 1000, true, (20, 30)), FIRST as usize, "it is tried");
    }

    #[test]
    fn the_calling_thread_is_taken_while_other_work_slows_all_threads() {
        let runs = LoneRuns::default();
        run(&runs, 100, false, (20, 30));
        assert!(!runs.choose(BYTES, false).1);
        run(&runs, 30, false, (100, 30));
        assert_eq!(runs.choose(BYTES, false), (Threads::All, true), "it is worth preparing");
        assert!(run(&runs, 640, true, (100, 30)) >= 610);
        run(&runs, 30 * RETRY as usize, true, (20, 30));
        assert_eq!(run(&runs, 1000, true, (20, 30)), 0, "the cores are free again");
    }

    #[test]
    fn a_few_slow_runs_turn_no_preference() {
        let runs = LoneRuns::default();
        run(&runs, 100, true, (20, 30));
        for _ in 0..50 {
            assert_eq!(run(&runs, 2, true, (900, 30)), 0);
            assert_eq!(run(&runs, 20, true, (20, 30)), 0);
        }
    }

    #[test]
    fn sizes_are_learned_apart() {
        let runs = LoneRuns::default();
        run(&runs, 100, true, (30, 20));
        assert_eq!(runs.choose(BYTES, true).0, Threads::One);
        assert_eq!(runs.choose(BYTES + 1, true).0, Threads::One, "about as large");
        for bytes in [0, 1, 50, BYTES * 4 / 5, BYTES * 5 / 4, 200, usize::MAX] {
            assert_eq!(runs.choose(bytes, true).0, Threads::All, "{bytes}");
        }
    }

    #[test]
    fn any_number_of_runs_can_be_counted() {
        let runs = LoneRuns::default();
        run(&runs, 100, true, (20, 30));
        runs.of(BYTES).lock().runs = u32::MAX;
        assert_eq!(run(&runs, 10, true, (20, 30)), 0);
    }

    #[test]
    fn the_first_run_of_all_may_be_slow() {
        let runs = LoneRuns::default();
        for (threads, times) in [(Threads::All, [900, 20, 21]), (Threads::One, [900, 30, 31])] {
            times.into_iter().for_each(|ns| runs.record(BYTES, threads, ns));
        }
        assert_eq!(runs.choose(BYTES, true), (Threads::All, false));
    }
}

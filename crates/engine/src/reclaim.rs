//! Gives memory that the engines' libraries and the program have freed back to the system.
//!
//! The libraries allocate from the C library, which keeps most of what is freed: 50 models of 4 MB each that came and
//! went three times left 570 MB behind. Returning it takes milliseconds, in which the libraries' allocations wait, and
//! memory that is needed again has to be mapped again. It is therefore done when no run is in progress; under constant
//! load, every half minute.
#![expect(clippy::disallowed_types, reason = "it logs how long that takes")]

use std::{
    convert::Infallible,
    sync::{
        Arc,
        mpsc::{self, RecvTimeoutError, Sender},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use tracing::{debug, warn};

use super::running::{Activity, RunsInProgress};

/// How often an engine's activity is looked at.
const TICK: Duration = Duration::from_secs(1);

/// Ticks after which memory is given back although runs are in progress.
const BUSY_TICKS: u32 = 30;

/// An allocation of this size or more is mapped by itself and returned when it is freed. Free memory of this size at
/// the end of a heap is returned too. By default, both limits grow with what is freed, up to 64 MB for the heap of each
/// thread. Runs seldom make such allocations, because ONNX Runtime keeps the memory of tensors itself.
#[cfg(target_env = "gnu")]
const LARGE_BYTES: i32 = 1 << 20;

/// A thread that gives an engine's memory back, until this is dropped.
#[derive(Debug)]
pub(super) struct Reclaimer {
    /// Nothing is sent; that it is dropped ends the thread.
    stop: Option<Sender<Infallible>>,
    thread: Option<JoinHandle<()>>,
}

impl Reclaimer {
    /// Starts the thread. `shrink` makes the engine free memory that it holds for later runs.
    pub(super) fn start(runs: Arc<RunsInProgress>, shrink: impl Fn() + Send + 'static) -> Self {
        return_large_memory();
        let (stop, stopped) = mpsc::channel();
        let work = move || {
            let mut schedule = Schedule::default();
            while stopped.recv_timeout(TICK) == Err(RecvTimeoutError::Timeout) {
                if schedule.is_due(runs.activity()) {
                    let start = Instant::now();
                    shrink();
                    trim();
                    debug!(took_us = start.elapsed().as_micros() as u64, "freed memory is given back");
                }
            }
        };
        let thread = thread::Builder::new().name("reclaim".to_owned()).spawn(work);
        let thread =
            thread.inspect_err(|error| warn!(%error, "memory is kept: there is no thread to give it back")).ok();
        Self { stop: Some(stop), thread }
    }
}

impl Drop for Reclaimer {
    fn drop(&mut self) {
        self.stop.take();
        if let Some(thread) = self.thread.take() {
            // A panic has been reported by its hook.
            let _ = thread.join();
        }
    }
}

/// Makes the C library's allocator return large memory when it is freed.
fn return_large_memory() {
    #[cfg(target_env = "gnu")]
    #[allow(unsafe_code)]
    // SAFETY: the calls change limits for later allocations, under the allocator's lock.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE_BYTES);
        libc::mallopt(libc::M_TRIM_THRESHOLD, LARGE_BYTES);
    }
}

/// Returns what the program's allocator and that of the C library hold, but nothing uses, to the system. The former
/// does it by itself only as long as threads allocate.
fn trim() {
    #[allow(unsafe_code)]
    // SAFETY: the call may be made in any thread at any time.
    unsafe {
        libmimalloc_sys::mi_collect(true);
    }
    #[cfg(target_env = "gnu")]
    #[allow(unsafe_code)]
    // SAFETY: the call releases free memory alone, under the allocator's locks, and is safe in any thread.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// When memory is given back.
#[derive(Debug, Default)]
struct Schedule {
    /// Changes at the last tick.
    seen: usize,
    /// Changes when memory was given back last.
    reclaimed: usize,
    /// Ticks since the first change after that.
    waited: u32,
}

impl Schedule {
    /// Returns at each tick whether memory is to be given back.
    fn is_due(&mut self, Activity { runs, changes }: Activity) -> bool {
        let is_quiet = runs == 0 && changes == self.seen;
        self.seen = changes;
        if changes == self.reclaimed {
            self.waited = 0;
            return false;
        }
        self.waited += 1;
        let is_due = is_quiet || self.waited >= BUSY_TICKS;
        if is_due {
            *self = Self { seen: changes, reclaimed: changes, waited: 0 };
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn due(schedule: &mut Schedule, runs: usize, changes: usize) -> bool {
        schedule.is_due(Activity { runs, changes })
    }

    #[test]
    fn memory_is_given_back_once_after_runs_have_ended() {
        let schedule = &mut Schedule::default();
        assert!(!due(schedule, 0, 0), "nothing has been used");
        assert!(!due(schedule, 1, 0));
        assert!(!due(schedule, 0, 3), "runs ended within the last second");
        assert!(!due(schedule, 1, 3), "a run is in progress");
        assert!(due(schedule, 0, 3));
        assert!((0..100).all(|_| !due(schedule, 0, 3)), "nothing happened since");
        assert!(!due(schedule, 0, 4));
        assert!(due(schedule, 0, 4));
    }

    #[test]
    fn memory_is_given_back_under_constant_load_at_times() {
        let schedule = &mut Schedule::default();
        let times: Vec<usize> = (1..=100).filter(|&changes| due(schedule, 2, changes)).collect();
        assert_eq!(times, [30, 60, 90]);
    }

    #[test]
    fn a_run_without_end_costs_nothing() {
        let schedule = &mut Schedule::default();
        assert!((0..100).all(|_| !due(schedule, 1, 0)));
        assert!(!due(schedule, 0, 1));
        assert!(due(schedule, 0, 1), "it ended after all");
    }

    #[test]
    fn the_thread_ends_when_it_is_dropped() {
        drop(Reclaimer::start(Arc::default(), || ()));
    }
}

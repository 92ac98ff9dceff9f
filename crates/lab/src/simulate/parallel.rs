//! Runs independent jobs on all CPU cores; returns results in job order.

use std::{
    num::NonZero,
    panic,
    sync::atomic::{AtomicUsize, Ordering},
    thread,
};

/// Runs every job on `threads` threads, at least one, and calls `done` after each. The results do not depend on the
/// number of threads.
///
/// # Panics
/// If a job panics.
pub fn on_all_cores<J: Sync, R: Send>(
    threads: usize,
    jobs: &[J],
    work: impl Fn(&J) -> R + Sync,
    done: impl Fn() + Sync,
) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let take = || {
        let mut results = Vec::new();
        while let Some((index, job)) =
            Some(next.fetch_add(1, Ordering::Relaxed)).and_then(|at| Some((at, jobs.get(at)?)))
        {
            results.push((index, work(job)));
            done();
        }
        results
    };
    let mut results: Vec<(usize, R)> = thread::scope(|scope| {
        let workers: Vec<_> = (0..threads.clamp(1, jobs.len().max(1))).map(|_| scope.spawn(take)).collect();
        let ends = workers.into_iter().map(|worker| worker.join().unwrap_or_else(|fault| panic::resume_unwind(fault)));
        ends.flatten().collect()
    });
    results.sort_by_key(|(index, _)| *index);
    results.into_iter().map(|(_, result)| result).collect()
}

/// Returns the number of threads that this machine runs in parallel.
pub fn cores() -> usize {
    thread::available_parallelism().map_or(1, NonZero::get)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_stand_in_the_order_of_their_jobs() {
        let jobs: Vec<u64> = (0..50).collect();
        let done = AtomicUsize::new(0);
        let count = || {
            done.fetch_add(1, Ordering::Relaxed);
        };
        for threads in [0, 1, 3, 200] {
            let squares = on_all_cores(threads, &jobs, |job| job * job, count);
            assert!(
                squares.iter().zip(&jobs).all(|(square, job)| *square == job * job),
                "{threads} threads: {squares:?}"
            );
            assert_eq!(squares.len(), jobs.len());
        }
        assert_eq!(done.into_inner(), 4 * 50);
        assert!(on_all_cores(2, &[], |job: &u64| *job, || {}).is_empty());
    }
}

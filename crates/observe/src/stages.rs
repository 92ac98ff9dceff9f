//! Statistics of the stages of one loaded version, and of its policy's batch operations.

use std::iter::Sum;

use parking_lot::Mutex;

/// Number of batch sizes for which memory is reserved, so that recording them does not allocate.
const MOST_RESERVED_SIZES: u32 = 1024;

/// Counters of one stage. Recording takes one short lock per task.
#[derive(Debug)]
pub struct StageStats {
    totals: Mutex<StageReading>,
}

/// The counters of one stage at one instant.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StageReading {
    /// Number of tasks.
    pub tasks: u64,
    /// Rows of the tasks, without padding.
    pub rows: u64,
    /// Time that rows waited for the stage, summed over the rows, in nanoseconds: in the queue for the first stage, at
    /// a boundary for the others.
    pub queue_ns: u64,
    /// Total duration of the tasks, in nanoseconds.
    pub run_ns: u64,
    /// Number of tasks per number of rows, by ascending size.
    pub batch_sizes: Vec<(u32, u64)>,
}

/// A policy's batch operations since the version was loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MetaCounters {
    /// Requests that joined a running batch, counted each time (DVABatch section 5.2.2, *stretch*).
    pub stretches: u64,
    /// Batches cut into parts that run separately (DVABatch section 5.2.2, *split*).
    pub splits: u64,
    /// Steps that caught up with the step before them in their batch and merged with it (LazyBatching section IV-B).
    pub merges: u64,
    /// Times that a batch that could have run was left waiting for later requests (LazyBatching section IV-B).
    pub preemptions: u64,
    /// Requests that completed after their latency objective.
    pub slack_misses: u64,
    /// Rows that were done before the last stage (DVABatch section 9.2).
    pub early_exits: u64,
}

impl Sum for MetaCounters {
    fn sum<I: Iterator<Item = Self>>(counts: I) -> Self {
        counts.fold(Self::default(), |one, other| Self {
            stretches: one.stretches + other.stretches,
            splits: one.splits + other.splits,
            merges: one.merges + other.merges,
            preemptions: one.preemptions + other.preemptions,
            slack_misses: one.slack_misses + other.slack_misses,
            early_exits: one.early_exits + other.early_exits,
        })
    }
}

impl StageStats {
    /// Creates counters for a version with batches of up to `max_batch_rows` rows.
    pub(super) fn new(max_batch_rows: u32) -> Self {
        let sizes = max_batch_rows.clamp(1, MOST_RESERVED_SIZES) as usize;
        let totals = StageReading { batch_sizes: Vec::with_capacity(sizes), ..StageReading::default() };
        Self { totals: Mutex::new(totals) }
    }

    /// Records a task of `rows` rows without padding that ran for `run_ns`. `queue_ns` is the time that its rows waited
    /// for it, summed over the rows.
    pub fn ran(&self, rows: u32, queue_ns: u64, run_ns: u64) {
        let mut totals = self.totals.lock();
        totals.tasks += 1;
        totals.rows += u64::from(rows);
        totals.queue_ns += queue_ns;
        totals.run_ns += run_ns;
        match totals.batch_sizes.binary_search_by_key(&rows, |&(size, _)| size) {
            Ok(position) => totals.batch_sizes[position].1 += 1,
            Err(position) => totals.batch_sizes.insert(position, (rows, 1)),
        }
    }

    /// Returns the current counters.
    pub fn reading(&self) -> StageReading {
        self.totals.lock().clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stage_counts_tasks_rows_times_and_sizes() {
        let stage = StageStats::new(4);
        stage.ran(4, 40, 100);
        stage.ran(1, 5, 30);
        stage.ran(4, 0, 110);

        let expected = StageReading { tasks: 3, rows: 9, queue_ns: 45, run_ns: 240, batch_sizes: vec![(1, 1), (4, 2)] };
        assert_eq!(stage.reading(), expected);
    }

    #[test]
    fn sizes_that_were_not_announced_are_counted_too() {
        let stage = StageStats::new(1);
        stage.ran(9, 0, 1);
        stage.ran(2, 0, 1);
        assert_eq!(stage.reading().batch_sizes, [(2, 1), (9, 1)]);
    }
}

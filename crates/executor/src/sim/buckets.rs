//! Random buckets for models, and the check that tasks use them.

use paternoster_batching::Task;
use paternoster_testing::rng::Rng;

/// Returns a few sizes for batches of up to `most` rows. The largest is sometimes smaller, but at least `least`.
pub(crate) fn draw(rng: &mut Rng, least: u32, most: u32) -> Box<[u32]> {
    let smaller = (0..rng.below(3)).map(|_| rng.within(1, u64::from(most)) as u32);
    let mut buckets: Vec<u32> = smaller.collect();
    let largest = rng.within(u64::from(least.min(most)), u64::from(most) + 2) as u32;
    buckets.retain(|&bucket| bucket < largest);
    buckets.push(largest);
    buckets.sort_unstable();
    buckets.dedup();
    buckets.into()
}

/// Checks that a task's size is a bucket that holds its rows; without buckets, the size is the number of rows.
pub(crate) fn check(task: &Task, buckets: &[u32]) -> Result<(), String> {
    let (rows, bucket) = (task.row_count(), task.bucket.rows);
    let is_right = if buckets.is_empty() { bucket == rows } else { bucket >= rows && buckets.contains(&bucket) };
    is_right
        .then_some(())
        .ok_or_else(|| format!("{:?} has {rows} rows in a bucket of {bucket}, of {buckets:?}", task.id))
}

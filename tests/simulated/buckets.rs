//! Random buckets for models, and the check that tasks keep to them.

use paternoster::batching::Task;

use super::rng::Rng;

/// A few sizes for batches of up to `most` rows. The largest is now and then smaller, but holds `least`.
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

/// A task runs in a size that there is and that holds its rows; in their own number where any size runs.
pub(crate) fn check(task: &Task, buckets: &[u32]) -> Result<(), String> {
    let (rows, bucket) = (task.row_count(), task.bucket.rows);
    let is_right = if buckets.is_empty() { bucket == rows } else { bucket >= rows && buckets.contains(&bucket) };
    is_right
        .then_some(())
        .ok_or_else(|| format!("{:?} has {rows} rows in a bucket of {bucket}, of {buckets:?}", task.id))
}

//! The pool in virtual time, over simulated devices.
//!
//! The whole pool runs as it does over real devices: submission, router, shards with their cores, orders, tasks
//! launched ahead, outputs taken later, requests that move, and lost devices. Only the clock, the timers and the
//! devices belong to the test. Everything happens on the test's thread, so a seed replays a run: `PATERNOSTER_SEED=…
//! cargo test --lib executor::sim`. The long run is `cargo test --release --lib executor::sim -- --ignored
//! --nocapture`. Each reply is compared with a serial oracle, and the devices detect races.

mod backend;
mod behaviour;
mod cells;
mod oracle;
mod run;
mod stages;
mod values;
mod world;

// Shared with the simulated runs of the core.
#[path = "../../tests/simulated/buckets.rs"]
mod buckets;
#[path = "../../tests/simulated/rng.rs"]
mod rng;
#[path = "../../tests/simulated/scenario.rs"]
#[expect(dead_code, reason = "lanes of these devices are not lost one by one")]
mod scenario;

mod tests;

use paternoster_batching::{ReqId, Task};

/// Returns the rows of a task one by one: request, row within it, place in the batch.
fn rows_of(task: &Task) -> impl Iterator<Item = (ReqId, u32, u32)> + '_ {
    task.rows.iter().flat_map(|&span| (0..span.count).map(move |row| (span.req, span.start + row, span.at + row)))
}

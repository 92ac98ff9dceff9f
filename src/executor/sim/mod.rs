//! The pool in virtual time, over simulated devices.
//!
//! The whole of the pool runs as it does over real devices: submission, router, shards with their cores, orders, tasks
//! that are launched ahead, outputs that are taken later, requests that move, devices that are lost. Only the clock,
//! the timers and the devices are the test's, and all happens on its thread, so that a seed replays a run:
//! `PATERNOSTER_SEED=… cargo test --lib executor::sim`; the long run is `cargo test --release --lib executor::sim --
//! --ignored --nocapture`. What each request is answered with is held to a serial oracle; the devices find races.

mod backend;
mod behaviour;
mod cells;
mod oracle;
mod run;
mod stages;
mod values;
mod world;

// What the simulated runs of the core are made of.
#[path = "../../../tests/simulated/buckets.rs"]
mod buckets;
#[path = "../../../tests/simulated/rng.rs"]
mod rng;
#[path = "../../../tests/simulated/scenario.rs"]
#[expect(dead_code, reason = "lanes of these devices are not lost one by one")]
mod scenario;

mod tests;

use crate::batching::{ReqId, Task};

/// Rows of a task one by one: request, row within it, place in the batch.
fn rows_of(task: &Task) -> impl Iterator<Item = (ReqId, u32, u32)> + '_ {
    task.rows.iter().flat_map(|&span| (0..span.count).map(move |row| (span.req, span.start + row, span.at + row)))
}

//! The pool in virtual time, over simulated devices.
//!
//! The whole pool runs as it does over real devices: submission, router, shards with their cores, orders, tasks
//! launched ahead, outputs taken later, requests that move, lost lanes and lost devices. Only the clock, the timers and
//! the devices belong to the test. Each response is compared with a serial `oracle`, the devices detect races, and the
//! cores check their invariants. `planted` has the faults that must be found.
//!
//! A `world` (models, devices, requests) is drawn from a seed, and `run` plays it. Everything happens on the test's
//! thread, so a seed replays a run: `PATERNOSTER_SEED=… cargo test -p paternoster-executor --lib sim::tests`. The long
//! run is `cargo test --release -p paternoster-executor --lib sim::tests -- --ignored --nocapture`. `exhaustive` plays
//! every order of events of small cases.

mod backend;
mod behaviour;
mod buckets;
mod cells;
mod client;
mod counts;
mod events;
mod exhaustive;
mod oracle;
mod planted;
mod replies;
mod run;
mod scenario;
mod stages;
mod tests;
mod tracker;
mod values;
mod world;

use paternoster_batching::{ReqId, Task};
use paternoster_testing::rng;

/// Returns the rows of a task one by one: request, row within it, place in the batch.
fn rows_of(task: &Task) -> impl Iterator<Item = (ReqId, u32, u32)> + '_ {
    task.rows.iter().flat_map(|&span| (0..span.count).map(move |row| (span.req, span.start + row, span.at + row)))
}

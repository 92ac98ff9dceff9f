//! Tests of the core as seen by a driver: events in, actions out, in virtual time.
//!
//! `script` plays tables of events and expected actions. `oracle` predicts from the events alone, in the simplest way,
//! how each request ends and what each batch may contain. `driver` steps a core and checks the invariants; `pool` adds
//! the oracle, and `properties` random runs. `timeline` gives tasks a duration and `ride` shows the core's tables, to
//! reproduce the papers' figures.

mod adaptive;
mod auto;
mod buckets;
mod cell_retries;
mod cells_gain;
mod cells_lazy;
mod cellular;
mod chunks;
mod cost;
mod deadlocks;
mod decoders;
mod deferred;
mod diversity;
mod driver;
mod endings;
mod fairness;
mod held;
mod last_lane;
mod lazy;
mod lazy_slack;
mod leases;
mod look_ahead;
mod memory;
mod mixed_lengths;
mod monitor;
mod newcomers;
mod oracle;
mod ordering;
mod parts;
mod pausing;
mod pool;
mod properties;
mod queues;
mod rate_limiter;
mod recall;
mod retries;
mod ride;
mod script;
mod sequences;
mod serial;
mod shares;
mod sharing;
mod slack;
mod slots;
mod staged;
mod timeline;
mod triton;
mod wakes;
mod window;

use crate::{Instant, Ns};

/// Returns the instant this long after the epoch.
const fn at(since_epoch_ns: Ns) -> Instant {
    Instant::from_ns(since_epoch_ns)
}

/// Returns a configuration with the same random cases in each run.
fn same_each_time(cases: u32) -> proptest::test_runner::Config {
    let rng_seed = proptest::test_runner::RngSeed::Fixed(7);
    proptest::test_runner::Config { cases, rng_seed, failure_persistence: None, ..Default::default() }
}

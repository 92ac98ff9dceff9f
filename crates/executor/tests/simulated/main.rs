//! Simulated runs: the production core drives the simulated device, in virtual time, with every kind of fault.
//!
//! A run is a `scenario` (models, lanes, load) played by a `driver`, which turns the core's launches into device
//! operations and compares every answer with a serial `oracle`. `detectors` plants each fault that must be found.
//! `exhaustive` plays every order of events of small cases. A seed replays a run: `PATERNOSTER_SEED=… cargo test --test
//! simulated random`; the long run is `cargo test --release --test simulated -- --ignored --nocapture`.

mod buckets;
mod cells;
mod detectors;
mod device;
mod driver;
mod exhaustive;
mod oracle;
mod planted;
mod random;
mod rare;
mod rng;
mod scenario;
mod tracker;

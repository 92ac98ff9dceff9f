//! Simulated runs: the production core drives the simulated device, in virtual time, under everything that can go
//! wrong.
//!
//! A run is a `scenario` (models, lanes, load) played by a `driver`, which turns what the core launches into device
//! operations and holds every answer to a serial `oracle`. `detectors` plants a fault for each thing that must be
//! found; `exhaustive` plays every order of events of small cases. A seed replays a run: `PATERNOSTER_SEED=… cargo test
//! --test simulated random`; the long run is `cargo test --release --test simulated -- --ignored --nocapture`.

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

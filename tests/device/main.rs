//! Every device fulfils the same contract. The simulated one detects violations of it.

mod conformance;
mod cpu;
mod cuda;
mod detectors;
#[path = "../common/fake_control.rs"]
#[expect(dead_code, reason = "other tests use the rest")]
mod fake_control;
#[path = "../common/fake_cuda.rs"]
mod fake_cuda;
mod harness;
mod on_cuda;
mod rows;
mod time;

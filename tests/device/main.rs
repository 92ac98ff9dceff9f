//! Every device keeps the same contract; the simulated one finds what breaks it.

mod conformance;
mod cpu;
mod cuda;
mod detectors;
#[path = "../common/fake_control.rs"]
mod fake_control;
#[path = "../common/fake_cuda.rs"]
mod fake_cuda;
mod harness;
mod on_cuda;
mod rows;
mod time;

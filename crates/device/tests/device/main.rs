//! Every device fulfils the same contract. The simulated one detects violations of it.

mod conformance;
mod cpu;
mod cuda;
mod detectors;
mod harness;
mod on_cuda;
mod rows;
mod time;

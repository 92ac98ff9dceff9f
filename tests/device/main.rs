//! Every device keeps the same contract; the simulated one finds what breaks it.

mod conformance;
mod cpu;
mod detectors;
mod harness;
mod rows;
mod time;

//! What is made of measured figures: latency summaries, CSV files and plots.
//!
//! Here must not live: what is measured, or how; and tables for terminals, which the command line has.

mod csv;
mod latencies;
pub mod plot;

pub use self::{csv::write_csv, latencies::Latencies};

//! What clients ask: when requests arrive and how long they are, repeatable by seed, plain data in and out.
//!
//! Here live arrival processes, distributions of lengths and of trees, and recorded traces, for the benchmark, the
//! simulator and tests. Here must not live: a clock, a model, or what is done with the requests. No dataset is needed:
//! what has a name reproduces published statistics.

mod arrivals;
mod lengths;
mod trace;
mod translations;
mod trees;

pub use arrivals::Arrivals;
pub use lengths::{Above, LengthDistribution};
pub use trace::{Trace, TraceError};
pub use translations::Translations;
pub use trees::{Trees, tree};

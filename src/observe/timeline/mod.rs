//! The recorded timeline: when requests came and went, and which tasks ran their rows in between, so that one can see a
//! batch being stretched, split and merged.
//!
//! [`Timeline`] records into a ring of bounded size while the server runs. Here must not live: a clock (times come with
//! each call), or anything that acts on what was recorded.

mod record;
mod recorder;

pub use record::{Record, RequestEnd, TaskLaunch, TaskRows};
pub use recorder::{Recording, Timeline, VersionName};

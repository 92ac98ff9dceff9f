//! The recorded timeline: when requests came and went, and which tasks ran their rows in between, so that one can see a
//! batch being stretched, split and merged.
//!
//! [`Timeline`] records into a ring of bounded size while the server runs. What it held at one instant, a
//! [`Recording`], becomes a history of requests and tasks, which is laid out as a [`Picture`]: that is written in the
//! Chrome trace format, read back, drawn as SVG, and its end cut out for a page that follows it. Here must not live: a
//! clock (times come with each call), or anything that acts on what was recorded.

mod change;
mod chrome;
mod excerpt;
mod history;
mod layout;
mod picture;
mod record;
mod recorder;
mod recording;
mod svg;

pub use chrome::ReadError;
pub use excerpt::{Bounds, Excerpt};
pub use picture::{Picture, RanRequest, RanTask};
pub use record::{Record, RequestEnd, TaskLaunch, TaskRows};
pub use recorder::Timeline;
pub use recording::{Recording, VersionName};
pub use svg::{DrawError, View};

#[cfg(test)]
mod tests;

//! The recorded timeline: when requests arrived and ended, and which tasks ran their rows in between. It shows how
//! batches are stretched, split and merged.
//!
//! [`Timeline`] records into a ring of bounded size while the server runs. A snapshot of it, a [`Recording`], is
//! converted to a history of requests and tasks and laid out as a [`Picture`]. A picture is written in the Chrome trace
//! format, read back, drawn as SVG, or cut to an excerpt for the web page. This module must not use a clock (times are
//! passed in), or act on what was recorded.

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
pub use record::{Record, TaskLaunch, TaskRows};
pub use recorder::Timeline;
pub use recording::{Recording, VersionName};
pub use svg::{DrawError, DrawnPart};

#[cfg(test)]
mod tests;

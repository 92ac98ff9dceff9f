//! Model configuration: `config.pbtxt`, `model.yaml`, a JSON override, and completion from the graph, all ending in one
//! [`Settings`], which one conversion turns into what admission and batching need.
//!
//! Here live reading ([`pbtxt`], [`yaml`], [`json`]) within bounds (`bounds`), the tree of values that keeps their
//! places (`tree`, `origin`), the types of what it says ([`model`], [`values`]), our own settings among `parameters`
//! ([`parameters`]), completion ([`complete`]), validation ([`check`]), and what settings mean: [`stages`], [`unfold`],
//! [`sequences`], [`latencies`], [`lengths`], [`engine`], [`placement`], a policy ([`policies`], and [`policy_text`]
//! for command lines), what they leave to a profile ([`automatic`]) and the conversion ([`convert`]).
//! Here must not live: directories and versions, model states, threads. Nothing here touches the disk; callers hand in
//! text and graph signatures.

pub mod automatic;
mod bounds;
pub mod check;
pub mod complete;
pub mod convert;
pub mod engine;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzz;
pub mod json;
pub mod latencies;
pub mod lengths;
pub mod model;
mod nearest;
mod origin;
pub mod parameters;
pub mod pbtxt;
pub mod placement;
pub mod policies;
pub mod policy_text;
mod schema;
pub mod sequences;
pub mod settings;
pub mod stages;
mod tree;
pub mod unfold;
pub mod values;
pub mod yaml;

#[cfg(test)]
mod tests;

pub use origin::{ConfigError, Origin, Position};
pub use settings::Settings;

/// Messages of `model_config.proto`.
#[allow(missing_docs, clippy::doc_markdown)]
pub mod pb {
    include!(concat!(env!("OUT_DIR"), "/config/inference.rs"));

    /// The compiled descriptors of `model_config.proto`, for the text format.
    pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/model_config.bin"));
}

//! Model configuration: `config.pbtxt`, `model.yaml`, a JSON override, and completion from the graph, all ending in one
//! [`pb::ModelConfig`], which one conversion turns into what admission and batching need.
//!
//! Here live reading ([`pbtxt`], [`yaml`], [`json`]) within bounds (`bounds`), completion ([`complete`]), validation
//! ([`check`]), our own knobs in `parameters` ([`params`]: [`knobs`], [`stages`], [`unfold`], [`latencies`],
//! [`lengths`], [`precision`], [`engine`]), sequences ([`sequences`]), what they make of a policy ([`policies`], and
//! [`policy_text`] for command lines), what they leave to a profile ([`automatic`]) and the conversion ([`convert`]).
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
pub mod knobs;
pub mod latencies;
pub mod lengths;
mod nearest;
mod origin;
pub mod params;
pub mod pbtxt;
pub mod placement;
pub mod policies;
pub mod policy_text;
pub mod precision;
mod schema;
pub mod sequences;
pub mod stages;
pub mod unfold;
pub mod yaml;

#[cfg(test)]
mod corpus;
#[cfg(test)]
mod round_trip;

pub use origin::{ConfigError, Origin, Position};

/// Messages of `model_config.proto`.
#[allow(missing_docs, clippy::doc_markdown)]
pub mod pb {
    include!(concat!(env!("OUT_DIR"), "/config/inference.rs"));

    /// The compiled descriptors of `model_config.proto`, for the text format.
    pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/model_config.bin"));
}

//! Configurations of models. `config.pbtxt`, `model.yaml` and the JSON of a load request are all read as one
//! [`Settings`], which is completed from the graph, checked, and converted to what admission and batching need.
//!
//! Imports go one way, from the end of this list to its beginning:
//! - `nearest`, `position`, `setting_error`, `bounds`: suggestions, places in a text, errors without one, limits.
//!   [`model_config`]: what Triton's `ModelConfig` has. `tree`: a text as untyped values with their places, `origin`:
//!   errors with the place of a path. [`CustomPolicies`]: policies of other crates.
//! - [`knobs`], [`values`], [`model`], [`settings`]: the types of all settings. [`parameters`]: settings among
//!   `parameters`.
//! - [`pbtxt`], [`yaml`], [`json`]: the readers of the three forms. [`policy_text`]: a policy on a command line.
//! - One module for each kind of setting: [`latencies`], [`lengths`], [`placement`], [`rate_limiter`], [`stages`],
//!   [`unfold`], [`pipeline`], [`sequences`], [`policies`] (with choices left to a profile).
//! - [`complete`], [`convert`], [`check`]: completion from the graph, conversion, validation.
//!
//! Directories, versions, model states and threads must not live here. Nothing here reads files: callers pass text and
//! graph signatures.
#![deny(unsafe_code)]
#![warn(missing_docs)]
#![warn(clippy::disallowed_types)]

mod bounds;
pub mod check;
pub mod complete;
pub mod convert;
mod custom_policies;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzz;
pub mod generate;
pub mod json;
pub mod knobs;
pub mod latencies;
pub mod lengths;
pub mod model;
pub mod model_config;
pub mod nearest;
mod origin;
pub mod parameters;
pub mod pbtxt;
pub mod pipeline;
pub mod placement;
pub mod policies;
pub mod policy_text;
mod position;
pub mod rate_limiter;
pub mod sequences;
mod setting_error;
pub mod settings;
pub mod stages;
mod tree;
pub mod unfold;
pub mod values;
pub mod yaml;

#[cfg(test)]
mod tests;

pub use custom_policies::{CustomPolicies, PolicyNameError};
pub use origin::{ConfigError, Origin};
pub use position::Position;
pub use setting_error::{ConfigErrorKind, SettingError};
pub use settings::Settings;

/// Messages of `model_config.proto`.
#[allow(missing_docs, clippy::doc_markdown)]
pub mod pb {
    include!(concat!(env!("OUT_DIR"), "/inference.rs"));

    /// The compiled descriptors of `model_config.proto`, for the text format.
    pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/model_config.bin"));
}

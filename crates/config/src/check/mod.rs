//! Validation of a configuration. Fields that would change results and are not supported are errors, and fields without
//! effect are hints.
//!
//! `features` checks the configuration as the user wrote it. `limits`, `tensors` and `sequences` check the completed
//! one, and `tensors` and `sequences` compare it with the graph.

mod features;
mod limits;
mod sequences;
mod tensors;

pub use features::{Hint, has_cache, hints, no_cache, supported};
use paternoster_onnx::Signature;

use super::{ConfigError, Origin, settings::Settings};

/// Checks that a completed configuration contradicts neither itself nor the graph, if there is one.
///
/// # Errors
/// Returns the first contradiction: file, key, what was expected and what was found.
pub fn consistent(settings: &Settings, signature: Option<&Signature>, origin: &Origin) -> Result<(), ConfigError> {
    let config = &settings.config;
    limits::check(settings, origin)?;
    tensors::check(config, signature, origin)?;
    if let Some(signature) = signature {
        tensors::matches_graph(config, signature, origin)?;
        sequences::fits(config, signature, origin)?;
    }
    tensors::padding(settings, origin)
}

/// Checks the inputs and outputs of a completed configuration of a pipeline.
///
/// # Errors
/// As [`consistent`].
pub fn pipeline(settings: &Settings, origin: &Origin) -> Result<(), ConfigError> {
    let config = &settings.config;
    if config.max_batch_size < 0 {
        let message = format!("expected 0 or more, but found {}", config.max_batch_size);
        return Err(origin.error("max_batch_size", message));
    }
    tensors::check(config, None, origin)
}

#[cfg(test)]
pub(crate) mod tests;

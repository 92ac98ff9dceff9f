//! Validation of a configuration. Fields that would change results and are not supported are errors, and fields without
//! effect are hints.
//!
//! `features` checks the configuration as the user wrote it. `limits`, `tensors` and `sequences` check the completed
//! one, and `graph` compares it with the graph.

mod features;
mod graph;
mod limits;
mod sequences;
mod tensors;

use super::{ConfigError, Origin, settings::Settings};
use crate::onnx::Signature;

pub use features::{Hint, hints, supported};
pub(super) use tensors::tensors;

/// Checks that a completed configuration contradicts neither itself nor the graph, if there is one.
///
/// # Errors
/// Returns the first contradiction: file, key, what was expected and what was found.
pub fn consistent(settings: &Settings, signature: Option<&Signature>, origin: &Origin) -> Result<(), ConfigError> {
    let config = &settings.config;
    limits::check(settings, origin)?;
    tensors::check(config, signature, origin)?;
    if let Some(signature) = signature {
        graph::check(config, signature, origin)?;
        sequences::fits(config, signature, origin)?;
    }
    tensors::padding(settings, origin)
}

/// Whether a file name from a configuration cannot leave its directory: it is relative, without `..`.
pub fn stays_inside(name: &str) -> bool {
    use std::path::{Component, Path};
    let mut components = Path::new(name).components().peekable();
    components.peek().is_some()
        && !name.contains('\0')
        && components.all(|component| matches!(component, Component::Normal(_) | Component::CurDir))
}

/// Whether a file name is that of a file directly in its directory.
pub fn is_file_name(name: &str) -> bool {
    stays_inside(name) && !name.contains(['/', '\\'])
}

#[cfg(test)]
mod tests;

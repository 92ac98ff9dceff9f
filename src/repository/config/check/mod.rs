//! Validation of a configuration. What would change results and is not supported is refused by name; what is only a
//! hint is warned about; what cannot be is refused with the reason.
//!
//! `features` needs nothing but the configuration as the user wrote it; `limits` and `tensors` read the
//! completed one; `graph` compares it with the graph it is to run.

mod features;
mod graph;
mod limits;
mod sequences;
mod tensors;

use super::{ConfigError, Origin, settings::Settings};
use crate::onnx::Signature;

pub use features::{Hint, hints, supported};
pub(super) use tensors::tensors;

/// Refuses what contradicts itself or, where a graph is given, the graph: to be called after completion.
///
/// # Errors
/// Names the first contradiction: file, key, expected and got.
pub fn consistent(settings: &Settings, signature: Option<&Signature>, origin: &Origin) -> Result<(), ConfigError> {
    let config = &settings.config;
    limits::check(settings, origin)?;
    tensors::check(config, origin)?;
    if let Some(signature) = signature {
        graph::check(config, signature, origin)?;
        sequences::fits(config, signature, origin)?;
    }
    tensors::padding(settings, origin)
}

/// Whether a file name from a configuration stays within the directory it is looked up in: relative, no `..`.
pub fn stays_inside(name: &str) -> bool {
    use std::path::{Component, Path};
    let mut components = Path::new(name).components().peekable();
    components.peek().is_some()
        && !name.contains('\0')
        && components.all(|component| matches!(component, Component::Normal(_) | Component::CurDir))
}

/// Whether it is the name of a file in that directory itself.
pub fn is_file_name(name: &str) -> bool {
    stays_inside(name) && !name.contains(['/', '\\'])
}

#[cfg(test)]
mod tests;

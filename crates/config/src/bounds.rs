//! Limits on the size of a configuration, checked while a text is read.

use super::setting_error::{ConfigErrorKind, SettingError};

/// Maximum number of lists, mappings or brackets that are open at the same time. A complete `ModelConfig` needs ten.
pub(super) const MAX_DEPTH: usize = 64;

/// Maximum number of values of a configuration, including those that YAML aliases repeat. A larger table of latencies
/// can be a file of its own.
pub(super) const MAX_VALUES: usize = 20_000;

/// Maximum bytes of a key, as written. A user chooses names of parameters, tensors and cells, and the paths of all
/// values below a name contain it.
pub(super) const MAX_KEY_BYTES: usize = 1024;

/// Maximum bytes of a `config.pbtxt`, and of the configuration in a load request.
pub(super) const MAX_TEXT_BYTES: usize = 1 << 20;

/// Maximum bytes of YAML, more than any model needs.
pub(super) const MAX_YAML_BYTES: usize = 128 << 10;

pub(super) fn too_deep() -> SettingError {
    let message = format!("expected at most {MAX_DEPTH} lists, mappings or brackets within each other, but found more");
    SettingError::new(ConfigErrorKind::TooDeep, message)
}

pub(super) fn too_many_values() -> SettingError {
    too_large(format!("expected at most {MAX_VALUES} values, but found more"))
}

/// An error about a limit on sizes. Such a limit may apply to one form of a configuration and not to another:
/// completion adds values, and escapes lengthen keys and texts.
pub(super) fn too_large(message: String) -> SettingError {
    SettingError::new(ConfigErrorKind::TooLarge, message)
}

/// Rejects a text that is too large.
pub(super) fn text(bytes: usize, limit: usize) -> Result<(), SettingError> {
    if bytes <= limit {
        return Ok(());
    }
    Err(too_large(format!("expected at most {limit} bytes, but found {bytes}")))
}

/// Rejects a key that is too long.
pub(super) fn key(key: &str) -> Result<(), SettingError> {
    match key.len() {
        0..=MAX_KEY_BYTES => Ok(()),
        bytes => {
            let message = format!("expected a key of at most {MAX_KEY_BYTES} bytes, but found one of {bytes}");
            Err(too_large(message))
        }
    }
}

//! Limits on the size of a configuration, checked while a text is read.

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

pub(super) fn too_deep() -> String {
    format!("expected at most {MAX_DEPTH} lists, mappings or brackets within each other, but found more")
}

pub(super) fn too_many_values() -> String {
    format!("expected at most {MAX_VALUES} values, but found more")
}

fn too_large(bytes: usize, limit: usize) -> String {
    format!("expected at most {limit} bytes, but found {bytes}")
}

fn too_long_key(bytes: usize) -> String {
    format!("expected a key of at most {MAX_KEY_BYTES} bytes, but found one of {bytes}")
}

/// Rejects a text that is too large.
pub(super) fn text(bytes: usize, limit: usize) -> Result<(), String> {
    if bytes > limit { Err(too_large(bytes, limit)) } else { Ok(()) }
}

/// Rejects a key that is too long.
pub(super) fn key(key: &str) -> Result<(), String> {
    match key.len() {
        0..=MAX_KEY_BYTES => Ok(()),
        bytes => Err(too_long_key(bytes)),
    }
}

/// Whether a limit may apply to one form of a configuration and not to another. Completion adds values, and escapes
/// lengthen keys and texts.
#[cfg(any(test, feature = "fuzzing"))]
pub(super) fn depends_on_form(message: &str) -> bool {
    let (key, text) = (too_long_key(0), too_large(0, MAX_YAML_BYTES));
    let begins = |begin: &str| message.starts_with(begin.trim_end_matches('0'));
    message == too_many_values() || begins(&key) || begins(&text)
}

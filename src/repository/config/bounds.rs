//! Limits on the size of a configuration, checked before or while a text is read.

use super::Position;

/// Maximum number of brackets that are open at the same time. A complete `ModelConfig` needs ten.
pub(super) const MAX_DEPTH: usize = 64;

/// Maximum number of values of a configuration, including those that YAML aliases repeat. A larger table of latencies
/// can be a file of its own.
pub(super) const MAX_VALUES: usize = 20_000;

/// Maximum bytes of a key, as written. A user chooses names of parameters, tensors and cells, and the paths of all
/// values below a name contain it.
pub(super) const MAX_KEY_BYTES: usize = 1024;

/// Maximum bytes of a `config.pbtxt`, and of the configuration in a load request.
pub(super) const MAX_TEXT_BYTES: usize = 1 << 20;

/// A limit that a text exceeds, and where.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Excess {
    pub(super) position: Option<Position>,
    pub(super) message: String,
}

pub(super) fn too_deep() -> String {
    format!("expected at most {MAX_DEPTH} open brackets, but found more")
}

pub(super) fn too_many_values() -> String {
    format!("expected at most {MAX_VALUES} values, but found more")
}

pub(super) fn too_large(bytes: usize, limit: usize) -> String {
    format!("expected at most {limit} bytes, but found {bytes}")
}

fn too_long_key(bytes: usize) -> String {
    format!("expected a key of at most {MAX_KEY_BYTES} bytes, but found one of {bytes}")
}

/// Rejects a key that is too long.
pub(super) fn key(key: &str) -> Result<(), String> {
    match key.len() {
        0..=MAX_KEY_BYTES => Ok(()),
        bytes => Err(too_long_key(bytes)),
    }
}

/// Whether a limit may apply to one form of a configuration and not to another. Completion adds values, and escapes
/// lengthen keys.
#[cfg(any(test, feature = "fuzzing"))]
pub(super) fn depends_on_form(message: &str) -> bool {
    let key = too_long_key(0);
    message == too_many_values() || message.starts_with(key.trim_end_matches('0'))
}

/// Maximum product of brackets and bytes of a YAML text. The YAML reader visits every open bracket again at each token,
/// so this product limits its time to about half a second. The longest file may have 1,024 brackets, a shorter one
/// more.
const MAX_BRACKETS_TIMES_BYTES: usize = 1 << 27;

/// Checks the nesting of a YAML text.
///
/// Brackets in strings and comments count too, because telling them apart would need a YAML reader.
pub(super) fn yaml(text: &str) -> Result<(), Excess> {
    let (mut depth, mut brackets) = (0_usize, 0_usize);
    // Lists nest by indentation, or within one line: `- - - x`.
    for (number, line) in text.lines().enumerate() {
        let markers = line.split_ascii_whitespace().take_while(|word| matches!(*word, "-" | "?" | ":")).count();
        if markers > MAX_DEPTH {
            let position = Some(Position { line: number + 1, column: 1 });
            let message = format!("expected at most {MAX_DEPTH} lists within lists, but found more");
            return Err(Excess { position, message });
        }
    }
    for (offset, byte) in text.bytes().enumerate() {
        match byte {
            b'[' | b'{' => {
                depth += 1;
                brackets += 1;
            }
            b']' | b'}' => depth = depth.saturating_sub(1),
            _ => continue,
        }
        if depth > MAX_DEPTH {
            return Err(Excess { position: Some(Position::at(text, offset)), message: too_deep() });
        }
    }
    let limit = MAX_BRACKETS_TIMES_BYTES / text.len().max(1);
    if brackets > limit {
        let bytes = text.len();
        let message =
            format!("expected at most {limit} brackets '[' and '{{' in a file of {bytes} bytes, but found {brackets}");
        return Err(Excess { position: None, message });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_deep_as_allowed_is_not_too_deep() {
        let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        assert_eq!(yaml(&nested(MAX_DEPTH)), Ok(()));
        let excess = yaml(&nested(MAX_DEPTH + 1)).unwrap_err();
        assert_eq!(excess.position, Some(Position { line: 1, column: MAX_DEPTH + 1 }));
    }

    #[test]
    fn an_ordinary_table_of_latencies_has_no_more_brackets_than_allowed() {
        let table = "- { stage: 12, rows: 64, latency_us: 1234.5 }\n".repeat(1_500);
        assert_eq!(yaml(&table), Ok(()));
    }
}

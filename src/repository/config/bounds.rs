//! How large a configuration may be, in whatever form it comes: checked before anything is built from the text.

use super::Position;

/// Most brackets that may be open at a time; a whole `ModelConfig` nests to ten.
pub(super) const MAX_DEPTH: usize = 64;

/// Most values of one configuration, with the values that aliases repeat. A table of latencies of any size fits into
/// its own file.
pub(super) const MAX_VALUES: usize = 20_000;

/// Longest key that a user may choose (of a parameter, a tensor, a cell), as it is written: a key is copied into the
/// path of every value behind it.
pub(super) const MAX_KEY_BYTES: usize = 1024;

/// Most bytes of a configuration in `config.pbtxt` or in a load request.
pub(super) const MAX_TEXT_BYTES: usize = 1 << 20;

/// What a text holds too much of, and where it was noticed.
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

/// Refuses a key that is too long.
pub(super) fn key(key: &str) -> Result<(), String> {
    match key.len() {
        0..=MAX_KEY_BYTES => Ok(()),
        bytes => Err(too_long_key(bytes)),
    }
}

/// Whether a refusal is for what the same configuration may have less of in another form: values that were completed
/// count, and characters take as many bytes as their escapes.
#[cfg(any(test, feature = "fuzzing"))]
pub(super) fn depends_on_form(message: &str) -> bool {
    let key = too_long_key(0);
    message == too_many_values() || message.starts_with(key.trim_end_matches('0'))
}

/// Brackets times bytes of a YAML text. The YAML reader visits every open bracket again at each token, so this
/// product bounds its time (to about half a second); it allows 1,024 brackets in the longest file and more in shorter
/// ones.
const MAX_BRACKETS_TIMES_BYTES: usize = 1 << 27;

/// Checks the nesting of a YAML text.
///
/// Quotes and comments are not distinguished from the rest, so that nothing can hide in them: their brackets count too.
pub(super) fn yaml(text: &str) -> Result<(), Excess> {
    let (mut depth, mut brackets) = (0_usize, 0_usize);
    // Deeper lists need deeper indentation, unless they begin in one line: `- - - x`.
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

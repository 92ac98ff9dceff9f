//! The tokens of protobuf's text format. Strings and comments are tokens or blanks, so brackets inside them count for
//! nothing.

use super::structure::Fault;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TokenKind {
    Word,
    Text,
    Number,
    Mark(u8),
}

/// A token, from byte `start` of the text to before `end`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Token {
    pub(super) kind: TokenKind,
    pub(super) start: usize,
    pub(super) end: usize,
}

/// Reads the first token from byte `from` on; `None` at the end of the text.
///
/// # Errors
/// Rejects a string without an end, and a character that begins no token.
pub(super) fn next(text: &str, from: usize) -> Result<Option<Token>, Fault> {
    let bytes = text.as_bytes();
    let mut start = from;
    while let Some(&byte) = bytes.get(start) {
        match byte {
            b' ' | b'\t' | b'\r' | b'\n' | 0x0b | 0x0c => start += 1,
            b'#' => start += bytes[start..].iter().position(|&byte| byte == b'\n').unwrap_or(bytes.len() - start),
            _ => break,
        }
    }
    let Some(&first) = bytes.get(start) else { return Ok(None) };
    let run = |accepted: fn(u8) -> bool| {
        start + bytes[start..].iter().position(|&byte| !accepted(byte)).unwrap_or(bytes.len() - start)
    };
    let token = |kind, end| Ok(Some(Token { kind, start, end }));
    match first {
        b'"' | b'\'' => token(TokenKind::Text, string_end(bytes, start)?),
        b'A'..=b'Z' | b'a'..=b'z' | b'_' => {
            token(TokenKind::Word, run(|byte| byte.is_ascii_alphanumeric() || byte == b'_'))
        }
        b'0'..=b'9' | b'.' => {
            token(TokenKind::Number, run(|byte| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'.'))
        }
        b'{' | b'}' | b'[' | b']' | b'<' | b'>' | b':' | b',' | b';' | b'-' | b'+' | b'/' => {
            token(TokenKind::Mark(first), start + 1)
        }
        _ => {
            let character = text[start..].chars().next().unwrap_or_default();
            let message = format!("expected a key or a value, but found '{}'", character.escape_debug());
            Err(Fault { offset: start, message })
        }
    }
}

/// The offset behind a string's closing quote.
fn string_end(bytes: &[u8], start: usize) -> Result<usize, Fault> {
    let quote = bytes[start];
    let mut at = start + 1;
    while let Some(&byte) = bytes.get(at) {
        match byte {
            b'\\' => at += 2,
            b'\n' => break,
            _ if byte == quote => return Ok(at + 1),
            _ => at += 1,
        }
    }
    let message = format!("this string is never closed: expected {} in the same line", char::from(quote));
    Err(Fault { offset: start, message })
}

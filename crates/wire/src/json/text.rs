//! The text of a request before it is parsed: its depth, and numbers that JSON does not have.
//!
//! Responses contain `NaN`, `Infinity` and `-Infinity`, as Triton writes them, and requests may contain them too. The
//! parser knows only JSON, so each is replaced by a number of the same length that no other number of the text looks
//! like: 0 with an exponent after a capital E. Other numbers get a small e first, which leaves their values.

use bytes::{Bytes, BytesMut};

use super::fault::JsonFault;
use crate::RequestError;

/// Triton's limit on the nesting of a tensor's elements: the elements in lists count, so at most 99 lists.
const MOST_DEPTH: usize = 100;

/// Deepest nesting of lists and objects in a request, in which a tensor's lists are the fourth level.
const MOST_LEVELS: usize = 2 + MOST_DEPTH;

/// What is written, and what replaces it.
const MARKS: [(&str, &str); 2] = [("NaN", "0E0"), ("Infinity", "0E000000")];

/// Checks the depth of the JSON at the beginning of a body, or of a whole body, and replaces numbers that are not
/// finite. The body is changed where it is, unless something else shares its memory.
///
/// # Errors
/// INVALID_ARGUMENT for text that is nested too deeply.
pub fn prepare(body: &mut Bytes, json_bytes: Option<usize>) -> Result<(), RequestError> {
    let length = json_bytes.unwrap_or(usize::MAX).min(body.len());
    let mut scan = Scan::default();
    let Some(first) = scan.next(&body[..length])? else { return Ok(()) };
    let mut changed = match std::mem::take(body).try_into_mut() {
        Ok(own) => own,
        Err(shared) => BytesMut::from(&*shared),
    };
    let mut found = Some(first);
    while let Some(capital) = found {
        capital.replace(&mut changed);
        found = scan.next(&changed[..length])?;
    }
    *body = changed.freeze();
    Ok(())
}

/// Returns the number that a text replaces, if it does.
pub(super) fn not_finite(number: &str) -> Option<f64> {
    match number {
        "0E0" => Some(f64::NAN),
        "0E000000" => Some(f64::INFINITY),
        "-0E000000" => Some(f64::NEG_INFINITY),
        _ => None,
    }
}

/// Returns how the first number that is not finite was written, outside strings.
pub(super) fn first_not_finite(text: &str) -> Option<&'static str> {
    if !text.contains("0E") {
        return None;
    }
    let mut scan = Scan::default();
    while let Ok(Some(capital)) = scan.next(text.as_bytes()) {
        let Capital::Exponent(at) = capital else { continue };
        let begin = text[..at].rfind(|of: char| !matches!(of, '0' | '-')).map_or(0, |before| before + 1);
        let end = text[at..].find([',', ']', '}', ' ', '\n', '\r', '\t']).map_or(text.len(), |length| at + length);
        match not_finite(&text[begin..end]) {
            Some(number) if number.is_nan() => return Some("NaN"),
            Some(number) => return Some(if number > 0.0 { "Infinity" } else { "-Infinity" }),
            None => {}
        }
    }
    None
}

/// A capital letter outside strings, of which JSON has only that of exponents.
#[derive(Clone, Copy)]
enum Capital {
    /// An entry of [`MARKS`] at a position.
    NotFinite { mark: usize, at: usize },
    /// The E of an exponent, at a position.
    Exponent(usize),
}

impl Capital {
    fn replace(self, text: &mut [u8]) {
        match self {
            Self::NotFinite { mark, at } => {
                let mark = MARKS[mark].1.as_bytes();
                text[at..at + mark.len()].copy_from_slice(mark);
            }
            Self::Exponent(at) => text[at] = b'e',
        }
    }
}

/// Reads text from its beginning.
#[derive(Default)]
struct Scan {
    at: usize,
    depth: usize,
}

impl Scan {
    /// Returns the next capital that [`prepare`] replaces.
    fn next(&mut self, text: &[u8]) -> Result<Option<Capital>, JsonFault> {
        while let Some(&byte) = text.get(self.at) {
            let at = self.at;
            self.at += 1;
            match byte {
                b'"' => self.skip_string(text),
                b'[' | b'{' => {
                    self.depth += 1;
                    if self.depth > MOST_LEVELS {
                        return Err(JsonFault::TooDeep { most: MOST_DEPTH });
                    }
                }
                b']' | b'}' => self.depth = self.depth.saturating_sub(1),
                b'E' => return Ok(Some(Capital::Exponent(at))),
                b'N' | b'I' => {
                    if let Some(mark) = mark_at(text, at) {
                        self.at = at + MARKS[mark].0.len();
                        return Ok(Some(Capital::NotFinite { mark, at }));
                    }
                }
                _ => {}
            }
        }
        Ok(None)
    }

    /// Moves behind the quote that ends a string.
    fn skip_string(&mut self, text: &[u8]) {
        while let Some(&byte) = text.get(self.at) {
            self.at += if byte == b'\\' { 2 } else { 1 };
            if byte == b'"' {
                return;
            }
        }
    }
}

/// Returns which mark replaces the value at a position; `None` where it is part of something else.
fn mark_at(text: &[u8], at: usize) -> Option<usize> {
    let mark = MARKS.iter().position(|(written, _)| text[at..].starts_with(written.as_bytes()))?;
    let (written, _) = MARKS[mark];
    let is_signed = written == "Infinity" && text[..at].ends_with(b"-");
    let before = text[..at - usize::from(is_signed)].last();
    let behind = text.get(at + written.len());
    let is_apart = |byte: &u8| matches!(byte, b'[' | b']' | b'{' | b'}' | b',' | b':' | b' ' | b'\n' | b'\r' | b'\t');
    (before.is_none_or(is_apart) && behind.is_none_or(is_apart)).then_some(mark)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prepared(text: &str) -> String {
        let mut body = Bytes::copy_from_slice(text.as_bytes());
        prepare(&mut body, None).expect("not deep");
        String::from_utf8(body.to_vec()).expect("text")
    }

    #[test]
    fn numbers_that_are_not_finite_become_numbers_that_nothing_else_looks_like() {
        for (text, expected) in [
            ("[NaN,Infinity,-Infinity]", "[0E0,0E000000,-0E000000]"),
            ("{\"x\": NaN }", "{\"x\": 0E0 }"),
            ("NaN", "0E0"),
            ("[0E0,1E5,-0E000000]", "[0e0,1e5,-0e000000]"),
            ("[\"NaN\",\"a\\\"NaN\",\"1E5\"]", "[\"NaN\",\"a\\\"NaN\",\"1E5\"]"),
            ("[1NaN,NaN1,-NaN,NaNs,--Infinity,Infinity0]", "[1NaN,NaN1,-NaN,NaNs,--Infinity,Infinity0]"),
            ("[1,2]", "[1,2]"),
            ("\"", "\""),
            ("\"\\", "\"\\"),
        ] {
            assert_eq!(prepared(text), expected);
        }
    }

    #[test]
    fn only_the_json_is_changed() {
        let mut body = Bytes::from_static(b"[NaN]NaN");
        prepare(&mut body, Some(5)).expect("not deep");
        assert_eq!(body, Bytes::from_static(b"[0E0]NaN"));
        prepare(&mut body, Some(100)).expect("a length that is checked later");
    }

    #[test]
    fn a_body_is_changed_where_it_is() {
        let mut body = Bytes::from(b"[NaN]".to_vec());
        let before = body.as_ptr();
        prepare(&mut body, None).expect("not deep");
        assert_eq!((body.as_ptr(), &*body), (before, &b"[0E0]"[..]));
    }

    #[test]
    fn the_first_number_that_is_not_finite_is_shown_as_it_was_written() {
        for (text, expected) in [
            ("[1e5,NaN,Infinity]", Some("NaN")),
            ("[[1],[ -Infinity ]]", Some("-Infinity")),
            ("Infinity", Some("Infinity")),
            ("[\"NaN\",0E0]", None),
        ] {
            assert_eq!(first_not_finite(&prepared(text)), expected, "{text}");
        }
    }

    #[test]
    fn text_may_be_nested_as_deeply_as_in_triton() {
        let nested = |depth: usize| Bytes::from(format!("{}{}", "[{".repeat(depth / 2), "}]".repeat(depth / 2)));
        prepare(&mut nested(MOST_LEVELS), None).expect("within the limit");
        let error = prepare(&mut nested(MOST_LEVELS + 2), None).expect_err("too deep");
        assert_eq!(error.message(), "JSON nesting depth exceeds maximum allowed limit (100)");
        prepare(&mut Bytes::from(format!("\"{}\"", "[".repeat(1000))), None).expect("a string");
        prepare(&mut Bytes::from("[],".repeat(1000)), None).expect("beside each other");
    }
}

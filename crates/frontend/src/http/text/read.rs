//! Reads the JSON of a request. What that builds is known before. A fault names the key or the element that is wrong,
//! and says in plain words what is expected.

use serde::de::DeserializeOwned;
use serde_path_to_error::{Path, Track};

use super::fault::Fault;

/// What the library calls the kinds of values, and what people do.
const KINDS: [(&str, &str); 7] = [
    ("u32", "a whole number from 0 to 4294967295"),
    ("u64", "a whole number, 0 or more"),
    ("usize", "a whole number, 0 or more"),
    ("i64", "a whole number"),
    ("a boolean", "true or false"),
    ("a sequence", "a list"),
    ("a map", "an object"),
];

/// Bytes that parsing builds at most for a list or an object of JSON, apart from what follows in it: room for four
/// elements, as it is first read and as what it is meant to be.
const LIST_BYTES: usize = 192;

/// Bytes that parsing builds at most for each further element.
const ELEMENT_BYTES: usize = 96;

/// Returns an upper bound of what parsing a body builds, apart from the body.
pub(super) fn built_bytes(json: &[u8]) -> usize {
    let (mut lists, mut elements) = (0_usize, 0_usize);
    for byte in json {
        match byte {
            b'[' | b'{' => lists += 1,
            // In texts they count too, which does not matter.
            b',' | b':' => elements += 1,
            _ => {}
        }
    }
    json.len().saturating_add(lists.saturating_mul(LIST_BYTES)).saturating_add(elements.saturating_mul(ELEMENT_BYTES))
}

/// Reads an object.
pub(super) fn read<T: DeserializeOwned>(json: &[u8]) -> Result<T, Fault> {
    // Lists would be read as the values of the keys in order.
    if !json.trim_ascii_start().starts_with(b"{") {
        return Err(Fault::Request("expected a JSON object".to_owned()));
    }
    let mut deserializer = serde_json::Deserializer::from_slice(json);
    let mut track = Track::new();
    let value = T::deserialize(serde_path_to_error::Deserializer::new(&mut deserializer, &mut track));
    let value = value.map_err(|fault| Fault::Request(told(&track.path(), &fault)))?;
    deserializer.end().map_err(|fault| Fault::Request(fault.to_string()))?;
    Ok(value)
}

fn told(path: &Path, fault: &serde_json::Error) -> String {
    /// In front of what is expected, which is last.
    const EXPECTED: &str = ", expected ";
    let mut text = fault.to_string();
    if let Some(at) = text.rfind(EXPECTED).map(|at| at + EXPECTED.len()) {
        let is_of =
            |kind: &str| text[at..].strip_prefix(kind).is_some_and(|rest| rest.is_empty() || rest.starts_with(' '));
        if let Some((kind, plain)) = KINDS.iter().find(|(kind, _)| is_of(kind)) {
            text.replace_range(at..at + kind.len(), plain);
        }
    }
    if path.iter().next().is_none() { text } else { format!("{path}: {text}") }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Deserialize)]
    #[allow(dead_code)]
    struct Asked {
        query: String,
        documents: Vec<String>,
        top_n: Option<usize>,
        truncate: Option<bool>,
    }

    #[test]
    fn a_fault_names_its_key_and_element_in_plain_words() {
        let refused = |rest: &str| {
            let json = format!(r#"{{"query": "q", "documents": ["a", "b"]{rest}}}"#);
            read::<Asked>(json.as_bytes()).expect_err(&json).message().to_owned()
        };
        let wrong = refused(r#", "top_n": "2, expected usize""#);
        assert!(
            wrong.starts_with(
                "top_n: invalid type: string \"2, expected usize\", expected a whole number, 0 or more at"
            )
        );
        assert!(refused(r#", "top_n": -1"#).starts_with("top_n: invalid value: integer `-1`, expected a whole number"));
        assert!(
            refused(r#", "truncate": 1"#).starts_with("truncate: invalid type: integer `1`, expected true or false")
        );
        assert!(refused(r#", "top_n": 1, "top_n": 1"#).contains("duplicate field `top_n`"));
        assert!(refused("} {").contains("trailing characters"));
        let refused = |json: &str| read::<Asked>(json.as_bytes()).expect_err(json).message().to_owned();
        let wrong = refused(r#"{"query": "q", "documents": ["a", null]}"#);
        assert!(wrong.starts_with("documents[1]: invalid type: null, expected a string"), "{wrong}");
        let wrong = refused(r#"{"query": "q", "documents": "a"}"#);
        assert!(wrong.starts_with("documents: invalid type: string \"a\", expected a list"), "{wrong}");
        assert!(refused("{}").starts_with("missing field `query`"));
        assert_eq!(refused("[1]"), "expected a JSON object");
    }

    #[test]
    fn small_lists_count_for_more_than_their_bytes() {
        // Measured: 62 bytes for each byte of nested lists, 53 of lists of one number, 46 of lists of one empty text.
        let each = |body: &str| built_bytes(body.as_bytes()) / body.len();
        assert!(each(&format!("{{\"input\":{}1{}}}", "[".repeat(60), "]".repeat(60))) >= 63);
        assert!(each(&format!("{{\"input\":[{}[1]]}}", "[1],".repeat(1000))) >= 53);
        assert!(each(&format!("{{\"inputs\":[{}[\"\"]]}}", "[\"\"],".repeat(1000))) >= 47);
        assert!(each(&format!("{{\"input\":\"{}\"}}", "a word ".repeat(1000))) <= 2, "texts are no lists");
    }
}

//! Why a request to a store failed, in one line without secrets.

use std::{error::Error, io};

use crate::LoadError;

/// Longest code or cause that is quoted, in characters; a store may answer anything.
const MAX_QUOTED_CHARS: usize = 200;

/// A failure between the server and a store.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct StoreFault(pub(super) String);

impl From<StoreFault> for io::Error {
    fn from(fault: StoreFault) -> Self {
        Self::other(fault)
    }
}

impl From<LoadError> for StoreFault {
    fn from(error: LoadError) -> Self {
        Self(error.to_string())
    }
}

impl From<object_store::Error> for StoreFault {
    /// Keeps only text that cannot contain a secret: a store's answer may repeat the request and its signature.
    fn from(error: object_store::Error) -> Self {
        let text = error.to_string();
        if let object_store::Error::InvalidPath { source } = &error {
            return Self(format!("a key cannot be a file: {}", quoted(&source.to_string())));
        }
        if METADATA_SERVICES.iter().any(|host| text.contains(host)) {
            return Self("no credentials are given, and the machine's metadata service has none".to_owned());
        }
        match status(&text) {
            Some(status) => Self(refusal(status, &code(&text))),
            None => Self(format!("the store cannot be reached or understood: {}", quoted(&cause(&error)))),
        }
    }
}

/// Hosts of the metadata services that give cloud machines their credentials.
const METADATA_SERVICES: [&str; 3] = ["169.254.169.254", "169.254.170.2", "metadata.google.internal"];

fn refusal(status: u16, code: &str) -> String {
    let what = match status {
        401 | 403 => "the store refuses these credentials",
        404 => "the store has no such bucket, container or object",
        429 | 503 => "the store is overloaded",
        300..=399 => "the store redirects the request; check the region",
        _ => "the store answers with an error",
    };
    format!("{what} ({status}{code})")
}

/// Returns the HTTP status of a response from the text of the client's error.
fn status(text: &str) -> Option<u16> {
    let (_, behind) = text.split_once("status code: ")?;
    behind.get(..3)?.parse().ok()
}

/// Returns the code in a store's answer, such as `NoSuchBucket`, with a leading space; empty if there is none.
fn code(text: &str) -> String {
    let code = text.split_once("<Code>").and_then(|(_, behind)| behind.split_once("</Code>")).map(|(code, _)| code);
    let is_code = |code: &&str| code.len() <= 64 && code.bytes().all(|byte| byte.is_ascii_alphanumeric());
    code.filter(is_code).map_or_else(String::new, |code| format!(" {code}"))
}

/// Returns the innermost cause of an error, such as "Connection refused".
fn cause(error: &dyn Error) -> String {
    let mut innermost = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    innermost.to_string()
}

fn quoted(text: &str) -> String {
    text.escape_debug().take(MAX_QUOTED_CHARS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn generic(text: &str) -> StoreFault {
        object_store::Error::Generic { store: "S3", source: text.to_owned().into() }.into()
    }

    #[test]
    fn an_answer_is_told_by_its_status_and_code_alone() {
        let answer = "Error performing GET http://s/b?list-type=2 in 3ms - Server returned non-2xx status code: 403 \
                      Forbidden: <Error><Code>SignatureDoesNotMatch</Code><AWSAccessKeyId>AKIA</AWSAccessKeyId>\
                      <StringToSign>secret</StringToSign></Error>";
        let shown = generic(answer).to_string();
        assert_eq!(shown, "the store refuses these credentials (403 SignatureDoesNotMatch)");
        let shown = generic("status code: 404 Not Found: <Code>NoSuchBucket</Code>").to_string();
        assert_eq!(shown, "the store has no such bucket, container or object (404 NoSuchBucket)");
        let shown = generic("status code: 500: <Code>a code\nof two lines</Code>").to_string();
        assert_eq!(shown, "the store answers with an error (500)");
    }

    #[test]
    fn a_cause_is_one_short_line() {
        assert_eq!(
            generic("Connection refused").to_string(),
            "the store cannot be reached or understood: Connection refused"
        );
        let long = generic(&format!("a\nb{}", "c".repeat(1000))).to_string();
        assert!(long.contains("a\\nb") && long.len() < 300, "{long}");
    }
}

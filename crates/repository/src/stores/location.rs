//! Parses the location of a repository in an object store, in the forms that Triton accepts.

use std::{fmt, path::Path};

use object_store::path::Path as Key;

use crate::StartError;

/// The accepted forms, for errors.
const FORMS: &str = "s3://bucket/path, s3://host:port/bucket/path, s3://https://host:port/bucket/path, \
                     gs://bucket/path or as://account/container/path";

/// Longest name of a bucket, container or account.
const MAX_NAME_BYTES: usize = 255;

/// A repository in an object store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Location {
    text: String,
    pub(super) service: Service,
    /// Prefix of the keys of all models.
    pub(super) prefix: Key,
}

/// The service that stores the objects, and the bucket or container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Service {
    /// `endpoint` is a URL; without it, AWS's own is used.
    S3 {
        endpoint: Option<String>,
        bucket: String,
    },
    Google {
        bucket: String,
    },
    Azure {
        account: String,
        container: String,
    },
}

/// Returns whether a repository is in an object store rather than a directory.
pub(crate) fn is_remote(repository: &Path) -> bool {
    repository.to_string_lossy().contains("://")
}

impl Location {
    /// Parses a location from the command line.
    ///
    /// # Errors
    /// Fails if it has none of the accepted forms, which the message lists.
    pub(crate) fn parse(text: &str) -> Result<Self, StartError> {
        let refused = StartError::Location;
        if text.contains(['@', '?', '#']) {
            // Text before an '@' may be a password, so the location is not quoted.
            let message = format!("the location has one of the characters '@', '?' and '#': expected {FORMS}");
            return Err(refused(message));
        }
        let unknown = || refused(format!("'{}' is no location of a repository: expected {FORMS}", text.escape_debug()));
        let (scheme, rest) = text.split_once("://").ok_or_else(unknown)?;
        let (service, prefix) = match scheme {
            "s3" => s3(rest),
            "gs" => bucket(rest).map(|(bucket, prefix)| (Service::Google { bucket }, prefix)),
            "as" => azure(rest),
            _ => None,
        }
        .ok_or_else(unknown)?;
        let misshapen =
            || refused(format!("the path of '{}' has an empty, relative or unprintable part", text.escape_debug()));
        if prefix.starts_with('/') {
            // `Key::parse` would drop the leading slash.
            return Err(misshapen());
        }
        let prefix = Key::parse(prefix).map_err(|_| misshapen())?;
        Ok(Self { text: text.trim_end_matches('/').to_owned(), service, prefix })
    }

    /// Returns the location as given, without a trailing slash.
    pub(crate) fn as_str(&self) -> &str {
        &self.text
    }
}

impl fmt::Display for Location {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.text)
    }
}

/// Parses what follows `s3://`. An S3 service other than AWS has its host and port, or its URL, before the bucket; a
/// host without a scheme uses plain HTTP.
fn s3(rest: &str) -> Option<(Service, &str)> {
    let schemes = ["https://", "http://"];
    if let Some(scheme) = schemes.into_iter().find(|scheme| rest.starts_with(scheme)) {
        let (host, rest) = rest[scheme.len()..].split_once('/')?;
        return at_endpoint(scheme, host, rest);
    }
    match rest.split_once('/') {
        Some((host, rest)) if host.contains(':') => at_endpoint("http://", host, rest),
        _ => bucket(rest).map(|(bucket, prefix)| (Service::S3 { endpoint: None, bucket }, prefix)),
    }
}

fn at_endpoint<'a>(scheme: &str, host: &str, rest: &'a str) -> Option<(Service, &'a str)> {
    let endpoint = format!("{scheme}{host}");
    let uri: http::Uri = endpoint.parse().ok()?;
    let is_endpoint = uri.authority().is_some_and(|authority| {
        let is_whole = authority.port_u16().is_some() || authority.as_str() == authority.host();
        is_whole && !authority.host().is_empty()
    });
    let (bucket, prefix) = bucket(rest).filter(|_| is_endpoint)?;
    Some((Service::S3 { endpoint: Some(endpoint), bucket }, prefix))
}

fn azure(rest: &str) -> Option<(Service, &str)> {
    let (account, rest) = rest.split_once('/')?;
    let (container, prefix) = bucket(rest).filter(|_| is_name(account))?;
    Some((Service::Azure { account: account.to_owned(), container }, prefix))
}

fn bucket(rest: &str) -> Option<(String, &str)> {
    let (name, prefix) = rest.split_once('/').unwrap_or((rest, ""));
    is_name(name).then(|| (name.to_owned(), prefix))
}

fn is_name(name: &str) -> bool {
    let is_plain = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-$".contains(&byte));
    is_plain && (1..=MAX_NAME_BYTES).contains(&name.len()) && name != "." && name != ".."
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::tests::refusals::Refusals;

    fn s3(endpoint: Option<&str>, bucket: &str) -> Service {
        Service::S3 { endpoint: endpoint.map(str::to_owned), bucket: bucket.to_owned() }
    }

    #[test]
    fn every_form_that_triton_has_is_read() {
        let azure = Service::Azure { account: "mine".to_owned(), container: "models".to_owned() };
        let cases = [
            ("s3://bucket", s3(None, "bucket"), ""),
            ("s3://bucket/", s3(None, "bucket"), ""),
            ("s3://my.bucket-1/a/b/", s3(None, "my.bucket-1"), "a/b"),
            ("s3://localhost:9000/bucket/a", s3(Some("http://localhost:9000"), "bucket"), "a"),
            ("s3://10.0.0.1:9000/bucket", s3(Some("http://10.0.0.1:9000"), "bucket"), ""),
            ("s3://http://minio/bucket/a", s3(Some("http://minio"), "bucket"), "a"),
            ("s3://https://minio.example:443/bucket/a", s3(Some("https://minio.example:443"), "bucket"), "a"),
            ("s3://[::1]:9000/bucket", s3(Some("http://[::1]:9000"), "bucket"), ""),
            ("gs://bucket/a/b", Service::Google { bucket: "bucket".to_owned() }, "a/b"),
            ("as://mine/models/a", azure.clone(), "a"),
            ("as://mine/models", azure, ""),
        ];
        for (text, service, prefix) in cases {
            let location = Location::parse(text).expect(text);
            assert_eq!((location.service, location.prefix.as_ref()), (service, prefix), "{text}");
            assert_eq!(location.text, text.trim_end_matches('/'));
        }
    }

    pub(crate) fn refusals(all: &mut Refusals) {
        all.title("locations of repositories");
        for text in [
            "s3://",
            "s3:///path",
            "s3://bu cket/a",
            "s3://host:port/bucket",
            "s3://:9000/bucket",
            "s3://host:9000/",
            "s3://https://host",
            "s3://ftp://host/bucket",
            "gs://",
            "gs://../a",
            "as://account",
            "as:///container",
            "hdfs://name/path",
            "https://host/path",
            "://x",
            "s3://bucket/a//b",
            "gs://bucket/../b",
            "s3://bucket//a",
            "as://a/b/c\u{1}",
        ] {
            all.add(None, &text.escape_debug().to_string(), Location::parse(text));
        }
    }

    #[test]
    fn a_password_in_a_location_is_refused_and_not_repeated() {
        let reason = Location::parse("s3://https://me:hunter2@host:9000/bucket").unwrap_err().to_string();
        assert!(!reason.contains("hunter2") && reason.contains("'@'"), "{reason}");
    }

    #[test]
    fn directories_are_told_from_stores() {
        assert!(is_remote(Path::new("s3://bucket")) && is_remote(Path::new("hdfs://x")));
        assert!(!is_remote(Path::new("/models")) && !is_remote(Path::new("models")) && !is_remote(Path::new("a:/b")));
    }
}

//! Asks a server for its overview.

use std::{error::Error, time::Duration};

use paternoster_frontend::http::overview_response::OverviewResponse;
use reqwest::{StatusCode, Url, redirect};
use serde::Deserialize;

/// Longest time until a response is complete.
const PATIENCE: Duration = Duration::from_secs(10);

/// Maximum size of a response. A server's is far smaller.
const MOST_BYTES: usize = 16 << 20;

/// Why a server's overview is not known.
#[derive(Debug, thiserror::Error)]
pub(in crate::cli) enum ClientError {
    #[error("'{0}' is no address: expected http://host:port or https://host:port, of the server's HTTP port")]
    Address(String),
    #[error("cannot ask servers: {0}")]
    Start(String),
    #[error("{url} cannot be asked: {reason}")]
    Unreachable { url: Url, reason: String },
    #[error("{url} answers with status {status}: {reason}")]
    Refused { url: Url, status: StatusCode, reason: String },
    #[error("{url} answers with what is no overview of this version: {reason}")]
    Unreadable { url: Url, reason: String },
}

/// A server's overview.
pub(super) struct Client {
    http: reqwest::Client,
    base: Url,
    overview: Url,
}

/// The body of an error.
#[derive(Deserialize)]
struct Fault {
    error: String,
}

impl Client {
    /// Prepares to ask the server at this address, of all its models or of one.
    ///
    /// # Errors
    /// If the address is malformed.
    pub(super) fn new(url: &str, model: Option<&str>) -> Result<Self, ClientError> {
        let malformed = || ClientError::Address(url.to_owned());
        let text = if url.contains("://") { url.to_owned() } else { format!("http://{url}") };
        let mut base = Url::parse(&text).map_err(|_| malformed())?;
        let is_plain = base.query().is_none() && base.fragment().is_none();
        if !is_plain || !base.has_host() || !["http", "https"].contains(&base.scheme()) {
            return Err(malformed());
        }
        if !base.path().ends_with('/') {
            base.set_path(&format!("{}/", base.path()));
        }
        let mut overview = base.join("v2/overview").map_err(|_| malformed())?;
        let (key, value) = model.map_or(("timeline", "false"), |model| ("model", model));
        overview.query_pairs_mut().append_pair(key, value);
        // Fails if it is installed already, which is harmless: it is the same one.
        let _ = tokio_rustls::rustls::crypto::ring::default_provider().install_default();
        let http = reqwest::Client::builder().timeout(PATIENCE).redirect(redirect::Policy::none()).no_proxy().build();
        let http = http.map_err(|error| ClientError::Start(cause(&error)))?;
        Ok(Self { http, base, overview })
    }

    /// Returns the server's address.
    pub(super) fn url(&self) -> &Url {
        &self.base
    }

    /// Asks the server once.
    ///
    /// # Errors
    /// If it cannot be reached, refuses, or answers with something else.
    pub(super) async fn ask(&self) -> Result<OverviewResponse, ClientError> {
        let url = || self.base.clone();
        let unreachable = |error: reqwest::Error| {
            // What answers otherwise is another port.
            let advice = if error.is_connect() || error.is_timeout() { "" } else { " (expected a server's HTTP port)" };
            ClientError::Unreachable { url: url(), reason: cause(&error) + advice }
        };
        let unreadable = |reason: String| ClientError::Unreadable { url: url(), reason };
        let mut response = self.http.get(self.overview.clone()).send().await.map_err(unreachable)?;
        let status = response.status();
        let mut body = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(unreachable)? {
            if body.len() + chunk.len() > MOST_BYTES {
                return Err(unreadable(format!("it has more than {MOST_BYTES} bytes")));
            }
            body.extend_from_slice(&chunk);
        }
        if status != StatusCode::OK {
            let fault = serde_json::from_slice::<Fault>(&body).map(|fault| fault.error);
            let reason = fault.unwrap_or_else(|_| "no reason is given".to_owned());
            return Err(ClientError::Refused { url: url(), status, reason });
        }
        serde_json::from_slice(&body).map_err(|error| unreadable(error.to_string()))
    }
}

/// Returns the innermost reason of an error: those around it repeat the address.
fn cause(error: &reqwest::Error) -> String {
    let mut innermost: &dyn Error = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    innermost.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_have_a_host_and_may_lack_the_scheme() {
        let overview = |url, model| Client::new(url, model).map(|client| client.overview.to_string());
        for (given, expected) in [
            ("localhost:8000", "http://localhost:8000/v2/overview?timeline=false"),
            ("https://host", "https://host/v2/overview?timeline=false"),
            ("http://[::1]:8000/behind/a/path", "http://[::1]:8000/behind/a/path/v2/overview?timeline=false"),
        ] {
            assert_eq!(overview(given, None).expect("an address"), expected);
        }
        let one = overview("host", Some("a&b=ü")).expect("an address");
        assert_eq!(one, "http://host/v2/overview?model=a%26b%3D%C3%BC");
        for refused in ["", "http://", "ftp://host", "http://host?a=b", "host:port"] {
            let error = Client::new(refused, None).err().map(|error| error.to_string());
            assert!(error.is_some_and(|text| text.starts_with(&format!("'{refused}' is no address"))), "{refused}");
        }
    }
}

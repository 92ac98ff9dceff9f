//! The HTTP client that sends spans to the collector.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::{Request, Response, Uri, uri::Scheme};
use opentelemetry_http::{HttpClient, HttpError};
use reqwest::{Client, ClientBuilder, redirect};
use tokio::runtime::Handle;

/// Time limit for a request to the collector, including its connection.
const PATIENCE: Duration = Duration::from_secs(10);

/// Maximum response that is read, in bytes; it states how many spans were rejected.
const MOST_ANSWER_BYTES: usize = 64 << 10;

/// Sends requests on the server's runtime, because the batch processor's thread has none.
#[derive(Debug)]
pub(super) struct CollectorClient {
    runtime: Handle,
    client: Client,
}

impl CollectorClient {
    /// # Errors
    /// If no client can be made.
    pub(super) fn new(runtime: Handle) -> Result<Self, String> {
        // Installing the process-wide provider fails if it is installed already, which is harmless: it is the same one.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let options = || Client::builder().timeout(PATIENCE).redirect(redirect::Policy::none()).no_proxy();
        // On a machine without certificates of authorities, only plain HTTP is possible.
        let client = options().build().or_else(|_| ClientBuilder::tls_certs_only(options(), []).build());
        Ok(Self { runtime, client: client.map_err(|error| error.to_string())? })
    }
}

#[async_trait::async_trait]
impl HttpClient for CollectorClient {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        self.runtime.spawn(exchange(self.client.clone(), request)).await?
    }
}

async fn exchange(client: Client, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
    let mut answer = client.execute(request.try_into()?).await?;
    let mut body = BytesMut::new();
    while let Some(chunk) = answer.chunk().await? {
        if body.len() + chunk.len() > MOST_ANSWER_BYTES {
            return Err(format!("the collector's response is longer than {MOST_ANSWER_BYTES} bytes").into());
        }
        body.extend_from_slice(&chunk);
    }
    let mut response = Response::new(body.freeze());
    *response.status_mut() = answer.status();
    *response.headers_mut() = std::mem::take(answer.headers_mut());
    Ok(response)
}

/// Checks that a URL has a host and is of HTTP.
///
/// # Errors
/// Describes what is wrong with it.
pub(super) fn check(url: &Uri) -> Result<(), String> {
    if url.scheme() != Some(&Scheme::HTTP) && url.scheme() != Some(&Scheme::HTTPS) {
        return Err("expected a URL such as http://localhost:4318/v1/traces".to_owned());
    }
    url.host().filter(|host| !host.is_empty()).ok_or("expected a host in the URL")?;
    Ok(())
}

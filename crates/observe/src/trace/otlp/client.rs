//! The connection to the collector: plain HTTP/1.1, one connection per export.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Request, Response, Uri, header::HOST, uri::Scheme};
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use opentelemetry_http::{HttpClient, HttpError};
use tokio::{net::TcpStream, runtime::Handle, time::timeout};

/// Time limit for a request to the collector, including its connection.
const PATIENCE: Duration = Duration::from_secs(10);

/// Maximum response that is read, in bytes; it states how many spans were rejected.
const MOST_ANSWER_BYTES: usize = 64 << 10;

/// Sends requests on the server's runtime, because the batch processor's thread has none.
#[derive(Debug)]
pub(super) struct CollectorClient {
    runtime: Handle,
}

impl CollectorClient {
    pub(super) fn new(runtime: Handle) -> Self {
        Self { runtime }
    }
}

#[async_trait::async_trait]
impl HttpClient for CollectorClient {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        // The timer needs the runtime too.
        self.runtime.spawn(async { timeout(PATIENCE, exchange(request)).await }).await??
    }
}

async fn exchange(mut request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
    let uri = request.uri().clone();
    let authority = address(&uri)?;
    let stream = TcpStream::connect(&authority).await?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let connection = tokio::spawn(connection);
    request.headers_mut().insert(HOST, HeaderValue::from_str(&authority)?);
    *request.uri_mut() = uri.path_and_query().map_or("/", |path| path.as_str()).parse()?;
    let answer = async {
        let (parts, body) = sender.send_request(request.map(Full::new)).await?.into_parts();
        let body = Limited::new(body, MOST_ANSWER_BYTES).collect().await?.to_bytes();
        Ok(Response::from_parts(parts, body))
    };
    let answer = answer.await;
    connection.abort();
    answer
}

/// Returns host and port of a URL.
///
/// # Errors
/// If it is not a plain HTTP URL.
pub(super) fn address(url: &Uri) -> Result<String, String> {
    if url.scheme() != Some(&Scheme::HTTP) {
        return Err("expected a URL such as http://localhost:4318/v1/traces (https is not supported)".to_owned());
    }
    let host = url.host().filter(|host| !host.is_empty()).ok_or("expected a host in the URL")?;
    Ok(format!("{host}:{}", url.port_u16().unwrap_or(80)))
}

//! Settings of the gRPC front end, filled in by the command line.

use std::{str::FromStr, time::Duration};

use crate::{Endpoint, Host, RestrictedProtocol, TlsConfig};

/// Settings of the gRPC front end. Each field names Triton's flag.
#[derive(Clone, Debug)]
pub struct GrpcConfig {
    /// Where to listen; port 0 lets the system choose (`--grpc-address`, `--grpc-port`).
    pub endpoint: Endpoint,
    /// Certificate and key; `None`: plain text (`--grpc-use-ssl`).
    pub tls: Option<TlsConfig>,
    /// Limits on a connection and its lifetime.
    pub connection: ConnectionLimits,
    /// Limits on messages.
    pub messages: MessageLimits,
    /// Compression of responses of ModelInfer and ModelStreamInfer, for clients that accept it
    /// (`--grpc-infer-response-compression-level`).
    pub compression: CompressionLevel,
    /// Groups of methods that require a header (`--grpc-restricted-protocol`, repeatable).
    pub restricted: Vec<RestrictedProtocol>,
}

impl Default for GrpcConfig {
    fn default() -> Self {
        Self {
            endpoint: Host::ANY.at(8001),
            tls: None,
            connection: ConnectionLimits::default(),
            messages: MessageLimits::default(),
            compression: CompressionLevel::None,
            restricted: Vec::new(),
        }
    }
}

/// Limits on one connection. A duration of `None` means never.
#[derive(Clone, Debug)]
pub struct ConnectionLimits {
    /// Time without traffic after which the connection is pinged (`--grpc-keepalive-time`).
    pub keepalive_time: Option<Duration>,
    /// Time within which that ping must be answered before the connection is closed (`--grpc-keepalive-timeout`).
    pub keepalive_timeout: Duration,
    /// Age at which a connection gets GOAWAY. Varied by a tenth either way, so that clients that connected together do
    /// not reconnect together (`--grpc-max-connection-age`).
    pub max_age: Option<Duration>,
    /// Time for calls in flight after that (`--grpc-max-connection-age-grace`).
    pub max_age_grace: Option<Duration>,
    /// Time without calls after which a connection gets GOAWAY (`--grpc-max-connection-idle`).
    pub max_idle: Option<Duration>,
    /// Time limit from the first packet to the end of the TLS handshake and of the HTTP/2 preface.
    pub handshake_timeout: Duration,
    /// Maximum number of concurrent calls on a connection.
    pub max_concurrent_streams: u32,
    /// Maximum number of requests of one ModelStreamInfer call that are read but not yet answered.
    pub stream_in_flight: usize,
    /// No further request is read from a stream once its unanswered requests have this many bytes.
    pub stream_in_flight_bytes: usize,
}

impl Default for ConnectionLimits {
    fn default() -> Self {
        Self {
            keepalive_time: Some(Duration::from_secs(7200)),
            keepalive_timeout: Duration::from_secs(20),
            max_age: None,
            max_age_grace: None,
            max_idle: Some(Duration::from_secs(1800)),
            handshake_timeout: Duration::from_secs(20),
            max_concurrent_streams: 1024,
            stream_in_flight: 256,
            stream_in_flight_bytes: 64 << 20,
        }
    }
}

/// Maximum message sizes in bytes, uncompressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageLimits {
    /// Largest request.
    pub max_receive_bytes: usize,
    /// Largest response.
    pub max_send_bytes: usize,
}

impl Default for MessageLimits {
    /// Triton's limits: 2 GiB − 1 both ways.
    fn default() -> Self {
        Self { max_receive_bytes: i32::MAX as usize, max_send_bytes: i32::MAX as usize }
    }
}

/// How much inference responses are compressed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CompressionLevel {
    /// No compression.
    #[default]
    None,
    /// Fast.
    Low,
    /// Balanced.
    Medium,
    /// Best compression.
    High,
}

impl FromStr for CompressionLevel {
    type Err = String;

    fn from_str(level: &str) -> Result<Self, Self::Err> {
        match level {
            "none" => Ok(Self::None),
            "low" => Ok(Self::Low),
            "medium" => Ok(Self::Medium),
            "high" => Ok(Self::High),
            other => Err(format!("compression level '{other}' is none of none, low, medium, high")),
        }
    }
}

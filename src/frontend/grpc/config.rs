//! Settings of the gRPC front end, as the command line fills them in.

use std::{net::IpAddr, net::Ipv4Addr, str::FromStr, time::Duration};

use crate::frontend::{RestrictedProtocol, TlsConfig};

/// Everything that can be set about the gRPC front end. Triton's flag is named at each field.
#[derive(Clone, Debug)]
pub struct GrpcConfig {
    /// Address to listen on (`--grpc-address`).
    pub address: IpAddr,
    /// Port to listen on; 0 lets the system choose (`--grpc-port`).
    pub port: u16,
    /// Certificate and key; plain text where absent (`--grpc-use-ssl`).
    pub tls: Option<TlsConfig>,
    /// Bounds on a connection and its life.
    pub connection: ConnectionLimits,
    /// Bounds on messages.
    pub messages: MessageLimits,
    /// How far responses of ModelInfer and ModelStreamInfer are compressed, for clients that accept it
    /// (`--grpc-infer-response-compression-level`).
    pub compression: CompressionLevel,
    /// Groups of methods that ask for a header (`--grpc-restricted-protocol`, repeatable).
    pub restricted: Vec<RestrictedProtocol>,
}

impl Default for GrpcConfig {
    fn default() -> Self {
        Self {
            address: IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            port: 8001,
            tls: None,
            connection: ConnectionLimits::default(),
            messages: MessageLimits::default(),
            compression: CompressionLevel::None,
            restricted: Vec::new(),
        }
    }
}

/// Bounds on one connection. A duration of `None` means never.
#[derive(Clone, Debug)]
pub struct ConnectionLimits {
    /// Silence on the connection after which it is pinged (`--grpc-keepalive-time`).
    pub keepalive_time: Option<Duration>,
    /// How long the answer to that ping may take before the connection is closed (`--grpc-keepalive-timeout`).
    pub keepalive_timeout: Duration,
    /// Age at which a connection is told to go away; spread by a tenth either way, so that clients that came together
    /// do not come back together (`--grpc-max-connection-age`).
    pub max_age: Option<Duration>,
    /// Time that calls in flight have from then on (`--grpc-max-connection-age-grace`).
    pub max_age_grace: Option<Duration>,
    /// Time without a call after which a connection is told to go away (`--grpc-max-connection-idle`).
    pub max_idle: Option<Duration>,
    /// Time from the first packet to the end of the TLS handshake and of the HTTP/2 preface.
    pub handshake_timeout: Duration,
    /// Most calls at once on a connection.
    pub max_concurrent_streams: u32,
    /// Most requests of one ModelStreamInfer call that are read but not yet answered.
    pub stream_in_flight: usize,
    /// Bytes of such requests from which on no further one is read.
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

/// Largest messages in bytes, uncompressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageLimits {
    /// Largest request.
    pub max_receive_bytes: usize,
    /// Largest response.
    pub max_send_bytes: usize,
}

impl Default for MessageLimits {
    /// Triton's: 2 GiB − 1 both ways.
    fn default() -> Self {
        Self { max_receive_bytes: i32::MAX as usize, max_send_bytes: i32::MAX as usize }
    }
}

/// How far inference responses are compressed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CompressionLevel {
    /// Not at all.
    #[default]
    None,
    /// Fast.
    Low,
    /// Balanced.
    Medium,
    /// Small.
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

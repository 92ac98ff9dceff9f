//! Flags of the gRPC front end.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use paternoster_executor::BacklogLimits;
use paternoster_frontend::Host;

use super::boolean;

const BACKLOG: BacklogLimits = BacklogLimits::DEFAULT;

/// Limit of protobuf: 2 GiB less one byte.
const MOST_MESSAGE_BYTES: u32 = i32::MAX as u32;

/// Compression level of inference responses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
#[allow(missing_docs)]
pub enum Compression {
    #[default]
    None,
    Low,
    Medium,
    High,
}

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "gRPC")]
#[allow(missing_docs)]
pub struct GrpcArgs {
    /// Serve gRPC
    #[arg(long = "allow-grpc", value_name = "BOOL", value_parser = boolean)]
    #[arg(num_args = 0..=1, default_missing_value = "true", default_value = "true")]
    pub allow_grpc: bool,

    /// IP address or name of a host to listen on, or unix:/path/of/a/socket
    #[arg(long = "grpc-address", value_name = "ADDRESS", default_value_t = Host::ANY)]
    pub grpc_address: Host,

    /// Port to listen on, unless the address is a socket; 0 chooses a free one
    #[arg(long = "grpc-port", value_name = "PORT", default_value_t = 8001)]
    pub grpc_port: u16,

    /// Serve over TLS; needs --grpc-server-cert and --grpc-server-key
    #[arg(long = "grpc-use-ssl", value_name = "BOOL", value_parser = boolean)]
    #[arg(num_args = 0..=1, default_missing_value = "true", default_value = "false")]
    pub use_ssl: bool,

    /// Serve over TLS and require client certificates; needs --grpc-root-cert too
    #[arg(long = "grpc-use-ssl-mutual", value_name = "BOOL", value_parser = boolean)]
    #[arg(num_args = 0..=1, default_missing_value = "true", default_value = "false")]
    pub use_ssl_mutual: bool,

    /// PEM file with the server's certificate chain
    #[arg(long = "grpc-server-cert", value_name = "FILE")]
    pub server_cert: Option<PathBuf>,

    /// PEM file with the server's private key
    #[arg(long = "grpc-server-key", value_name = "FILE")]
    pub server_key: Option<PathBuf>,

    /// PEM file with the authorities that sign client certificates
    #[arg(long = "grpc-root-cert", value_name = "FILE")]
    pub root_cert: Option<PathBuf>,

    /// Compression of inference responses, for clients that accept it
    #[arg(long = "grpc-infer-response-compression-level", value_name = "LEVEL")]
    #[arg(value_enum, default_value_t = Compression::None)]
    pub compression: Compression,

    /// Milliseconds without activity after which a connection is pinged
    #[arg(long = "grpc-keepalive-time", value_name = "MS", default_value_t = 7_200_000)]
    pub keepalive_time_ms: u64,

    /// Milliseconds within which a peer must answer such a ping
    #[arg(long = "grpc-keepalive-timeout", value_name = "MS", default_value_t = 20_000)]
    pub keepalive_timeout_ms: u64,

    /// Milliseconds after which a connection is asked to close (GOAWAY); 0 means never
    #[arg(long = "grpc-max-connection-age", value_name = "MS", default_value_t = 0)]
    pub max_age_ms: u64,

    /// Milliseconds that calls in flight then have to finish; 0 means no limit
    #[arg(long = "grpc-max-connection-age-grace", value_name = "MS", default_value_t = 0)]
    pub max_age_grace_ms: u64,

    /// Milliseconds without a call after which a connection is asked to close (GOAWAY); 0 means never
    #[arg(long = "grpc-max-connection-idle", value_name = "MS", default_value_t = 1_800_000)]
    pub max_idle_ms: u64,

    /// Comma-separated groups of calls that require a header; may be given several times
    #[arg(long = "grpc-restricted-protocol", value_name = "GROUPS:KEY=VALUE")]
    pub restricted: Vec<String>,

    /// Largest request in bytes
    #[arg(long = "grpc-max-receive-message-bytes", value_name = "BYTES", default_value_t = MOST_MESSAGE_BYTES)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=i64::from(MOST_MESSAGE_BYTES)))]
    pub max_receive_bytes: u32,

    /// Largest response in bytes
    #[arg(long = "grpc-max-send-message-bytes", value_name = "BYTES", default_value_t = MOST_MESSAGE_BYTES)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=i64::from(MOST_MESSAGE_BYTES)))]
    pub max_send_bytes: u32,

    /// Bytes of responses of one stream that may wait for its client. Beyond that, decoupled models pause, and requests
    /// that stream from cells fail
    #[arg(long = "grpc-stream-backlog-bytes", value_name = "BYTES", default_value_t = BACKLOG.stream_bytes as u64)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    pub stream_backlog_bytes: u64,

    /// Bytes of responses of one connection that may wait for its client. Beyond that, no further call of it is read
    #[arg(long = "grpc-connection-backlog-bytes", value_name = "BYTES")]
    #[arg(default_value_t = BACKLOG.connection_bytes as u64, value_parser = clap::value_parser!(u64).range(1..))]
    pub connection_backlog_bytes: u64,

    /// Bytes of responses of all connections that may wait for their clients. Beyond that, each connection may have at
    /// most --grpc-stream-backlog-bytes, and responses above that fail
    #[arg(long = "grpc-backlog-bytes", value_name = "BYTES", default_value_t = BACKLOG.total_bytes as u64)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    pub backlog_bytes: u64,

    /// Let clients on this machine register shared memory
    #[arg(long = "allow-client-shm", value_name = "BOOL", value_parser = boolean)]
    #[arg(num_args = 0..=1, default_missing_value = "true", default_value = "false")]
    pub allow_client_shm: bool,
}

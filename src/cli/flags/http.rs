//! Flags of the HTTP port and of the metrics.

use std::path::PathBuf;

use clap::Args;
use paternoster_frontend::Host;

use super::{MetricsSetting, boolean};

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "HTTP and metrics")]
#[allow(missing_docs)]
pub struct HttpArgs {
    /// Serve HTTP
    #[arg(long = "allow-http", value_name = "BOOL", value_parser = boolean)]
    #[arg(num_args = 0..=1, default_missing_value = "true", default_value = "true")]
    pub allow_http: bool,

    /// IP address or name of a host to listen on, or unix:/path/of/a/socket
    #[arg(long = "http-address", value_name = "ADDRESS", default_value_t = Host::ANY)]
    pub http_address: Host,

    /// Port to listen on, unless the address is a socket; 0 chooses a free one
    #[arg(long = "http-port", value_name = "PORT", default_value_t = 8000)]
    pub http_port: u16,

    /// Serve a web page at '/' that shows models, load and the latest batches
    #[arg(long = "allow-web", value_name = "BOOL", value_parser = boolean)]
    #[arg(num_args = 0..=1, default_missing_value = "true", default_value = "true")]
    pub allow_web: bool,

    /// Serve over TLS; needs --http-server-cert and --http-server-key
    #[arg(id = "http-use-ssl", long, value_name = "BOOL", value_parser = boolean)]
    #[arg(num_args = 0..=1, default_missing_value = "true", default_value = "false")]
    pub use_ssl: bool,

    /// Serve over TLS and refuse clients without a certificate, except for health checks; needs --http-root-cert too
    #[arg(id = "http-use-ssl-mutual", long, value_name = "BOOL", value_parser = boolean)]
    #[arg(num_args = 0..=1, default_missing_value = "true", default_value = "false")]
    pub use_ssl_mutual: bool,

    /// PEM file with the server's certificate chain
    #[arg(id = "http-server-cert", long, value_name = "FILE")]
    pub server_cert: Option<PathBuf>,

    /// PEM file with the server's private key
    #[arg(id = "http-server-key", long, value_name = "FILE")]
    pub server_key: Option<PathBuf>,

    /// PEM file with the authorities that sign client certificates
    #[arg(id = "http-root-cert", long, value_name = "FILE")]
    pub root_cert: Option<PathBuf>,

    /// Most bytes of a request's JSON, of the data of a body without JSON, and of what a compressed body contains
    #[arg(long = "http-max-input-size", value_name = "BYTES", default_value_t = 64 << 20)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=i64::from(i32::MAX)))]
    pub max_input_bytes: u32,

    /// Comma-separated groups of routes that require a header; may be given several times
    #[arg(long = "http-restricted-api", value_name = "GROUPS:KEY=VALUE")]
    pub restricted_api: Vec<String>,

    /// Serve Prometheus metrics
    #[arg(long = "allow-metrics", value_name = "BOOL", value_parser = boolean)]
    #[arg(num_args = 0..=1, default_missing_value = "true", default_value = "true")]
    pub allow_metrics: bool,

    /// Include the metrics of GPUs, nv_gpu_... and nv_energy_consumption, if models run on cards
    #[arg(long = "allow-gpu-metrics", value_name = "BOOL", value_parser = boolean)]
    #[arg(num_args = 0..=1, default_missing_value = "true", default_value = "true")]
    pub allow_gpu_metrics: bool,

    /// Include the metrics of the processor and its memory, nv_cpu_...
    #[arg(long = "allow-cpu-metrics", value_name = "BOOL", value_parser = boolean)]
    #[arg(num_args = 0..=1, default_missing_value = "true", default_value = "true")]
    pub allow_cpu_metrics: bool,

    /// Milliseconds between two readings of processor, memory and cards
    #[arg(long = "metrics-interval-ms", value_name = "MILLISECONDS", default_value_t = 2000)]
    pub metrics_interval_ms: u32,

    /// Address of the metrics port; defaults to that of HTTP, or to 127.0.0.1 if that is a socket
    #[arg(long = "metrics-address", value_name = "ADDRESS")]
    pub metrics_address: Option<Host>,

    /// Setting of the metrics; may be given several times. counter_latencies, summary_latencies and histogram_latencies
    /// (true or false) choose the latencies to include; summary_quantiles is QUANTILE:ERROR,...; others have no effect
    #[arg(long = "metrics-config", value_name = "SETTING=VALUE")]
    pub metrics_config: Vec<MetricsSetting>,

    /// Port of the metrics; 0 chooses a free one
    #[arg(long = "metrics-port", value_name = "PORT", default_value_t = 8002)]
    pub metrics_port: u16,
}

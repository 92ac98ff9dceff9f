//! The flags of the HTTP port and of the metrics.

use std::{net::IpAddr, path::PathBuf};

use clap::Args;

use super::{ANY, MetricsSetting, address, boolean};

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "HTTP and metrics")]
#[allow(missing_docs)]
pub struct HttpArgs {
    /// Serve HTTP
    #[arg(long = "allow-http", value_name = "BOOL", value_parser = boolean)]
    #[arg(num_args = 0..=1, default_missing_value = "true", default_value = "true")]
    pub allow_http: bool,

    /// Address to listen on
    #[arg(long = "http-address", value_name = "ADDRESS", value_parser = address, default_value_t = ANY)]
    pub http_address: IpAddr,

    /// Port to listen on; 0: any free one
    #[arg(long = "http-port", value_name = "PORT", default_value_t = 8000)]
    pub http_port: u16,

    /// Serve a page for people at '/', which shows models, load and the last batches
    #[arg(long = "allow-web", value_name = "BOOL", value_parser = boolean)]
    #[arg(num_args = 0..=1, default_missing_value = "true", default_value = "true")]
    pub allow_web: bool,

    /// Serve over TLS; needs --http-server-cert and --http-server-key
    #[arg(id = "http-use-ssl", long, value_name = "BOOL", value_parser = boolean)]
    #[arg(num_args = 0..=1, default_missing_value = "true", default_value = "false")]
    pub use_ssl: bool,

    /// Serve over TLS and refuse clients without a certificate, but for health; needs --http-root-cert too
    #[arg(id = "http-use-ssl-mutual", long, value_name = "BOOL", value_parser = boolean)]
    #[arg(num_args = 0..=1, default_missing_value = "true", default_value = "false")]
    pub use_ssl_mutual: bool,

    /// PEM file of the server's certificate chain
    #[arg(id = "http-server-cert", long, value_name = "FILE")]
    pub server_cert: Option<PathBuf>,

    /// PEM file of the server's private key
    #[arg(id = "http-server-key", long, value_name = "FILE")]
    pub server_key: Option<PathBuf>,

    /// PEM file of the authorities that sign clients' certificates
    #[arg(id = "http-root-cert", long, value_name = "FILE")]
    pub root_cert: Option<PathBuf>,

    /// Longest body of a request in bytes, uncompressed
    #[arg(long = "http-max-input-size", value_name = "BYTES", default_value_t = i32::MAX as u32)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=i64::from(i32::MAX)))]
    pub max_input_bytes: u32,

    /// Groups of routes, parted by commas, that ask for a header; may be given several times
    #[arg(long = "http-restricted-api", value_name = "GROUPS:KEY=VALUE")]
    pub restricted_api: Vec<String>,

    /// Serve Prometheus metrics
    #[arg(long = "allow-metrics", value_name = "BOOL", value_parser = boolean)]
    #[arg(num_args = 0..=1, default_missing_value = "true", default_value = "true")]
    pub allow_metrics: bool,

    /// Show the families of cards, nv_gpu_... and nv_energy_consumption, where models run on cards
    #[arg(long = "allow-gpu-metrics", value_name = "BOOL", value_parser = boolean)]
    #[arg(num_args = 0..=1, default_missing_value = "true", default_value = "true")]
    pub allow_gpu_metrics: bool,

    /// Show the families of the processor and its memory, nv_cpu_...
    #[arg(long = "allow-cpu-metrics", value_name = "BOOL", value_parser = boolean)]
    #[arg(num_args = 0..=1, default_missing_value = "true", default_value = "true")]
    pub allow_cpu_metrics: bool,

    /// Milliseconds for which a reading of processor, memory and cards is shown before it is made again
    #[arg(long = "metrics-interval-ms", value_name = "MILLISECONDS", default_value_t = 2000)]
    pub metrics_interval_ms: u32,

    /// Address of the metrics; that of HTTP where not given
    #[arg(long = "metrics-address", value_name = "ADDRESS", value_parser = address)]
    pub metrics_address: Option<IpAddr>,

    /// Setting of the metrics; may be given several times: counter_latencies, summary_latencies and histogram_latencies
    /// (true or false: which latencies are shown), summary_quantiles (QUANTILE:ERROR,...); others do nothing
    #[arg(long = "metrics-config", value_name = "SETTING=VALUE")]
    pub metrics_config: Vec<MetricsSetting>,

    /// Port of the metrics; 0: any free one
    #[arg(long = "metrics-port", value_name = "PORT", default_value_t = 8002)]
    pub metrics_port: u16,
}

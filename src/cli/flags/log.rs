//! Flags of the log.

use std::path::PathBuf;

use clap::Args;
use paternoster_observe::{LogFormat, MAX_VERBOSE_LEVEL};

use super::boolean;

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Log")]
#[allow(missing_docs)]
pub struct LogArgs {
    /// 0: up to info; 1: debug records too; 2: trace records too; 3 and above: those of the libraries too
    #[arg(long = "log-verbose", value_name = "LEVEL", value_parser = verbose_level)]
    #[arg(num_args = 0..=1, default_missing_value = "1", default_value = "0")]
    pub verbose_level: u32,

    /// Log informational records
    #[arg(long = "log-info", value_name = "BOOL", value_parser = boolean)]
    #[arg(num_args = 0..=1, default_missing_value = "true", default_value = "true")]
    pub info: bool,

    /// Log warnings
    #[arg(long = "log-warning", value_name = "BOOL", value_parser = boolean)]
    #[arg(num_args = 0..=1, default_missing_value = "true", default_value = "true")]
    pub warning: bool,

    /// Log errors
    #[arg(long = "log-error", value_name = "BOOL", value_parser = boolean)]
    #[arg(num_args = 0..=1, default_missing_value = "true", default_value = "true")]
    pub error: bool,

    /// Format of log records: default, ISO8601 or json
    #[arg(long = "log-format", value_name = "FORMAT", default_value_t = LogFormat::Default)]
    pub format: LogFormat,

    /// File to append the log to; defaults to standard error
    #[arg(long = "log-file", value_name = "FILE")]
    pub file: Option<PathBuf>,
}

/// Parses a log level. As in tritonserver, booleans and levels above the highest are accepted.
fn verbose_level(given: &str) -> Result<u32, String> {
    let number = || given.parse().map_err(|_| "expected a level of 0 or more".to_owned());
    boolean(given).map(u32::from).or_else(|_| number()).map(|level: u32| level.min(MAX_VERBOSE_LEVEL))
}

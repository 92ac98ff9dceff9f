//! Replaces `tools` if that feature is off: its subcommands are known, and each reports why it is missing.

use std::ffi::OsString;

use clap::{Args, Subcommand};

#[derive(Debug, Subcommand)]
pub(super) enum Tool {
    #[command(hide = true)]
    Models(Anything),
    #[command(hide = true)]
    Bench(Anything),
    #[command(hide = true)]
    Timeline(Anything),
    #[command(hide = true)]
    Simulate(Anything),
    #[command(hide = true)]
    Top(Anything),
    #[command(hide = true)]
    Schema(Anything),
    #[command(hide = true)]
    Completions(Anything),
}

/// Accepts any arguments, `--help` included, since the subcommand is missing in every case.
#[derive(Debug, Args)]
#[command(disable_help_flag = true)]
pub(super) struct Anything {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    _words: Vec<OsString>,
}

impl Tool {
    pub(super) fn run(self) -> u8 {
        let name = match self {
            Self::Models(_) => "models",
            Self::Bench(_) => "bench",
            Self::Timeline(_) => "timeline",
            Self::Simulate(_) => "simulate",
            Self::Top(_) => "top",
            Self::Schema(_) => "schema",
            Self::Completions(_) => "completions",
        };
        eprintln!("error: this program was built without '{name}', which needs the cargo feature 'tools'");
        2
    }
}

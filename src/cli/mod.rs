//! The command line: one file a subcommand.

pub mod models;

use std::process::ExitCode;

/// Runs the command line of the current process.
pub fn main() -> ExitCode {
    ExitCode::SUCCESS
}

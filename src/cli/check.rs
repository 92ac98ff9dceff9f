//! `paternoster check`: loads the models of a repository as a server would, and says which cannot be served.

use std::{ffi::OsString, path::PathBuf};

use paternoster_config::CustomPolicies;

use super::{Command, FAILURE, parse, serve};

/// Load the models of a repository without serving them, and show which cannot be served and why
///
/// Configurations are read, completed and checked, and graphs are opened, as a server does that; no port is opened. The
/// exit status is 1 if a model cannot be served, or there is none.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Examples:
  paternoster check models
  paternoster check models --log-info=true --strict-model-config=true
  paternoster check models/e5")]
pub(super) struct CheckArgs {
    /// Directory of models, or of one model
    #[arg(value_name = "DIR")]
    repository: PathBuf,
    /// Flags of `paternoster serve`
    #[arg(value_name = "FLAG", trailing_var_arg = true, allow_hyphen_values = true)]
    flags: Vec<OsString>,
}

/// Runs the subcommand, prints to standard output, and returns the exit status.
pub(super) fn run(args: CheckArgs, custom_policies: CustomPolicies) -> u8 {
    let CheckArgs { repository, flags } = args;
    let words: [OsString; 6] = [
        "paternoster".into(),
        "serve".into(),
        // The result is what is printed.
        "--log-info=false".into(),
        "--log-error=false".into(),
        "--model-repository".into(),
        repository.into_os_string(),
    ];
    match parse(words.into_iter().chain(flags)) {
        Ok(Command::Serve(mut args)) => {
            args.grpc.allow_grpc = false;
            args.http.allow_http = false;
            args.http.allow_metrics = false;
            args.custom_policies = custom_policies;
            serve::check(&args)
        }
        Ok(_) => FAILURE,
        Err(error) => error.exit(),
    }
}

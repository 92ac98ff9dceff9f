//! The command line: one file per subcommand, and what they share.
//!
//! This module turns arguments into settings, and starts and stops the process. It must not contain anything that a
//! user of the library would need to serve models.

mod auto;
#[cfg(feature = "tools")]
pub mod bench;
mod check;
#[cfg(feature = "tools")]
mod completions;
mod cuda;
mod flags;
mod hooks;
#[cfg(feature = "text")]
mod import;
pub mod inspect;
mod limits;
pub mod model_args;
#[cfg(feature = "tools")]
pub mod models;
mod options;
mod pool;
pub mod profile;
mod ranges;
mod recording;
mod report;
#[cfg(feature = "tools")]
mod schema;
mod serve;
mod server;
#[cfg(feature = "tools")]
pub mod simulate;
pub mod slice;
mod table;
#[cfg(feature = "tools")]
pub mod timeline;
#[cfg_attr(not(feature = "tools"), path = "without_tools.rs")]
mod tools;
#[cfg(feature = "tools")]
mod top;
mod tritonserver;
mod version;

use std::{
    ffi::OsString,
    fmt::Display,
    io::{self, Write},
};

pub use auto::AutoArgs;
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand, error::ErrorKind};
pub use cuda::{CudaArgs, DeviceChoice};
pub use flags::{
    BackendSetting, CacheSetting, Compression, Conflict, ControlModeFlag, DeviceArgs, GrpcArgs, HttpArgs,
    IsolateModelLoad, LifeArgs, LogArgs, MetricsSetting, RateArgs, RateLimit, RepositoryArgs, ResourceFlag, ServeArgs,
    TraceArgs,
};
pub use limits::LimitArgs;
use paternoster_config::CustomPolicies;
use paternoster_engine::onnxruntime;
pub use recording::{RecordArgs, UnwritableTimeline};
pub use tritonserver::{IGNORED, Ignored};

/// Inference server whose batches let requests board and leave while they run
#[derive(Debug, Parser)]
#[command(name = "paternoster", version, arg_required_else_help = true, subcommand_required = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve the models of a repository over gRPC and HTTP, with tritonserver's flags
    Serve(Box<ServeArgs>),
    /// Show which models of a repository cannot be served, without serving
    Check(check::CheckArgs),
    /// Measure a model at all batch sizes and store the profile
    Profile(profile::ProfileArgs),
    /// Show where a model would be cut into stages
    Slice(slice::SliceArgs),
    /// Write a model directory from one of Hugging Face or sentence-transformers
    #[cfg(feature = "text")]
    Import(import::ImportArgs),
    /// Show what a model's operators become on a CUDA card
    Inspect(inspect::InspectArgs),
    /// Open one model that the server sends on standard input
    #[command(name = OPEN_ALONE, hide = true)]
    OpenAlone,
    #[command(flatten)]
    Tool(tools::Tool),
}

/// The subcommand with which the server runs itself to open a model in a separate process.
const OPEN_ALONE: &str = "open-alone";

/// Exit status of what succeeded.
const SUCCESS: u8 = 0;
/// Exit status of what failed, where nothing else is said.
const FAILURE: u8 = 1;

/// Runs the command line of the current process, and returns the status with which it should exit. Threads may still
/// run.
pub fn main() -> u8 {
    main_with(CustomPolicies::default())
}

/// Runs the command line of a server whose models may name policies of other crates: `serve` and `check` know them.
pub fn main_with(custom_policies: CustomPolicies) -> u8 {
    onnxruntime::refuse_telemetry();
    match parse(std::env::args_os()) {
        Ok(Command::Serve(args)) => serve::run(ServeArgs { custom_policies, ..*args }),
        Ok(Command::Check(args)) => check::run(args, custom_policies),
        Ok(Command::Profile(args)) => exit_status(profile::run(&args)),
        Ok(Command::Slice(args)) => exit_status(slice::run(&args)),
        #[cfg(feature = "text")]
        Ok(Command::Import(args)) => exit_status(import::run(&args)),
        Ok(Command::Inspect(args)) => exit_status(inspect::run(&args)),
        Ok(Command::Tool(tool)) => tool.run(),
        Ok(Command::OpenAlone) => paternoster_repository::open_alone(),
        Err(error) if error.kind() == ErrorKind::DisplayVersion => {
            exit_status(io::stdout().write_all(version::text().as_bytes()))
        }
        Err(error) => error.exit(),
    }
}

/// Converts a subcommand's result into an exit status, and prints the error if there is one.
fn exit_status(result: Result<(), impl Display>) -> u8 {
    match result {
        Ok(()) => SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            FAILURE
        }
    }
}

fn parse(words: impl IntoIterator<Item = OsString>) -> Result<Command, clap::Error> {
    let mut command = Cli::command().mut_subcommand("serve", tritonserver::accept);
    let matches = command.try_get_matches_from_mut(with_subcommand(words))?;
    let Cli { command: mut parsed } = Cli::from_arg_matches(&matches)?;
    if let (Command::Serve(args), Some((_, matches))) = (&mut parsed, matches.subcommand()) {
        args.ignored = tritonserver::given(matches);
        args.check().map_err(|conflict| command.error(ErrorKind::ArgumentConflict, conflict))?;
    }
    Ok(parsed)
}

/// Drops a leading `tritonserver`, and adds `serve` if the first argument is a flag.
fn with_subcommand(words: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    const OF_THE_PROGRAM: [&str; 4] = ["-h", "--help", "-V", "--version"];

    let mut words: Vec<OsString> = words.into_iter().collect();
    let in_place_of_triton = words.get(1).is_some_and(|word| word == "tritonserver");
    if in_place_of_triton {
        words.remove(1);
    }
    let is_flag = words.get(1).is_some_and(|word| word.as_encoded_bytes().starts_with(b"-"));
    let is_ours = words.get(1).is_some_and(|word| OF_THE_PROGRAM.iter().any(|flag| word == flag));
    if in_place_of_triton || (is_flag && !is_ours) {
        words.insert(1, "serve".into());
    }
    words
}

#[cfg(test)]
mod tests;

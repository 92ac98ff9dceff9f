//! Subcommands of the cargo feature `tools`, for development and measurement rather than for serving.

use clap::{CommandFactory, Subcommand};

use super::{Cli, bench, completions, exit_status, models, schema, simulate, timeline, top};

#[derive(Debug, Subcommand)]
pub(super) enum Tool {
    /// Write model directories with seed models, for examples, tests and benchmarks
    Models(models::ModelsArgs),
    /// Put load on a model and measure latencies, with several policies side by side
    Bench(Box<bench::BenchArgs>),
    /// Draw a recorded timeline
    Timeline(timeline::TimelineArgs),
    /// Simulate what policies would do on a device, or how many devices a load needs
    Simulate(Box<simulate::SimulateArgs>),
    /// Show a running server's models in the terminal
    Top(top::TopArgs),
    /// Print the JSON schema of model.yaml, for editors
    Schema(schema::SchemaArgs),
    /// Print shell completions for subcommands and flags
    Completions(completions::CompletionsArgs),
}

impl Tool {
    pub(super) fn run(self) -> u8 {
        match self {
            Self::Models(args) => exit_status(models::run(&args)),
            Self::Bench(args) => exit_status(bench::run(&args)),
            Self::Timeline(args) => exit_status(timeline::run(&args)),
            Self::Simulate(args) => exit_status(simulate::run(&args)),
            Self::Top(args) => exit_status(top::run(&args)),
            Self::Schema(args) => exit_status(schema::run(&args)),
            Self::Completions(args) => exit_status(completions::run(&args, Cli::command())),
        }
    }
}

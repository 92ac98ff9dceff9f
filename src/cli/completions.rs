//! `paternoster completions`: prints shell completions, generated from the flags.

use std::io::{self, Write};

use clap::{Args, Command};
use clap_complete::{Shell, generate};

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  paternoster completions bash > ~/.local/share/bash-completion/completions/paternoster
  paternoster completions zsh > ~/.zfunc/_paternoster
  paternoster completions fish > ~/.config/fish/completions/paternoster.fish")]
pub(super) struct CompletionsArgs {
    /// Shell to print the script for
    #[arg(value_name = "SHELL")]
    shell: Shell,
}

/// Prints the completion script of a shell.
///
/// # Errors
/// Fails if it cannot be written.
pub(super) fn run(args: &CompletionsArgs, mut command: Command) -> io::Result<()> {
    let name = command.get_name().to_owned();
    let mut script = Vec::new();
    generate(args.shell, &mut command, name, &mut script);
    io::stdout().lock().write_all(&script)
}

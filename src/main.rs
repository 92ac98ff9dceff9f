//! The `paternoster` binary: everything it does lives in the library's `cli`.

use std::process::ExitCode;

fn main() -> ExitCode {
    paternoster::cli::main()
}

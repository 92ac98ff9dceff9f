//! The `paternoster` binary: everything it does lives in the library's `cli`.

use std::process::ExitCode;

/// Gives the memory of large requests back soon after a burst and stays level under a steady one; the system's
/// allocator kept growing under 64 clients with requests of 4 MB (`docs/benchmarks/README.md`).
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    paternoster::cli::main()
}

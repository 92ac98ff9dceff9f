//! The `paternoster` binary: everything it does lives in the library's `cli`.

use std::io::{self, Write};

/// Gives the memory of large requests back soon after a burst and stays level under a steady one; the system's
/// allocator kept growing under 64 clients with requests of 4 MB (`docs/benchmarks/README.md`).
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() {
    let status = paternoster::cli::main();
    // A failure cannot be reported: standard output is where results go, and the status is already chosen.
    let _ = io::stdout().flush();
    // SAFETY: it ends the process at once. `exit` would first run the libraries' destructors, which destroy what
    // threads of models that are compiled or measured still use: the process then dies of a signal now and then.
    unsafe { libc::_exit(status.into()) }
}

//! `paternoster --version`: what a report of a fault should name.

use crate::engine::onnxruntime;

/// The commit that was built, where build.rs could tell.
const COMMIT: Option<&str> = option_env!("PATERNOSTER_COMMIT");

/// Name and version of the program, its commit, and the engine that `serve` would load.
pub(super) fn text() -> String {
    let (name, version) = (env!("CARGO_PKG_NAME"), env!("CARGO_PKG_VERSION"));
    let commit = COMMIT.unwrap_or("unknown");
    let tools = if cfg!(feature = "tools") { "with" } else { "without" };
    let engine = match onnxruntime::installed() {
        Ok((path, version)) => format!("{version}, {}", path.display()),
        Err(error) => format!("not found: {error}"),
    };
    format!("{name} {version}\ncommit: {commit}, {tools} tools\nONNX Runtime: {engine}\n")
}

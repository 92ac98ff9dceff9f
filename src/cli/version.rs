//! `paternoster --version`: what a bug report should contain.

use std::path::PathBuf;

use crate::engine::{LibraryError, onnxruntime, openvino};

/// The commit that was built, if build.rs could determine it.
const COMMIT: Option<&str> = option_env!("PATERNOSTER_COMMIT");

/// Returns name and version of the program, its commit, and the engines that `serve` would load.
pub(super) fn text() -> String {
    let (name, version) = (env!("CARGO_PKG_NAME"), env!("CARGO_PKG_VERSION"));
    let commit = COMMIT.unwrap_or("unknown");
    let tools = if cfg!(feature = "tools") { "with" } else { "without" };
    let found = |installed: Result<(PathBuf, String), LibraryError>| match installed {
        Ok((path, version)) => format!("{version}, {}", path.display()),
        Err(error) => format!("not found: {error}"),
    };
    let (onnxruntime, openvino) = (found(onnxruntime::installed()), found(openvino::installed()));
    format!("{name} {version}\ncommit: {commit}, {tools} tools\nONNX Runtime: {onnxruntime}\nOpenVINO: {openvino}\n")
}

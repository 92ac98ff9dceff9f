//! `paternoster --version`: what a bug report should contain.

use std::path::PathBuf;

use paternoster_device::cuda::libraries::{self, LoadedLibrary};
use paternoster_engine::{LibraryError, onnxruntime, openvino};

/// The commit that was built, if build.rs could determine it.
const COMMIT: Option<&str> = option_env!("PATERNOSTER_COMMIT");

/// Returns name and version of the program, its commit, and the engines and libraries of CUDA that `serve` would load.
pub(super) fn text() -> String {
    let (name, version) = (env!("CARGO_PKG_NAME"), env!("CARGO_PKG_VERSION"));
    let commit = COMMIT.unwrap_or("unknown");
    let tools = if cfg!(feature = "tools") { "with" } else { "without" };
    let found = |installed: Result<(PathBuf, String), LibraryError>| match installed {
        Ok((path, version)) => format!("{version}, {}", path.display()),
        Err(error) => format!("not found: {error}"),
    };
    let (onnxruntime, openvino) = (found(onnxruntime::installed()), found(openvino::installed()));
    format!(
        "{name} {version}\ncommit: {commit}, {tools} tools\nONNX Runtime: {onnxruntime}\nOpenVINO: {openvino}\n{}",
        cuda()
    )
}

/// Returns a line for each of CUDA's libraries, or one that says why none is used.
fn cuda() -> String {
    let libraries = match libraries::open(None) {
        Ok(found) => found.libraries,
        Err(reason) => return format!("CUDA: not used: {reason}\n"),
    };
    let line = |library: Result<LoadedLibrary, libraries::Unusable>| match library {
        Ok(LoadedLibrary { library, version, path, .. }) => format!("{library}: {version}, {}\n", path.display()),
        Err(unusable) => format!("CUDA: {unusable}\n"),
    };
    libraries.into_iter().map(line).collect()
}

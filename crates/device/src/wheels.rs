//! Finds the shared libraries of Python wheels (CUDA and ONNX Runtime) in Python environments.
//!
//! A server installed by pip thus finds the libraries installed with it, without running Python.

use std::{
    env, fs,
    path::{Path, PathBuf},
};

/// Returns the environment that the running program is installed in: `PREFIX` for `PREFIX/bin/paternoster`.
pub fn own_environment() -> Option<PathBuf> {
    environment_of(&env::current_exe().ok()?)
}

/// Returns the environment that a program is installed in.
pub fn environment_of(program: &Path) -> Option<PathBuf> {
    let folder = program.parent()?;
    if folder.file_name()? != "bin" { None } else { folder.parent().map(Path::to_owned) }
}

/// Returns the environments in use: the program's own, the active one, the user's and the system's.
pub fn environments() -> Vec<PathBuf> {
    let active = ["VIRTUAL_ENV", "CONDA_PREFIX"].into_iter().filter_map(env::var_os).map(PathBuf::from);
    let users = env::home_dir().map(|home| home.join(".local"));
    own_environment().into_iter().chain(active).chain(users).chain(["/usr/local", "/usr"].map(PathBuf::from)).collect()
}

/// Returns the directories of an environment's packages, for every Python version in it.
pub fn packages(environment: &Path) -> Vec<PathBuf> {
    let libraries = ["lib", "lib64"].map(|name| environment.join(name));
    let pythons = libraries.iter().flat_map(|folder| entries(folder));
    let pythons = pythons.filter(|path| file_name(path).starts_with("python"));
    pythons.flat_map(|python| ["site-packages", "dist-packages"].map(|name| python.join(name))).collect()
}

/// Returns the library with this name in a directory, with or without a version suffix; the shortest match if there are
/// several.
pub fn library(folder: &Path, name: &str) -> Option<PathBuf> {
    let is_it = |path: &PathBuf| {
        file_name(path).strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    };
    entries(folder).into_iter().filter(is_it).min_by_key(|path| file_name(path).len())
}

/// Returns the entries of a directory, sorted by name; empty if it cannot be read.
pub fn entries(folder: &Path) -> Vec<PathBuf> {
    let mut entries: Vec<PathBuf> =
        fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    entries.sort_unstable();
    entries
}

fn file_name(path: &Path) -> String {
    path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_outside_of_a_bin_folder_is_in_no_environment() {
        assert_eq!(environment_of(Path::new("/opt/venv/bin/paternoster")), Some(PathBuf::from("/opt/venv")));
        assert_eq!(environment_of(Path::new("/src/target/release/paternoster")), None);
        assert_eq!(environment_of(Path::new("paternoster")), None);
    }

    #[test]
    fn packages_lie_in_folders_of_each_python() {
        let root = tempfile::tempdir().expect("a folder");
        for folder in ["lib/python3.11", "lib/python3.12", "lib/systemd", "lib64/python3.12"] {
            fs::create_dir_all(root.path().join(folder)).expect("the folder can be made");
        }
        let expected = ["lib/python3.11", "lib/python3.12", "lib64/python3.12"];
        let expected = expected.iter().flat_map(|python| ["site-packages", "dist-packages"].map(|name| (python, name)));
        let expected: Vec<PathBuf> = expected.map(|(python, name)| root.path().join(python).join(name)).collect();
        assert_eq!(packages(root.path()), expected);
        assert_eq!(packages(&root.path().join("missing")), [] as [PathBuf; 0]);
    }

    #[test]
    fn a_library_goes_by_its_version() {
        let folder = tempfile::tempdir().expect("a folder");
        let touch = |name: &str| fs::write(folder.path().join(name), b"no library").expect("the file can be written");
        ["libnvrtc.so.12", "libnvrtc.so.130", "libnvrtc.so.13.0.88"].iter().for_each(|name| touch(name));
        assert_eq!(library(folder.path(), "libnvrtc.so.13"), Some(folder.path().join("libnvrtc.so.13.0.88")));
        touch("libnvrtc.so.13");
        assert_eq!(library(folder.path(), "libnvrtc.so.13"), Some(folder.path().join("libnvrtc.so.13")));
        assert_eq!(library(folder.path(), "libnvrtc-builtins.so.13"), None);
    }
}

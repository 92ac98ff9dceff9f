//! Where CUDA's libraries are: the driver's own is the system's; NVRTC, cuBLASLt and cuDNN are often Python wheels.

use std::{
    env, fs,
    path::{Path, PathBuf},
    sync::Mutex,
};

use libloading::Library;

/// Libraries by the start of their names, each before what needs it: NVRTC opens its builtins by name and does not say
/// where they are.
const PRELOADED: [&str; 4] = ["libnvrtc-builtins.so.13", "libnvrtc.so.13", "libcublasLt.so.13", "libcudnn.so.9"];

/// Loaded libraries stay so: what follows finds them by their names.
static LOADED: Mutex<Vec<Library>> = Mutex::new(Vec::new());

/// What was found of CUDA's libraries.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// Those that were loaded, in order.
    pub loaded: Vec<PathBuf>,
    /// Those that were found and could not be loaded, with the loader's words.
    pub broken: Vec<(PathBuf, String)>,
}

/// Loads the libraries that lie in `folder`, else in the wheels of the Python environments in use. What is in neither
/// is left to the system's loader.
pub fn preload(folder: Option<&Path>) -> Found {
    let folders: Vec<PathBuf> = match folder {
        Some(folder) => vec![folder.to_owned()],
        None => wheels(&environments()),
    };
    let mut found = Found::default();
    for name in PRELOADED {
        let Some(path) = folders.iter().find_map(|folder| named(folder, name)) else { continue };
        #[expect(unsafe_code, reason = "the library's initialisers run")]
        // SAFETY: the path is of one of CUDA's libraries, in a place that whoever runs the server has put them.
        let opened = unsafe { Library::new(&path) };
        match opened {
            Ok(library) => {
                LOADED.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(library);
                found.loaded.push(path);
            }
            Err(error) => found.broken.push((path, error.to_string())),
        }
    }
    found
}

/// The Python environments in use: the active one's, and the users' and the system's.
fn environments() -> Vec<PathBuf> {
    let active = ["VIRTUAL_ENV", "CONDA_PREFIX"].into_iter().filter_map(env::var_os).map(PathBuf::from);
    let own = env::home_dir().map(|home| home.join(".local"));
    active.chain(own).chain(["/usr/local", "/usr"].map(PathBuf::from)).collect()
}

/// Folders of libraries in the wheels of these environments: `nvidia/*/lib`, of every `site-packages`.
fn wheels(environments: &[PathBuf]) -> Vec<PathBuf> {
    let pythons = environments.iter().flat_map(|environment| entries(&environment.join("lib")));
    let pythons = pythons.filter(|path| file_name(path).starts_with("python"));
    let packages = pythons.flat_map(|python| ["site-packages", "dist-packages"].map(|name| python.join(name)));
    packages.flat_map(|packages| entries(&packages.join("nvidia"))).map(|wheel| wheel.join("lib")).collect()
}

/// The library in a folder whose name begins so, the shortest of several.
fn named(folder: &Path, start: &str) -> Option<PathBuf> {
    let is_it = |path: &PathBuf| {
        file_name(path).strip_prefix(start).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    };
    entries(folder).into_iter().filter(is_it).min_by_key(|path| file_name(path).len())
}

fn file_name(path: &Path) -> String {
    path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

/// The entries of a folder, in the order of their names; none where it cannot be read.
fn entries(folder: &Path) -> Vec<PathBuf> {
    let mut entries: Vec<PathBuf> =
        fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    entries.sort_unstable();
    entries
}

#[cfg(test)]
mod tests {
    use super::*;

    fn touch(path: &Path) {
        fs::create_dir_all(path.parent().expect("it is in a folder")).expect("the folder can be made");
        fs::write(path, b"no library").expect("the file can be written");
    }

    #[test]
    fn libraries_of_wheels_are_found_in_every_folder_of_their_package() {
        let root = tempfile::tempdir().expect("a folder");
        let packages = root.path().join("lib/python3.12/site-packages/nvidia");
        touch(&packages.join("cu13/lib/libnvrtc.so.13"));
        touch(&packages.join("cudnn/lib/libcudnn.so.9"));
        let folders = wheels(&[root.path().to_owned()]);
        assert_eq!(folders, [packages.join("cu13/lib"), packages.join("cudnn/lib")]);
    }

    #[test]
    fn a_library_goes_by_its_version() {
        let folder = tempfile::tempdir().expect("a folder");
        for name in ["libnvrtc.so.12", "libnvrtc.so.130", "libnvrtc.so.13.0.88"] {
            touch(&folder.path().join(name));
        }
        assert_eq!(named(folder.path(), "libnvrtc.so.13"), Some(folder.path().join("libnvrtc.so.13.0.88")));
        touch(&folder.path().join("libnvrtc.so.13"));
        assert_eq!(named(folder.path(), "libnvrtc.so.13"), Some(folder.path().join("libnvrtc.so.13")));
    }

    #[test]
    fn a_library_that_cannot_be_loaded_is_named_with_the_loaders_words() {
        let folder = tempfile::tempdir().expect("a folder");
        touch(&folder.path().join("libcudnn.so.9"));
        let found = preload(Some(folder.path()));
        assert_eq!(found.loaded, [] as [PathBuf; 0]);
        let [(path, reason)] = &found.broken[..] else { panic!("{found:?}") };
        assert_eq!(path, &folder.path().join("libcudnn.so.9"));
        assert!(!reason.is_empty());
    }

    #[test]
    fn a_folder_without_libraries_leaves_all_to_the_system() {
        let folder = tempfile::tempdir().expect("a folder");
        assert_eq!(preload(Some(folder.path())), Found::default());
        assert_eq!(preload(Some(&folder.path().join("missing"))), Found::default());
    }
}

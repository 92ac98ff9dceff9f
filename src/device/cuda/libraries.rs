//! Finds and loads CUDA's libraries. The driver's library is the system's; NVRTC, cuBLASLt and cuDNN often come as
//! Python wheels.

use std::path::{Path, PathBuf};

use libloading::Library;
use parking_lot::Mutex;

use crate::wheels;

/// The libraries, by the start of their file names. Each is loaded before those that need it: NVRTC opens its builtins
/// by name alone, so they must be loaded already.
const PRELOADED: [&str; 4] = ["libnvrtc-builtins.so.13", "libnvrtc.so.13", "libcublasLt.so.13", "libcudnn.so.9"];

/// Keeps libraries loaded, so that later opens by name find them.
static LOADED: Mutex<Vec<Library>> = Mutex::new(Vec::new());

/// Which of CUDA's libraries were found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// Libraries that were loaded, in order.
    pub loaded: Vec<PathBuf>,
    /// Libraries that were found but could not be loaded, with the loader's error.
    pub broken: Vec<(PathBuf, String)>,
}

/// Loads the libraries found in `folder` or, without a folder, in the wheels of the active Python environments. The
/// rest is left to the system's loader.
pub fn preload(folder: Option<&Path>) -> Found {
    let folders: Vec<PathBuf> = match folder {
        Some(folder) => vec![folder.to_owned()],
        None => wheel_folders(&wheels::environments()),
    };
    let mut found = Found::default();
    for name in PRELOADED {
        let Some(path) = folders.iter().find_map(|folder| wheels::library(folder, name)) else { continue };
        #[expect(unsafe_code, reason = "the library's initialisers run")]
        // SAFETY: the path names one of CUDA's libraries, installed by the operator of the server.
        let opened = unsafe { Library::new(&path) };
        match opened {
            Ok(library) => {
                LOADED.lock().push(library);
                found.loaded.push(path);
            }
            Err(error) => found.broken.push((path, error.to_string())),
        }
    }
    found
}

/// Returns the library folders in the wheels of these environments: `nvidia/*/lib` of all packages.
fn wheel_folders(environments: &[PathBuf]) -> Vec<PathBuf> {
    let packages = environments.iter().flat_map(|environment| wheels::packages(environment));
    packages.flat_map(|packages| wheels::entries(&packages.join("nvidia"))).map(|wheel| wheel.join("lib")).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;

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
        let found = wheel_folders(&[root.path().to_owned()]);
        assert_eq!(found, [packages.join("cu13/lib"), packages.join("cudnn/lib")]);
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

//! Loads libraries from a directory or from wheels, so that later opens by name find them.

use std::path::{Path, PathBuf};

use libloading::Library;
use parking_lot::Mutex;

use super::{CudaLibrary, CudaVersion, MAJORS};
use crate::wheels::{self as wheels};

/// NVRTC opens its builtins by name alone, so they must be loaded already.
const BUILTINS: &str = "libnvrtc-builtins.so.";
/// cuDNN's file, whose number is not that of the toolkit.
const CUDNN: &str = "libcudnn.so.9";

/// Keeps libraries loaded, so that later opens by name find them.
static LOADED: Mutex<Vec<Library>> = Mutex::new(Vec::new());

/// A library that was loaded from a directory or a wheel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Chosen {
    pub(super) library: CudaLibrary,
    /// Major version of its toolkit.
    pub(super) major: u32,
    pub(super) path: PathBuf,
}

/// Which of CUDA's libraries were found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Found {
    /// Libraries that were loaded, without those that only others open.
    pub(super) loaded: Vec<Chosen>,
    /// Libraries that were found but could not be loaded, with the loader's error.
    pub(super) broken: Vec<(PathBuf, String)>,
}

/// Loads the libraries found in `folder` or, without a folder, in the wheels of the active Python environments: those
/// of one toolkit, which the driver supports. The rest is left to the system's loader.
pub(super) fn preload(folder: Option<&Path>, driver: CudaVersion) -> Found {
    let folders: Vec<PathBuf> = match folder {
        Some(folder) => vec![folder.to_owned()],
        None => wheel_folders(&wheels::environments()),
    };
    let may_leave = |major| folder.is_none() && loader_has(major);
    let major = toolkit(&folders, driver, may_leave);
    let numbered = |start: &str| major.map(|major| format!("{start}{major}"));
    let names = [
        (None, numbered(BUILTINS)),
        (Some(CudaLibrary::Nvrtc), numbered(CudaLibrary::Nvrtc.file())),
        (Some(CudaLibrary::CublasLt), numbered(CudaLibrary::CublasLt.file())),
        (None, Some(CUDNN.to_owned())),
    ];
    let mut found = Found::default();
    for (library, name) in names {
        let Some(path) = name.and_then(|name| in_folders(&folders, &name)) else { continue };
        #[expect(unsafe_code, reason = "the library's initialisers run")]
        // SAFETY: the path names one of CUDA's libraries, installed by the operator of the server.
        let opened = unsafe { Library::new(&path) };
        match opened {
            Ok(opened) => {
                LOADED.lock().push(opened);
                found.loaded.extend(library.zip(major).map(|(library, major)| Chosen { library, major, path }));
            }
            Err(error) => found.broken.push((path, error.to_string())),
        }
    }
    found
}

/// Chooses the toolkit of NVRTC and cuBLASLt, by its major version: the preferred one that the driver supports and that
/// has both of them in these folders or, if `may_leave` says so, in the loader's path. `None` if the folders have
/// neither of any.
fn toolkit(folders: &[PathBuf], driver: CudaVersion, may_leave: impl Fn(u32) -> bool) -> Option<u32> {
    let supported = || MAJORS.into_iter().filter(|&major| major <= driver.major);
    let has = |library: CudaLibrary, major| in_folders(folders, &format!("{}{major}", library.file())).is_some();
    let has_both = |major| has(CudaLibrary::Nvrtc, major) && has(CudaLibrary::CublasLt, major);
    let has_one = |major| has(CudaLibrary::Nvrtc, major) || has(CudaLibrary::CublasLt, major);
    supported().find(|&major| has_both(major) || may_leave(major)).or_else(|| supported().find(|&major| has_one(major)))
}

/// Returns whether the system's loader finds NVRTC and cuBLASLt of a toolkit.
fn loader_has(major: u32) -> bool {
    [CudaLibrary::Nvrtc, CudaLibrary::CublasLt].iter().all(|library| {
        #[expect(unsafe_code, reason = "the library's initialisers run")]
        // SAFETY: the name is that of one of CUDA's libraries, installed by the operator of the server.
        let opened = unsafe { Library::new(format!("{}{major}", library.file())) };
        opened.is_ok()
    })
}

fn in_folders(folders: &[PathBuf], name: &str) -> Option<PathBuf> {
    folders.iter().find_map(|folder| wheels::library(folder, name))
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

    const DRIVER_12: CudaVersion = CudaVersion { major: 12, minor: 8 };
    const DRIVER_13: CudaVersion = CudaVersion { major: 13, minor: 0 };

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
        let found = preload(Some(folder.path()), DRIVER_13);
        assert_eq!(found.loaded, [] as [Chosen; 0]);
        let [(path, reason)] = &found.broken[..] else { panic!("{found:?}") };
        assert_eq!(path, &folder.path().join("libcudnn.so.9"));
        assert!(!reason.is_empty());
    }

    #[test]
    fn a_folder_without_libraries_leaves_all_to_the_system() {
        let folder = tempfile::tempdir().expect("a folder");
        assert_eq!(preload(Some(folder.path()), DRIVER_13), Found::default());
        assert_eq!(preload(Some(&folder.path().join("missing")), DRIVER_13), Found::default());
    }

    #[test]
    fn one_toolkit_is_chosen_that_the_driver_supports() {
        let root = tempfile::tempdir().expect("a folder");
        let [older, newer, half] = ["older", "newer", "half"].map(|name| root.path().join(name));
        for name in ["nvrtc", "cublasLt"] {
            touch(&older.join(format!("lib{name}.so.12")));
            touch(&newer.join(format!("lib{name}.so.13")));
        }
        touch(&half.join("libnvrtc.so.13"));
        let never = |_| false;
        let both = [older.clone(), newer];
        assert_eq!(toolkit(&both, DRIVER_13, never), Some(13));
        assert_eq!(toolkit(&both, DRIVER_12, never), Some(12));
        // A complete toolkit is better than half of a later one.
        let mixed = [half.clone(), older.clone()];
        assert_eq!(toolkit(&mixed, DRIVER_13, never), Some(12));
        assert_eq!(toolkit(&mixed, DRIVER_13, |major| major == 13), Some(13));
        assert_eq!(toolkit(&[half], DRIVER_13, never), Some(13));
        assert_eq!(toolkit(&[root.path().to_owned()], DRIVER_13, never), None);
        // The driver does not support what the folder has.
        assert_eq!(toolkit(&both[1..], DRIVER_12, never), None);
    }
}

//! Finds the shared libraries of engines.

use std::{
    env,
    path::{Path, PathBuf},
};

use paternoster_device::wheels;

/// A library that a user installs beside the server.
#[derive(Debug, PartialEq, Eq)]
pub struct EngineLibrary {
    /// Its name in messages.
    pub(super) name: &'static str,
    /// Its file name, without a version.
    pub(super) file: &'static str,
    /// The flag that sets its path.
    pub(super) flag: &'static str,
    /// The environment variable that sets its path.
    pub(super) variable: &'static str,
    /// Its directory among the packages of a Python environment.
    pub(super) in_wheel: &'static str,
}

/// Why an engine is not available.
#[derive(Clone, Debug, thiserror::Error)]
pub enum LibraryError {
    /// A path was given, but nothing is there.
    #[error("{} library '{path}' (from {origin}) does not exist", library.name)]
    Missing {
        /// The library.
        library: &'static EngineLibrary,
        /// The path.
        path: PathBuf,
        /// The flag or variable that set it.
        origin: &'static str,
    },
    /// The library could not be loaded.
    #[error(
        "cannot load {} from '{path}': {reason}; give its path with {} or {}",
        library.name, library.flag, library.variable
    )]
    Load {
        /// The library.
        library: &'static EngineLibrary,
        /// The path or bare name that was tried.
        path: PathBuf,
        /// The loader's message.
        reason: String,
    },
    /// The library was loaded but could not be initialized.
    #[error("cannot set up {}: {reason}", library.name)]
    Setup {
        /// The library.
        library: &'static EngineLibrary,
        /// The library's message.
        reason: String,
    },
}

impl EngineLibrary {
    /// Returns the library's path: the one given, else that in its variable, else where it is installed with the
    /// executable. If it is in none of these places, returns the bare name, which the dynamic loader searches in the
    /// system's paths.
    ///
    /// # Errors
    /// Fails if flag or variable set a path and nothing is there.
    pub(super) fn find(&'static self, given: Option<&Path>) -> Result<PathBuf, LibraryError> {
        let variable = env::var_os(self.variable).filter(|value| !value.is_empty()).map(PathBuf::from);
        let named =
            given.map(|path| (path.to_path_buf(), self.flag)).or_else(|| variable.map(|path| (path, self.variable)));
        if let Some((path, origin)) = named {
            let path =
                if path.is_dir() { wheels::library(&path, self.file).unwrap_or(path.join(self.file)) } else { path };
            return if path.exists() { Ok(path) } else { Err(LibraryError::Missing { library: self, path, origin }) };
        }
        let installed = env::current_exe().ok().and_then(|program| self.installed_with(&program));
        Ok(installed.unwrap_or_else(|| PathBuf::from(self.file)))
    }

    /// Returns the library installed with an executable: beside it, as the build places it; in `lib/paternoster`, as
    /// the Debian package does; or in the wheel that pip installed into the same environment.
    fn installed_with(&self, program: &Path) -> Option<PathBuf> {
        let beside = program.parent()?.join(self.file);
        if beside.exists() {
            return Some(beside);
        }
        let environment = wheels::environment_of(program)?;
        let carried = environment.join("lib/paternoster").join(self.file);
        if carried.exists() {
            return Some(carried);
        }
        let packages = wheels::packages(&environment);
        packages.iter().find_map(|packages| wheels::library(&packages.join(self.in_wheel), self.file))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    static ENGINE: EngineLibrary = EngineLibrary {
        name: "Engine",
        file: "libengine.so",
        flag: "--engine-library",
        variable: "PATERNOSTER_TEST_NO_SUCH_VARIABLE",
        in_wheel: "engine/capi",
    };

    fn touch(path: &Path) {
        fs::create_dir_all(path.parent().expect("it is in a folder")).expect("the folder can be made");
        fs::write(path, b"no library").expect("the file can be written");
    }

    #[test]
    fn the_library_that_came_with_the_program_is_found_nearest_first() {
        let root = tempfile::tempdir().expect("a folder");
        let program = root.path().join("bin/paternoster");
        let installed_with = |program: &Path| ENGINE.installed_with(program);
        assert_eq!(installed_with(&program), None);

        let capi = root.path().join("lib/python3.12/site-packages/engine/capi");
        touch(&capi.join("libengine_plugins.so"));
        assert_eq!(installed_with(&program), None, "the wheel's other libraries are none");
        for file in ["bin/libengine.so", "lib/paternoster/libengine.so"] {
            touch(&root.path().join(file));
        }
        let of_the_wheel = capi.join("libengine.so.1.32.0");
        touch(&of_the_wheel);
        for nearest in ["bin/libengine.so", "lib/paternoster/libengine.so"] {
            let nearest = root.path().join(nearest);
            assert_eq!(installed_with(&program).as_ref(), Some(&nearest));
            fs::remove_file(nearest).expect("the file can be removed");
        }
        assert_eq!(installed_with(&program), Some(of_the_wheel));
        assert_eq!(installed_with(&root.path().join("build/paternoster")), None, "outside of bin there is no prefix");
    }

    #[test]
    fn a_given_folder_stands_for_the_library_in_it() {
        let root = tempfile::tempdir().expect("a folder");
        let missing = ENGINE.find(Some(root.path())).expect_err("the folder is empty").to_string();
        let path = root.path().join("libengine.so");
        let expected = format!("Engine library '{}' (from --engine-library) does not exist", path.display());
        assert_eq!(missing, expected);
        let versioned = root.path().join("libengine.so.2641");
        touch(&versioned);
        assert_eq!(ENGINE.find(Some(root.path())).expect("it is there"), versioned);
        touch(&path);
        assert_eq!(ENGINE.find(Some(root.path())).expect("it is there"), path);
    }
}

//! The OpenVINO library, which is loaded when the first model needs it.

use std::{
    ffi::CStr,
    fmt,
    path::{Path, PathBuf},
    ptr,
    sync::{Arc, OnceLock},
};

use libloading::Library;
use tracing::info;

use super::{
    api::{self, Api},
    core::Core,
    graph::CompiledGraph,
    tensor,
};
use crate::{
    EngineError, available_cores,
    library::{EngineLibrary, LibraryError},
    reclaim::Reclaimer,
    running::RunsInProgress,
    sessions::Sessions,
};

/// Where the library is searched. It loads further libraries from its own directory.
static LIBRARY: EngineLibrary = EngineLibrary {
    name: "OpenVINO",
    file: "libopenvino_c.so",
    flag: "--openvino-library",
    variable: "OPENVINO_DYLIB_PATH",
    in_wheel: "openvino/libs",
};

/// Oldest supported version. Before it, element types are numbered differently.
const OLDEST: (u32, u32) = (2025, 1);

/// Options of OpenVINO.
#[derive(Clone, Debug, Default)]
pub struct OpenVinoOptions {
    /// Path of the library or of its directory. `None` searches `OPENVINO_DYLIB_PATH`, then the places where it is
    /// installed with the executable (beside it, in `lib/paternoster`, or in the wheel of its Python environment), then
    /// the system's paths.
    pub library: Option<PathBuf>,
    /// Threads that one run may use; 0 uses one per core.
    pub threads: usize,
    /// Runs that take place at the same time: the lanes of the CPU.
    pub lanes: usize,
}

/// OpenVINO, loaded on first use. Clones share it.
#[derive(Clone, Default)]
pub struct OpenVino(Arc<Shared>);

#[derive(Default)]
struct Shared {
    options: OpenVinoOptions,
    loaded: OnceLock<Result<Loaded, LibraryError>>,
}

/// The loaded library.
pub(super) struct Loaded {
    pub(super) core: Arc<Core>,
    /// The compiled graphs of existing programs.
    pub(super) graphs: Sessions<CompiledGraph>,
    pub(super) running: Arc<RunsInProgress>,
    _reclaimer: Reclaimer,
    path: PathBuf,
    version: String,
    /// Precisions for which the plugin reports hardware support, such as `BF16` and `FP32`.
    capabilities: Vec<String>,
}

impl OpenVino {
    /// Creates the engine without loading the library.
    pub fn new(options: OpenVinoOptions) -> Self {
        Self(Arc::new(Shared { options, loaded: OnceLock::new() }))
    }

    /// Loads the library unless that has already been tried.
    ///
    /// # Errors
    /// Fails if the library is not found, too old or not usable. The message says where it was searched.
    pub fn load(&self) -> Result<(), EngineError> {
        self.loaded().map(drop)
    }

    /// Loads the library if needed, and returns its path and build description.
    ///
    /// # Errors
    /// As [`Self::load`].
    pub fn description(&self) -> Result<(&Path, &str), EngineError> {
        self.loaded().map(|loaded| (loaded.path.as_path(), loaded.version.as_str()))
    }

    /// Returns whether the processor has hardware support for `capability`, such as `BF16` or `FP16`. Without it,
    /// OpenVINO computes in fp32.
    ///
    /// # Errors
    /// As [`Self::load`].
    pub fn computes_in(&self, capability: &str) -> Result<bool, EngineError> {
        Ok(self.loaded()?.capabilities.iter().any(|known| known == capability))
    }

    /// Returns the number of threads that one run may use.
    pub fn threads(&self) -> usize {
        if self.0.options.threads == 0 { available_cores() } else { self.0.options.threads }
    }

    /// Returns the number of runs that take place at the same time.
    pub(super) fn lanes(&self) -> usize {
        self.0.options.lanes
    }

    /// Returns the library's path as given in the options.
    pub fn given_library(&self) -> Option<&Path> {
        self.0.options.library.as_deref()
    }

    pub(super) fn loaded(&self) -> Result<&Loaded, EngineError> {
        let loaded = self.0.loaded.get_or_init(|| {
            let loaded = Loaded::load(&self.0.options);
            if let Ok(Loaded { path, version, capabilities, .. }) = &loaded {
                let precisions = capabilities.join(", ");
                info!(library = %path.display(), version, precisions, "OpenVINO is loaded");
            }
            loaded
        });
        loaded.as_ref().map_err(|error| EngineError::missing(error.to_string()))
    }
}

impl fmt::Debug for OpenVino {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("OpenVino").field("options", &self.0.options).finish_non_exhaustive()
    }
}

impl Loaded {
    fn load(options: &OpenVinoOptions) -> Result<Self, LibraryError> {
        let (path, api) = open(options.library.as_deref())?;
        let version = version(api).map_err(|error| unset(error.message))?;
        if !is_new_enough(&version) {
            let (year, minor) = OLDEST;
            return Err(unset(format!("'{}' is {version}, expected {year}.{minor} or later", path.display())));
        }
        tensor::check_types(api).map_err(|reason| unset(format!("'{}': {reason}", path.display())))?;
        let core = Core::new(api).map_err(|error| unset(error.message))?;
        let capabilities = core.property(c"OPTIMIZATION_CAPABILITIES").map_err(|error| unset(error.message))?;
        let running = Arc::default();
        Ok(Self {
            core: Arc::new(core),
            graphs: Sessions::default(),
            _reclaimer: Reclaimer::start(Arc::clone(&running), || ()),
            running,
            path,
            version,
            capabilities: capabilities.split([' ', ',']).filter(|word| !word.is_empty()).map(str::to_owned).collect(),
        })
    }
}

/// Returns the path and version of the library that is loaded if no path is given. Does not initialize it.
///
/// # Errors
/// Fails if no library is found, or it is not OpenVINO.
pub fn installed() -> Result<(PathBuf, String), LibraryError> {
    let (path, api) = open(None)?;
    let version = version(api).map_err(|error| unset(error.message))?;
    Ok((path, version))
}

fn unset(reason: String) -> LibraryError {
    LibraryError::Setup { library: &LIBRARY, reason }
}

/// Loads the library permanently: its threads may run its code until the process ends.
fn open(given: Option<&Path>) -> Result<(PathBuf, &'static Api), LibraryError> {
    let path = LIBRARY.find(given)?;
    let is_bare = path.parent().is_none_or(|parent| parent.as_os_str().is_empty());
    let unusable = |reason: String| {
        let searched = "; it is neither beside the program nor in ../lib/paternoster nor, as wheel 'openvino', in \
                        the program's Python environment";
        let reason = if is_bare { reason + searched } else { reason };
        LibraryError::Load { library: &LIBRARY, path: path.clone(), reason }
    };
    // SAFETY: its initializers are those of an engine that the user installed for this purpose.
    let library = unsafe { Library::new(&path) }.map_err(|error| unusable(error.to_string()))?;
    let library: &'static Library = Box::leak(Box::new(library));
    // SAFETY: it has the file name of OpenVINO's C API, and is never unloaded.
    let api = unsafe { Api::of(library) }.map_err(unusable)?;
    Ok((path, Box::leak(Box::new(api))))
}

fn version(api: &'static Api) -> Result<String, EngineError> {
    let mut version = api::Version { build_number: ptr::null(), description: ptr::null() };
    // SAFETY: the strings that the call fills in are copied and freed once.
    unsafe {
        api.check((api.ov_get_openvino_version)(&mut version))?;
        let number = if version.build_number.is_null() {
            String::new()
        } else {
            CStr::from_ptr(version.build_number).to_string_lossy().into_owned()
        };
        (api.ov_version_free)(&mut version);
        Ok(number)
    }
}

/// Returns whether a version such as `2026.4.1-22982-e213a147257` numbers element types as this module does.
fn is_new_enough(version: &str) -> bool {
    let mut parts = version.split(['.', '-']).map(str::parse::<u32>);
    match (parts.next(), parts.next()) {
        (Some(Ok(year)), Some(Ok(minor))) => (year, minor) >= OLDEST,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn versions_are_compared_by_year_and_number() {
        for new in ["2025.1.0-18503-6fec06580ab", "2026.0.0", "2025.10"] {
            assert!(is_new_enough(new), "{new}");
        }
        for old in ["2025.0.0-17942-1f68be9f594", "2024.6.0", "", "custom", "2025"] {
            assert!(!is_new_enough(old), "{old}");
        }
    }

    #[test]
    fn a_library_that_is_not_there_or_another_is_refused_by_its_path() {
        let load = |path: &Path| {
            let options = OpenVinoOptions { library: Some(path.to_owned()), threads: 1, lanes: 1 };
            OpenVino::new(options).load().expect_err("there is no OpenVINO").message
        };
        let missing = load(Path::new("/no/such.so"));
        assert_eq!(missing, "OpenVINO library '/no/such.so' (from --openvino-library) does not exist");
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("libopenvino_c.so");
        fs::write(&file, b"no library").expect("the file can be written");
        let refused = load(&file);
        assert!(refused.starts_with(&format!("cannot load OpenVINO from '{}': ", file.display())), "{refused}");
        assert!(refused.ends_with("; give its path with --openvino-library or OPENVINO_DYLIB_PATH"), "{refused}");
    }
}

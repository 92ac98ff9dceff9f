//! The ONNX Runtime library and its one environment per process.

use std::{
    env,
    ffi::CStr,
    path::{Path, PathBuf},
    sync::Arc,
};

use libloading::Library;
use ort::{
    environment::{Environment, GlobalThreadPoolOptions},
    logging::LogLevel,
    sys::OrtApiBase,
};

use super::{arena::Arena, sessions::Sessions, weights::CompiledGraph};
use crate::wheels;

/// File name of the library.
const LIBRARY: &str = "libonnxruntime.so";
/// Names an environment variable that holds the library's path.
const PATH_VARIABLE: &str = "ORT_DYLIB_PATH";
/// Names an environment variable that keeps ONNX Runtime from sending telemetry.
const TELEMETRY_VARIABLE: &str = "ORT_DISABLE_TELEMETRY";

/// How the runtime is set up.
#[derive(Clone, Debug, Default)]
pub struct RuntimeOptions {
    /// The library's path; absent: searched in `ORT_DYLIB_PATH`, where it is installed with the executable (beside it,
    /// in `lib/paternoster` or in the wheel of its Python environment), then in the system's paths.
    pub library: Option<PathBuf>,
    /// Threads that one run may use, shared by all sessions; 0: as many as there are cores.
    pub threads: usize,
    /// Most bytes that the tensors of all models may take, weights included: a run that would need more fails. 0:
    /// without a limit.
    pub max_memory_bytes: usize,
}

/// The loaded library with its environment and thread pool.
#[derive(Clone, Debug)]
pub struct Runtime {
    environment: Environment,
    sessions: Arc<Sessions<CompiledGraph>>,
    path: PathBuf,
    threads: usize,
    arena: Option<Arc<Arena>>,
}

/// Why ONNX Runtime is not available.
#[derive(Debug, thiserror::Error)]
pub enum LibraryError {
    /// A path was given and nothing is there.
    #[error("ONNX Runtime library '{path}' (from {origin}) does not exist")]
    Missing {
        /// The path.
        path: PathBuf,
        /// Flag or variable that gave it.
        origin: &'static str,
    },
    /// The library could not be loaded.
    #[error(
        "cannot load ONNX Runtime from '{path}': {reason}; give its path with --onnxruntime-library or {PATH_VARIABLE}"
    )]
    Load {
        /// The path or bare name that was tried.
        path: PathBuf,
        /// The loader's message.
        reason: String,
    },
    /// The library was loaded but not set up.
    #[error("cannot set up ONNX Runtime: {0}")]
    Setup(String),
}

/// Keeps ONNX Runtime from sending telemetry and from keeping a device's identity in the user's home. From version 1.29
/// on its official libraries do both, unless a variable says otherwise when they are set up. The switch in the
/// interface comes too late for that. A value that the user has set stays. A program calls this before it starts
/// threads.
#[expect(clippy::disallowed_methods, reason = "it comes before threads do")]
pub fn refuse_telemetry() {
    if env::var_os(TELEMETRY_VARIABLE).is_none() {
        // SAFETY: the process has one thread yet, so nothing else reads the environment.
        unsafe { env::set_var(TELEMETRY_VARIABLE, "1") };
    }
}

/// Gives the memory of a session's runs back once it is dropped: the last field of what has the session.
pub(super) struct GivesBack(pub(super) Runtime);

impl Drop for GivesBack {
    fn drop(&mut self) {
        if let Some(arena) = &self.0.arena {
            arena.shrink();
        }
    }
}

impl Runtime {
    /// Loads the library and creates the environment. At most once per process at a time.
    ///
    /// # Errors
    /// When the library is not found, is not usable, or an environment exists already.
    pub fn load(options: &RuntimeOptions) -> Result<Self, LibraryError> {
        let path = find(options.library.as_deref())?;
        let builder = ort::init_from(&path)
            .map_err(|error| LibraryError::Load { path: path.clone(), reason: error.to_string() })?;
        let setup = |error: ort::Error| LibraryError::Setup(error.to_string());
        let threads = if options.threads == 0 { available_cores() } else { options.threads };
        let pool = GlobalThreadPoolOptions::default()
            .with_intra_threads(threads)
            .and_then(|pool| pool.with_inter_threads(1))
            // A spinning worker takes the cores that the front end needs.
            .and_then(|pool| pool.with_spin_control(false))
            .map_err(setup)?;
        let environment = builder
            .with_name("paternoster")
            .with_telemetry(false)
            .with_global_thread_pool(pool)
            .build()
            .map_err(setup)?;
        // Every status is reported where it belongs: in the answer, and once in our own log.
        environment.set_log_level(LogLevel::Fatal);
        let arena = (options.max_memory_bytes > 0).then(|| Arena::share(&environment, options.max_memory_bytes));
        let arena = arena.transpose().map_err(|error| LibraryError::Setup(error.to_string()))?.map(Arc::new);
        Ok(Self { environment, sessions: Arc::default(), path, threads, arena })
    }

    /// The environment that sessions are made in.
    pub(super) fn environment(&self) -> &Environment {
        &self.environment
    }

    /// The sessions in it.
    pub(super) fn sessions(&self) -> &Sessions<CompiledGraph> {
        &self.sessions
    }

    /// Whether sessions take their memory from one arena of a limited size.
    pub(super) fn has_arena(&self) -> bool {
        self.arena.is_some()
    }

    /// Where the library was loaded from.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Threads that one run may use, shared by all sessions.
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// The library's build description.
    pub fn description(&self) -> &'static str {
        ort::info()
    }
}

/// Path and version of the library that [`Runtime::load`] finds where no path is given. Nothing is set up.
///
/// # Errors
/// When there is none, or it is another library.
pub fn installed() -> Result<(PathBuf, String), LibraryError> {
    let path = find(None)?;
    let unusable = |reason: String| LibraryError::Load { path: path.clone(), reason };
    // SAFETY: its initialisers are those that `Runtime::load` runs.
    let library = unsafe { Library::new(&path) }.map_err(|error| unusable(error.to_string()))?;
    // SAFETY: the C interface has this function, of this type, in every version.
    let base = unsafe { library.get::<unsafe extern "C" fn() -> *const OrtApiBase>("OrtGetApiBase") };
    // SAFETY: it takes nothing, and its answer lives as long as the library.
    let base = unsafe { base.map_err(|error| unusable(error.to_string()))?().as_ref() };
    let base = base.ok_or_else(|| unusable("it has no interface".to_owned()))?;
    // SAFETY: a string of the library's own, which is still loaded.
    let version = unsafe { CStr::from_ptr((base.GetVersionString)()) };
    Ok((path.clone(), version.to_string_lossy().into_owned()))
}

fn available_cores() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

fn find(given: Option<&Path>) -> Result<PathBuf, LibraryError> {
    let variable = env::var_os(PATH_VARIABLE).filter(|value| !value.is_empty()).map(PathBuf::from);
    let named = given
        .map(|path| (path.to_path_buf(), "--onnxruntime-library"))
        .or_else(|| variable.map(|path| (path, PATH_VARIABLE)));
    if let Some((path, origin)) = named {
        let path = if path.is_dir() { path.join(LIBRARY) } else { path };
        return if path.exists() { Ok(path) } else { Err(LibraryError::Missing { path, origin }) };
    }
    let installed = env::current_exe().ok().and_then(|program| installed_with(&program));
    // A bare name makes the dynamic loader search the system's paths.
    Ok(installed.unwrap_or_else(|| PathBuf::from(LIBRARY)))
}

/// The library that came with a program: beside it, as its build puts it there; in `lib/paternoster`, as the Debian
/// package does; or in the wheel that pip has installed into the same environment.
fn installed_with(program: &Path) -> Option<PathBuf> {
    let beside = program.parent()?.join(LIBRARY);
    if beside.exists() {
        return Some(beside);
    }
    let environment = wheels::environment_of(program)?;
    let carried = environment.join("lib/paternoster").join(LIBRARY);
    if carried.exists() {
        return Some(carried);
    }
    let packages = wheels::packages(&environment);
    packages.iter().find_map(|packages| wheels::library(&packages.join("onnxruntime/capi"), LIBRARY))
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
    fn the_library_that_came_with_the_program_is_found_nearest_first() {
        let root = tempfile::tempdir().expect("a folder");
        let program = root.path().join("bin/paternoster");
        assert_eq!(installed_with(&program), None);

        let capi = root.path().join("lib/python3.12/site-packages/onnxruntime/capi");
        touch(&capi.join("libonnxruntime_providers_shared.so"));
        assert_eq!(installed_with(&program), None, "the wheel's other libraries are none");
        for file in ["bin/libonnxruntime.so", "lib/paternoster/libonnxruntime.so"] {
            touch(&root.path().join(file));
        }
        let of_the_wheel = capi.join("libonnxruntime.so.1.23.2");
        touch(&of_the_wheel);
        for nearest in ["bin/libonnxruntime.so", "lib/paternoster/libonnxruntime.so"] {
            let nearest = root.path().join(nearest);
            assert_eq!(installed_with(&program).as_ref(), Some(&nearest));
            fs::remove_file(nearest).expect("the file can be removed");
        }
        assert_eq!(installed_with(&program), Some(of_the_wheel));
        assert_eq!(installed_with(&root.path().join("build/paternoster")), None, "outside of bin there is no prefix");
    }
}

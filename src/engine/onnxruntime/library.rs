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

use super::{arena::Arena, weights::CompiledGraph};
use crate::engine::{
    available_cores,
    library::{EngineLibrary, LibraryError},
    sessions::Sessions,
};

/// The library.
static LIBRARY: EngineLibrary = EngineLibrary {
    name: "ONNX Runtime",
    file: "libonnxruntime.so",
    flag: "--onnxruntime-library",
    variable: "ORT_DYLIB_PATH",
    in_wheel: "onnxruntime/capi",
};
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
        let path = LIBRARY.find(options.library.as_deref())?;
        let builder = ort::init_from(&path).map_err(|error| LibraryError::Load {
            library: &LIBRARY,
            path: path.clone(),
            reason: error.to_string(),
        })?;
        let unset = |reason: String| LibraryError::Setup { library: &LIBRARY, reason };
        let setup = |error: ort::Error| unset(error.to_string());
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
        let arena = arena.transpose().map_err(|error| unset(error.to_string()))?.map(Arc::new);
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
    let path = LIBRARY.find(None)?;
    let unusable = |reason: String| LibraryError::Load { library: &LIBRARY, path: path.clone(), reason };
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

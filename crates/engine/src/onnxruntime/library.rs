//! The ONNX Runtime library and its single environment per process.

use std::{
    env,
    ffi::CStr,
    path::{Path, PathBuf},
    sync::Arc,
};

use libloading::Library;
use ort::{environment::GlobalThreadPoolOptions, logging::LogLevel, sys::OrtApiBase};

use super::{
    arena::Arena,
    compiled::{CompiledGraph, SessionContext},
    cuda_provider::CudaProvider,
};
use crate::{
    EngineError, Precision, available_cores,
    library::{EngineLibrary, LibraryError},
    reclaim::Reclaimer,
    sessions::Sessions,
};

/// Where the library is searched.
static LIBRARY: EngineLibrary = EngineLibrary {
    name: "ONNX Runtime",
    file: "libonnxruntime.so",
    flag: "--onnxruntime-library",
    variable: "ORT_DYLIB_PATH",
    in_wheel: "onnxruntime/capi",
};
/// Environment variable that turns ONNX Runtime's telemetry off.
const TELEMETRY_VARIABLE: &str = "ORT_DISABLE_TELEMETRY";

/// Options of the runtime.
#[derive(Clone, Debug, Default)]
pub struct RuntimeOptions {
    /// Path of the library. `None` searches `ORT_DYLIB_PATH`, then the places where it is installed with the executable
    /// (beside it, in `lib/paternoster`, or in the wheel of its Python environment), then the system's paths.
    pub library: Option<PathBuf>,
    /// Threads that one run may use, shared by all sessions; 0 uses one per core.
    pub threads: usize,
    /// Runs that take place at the same time: the lanes of the CPU.
    pub lanes: usize,
    /// Limit on the memory for tensors that runs compute, over all models, in bytes; a run that needs more fails. 0
    /// means no limit.
    pub max_memory_bytes: usize,
}

/// The loaded library with its environment and thread pool.
#[derive(Clone, Debug)]
pub struct Runtime {
    context: SessionContext,
    sessions: Arc<Sessions<CompiledGraph>>,
    path: PathBuf,
    arena: Option<Arc<Arena>>,
    // Dropped last: its thread uses the environment.
    _reclaimer: Arc<Reclaimer>,
}

/// Turns ONNX Runtime's telemetry off, unless the user has set the variable. From version 1.29 on, official builds send
/// telemetry and store a device id in the user's home directory. They decide at initialization, before the switch in
/// the API can be used. Programs must call this before they start threads.
#[expect(clippy::disallowed_methods, reason = "called before any thread is started")]
pub fn refuse_telemetry() {
    if env::var_os(TELEMETRY_VARIABLE).is_none() {
        // SAFETY: the process still has a single thread, so nothing else reads the environment.
        unsafe { env::set_var(TELEMETRY_VARIABLE, "1") };
    }
}

/// Shrinks the arena once a session is dropped, so that others can have its part of the limit at once. Must be the last
/// field of the session's owner.
pub(super) struct ShrinkOnDrop(pub(super) Runtime);

impl Drop for ShrinkOnDrop {
    fn drop(&mut self) {
        if let Some(arena) = &self.0.arena {
            arena.shrink();
        }
    }
}

impl Runtime {
    /// Loads the library and creates the environment. Only one may exist per process at a time.
    ///
    /// # Errors
    /// Fails if the library is not found or not usable, or if an environment already exists.
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
            // A spinning worker would take cores that the front end needs.
            .and_then(|pool| pool.with_spin_control(false))
            .map_err(setup)?;
        let environment = builder
            .with_name("paternoster")
            .with_telemetry(false)
            .with_global_thread_pool(pool)
            .build()
            .map_err(setup)?;
        // Errors are reported in responses and in the server's own log, so ONNX Runtime need not log them too.
        environment.set_log_level(LogLevel::Fatal);
        let arena = (options.max_memory_bytes > 0).then(|| Arena::share(&environment, options.max_memory_bytes));
        let arena = arena.transpose().map_err(|error| unset(error.to_string()))?.map(Arc::new);
        let context = SessionContext {
            environment,
            threads,
            lanes: options.lanes,
            has_arena: arena.is_some(),
            running: Arc::default(),
            background: Arc::default(),
            own_threads: Arc::default(),
        };
        let shared = arena.clone();
        let shrink = move || shared.iter().for_each(|arena| arena.shrink());
        let reclaimer = Arc::new(Reclaimer::start(Arc::clone(&context.running), shrink));
        Ok(Self { context, sessions: Arc::default(), path, arena, _reclaimer: reclaimer })
    }

    /// Returns what graphs are compiled in.
    pub(super) fn context(&self) -> &SessionContext {
        &self.context
    }

    /// Returns the sessions of compiled graphs.
    pub(super) fn sessions(&self) -> &Sessions<CompiledGraph> {
        &self.sessions
    }

    /// Returns the CUDA execution provider on a card, numbered as the CUDA driver does. It computes in fp32 even if
    /// half precision is configured, as ONNX Runtime does on the CPU. Each session uses at most `memory_bytes` of the
    /// card.
    ///
    /// # Errors
    /// Fails if the library has no CUDA provider, or the provider's library is missing.
    pub fn cuda_provider(
        &self,
        card: u16,
        precision: Precision,
        memory_bytes: Option<usize>,
    ) -> Result<CudaProvider, EngineError> {
        CudaProvider::of(&self.path, card, precision, memory_bytes)
    }

    /// Waits until no graph is compiled in the background any more.
    pub fn finish_compiling(&self) {
        self.context.background.finish();
    }

    /// Returns the path from which the library was loaded.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the number of threads that one run may use; all sessions share them.
    pub fn threads(&self) -> usize {
        self.context.threads
    }

    /// Returns the library's build description.
    pub fn description(&self) -> &'static str {
        ort::info()
    }
}

/// Returns the path and version of the library that [`Runtime::load`] finds without a path. Does not initialize it.
///
/// # Errors
/// Fails if no library is found, or it is not ONNX Runtime.
pub fn installed() -> Result<(PathBuf, String), LibraryError> {
    let path = LIBRARY.find(None)?;
    let unusable = |reason: String| LibraryError::Load { library: &LIBRARY, path: path.clone(), reason };
    // SAFETY: its initializers are those that `Runtime::load` runs.
    let library = unsafe { Library::new(&path) }.map_err(|error| unusable(error.to_string()))?;
    // SAFETY: every version of the C API has this function with this type.
    let base = unsafe { library.get::<unsafe extern "C" fn() -> *const OrtApiBase>("OrtGetApiBase") };
    // SAFETY: it takes no arguments, and its result lives as long as the library.
    let base = unsafe { base.map_err(|error| unusable(error.to_string()))?().as_ref() };
    let base = base.ok_or_else(|| unusable("it has no interface".to_owned()))?;
    // SAFETY: a string of the library, which is still loaded.
    let version = unsafe { CStr::from_ptr((base.GetVersionString)()) };
    Ok((path.clone(), version.to_string_lossy().into_owned()))
}

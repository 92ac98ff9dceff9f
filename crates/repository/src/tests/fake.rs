//! Test helpers: a repository directory, a loader that can hold loads, and waiting for a state.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    sync::{
        Arc, LazyLock,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use bytes::Bytes;
use parking_lot::{Condvar, Mutex};
use paternoster_batching::Knobs;
use paternoster_config::{CustomPolicies, complete};
use paternoster_executor::{ModelHandle, Pool, PoolOptions};
use paternoster_model::{DataType, ModelSpec};
use paternoster_observe::{LatencyMetrics, RequestBudgets, budget::Budget};
use paternoster_onnx::{Port, PortDim, Signature};
use paternoster_testing::program::FakeProgram;
use tempfile::TempDir;

use crate::{
    ControlMode, IndexEntry, LoadAttempt, LoadError, Loader, Options, Overrides, Repository, ResidencyOptions,
    ResolvedVersion, changes::ChangeDetector, polling,
};

/// Content of a program file that does not load.
pub(super) const GARBAGE: &str = "garbage";

/// Bytes of models that clients may send.
const SENT_MODEL_BYTES: usize = 1 << 30;

/// Name to hold that makes profiles wait.
pub(super) const PROFILES: &str = "(profiles)";

/// The pool of all tests; nothing runs on it.
fn bring_up(spec: ModelSpec, knobs: Knobs) -> Arc<ModelHandle> {
    static POOL: LazyLock<Arc<Pool>> = LazyLock::new(|| Pool::start(&PoolOptions::default()).unwrap());
    let program = FakeProgram::failing("a test never runs it");
    Arc::new(POOL.bring_up(spec, knobs, Arc::new(program)).expect("the CPU has room"))
}

/// A loader in which every program is `INPUT0` FP32 [batch, 16] → `OUTPUT0` of the same, unless it is [`GARBAGE`].
#[derive(Default)]
pub(super) struct FakeLoader {
    pub(super) requests: Mutex<Vec<ResolvedVersion>>,
    /// Models whose loads wait until their name is removed, or until they are ended early.
    held: Mutex<Vec<String>>,
    /// Models whose loads do not notice that they are ended early.
    deaf: Mutex<Vec<String>>,
    released: Condvar,
    running: Mutex<BTreeMap<String, usize>>,
    began: Condvar,
    pub(super) most_at_once: AtomicUsize,
    pub(super) most_of_one_version: AtomicUsize,
    /// Number of loads that are followed by a profile with different advice.
    pub(super) advises: AtomicUsize,
    /// Models whose profiles run until they are no longer wanted.
    pub(super) endless: Mutex<Vec<String>>,
    pub(super) given_up: AtomicUsize,
}

impl FakeLoader {
    /// Blocks until this many loads have run concurrently.
    pub(super) fn until_at_once(&self, count: usize) {
        let mut running = self.running.lock();
        while self.most_at_once.load(Ordering::SeqCst) < count {
            let waited = self.began.wait_for(&mut running, Duration::from_secs(60));
            assert!(!waited.timed_out(), "{count} loads run at once within a minute");
        }
    }

    pub(super) fn hold(&self, name: &str) {
        self.held.lock().push(name.to_owned());
    }

    pub(super) fn hold_for_good(&self, name: &str) {
        self.deaf.lock().push(name.to_owned());
        self.hold(name);
    }

    pub(super) fn release(&self, name: &str) {
        self.held.lock().retain(|held| held != name);
        self.released.notify_all();
    }

    fn until_released(&self, name: &str, attempt: Option<&LoadAttempt>) -> Result<(), LoadError> {
        let began = Instant::now();
        let attempt = attempt.filter(|_| !self.deaf.lock().iter().any(|deaf| deaf == name));
        let mut held = self.held.lock();
        while held.iter().any(|held| held == name) {
            attempt.map_or(Ok(()), LoadAttempt::check)?;
            // A failed test releases nothing, and its runtime waits for this thread.
            if began.elapsed() > Duration::from_secs(120) {
                return Err(LoadError::internal("never released"));
            }
            self.released.wait_for(&mut held, Duration::from_millis(10));
        }
        Ok(())
    }

    /// Returns whether a thread loads a version of a model.
    pub(super) fn is_loading(&self, name: &str) -> bool {
        self.running.lock().iter().any(|(key, count)| key.split(' ').next() == Some(name) && *count > 0)
    }

    pub(super) fn loads_of(&self, name: &str) -> Vec<i64> {
        let requests = self.requests.lock();
        requests.iter().filter(|request| request.spec.name == name).map(|request| request.spec.version).collect()
    }

    fn program(path: &Path, bytes: Option<&Bytes>) -> Result<String, LoadError> {
        let text = match bytes {
            Some(bytes) => String::from_utf8_lossy(bytes).into_owned(),
            None => fs::read_to_string(path).map_err(LoadError::files)?,
        };
        if text == GARBAGE {
            return Err(LoadError::graph(format!("{}: protobuf parsing failed", path.display())));
        }
        Ok(text)
    }
}

impl Loader for FakeLoader {
    fn latencies(&self) -> LatencyMetrics {
        LatencyMetrics { counters: false, histograms: true, ..LatencyMetrics::default() }
    }

    fn load(&self, request: ResolvedVersion, attempt: &LoadAttempt) -> Result<Arc<ModelHandle>, LoadError> {
        let key = format!("{} {}", request.spec.name, request.spec.version);
        {
            let mut running = self.running.lock();
            let own = running.entry(key.clone()).or_default();
            *own += 1;
            self.most_of_one_version.fetch_max(*own, Ordering::SeqCst);
            self.most_at_once.fetch_max(running.values().sum(), Ordering::SeqCst);
            self.began.notify_all();
        }
        let released = self.until_released(&request.spec.name, Some(attempt));
        self.running.lock().entry(key).and_modify(|own| *own -= 1);
        released?;
        // As a thread that notices only afterwards.
        attempt.check()?;
        let handle = bring_up(request.spec.clone(), request.knobs.clone());
        self.requests.lock().push(request);
        Ok(handle)
    }

    fn may_profile(&self, _: &ResolvedVersion) -> bool {
        self.advises.load(Ordering::SeqCst) > 0
    }

    fn profile(&self, request: &ResolvedVersion, is_wanted: &dyn Fn() -> bool) -> Result<bool, LoadError> {
        if self.endless.lock().contains(&request.spec.name) {
            while is_wanted() {
                std::thread::yield_now();
            }
            self.given_up.fetch_add(1, Ordering::SeqCst);
            return Ok(true);
        }
        self.until_released(PROFILES, None)?;
        self.advises.fetch_sub(1, Ordering::SeqCst);
        Ok(true)
    }

    fn signature(&self, program: &Path, bytes: Option<&Bytes>) -> Result<Signature, LoadError> {
        Self::program(program, bytes)?;
        let port = |name: &str| Port::tensor(name, DataType::Fp32, &[PortDim::from("batch"), PortDim::from(16)]);
        Ok(Signature { inputs: vec![port("INPUT0")], outputs: vec![port("OUTPUT0")], ..Signature::default() })
    }
}

/// A model repository in a temporary directory.
pub(super) struct Directory {
    root: TempDir,
}

impl Directory {
    pub(super) fn new() -> Self {
        Self { root: tempfile::tempdir().unwrap() }
    }

    pub(super) fn path(&self) -> PathBuf {
        self.root.path().to_owned()
    }

    /// Writes a file and creates its parent directories.
    pub(super) fn write(&self, path: &str, text: &str) -> &Self {
        let path = self.root.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
        self
    }

    /// Adds a model of one version, completed from its graph.
    pub(super) fn model(&self, name: &str) -> &Self {
        self.write(&format!("{name}/1/model.onnx"), "good")
    }
}

pub(super) fn options(directories: &[&Directory], mode: ControlMode) -> Options {
    Options {
        repositories: directories.iter().map(|directory| directory.path()).collect(),
        cache_directory: None,
        cache_max_bytes: None,
        mode,
        strict_readiness: true,
        auto_complete: true,
        default_max_batch_size: complete::DEFAULT_MAX_BATCH_SIZE,
        config_name: None,
        start_unreadable: false,
        has_cards: false,
        load_threads: 4,
        sent_model_bytes: Budget::of(SENT_MODEL_BYTES),
        request_budgets: RequestBudgets::unlimited(),
        response_cache: None,
        residency: ResidencyOptions::default(),
        custom_policies: CustomPolicies::default(),
    }
}

/// Starts a repository in explicit mode with other options.
pub(super) async fn start_with(
    directory: &Directory,
    change: impl FnOnce(&mut Options),
) -> (Arc<Repository>, Arc<FakeLoader>) {
    let (mut options, loader) = (options(&[directory], explicit()), Arc::new(FakeLoader::default()));
    change(&mut options);
    (Repository::start(options, loader.clone()).await.unwrap(), loader)
}

pub(super) async fn start(directory: &Directory, mode: ControlMode) -> (Arc<Repository>, Arc<FakeLoader>) {
    let loader = Arc::new(FakeLoader::default());
    let repository = Repository::start(options(&[directory], mode), loader.clone()).await.unwrap();
    (repository, loader)
}

/// Opens a repository in poll mode in which the test itself polls.
pub(super) async fn polled(options: Options, loader: Arc<FakeLoader>) -> (Arc<Repository>, ChangeDetector) {
    let repository = Repository::start(options, loader.clone()).await.unwrap();
    let mut detector = ChangeDetector::default();
    polling::first_poll(&repository.control, &mut detector).await;
    loader.requests.lock().clear();
    (repository, detector)
}

pub(super) fn explicit() -> ControlMode {
    ControlMode::Explicit { startup: Vec::new() }
}

pub(super) async fn load(repository: &Repository, name: &str) -> Result<(), String> {
    repository.load(name, Overrides::default()).await.map_err(|fault| fault.to_string())
}

/// Returns the index as rows of name, version, state and reason.
pub(super) async fn index(repository: &Repository) -> Vec<[String; 4]> {
    repository.index(false).await.into_iter().map(line).collect()
}

/// As [`index`], without models that were never loaded.
pub(super) fn states(repository: &Repository) -> Vec<[String; 4]> {
    repository.states().into_iter().map(line).collect()
}

fn line(entry: IndexEntry) -> [String; 4] {
    [entry.name, entry.version, entry.state.to_owned(), entry.reason]
}

/// Waits, one change at a time, until a condition holds.
pub(super) async fn until(repository: &Repository, holds: impl Fn(&Repository) -> bool) {
    let mut changes = repository.changes();
    let waiting = async {
        while !holds(repository) {
            changes.changed().await.unwrap();
        }
    };
    tokio::time::timeout(Duration::from_secs(60), waiting).await.expect("the state comes within a minute");
}

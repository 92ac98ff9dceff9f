//! The repository as the front ends see it.

use std::{
    collections::BTreeSet,
    fmt,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
};

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tokio::{
    sync::{Semaphore, watch},
    task::AbortHandle,
};

use super::{
    ControlError, ControlMode, IndexEntry, Loader, ModelVersion, Options, Overrides, ResolveError, StartError,
    control::Control, places::Places, scan, serving::Serving, startup::Startup,
};
use crate::observe::RepositoryStats;

/// All models of a server: what is ready, what is not and why, and how that changes.
///
/// Requests read it without a lock; loading, unloading and polling run beside them and replace the picture they read.
pub struct Repository {
    pub(super) control: Arc<Control>,
    /// Set once the start is over, in poll mode.
    pub(super) poller: OnceLock<AbortHandle>,
}

impl Repository {
    /// Opens the repositories and loads what the mode says: [`Self::open`] and [`Startup::load`].
    ///
    /// # Errors
    /// As [`Self::open`].
    pub async fn start(options: Options, loader: Arc<dyn Loader>) -> Result<Arc<Self>, StartError> {
        let startup = Self::open(options, loader).await?;
        let repository = Arc::clone(startup.repository());
        startup.load().await;
        Ok(repository)
    }

    /// Opens the repositories and notes which models the mode says to load. Until they are loaded, which
    /// [`Startup::load`] does, the repository is not ready and takes no loads or unloads.
    ///
    /// Must be called within a tokio runtime, which runs loads and the poller from here on.
    ///
    /// # Errors
    /// When no repository, or one that can never be one, is named; when an object store's credentials or the folder for
    /// its models cannot be used; and when a repository cannot be read, unless the options let the server start without
    /// it.
    pub async fn open(options: Options, loader: Arc<dyn Loader>) -> Result<Startup, StartError> {
        let places = Places::open(&options)?;
        let scanned = places.scan().await.unwrap_or_default();
        let mut listings = Vec::with_capacity(scanned.len());
        let (mut opened, stats) = (true, RepositoryStats::default());
        for (path, listed) in scanned {
            match listed {
                Ok(mut listing) => {
                    for (name, fault) in listing.unclear.clone() {
                        tracing::warn!(model = name, fault, "the model's directory cannot be looked at");
                        listing.believe(&path, &name);
                    }
                    listings.push(listing);
                }
                Err(source) if !options.start_unreadable => return Err(StartError::Unreadable { path, source }),
                Err(fault) => {
                    tracing::error!(repository = %path.display(), %fault, "the model repository cannot be read; the server is not live");
                    stats.failed_scans.fetch_add(1, Ordering::Relaxed);
                    opened = false;
                }
            }
        }
        let found = scan::merge(&listings);
        let control = Arc::new(Control {
            loads: Arc::new(Semaphore::new(options.load_threads.max(1))),
            options,
            places,
            loader,
            table: Mutex::default(),
            serving: ArcSwap::from_pointee(Serving::default()),
            changes: watch::Sender::new(0),
            gates: Mutex::default(),
            kept: Mutex::default(),
            opened: AtomicBool::new(opened),
            stats: Arc::new(stats),
            warned: Mutex::default(),
            profiling: Arc::default(),
        });
        Ok(Startup::begin(Arc::new(Self { control, poller: OnceLock::new() }), found))
    }

    /// The version that serves a request: `version` as the request has it, "" for the latest ready one.
    ///
    /// Reads an immutable picture: no lock, no allocation.
    ///
    /// # Errors
    /// When there is no such model or version, or the version is not a number above 0.
    pub fn resolve(&self, name: &str, version: &str) -> Result<Arc<ModelVersion>, ResolveError> {
        self.control.serving.load().resolve(name, version).cloned()
    }

    /// Whether a version ("" for the latest) serves; unknown and broken models do not, nor do those whose tasks hang.
    ///
    /// # Errors
    /// When the version is not a number above 0.
    pub fn is_ready(&self, name: &str, version: &str) -> Result<bool, ResolveError> {
        match self.control.serving.load().resolve(name, version) {
            Ok(version) => Ok(version.handle().is_responsive()),
            Err(fault @ ResolveError::BadVersion { .. }) => Err(fault),
            Err(_) => Ok(false),
        }
    }

    /// Whether every repository could be read at least once.
    pub fn live(&self) -> bool {
        self.control.opened.load(Ordering::Relaxed)
    }

    /// Whether the repository is live, the models of the start were tried, and every model that should be loaded is,
    /// and responds. Without strict readiness it does not matter which models are loaded. Never after shutdown.
    pub fn ready(&self) -> bool {
        let table = self.control.table.lock();
        let complete = if self.control.options.strict_readiness { table.complete() } else { table.is_open() };
        complete && self.live()
    }

    /// All models with the states of their versions, by name and version: also those in a repository that were never
    /// loaded (each repository is listed for it), unless only ready versions are asked for.
    pub async fn index(&self, ready_only: bool) -> Vec<IndexEntry> {
        let scanned = if ready_only { Ok(Vec::new()) } else { self.control.places.scan().await };
        let was_scanned = scanned.is_ok();
        let scan = scanned.unwrap_or_default();
        let all_seen = !ready_only && was_scanned && scan.iter().all(|(_, listed)| listed.is_ok());
        self.control.table.lock().index(ready_only, &scan::names(&scan), all_seen)
    }

    /// As [`Self::index`], without those that were never loaded: the disk is not looked at.
    pub fn states(&self) -> Vec<IndexEntry> {
        self.control.table.lock().index(false, &BTreeSet::new(), false)
    }

    /// What goes on between the repository and its disk.
    pub fn stats(&self) -> Arc<RepositoryStats> {
        self.control.stats.clone()
    }

    /// Ready versions of a model, ascending; none for an unknown one.
    pub fn ready_versions(&self, name: &str) -> Vec<i64> {
        let serving = self.control.serving.load();
        let versions = serving.models.get(name).map(|served| served.ready.as_slice()).unwrap_or_default();
        versions.iter().map(|version| version.spec().version).collect()
    }

    /// All ready versions, by name and version.
    pub fn loaded(&self) -> Vec<Arc<ModelVersion>> {
        self.control.serving.load().all()
    }

    /// Whether clients may load and unload.
    ///
    /// # Errors
    /// In any mode but explicit, and while the models of the start are being loaded.
    pub fn control_allowed(&self) -> Result<(), ControlError> {
        match self.control.options.mode {
            ControlMode::Explicit { .. } if self.control.table.lock().is_starting() => Err(ControlError::NotReady),
            ControlMode::Explicit { .. } => Ok(()),
            ControlMode::None | ControlMode::Poll { .. } => Err(ControlError::NotExplicit),
        }
    }

    /// Loads a model, or reloads it: what serves goes on serving until its successor is ready, and if the reload fails.
    /// Loads and unloads of one model run one after another. Dropping the future does not stop the load.
    ///
    /// # Errors
    /// When clients do not decide here, or not yet; when nothing has that name, the overrides cannot be used, or a
    /// version fails.
    pub async fn load(&self, name: &str, overrides: Overrides) -> Result<(), ControlError> {
        self.control_allowed()?;
        let (control, model) = (self.control.clone(), name.to_owned());
        let task = tokio::spawn(async move { control.load(&model, overrides).await });
        task.await.map_err(|_| ControlError::ShuttingDown)?
    }

    /// Unloads a model; requests in flight end on the version they began on. Unloading what is not loaded, or not
    /// known, is no error. No model depends on another here, so `dependents` changes nothing.
    ///
    /// # Errors
    /// When clients do not decide here, or not yet.
    pub async fn unload(&self, name: &str, dependents: bool) -> Result<(), ControlError> {
        let _ = dependents;
        self.control_allowed()?;
        let (control, model) = (self.control.clone(), name.to_owned());
        let task = tokio::spawn(async move { control.unload(&model).await });
        task.await.map_err(|_| ControlError::ShuttingDown)
    }

    /// A counter that grows with every change of a state, but not when a version ceases to respond: the pool counts
    /// that ([`Pool::responsiveness`](crate::executor::Pool::responsiveness)). That the last request left an unloaded
    /// version is not a change of its own: the index finds it out when it is asked for.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.control.changes.subscribe()
    }

    /// Stops polling, lets go of all versions, and removes the temporary copies of models of object stores. Loads that
    /// are under way are dropped when they are done.
    pub fn shutdown(&self) {
        if let Some(poller) = self.poller.get() {
            poller.abort();
        }
        drop(self.control.close());
        self.control.places.close();
    }
}

impl Drop for Repository {
    fn drop(&mut self) {
        self.shutdown();
    }
}

impl fmt::Debug for Repository {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Repository").field("options", &self.control.options).finish_non_exhaustive()
    }
}

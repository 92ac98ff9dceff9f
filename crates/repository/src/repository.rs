//! The repository, as the front ends use it.

use std::{
    collections::BTreeSet,
    fmt,
    num::NonZero,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use arc_swap::ArcSwap;
use futures_util::future::BoxFuture;
use http::HeaderMap;
use parking_lot::Mutex;
use paternoster_observe::{
    RepositoryStats, ResidencyReading,
    budget::{Budget, Reservation},
};
use paternoster_pipeline::{ResponseCache, Workers};
use tokio::{
    sync::{Semaphore, watch},
    task::AbortHandle,
    time::Instant,
};

use super::{
    Caller, ControlError, ControlMode, IndexEntry, LoadAttempt, Loader, ModelVersion, Options, Overrides, Requester,
    ResolveError, StartError,
    control::{Control, Demand, card_room::CardRoom, dependencies::Dependencies, memory_budget, on_demand::OnDemand},
    gates::Gates,
    places::Places,
    scan,
    serving::Serving,
    startup::Startup,
};

/// Most loads and unloads of clients that are queued or in progress.
const MAX_PENDING: usize = 1024;

/// All models of a server, with their states and the reasons.
///
/// Requests read a snapshot without a lock. Loading, unloading and polling run concurrently and replace the snapshot.
pub struct Repository {
    pub(super) control: Arc<Control>,
    /// Set at the end of startup, in poll mode.
    pub(super) poller: OnceLock<AbortHandle>,
}

impl Repository {
    /// Opens the repositories and loads what the control mode sets: [`Self::open`] followed by [`Startup::load`].
    ///
    /// # Errors
    /// As [`Self::open`] and [`Startup::load`].
    pub async fn start(options: Options, loader: Arc<dyn Loader>) -> Result<Arc<Self>, StartError> {
        let startup = Self::open(options, loader).await?;
        let repository = Arc::clone(startup.repository());
        startup.load().await?;
        Ok(repository)
    }

    /// Opens the repositories and marks the models of directories that the control mode loads at startup. Stores are
    /// listed by [`Startup::load`]. Until it has loaded all models, the repository is not ready and rejects loads and
    /// unloads.
    ///
    /// Must be called within a tokio runtime, which then runs loads and polls.
    ///
    /// # Errors
    /// Fails if no repository is given or a location has no valid form, if the credentials of an object store or the
    /// cache directory cannot be used, or if a directory cannot be read and the options do not let the server start
    /// without it.
    pub fn open(options: Options, loader: Arc<dyn Loader>) -> BoxFuture<'static, Result<Startup, StartError>> {
        Box::pin(async move {
            let places = Places::open(&options)?;
            let scanned = places.scan_directories().await.unwrap_or_default();
            let memory = options.residency.memory_budget;
            // What is loaded on demand is counted without a limit too, since that is how idle models are found.
            let memory = memory.or(options.mode.is_on_demand().then_some(usize::MAX));
            let control = Arc::new(Control {
                loads: Arc::new(Semaphore::new(options.load_threads.max(1))),
                loads_of_clients: Arc::new(Semaphore::new(options.load_threads.saturating_sub(1).max(1))),
                pending: Budget::of(MAX_PENDING),
                options,
                places,
                loader,
                table: Mutex::default(),
                serving: ArcSwap::from_pointee(Serving::default()),
                changes: watch::Sender::new(0),
                gates: Gates::default(),
                kept: Mutex::default(),
                opened: AtomicBool::new(true),
                stats: Arc::default(),
                warned: Mutex::default(),
                dependencies: Dependencies::default(),
                memory_queue: memory_budget::Queue::default(),
                assembling: Arc::default(),
                card_room: CardRoom::default(),
                workers: Workers::new(thread::available_parallelism().map_or(1, NonZero::get)),
                profiling: Arc::default(),
                on_demand: OnDemand::default(),
                memory: memory.map(Budget::of),
                opened_at: Instant::now(),
            });
            Startup::begin(Arc::new(Self { control, poller: OnceLock::new() }), scanned)
        })
    }

    /// Returns what may decide which version answers a request with these headers, and when a model is loaded for it.
    #[inline]
    pub fn caller(&self, headers: &HeaderMap, requester: Requester) -> Caller {
        // Which headers decide about a model that requests load is not known before.
        let are_needed = self.is_on_demand() || self.control.serving.load().reads_headers;
        Caller::new(are_needed.then_some(headers), requester)
    }

    /// Returns the version that answers a request for inference. `version` is the request's text; where it is empty and
    /// the model's configuration divides requests among its versions, that and the caller decide, else the latest ready
    /// version answers.
    ///
    /// Reads an immutable snapshot: takes no lock, and allocates nothing unless a header decides.
    ///
    /// # Errors
    /// As [`Self::resolve`].
    #[inline]
    pub fn route(&self, name: &str, version: &str, caller: &Caller) -> Result<Arc<ModelVersion>, ResolveError> {
        let serving = self.control.serving.load();
        let (served, found) = serving.find(name, version)?;
        if served.is_on_demand {
            served.usage.hit(self.control.now());
        }
        let chosen = if version.is_empty() { served.choose(name, caller) } else { None };
        Ok(Arc::clone(chosen.unwrap_or(found)))
    }

    /// As [`Self::route`], but a model that is to be loaded by requests is loaded first. Dropping the future ends the
    /// wait, and the load if no other request waits.
    ///
    /// # Errors
    /// As [`Self::resolve_or_load`].
    pub async fn route_or_load(
        &self,
        name: &str,
        version: &str,
        caller: &Caller,
    ) -> Result<Arc<ModelVersion>, ResolveError> {
        match self.route(name, version, caller) {
            Err(ResolveError::NotLoaded { .. }) => {
                let latest = self.control.demand(name, version, caller.requester()).await?;
                // The load has counted as a miss, so this is no hit.
                let serving = self.control.serving.load();
                let loaded = serving.models.get(name).filter(|_| version.is_empty());
                Ok(loaded.and_then(|served| served.choose(name, caller)).map_or(latest, Arc::clone))
            }
            routed => routed,
        }
    }

    /// Returns a version: the latest ready one if the text `version` is empty.
    ///
    /// Reads an immutable snapshot: takes no lock and allocates nothing.
    ///
    /// # Errors
    /// Fails if there is no such model or version, if it is not loaded, or if the version is not an integer above 0.
    pub fn resolve(&self, name: &str, version: &str) -> Result<Arc<ModelVersion>, ResolveError> {
        let serving = self.control.serving.load();
        let (served, version) = serving.find(name, version)?;
        if served.is_on_demand {
            served.usage.hit(self.control.now());
        }
        Ok(Arc::clone(version))
    }

    /// As [`Self::resolve`], but a model that is to be loaded by requests is loaded first. Dropping the future ends the
    /// wait, and the load if no other request waits.
    ///
    /// # Errors
    /// As [`Self::resolve`], and if the model cannot be loaded in time, or too many requests wait.
    pub async fn resolve_or_load(
        &self,
        name: &str,
        version: &str,
        requester: Requester,
    ) -> Result<Arc<ModelVersion>, ResolveError> {
        match self.resolve(name, version) {
            Err(ResolveError::NotLoaded { .. }) => self.control.demand(name, version, requester).await,
            resolved => resolved,
        }
    }

    /// As [`Self::resolve`], for what is no request for the model: it does not count as one.
    ///
    /// # Errors
    /// As [`Self::resolve`].
    pub fn look_up(&self, name: &str, version: &str) -> Result<Arc<ModelVersion>, ResolveError> {
        self.control.serving.load().resolve(name, version).cloned()
    }

    /// Returns whether requests load models.
    #[inline]
    pub fn is_on_demand(&self) -> bool {
        self.control.options.mode.is_on_demand()
    }

    /// Returns what loads on demand have done, and the memory of models.
    pub fn residency(&self) -> ResidencyReading {
        self.control.residency()
    }

    /// Returns whether a version (empty for the latest) serves. False for unknown or failed models, and for a version
    /// whose tasks hang.
    ///
    /// # Errors
    /// Fails if the version is not an integer above 0.
    pub fn is_ready(&self, name: &str, version: &str) -> Result<bool, ResolveError> {
        match self.control.serving.load().resolve(name, version) {
            Ok(version) => Ok(version.servable().is_responsive()),
            Err(fault @ ResolveError::BadVersion { .. }) => Err(fault),
            Err(_) => Ok(false),
        }
    }

    /// Returns whether every repository has been readable at least once.
    pub fn live(&self) -> bool {
        self.control.opened.load(Ordering::Relaxed)
    }

    /// Returns whether the server is live and every model that should be loaded is loaded and responsive, once startup
    /// is over. Without strict readiness, loaded models do not matter. Always false after shutdown.
    pub fn ready(&self) -> bool {
        let table = self.control.table.lock();
        let complete = if self.control.options.strict_readiness { table.complete() } else { table.is_open() };
        complete && self.live()
    }

    /// Returns whether models are loaded that are served from the start on.
    pub fn is_starting(&self) -> bool {
        self.control.table.lock().is_starting()
    }

    /// Returns all models with the states of their versions, by name and version. Unless only ready versions are
    /// wanted, lists the repositories to include models that were never loaded.
    pub fn index(&self, ready_only: bool) -> BoxFuture<'_, Vec<IndexEntry>> {
        Box::pin(async move {
            if self.is_on_demand() {
                // Polls keep the list.
                return self.control.table.lock().index(ready_only, &BTreeSet::new(), false);
            }
            let scanned = if ready_only { Ok(Vec::new()) } else { self.control.places.scan().await };
            let was_scanned = scanned.is_ok();
            let scan = scanned.unwrap_or_default();
            let all_seen = !ready_only && was_scanned && scan.iter().all(|(_, listed)| listed.is_ok());
            self.control.table.lock().index(ready_only, &scan::names(&scan), all_seen)
        })
    }

    /// As [`Self::index`], but without reading the repositories, so models that were never loaded are missing.
    pub fn states(&self) -> Vec<IndexEntry> {
        self.control.table.lock().index(false, &BTreeSet::new(), false)
    }

    /// As [`Self::states`], of one model; empty if it is unknown.
    pub fn states_of(&self, name: &str) -> Vec<IndexEntry> {
        self.control.table.lock().index_of(name)
    }

    /// Returns the statistics of polls and scans.
    pub fn stats(&self) -> Arc<RepositoryStats> {
        self.control.stats.clone()
    }

    /// Returns the cache of responses, if there is one.
    pub fn response_cache(&self) -> Option<&Arc<ResponseCache>> {
        self.control.options.response_cache.as_ref()
    }

    /// Returns the ready versions of a model, ascending; none for an unknown model.
    pub fn ready_versions(&self, name: &str) -> Vec<i64> {
        self.loaded_of(name).iter().map(|version| version.spec().version).collect()
    }

    /// As [`Self::loaded`], of one model.
    pub fn loaded_of(&self, name: &str) -> Vec<Arc<ModelVersion>> {
        let serving = self.control.serving.load();
        serving.models.get(name).map(|served| served.ready.clone()).unwrap_or_default()
    }

    /// Returns all ready versions, by name and version.
    pub fn loaded(&self) -> Vec<Arc<ModelVersion>> {
        self.control.serving.load().all()
    }

    /// Returns the models that take texts, as their directories say, and that the next request loads, by name.
    pub fn loadable_texts(&self) -> Vec<String> {
        self.control.table.lock().loadable_texts()
    }

    /// Checks that clients may load and unload.
    ///
    /// # Errors
    /// Fails unless the mode is explicit or on demand, and during startup.
    pub fn control_allowed(&self) -> Result<(), ControlError> {
        match self.control.options.mode {
            ControlMode::Explicit { .. } | ControlMode::OnDemand { .. } => {
                if self.is_starting() {
                    Err(ControlError::NotReady)
                } else {
                    Ok(())
                }
            }
            ControlMode::None | ControlMode::Poll { .. } => Err(ControlError::NotExplicit),
        }
    }

    /// Loads or reloads a model. The versions that serve stay in service until their successors are ready, or if the
    /// reload fails. Loads and unloads of one model run one after another. Dropping the future ends the load early, and
    /// so does an unload.
    ///
    /// # Errors
    /// Fails as [`Self::control_allowed`], and if too many loads wait, the name is unknown, the overrides are invalid,
    /// a version cannot be loaded, or the load is ended early.
    pub fn load<'a>(&'a self, name: &'a str, overrides: Overrides) -> BoxFuture<'a, Result<(), ControlError>> {
        Box::pin(async move {
            self.control_allowed()?;
            let place = self.pending()?;
            let attempt = self.control.attempt(name, &overrides);
            let _stop_on_drop = StopOnDrop(Arc::clone(&attempt));
            let (control, model) = (self.control.clone(), name.to_owned());
            // A task, so that a load that is ended early still records what became of it.
            let task = tokio::spawn(async move {
                let _place = place;
                control.load(&model, overrides, &attempt, Demand::Client).await
            });
            task.await.map_err(|_| ControlError::ShuttingDown)?
        })
    }

    fn pending(&self) -> Result<Reservation, ControlError> {
        let pending = &self.control.pending;
        pending.take_one().ok_or(ControlError::TooManyPending { limit: pending.capacity() })
    }

    /// Unloads a model, and ends its loads. Requests in flight finish on the version they started on. Unloading an
    /// unknown or unloaded model is not an error. With `dependents`, the models of a pipeline's steps are unloaded too,
    /// but for those that another pipeline needs. Where requests load models, the pipelines that need the model are
    /// unloaded first: the next request for one loads both.
    ///
    /// # Errors
    /// Fails as [`Self::control_allowed`], and if too many loads and unloads wait.
    pub fn unload<'a>(&'a self, name: &'a str, dependents: bool) -> BoxFuture<'a, Result<(), ControlError>> {
        Box::pin(async move {
            self.control_allowed()?;
            let place = self.pending()?;
            let (control, model) = (self.control.clone(), name.to_owned());
            let task = tokio::spawn(async move {
                let _place = place;
                if control.options.mode.is_on_demand() {
                    control.unload_pipelines_of(&model).await;
                }
                if dependents {
                    control.unload_with_models(&model).await;
                } else {
                    control.unload(&model).await;
                }
            });
            task.await.map_err(|_| ControlError::ShuttingDown)
        })
    }

    /// Returns a counter that grows with every state change, except when a version stops responding, which the pool
    /// counts ([`Pool::responsiveness`](paternoster_executor::Pool::responsiveness)). The end of the last request on an
    /// unloaded version is not counted either; the index determines it when it is read.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.control.changes.subscribe()
    }

    /// Answers the requests that wait for their models to be loaded, because the server is about to end. Models that
    /// are loaded serve on.
    pub fn end_loads_on_demand(&self) {
        self.control.end_loads_on_demand();
    }

    /// Stops polling, unloads all versions, and removes the temporary copies of models from object stores. The results
    /// of loads in progress are dropped when they finish.
    pub fn shutdown(&self) {
        if let Some(poller) = self.poller.get() {
            poller.abort();
        }
        drop(self.control.close());
        self.control.places.close();
    }
}

/// Ends a load when its client no longer waits for it.
struct StopOnDrop(Arc<LoadAttempt>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.stop("its client left");
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

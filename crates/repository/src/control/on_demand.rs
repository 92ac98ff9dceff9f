//! Loads that requests begin. A request for a model that is not loaded waits for one load, which all requests for the
//! model share, and which ends early when none waits any more. A client has at most as many loads in progress as there
//! are loader threads, and begins its next ones in the order of its requests. After a load that failed, requests get
//! its reason at once until the next one is due.

use std::{
    collections::HashMap,
    future::Future,
    pin::Pin,
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use paternoster_config::model::PipelineStep;
use paternoster_observe::{ResidencyReading, ResidencyStats, budget::Budget};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, watch},
    time::{Instant, timeout},
};

use super::{Control, Demand};
use crate::{
    ControlError, LoadAttempt, LoadError, LoadErrorKind, ModelVersion, Overrides, ResolveError, configuration,
    directory, scan::Found,
};

/// Most requests that wait for models. Those of one client have a quarter of these places.
pub(crate) const MAX_WAITING: usize = 1024;

/// Time between a load that failed and the next one. Each further failure doubles it.
const FIRST_BACKOFF: Duration = Duration::from_secs(1);

/// Why loads end with the server.
const SHUTTING_DOWN: &str = "the server is shutting down";

/// Longest such time.
const LONGEST_BACKOFF: Duration = Duration::from_secs(60);

/// The client of a request. Loads are divided among clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Requester {
    /// What comes over a connection, by the address of what it holds.
    Connection(usize),
    /// A client that the server tells apart, by its digest.
    Client([u8; 32]),
}

/// What a client that waits for models has of the places for that.
#[derive(Debug)]
struct ClientPlaces {
    /// Limits its requests that wait.
    waiting: Arc<Budget>,
    /// Limits its loads in progress.
    loads: Arc<Semaphore>,
}

/// The loads that requests wait for.
#[derive(Debug)]
pub(crate) struct OnDemand {
    loads: Mutex<HashMap<String, SharedLoad>>,
    /// Limits the requests that wait.
    waiting: Arc<Budget>,
    /// Clients with requests that wait.
    clients: Mutex<HashMap<Requester, Weak<ClientPlaces>>>,
    /// Whether no load may begin any more.
    is_closed: AtomicBool,
}

/// The load of one model, as its requests share it.
#[derive(Debug)]
enum SharedLoad {
    /// Queued or in progress. `backoff` follows if it fails.
    Wanted { load: Arc<WantedLoad>, backoff: Duration },
    /// The last one failed; the next may begin at `retry_at`.
    Failed { fault: LoadError, retry_at: Instant, backoff: Duration },
}

/// A load that requests wait for.
#[derive(Debug)]
struct WantedLoad {
    attempt: Arc<LoadAttempt>,
    begun_at: OnceLock<Instant>,
    outcome: watch::Sender<Option<Outcome>>,
    /// The requests and pipelines that wait. Changed with the lock of [`OnDemand::loads`] held.
    waiting: AtomicUsize,
}

/// Waits for a load. Dropping the last of a load ends it.
struct Waiter {
    control: Arc<Control>,
    name: String,
    load: Arc<WantedLoad>,
    /// Whether it stops waiting because the load takes too long.
    is_late: bool,
}

/// What came of a load. The versions are held, so that none is unloaded before the requests that waited have it.
type Outcome = Result<Vec<Arc<ModelVersion>>, LoadError>;

impl Default for OnDemand {
    fn default() -> Self {
        let (loads, clients, is_closed) = (Mutex::default(), Mutex::default(), AtomicBool::new(false));
        Self { loads, waiting: Budget::of(MAX_WAITING), clients, is_closed }
    }
}

impl OnDemand {
    /// Lets the next request load a model although its last load failed shortly before.
    pub(crate) fn forget_failure(&self, name: &str) {
        let mut loads = self.loads.lock();
        if matches!(loads.get(name), Some(SharedLoad::Failed { .. })) {
            loads.remove(name);
        }
    }

    /// Lets the next request load any model for which there was no memory, because some was given back.
    pub(crate) fn forget_lack_of_memory(&self) {
        let is_lack = |load: &SharedLoad| matches!(load, SharedLoad::Failed { fault, .. } if fault.is_memory());
        self.loads.lock().retain(|_, load| !is_lack(load));
    }

    /// Returns the places of a client that begins at most this many loads at a time.
    fn places(&self, requester: Requester, most_loads: usize) -> Arc<ClientPlaces> {
        let mut clients = self.clients.lock();
        clients.retain(|_, places| places.strong_count() > 0);
        if let Some(places) = clients.get(&requester).and_then(Weak::upgrade) {
            return places;
        }
        let (waiting, loads) = (Budget::share_of(&self.waiting), Arc::new(Semaphore::new(most_loads)));
        let places = Arc::new(ClientPlaces { waiting, loads });
        clients.insert(requester, Arc::downgrade(&places));
        places
    }

    /// Records the end of a load, from which on requests get its outcome.
    fn ended(&self, name: &str, load: &Arc<WantedLoad>, outcome: &Outcome) {
        let mut loads = self.loads.lock();
        let backoff = match loads.get(name) {
            Some(SharedLoad::Wanted { load: wanted, backoff }) if Arc::ptr_eq(wanted, load) => *backoff,
            // No request waited for it any more.
            _ => return,
        };
        loads.remove(name);
        if let Err(fault) = outcome
            && !fault.is_stopped()
        {
            let (fault, retry_at) = (fault.clone(), Instant::now() + backoff);
            loads.insert(name.to_owned(), SharedLoad::Failed { fault, retry_at, backoff });
        }
    }
}

fn interrupted() -> LoadError {
    LoadError::internal("the load was interrupted")
}

impl Waiter {
    /// Waits for the load, which begins once its client has a place for it, or at once if `places` is `None`. Returns
    /// the model's versions.
    ///
    /// # Errors
    /// Returns why the load failed, and the time until the next is due.
    async fn outcome(&self, places: Option<&Arc<Semaphore>>) -> Result<Vec<Arc<ModelVersion>>, (LoadError, Duration)> {
        let load = &self.load;
        let mut outcome = load.outcome.subscribe();
        match places {
            None => self.begin(None),
            Some(places) => tokio::select! {
                biased;
                // Another client began it.
                _ = outcome.wait_for(Option::is_some) => {}
                // What begins now ends at once.
                _ = load.attempt.stopped() => self.begin(None),
                // Places are never closed.
                place = Arc::clone(places).acquire_owned() => self.begin(place.ok()),
            },
        }
        let ended = outcome.wait_for(Option::is_some).await.map(|outcome| outcome.clone());
        let outcome = ended.ok().flatten().unwrap_or_else(|| Err(interrupted()));
        outcome.map_err(|fault| (fault, self.control.time_to_retry(&self.name)))
    }

    /// Begins the load unless it has begun. The place of the client who began it is taken until it has ended.
    fn begin(&self, place: Option<OwnedSemaphorePermit>) {
        if self.load.begun_at.set(Instant::now()).is_err() {
            return;
        }
        let (control, name, load) = (Arc::clone(&self.control), self.name.clone(), Arc::clone(&self.load));
        // Two tasks, so that a load that panics ends too.
        let run = tokio::spawn(control.run_boxed(name.clone(), Arc::clone(&load.attempt)));
        tokio::spawn(async move {
            let outcome = run.await.unwrap_or_else(|_| Err(interrupted()));
            control.on_demand.ended(&name, &load, &outcome);
            load.outcome.send_replace(Some(outcome));
            drop(place);
        });
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        let mut loads = self.control.on_demand.loads.lock();
        if self.load.waiting.fetch_sub(1, Ordering::Relaxed) > 1 {
            return;
        }
        let is_this =
            matches!(loads.get(&self.name), Some(SharedLoad::Wanted { load, .. }) if Arc::ptr_eq(load, &self.load));
        let limit = self.control.options.residency.load_timeout;
        let had_time = |begun_at: &Instant| begun_at.elapsed() >= limit / 2;
        if is_this && self.is_late && self.load.begun_at.get().is_some_and(had_time) {
            drop(loads);
            self.load.attempt.stop_late(too_late(limit));
        } else if is_this {
            // The next request begins another one.
            loads.remove(&self.name);
            drop(loads);
            self.load.attempt.stop("no request waits for the model any more");
        }
    }
}

/// Returns the error of a load that a request began, and that the model is still wanted for.
fn failure(error: &ControlError) -> LoadError {
    match error {
        ControlError::NoMemory { reason, .. } => LoadError::memory(reason.clone()),
        ControlError::NoPlace { reason, .. } => LoadError::files(reason.clone()),
        ControlError::Stopped { reason, .. } => LoadError::new(LoadErrorKind::TimedOut, reason.clone()),
        ControlError::LoadFailed { kind, reason, .. } => LoadError::new(*kind, reason.clone()),
        ControlError::UnknownModel { .. } => LoadError::files(error.clone()),
        other => LoadError::internal(other.clone()),
    }
}

fn too_late(limit: Duration) -> String {
    format!("it has not loaded within {limit:?} (--load-timeout-secs)")
}

impl Control {
    /// Returns the version that a request names once its model is loaded: waits for the load that others wait for too,
    /// or else begins one. Dropping the future ends the wait, and the load if no other request waits.
    ///
    /// # Errors
    /// Fails if the load fails or failed shortly before, if there is no memory for the model, if the load takes too
    /// long, if too many requests wait, or as [`crate::Repository::resolve`].
    pub(crate) async fn demand(
        self: &Arc<Self>,
        name: &str,
        version: &str,
        requester: Requester,
    ) -> Result<Arc<ModelVersion>, ResolveError> {
        let stats = &self.stats.residency;
        ResidencyStats::count(&stats.misses);
        let refused = |counter: &AtomicU64, error: ResolveError| {
            ResidencyStats::count(counter);
            Err(error)
        };
        let failed = |fault: LoadError, retry| {
            let counter = if fault.is_memory() { &stats.refused_memory } else { &stats.refused_failed };
            refused(counter, fault.into_resolve(name, retry))
        };
        let client = self.on_demand.places(requester, self.options.load_threads.max(1));
        let Some(_place) = client.waiting.take_one() else {
            let all = &self.on_demand.waiting;
            let is_of_client = all.used() < all.capacity();
            let limit = if is_of_client { client.waiting.capacity() } else { all.capacity() };
            let error = ResolveError::TooManyWaiting { name: name.to_owned(), limit, is_of_client };
            return refused(&stats.refused_waiting, error);
        };
        let limit = self.options.residency.load_timeout;
        let mut waiter = match self.join_load(name) {
            Ok(waiter) => waiter,
            Err((fault, retry)) => return failed(fault, retry),
        };
        let loaded = match timeout(limit, waiter.outcome(Some(&client.loads))).await {
            Ok(Ok(loaded)) => loaded,
            Ok(Err((fault, retry))) => return failed(fault, retry),
            Err(_) => {
                waiter.is_late = true;
                return refused(&stats.refused_time, ResolveError::NotInTime { name: name.to_owned(), limit });
            }
        };
        match self.serving.load().resolve(name, version).cloned() {
            // It is to leave for others already. Those who waited for it are answered first.
            Err(ResolveError::NotLoaded { .. }) => {
                let is_named =
                    |own: &&Arc<ModelVersion>| version.is_empty() || own.spec().version.to_string() == version;
                let latest = loaded.iter().rev().find(is_named).cloned();
                latest.ok_or_else(|| ResolveError::NotLoaded { name: name.to_owned() })
            }
            resolved => resolved,
        }
    }

    /// Loads a model that a pipeline needs, unless it is loaded. Requests for the model share the load.
    ///
    /// # Errors
    /// Returns why the load failed, or the one before that failed recently.
    pub(crate) async fn load_for_pipeline(self: &Arc<Self>, name: &str) -> Result<(), LoadError> {
        let waiter = self.join_load(name).map_err(|(fault, _)| fault)?;
        waiter.outcome(None).await.map(drop).map_err(|(fault, _)| fault)
    }

    fn time_to_retry(&self, name: &str) -> Duration {
        match self.on_demand.loads.lock().get(name) {
            Some(SharedLoad::Failed { retry_at, .. }) => retry_at.saturating_duration_since(Instant::now()),
            Some(SharedLoad::Wanted { .. }) | None => Duration::ZERO,
        }
    }

    /// Joins those that wait for the load of a model, which is queued if there is none.
    fn join_load(self: &Arc<Self>, name: &str) -> Result<Waiter, (LoadError, Duration)> {
        let mut loads = self.on_demand.loads.lock();
        if self.on_demand.is_closed.load(Ordering::Relaxed) {
            let error = LoadError::new(LoadErrorKind::Stopped, SHUTTING_DOWN);
            return Err((error, Duration::ZERO));
        }
        let waiter = |load: &Arc<WantedLoad>| {
            load.waiting.fetch_add(1, Ordering::Relaxed);
            Waiter { control: Arc::clone(self), name: name.to_owned(), load: Arc::clone(load), is_late: false }
        };
        let backoff = match loads.get(name) {
            Some(SharedLoad::Wanted { load, .. }) => return Ok(waiter(load)),
            Some(SharedLoad::Failed { fault, retry_at, backoff }) => {
                let left = retry_at.saturating_duration_since(Instant::now());
                if !left.is_zero() {
                    return Err((fault.clone(), left));
                }
                // Memory that is short now may be free in a second.
                if fault.is_memory() { FIRST_BACKOFF } else { (*backoff * 2).min(LONGEST_BACKOFF) }
            }
            None => FIRST_BACKOFF,
        };
        let load = Arc::new(WantedLoad {
            attempt: self.attempt(name, &Overrides::default()),
            begun_at: OnceLock::new(),
            outcome: watch::Sender::new(None),
            waiting: AtomicUsize::new(0),
        });
        let waiter = waiter(&load);
        loads.insert(name.to_owned(), SharedLoad::Wanted { load, backoff });
        Ok(waiter)
    }

    /// As [`Self::run`], as a future whose type does not contain itself: the load of a pipeline loads its models.
    fn run_boxed(
        self: &Arc<Self>,
        name: String,
        attempt: Arc<LoadAttempt>,
    ) -> Pin<Box<dyn Future<Output = Outcome> + Send>> {
        let control = Arc::clone(self);
        Box::pin(async move { control.run(&name, &attempt).await })
    }

    /// Loads a model within the time limit, unless it is loaded.
    async fn run(self: &Arc<Self>, name: &str, attempt: &Arc<LoadAttempt>) -> Outcome {
        let limit = self.options.residency.load_timeout;
        let mut load = std::pin::pin!(self.load_unless_loaded(name, attempt));
        match timeout(limit, &mut load).await {
            Ok(outcome) => outcome,
            Err(_) => {
                attempt.stop_late(too_late(limit));
                load.await
            }
        }
    }

    async fn load_unless_loaded(self: &Arc<Self>, name: &str, attempt: &Arc<LoadAttempt>) -> Outcome {
        loop {
            let mut changes = self.changes.subscribe();
            while self.table.lock().is_draining(name) {
                // The sender is a part of `self`.
                let _ = attempt.unless_stopped(changes.changed()).await?;
            }
            let loaded = || -> Vec<Arc<ModelVersion>> {
                let serving = self.serving.load();
                serving.models.get(name).map(|served| served.ready.clone()).unwrap_or_default()
            };
            let versions = loaded();
            if !versions.is_empty() {
                return Ok(versions);
            }
            self.load_logged(name, attempt).await?;
            if !self.table.lock().is_draining(name) {
                return Ok(loaded());
            }
        }
    }

    async fn load_logged(self: &Arc<Self>, name: &str, attempt: &Arc<LoadAttempt>) -> Result<(), LoadError> {
        let stats = &self.stats.residency;
        ResidencyStats::count(&stats.loads);
        let began = Instant::now();
        let Err(error) = self.load(name, Overrides::default(), attempt, Demand::Request).await else {
            tracing::info!(model = name, took_ms = began.elapsed().as_millis() as u64, "model loaded on demand");
            return Ok(());
        };
        let mut fault = failure(&error).of_model(name);
        if attempt.unwanted().is_some() {
            fault = fault.of_kind(LoadErrorKind::Stopped);
        }
        if fault.is_stopped() {
            tracing::debug!(model = name, fault = %error, "a load on demand was ended");
            return Err(fault);
        }
        ResidencyStats::count(&stats.failed_loads);
        if fault.is_memory() {
            tracing::warn!(model = name, fault = %error, "no memory for a load on demand");
        } else {
            tracing::error!(model = name, fault = %error, "load on demand failed");
        }
        Err(fault)
    }

    /// Ends the loads that requests wait for, and begins no others: these requests are answered before the server ends.
    pub(crate) fn end_loads_on_demand(&self) {
        if self.options.mode.is_on_demand() {
            // Under the lock under which loads begin, so that none begins between the two.
            let loads = self.on_demand.loads.lock();
            self.on_demand.is_closed.store(true, Ordering::Relaxed);
            drop(loads);
            self.gates.stop_all(SHUTTING_DOWN);
        }
    }

    /// Lets requests load these models.
    pub(crate) fn offer<'n>(&self, names: impl IntoIterator<Item = &'n str>) {
        self.table.lock().offer(names);
        self.publish();
    }

    /// Follows a change of a model's directory: loads it again if it is loaded, or if its configuration says that it is
    /// to be. Otherwise the next request loads it, even if its last load failed. Returns false if the next poll is to
    /// try it again.
    pub(crate) async fn directory_changed(self: &Arc<Self>, name: &str, found: Found) -> bool {
        self.on_demand.forget_failure(name);
        self.dependencies.failed_for(name).iter().for_each(|pipeline| self.on_demand.forget_failure(pipeline));
        if self.is_pinned(name, &found).await {
            return self.load_found(name, Some(found), Demand::Poll).await;
        }
        if self.table.lock().needs(name) {
            let attempt = self.attempt(name, &Overrides::default());
            if let Err(fault) = self.load(name, Overrides::default(), &attempt, Demand::Client).await {
                tracing::error!(model = name, %fault, "load failed; the model is not served as its repository has it");
                return !fault.is_memory();
            }
        }
        true
    }

    /// Unloads a model whose directory is gone, with the pipelines that need it, and forgets it.
    pub(crate) async fn withdraw(self: &Arc<Self>, name: &str) {
        self.on_demand.forget_failure(name);
        self.table.lock().withdraw(name);
        self.unload_pipelines_of(name).await;
        self.unload(name).await;
        self.table.lock().forget(name);
        self.publish();
    }

    /// Reads what a model's directory says of it before it is loaded, and returns whether it says that the model stays
    /// loaded. Nothing is known of a model in a store, which would have to be fetched first, and of one whose
    /// configuration cannot be read: the load says why.
    pub(crate) async fn is_pinned(&self, name: &str, found: &Found) -> bool {
        let Found::At(directory) = found else { return false };
        let (directory, config_name) = (directory.clone(), self.options.config_name.clone());
        let policies = self.options.custom_policies.clone();
        let read = move || {
            let read = configuration::read(&directory, config_name.as_deref(), &policies).ok()?;
            let settings = read.map(|(settings, _)| settings.own).unwrap_or_default();
            let tokenizes = settings.pipeline.iter().any(|step| matches!(step, PipelineStep::Tokenize(_)));
            let takes_texts = settings.text.is_some() || tokenizes || directory::takes_texts(&directory);
            Some((settings.pin == Some(true), takes_texts))
        };
        let read = self.places.readers().run(read).await;
        let (is_pinned, takes_texts) = read.ok().flatten().unwrap_or_default();
        self.table.lock().announce(name, takes_texts);
        is_pinned
    }

    /// Returns whether the command line names a model as one that stays loaded.
    pub(crate) fn is_named(&self, name: &str) -> bool {
        self.options.mode.startup().iter().any(|named| named == name || named == "*")
    }

    /// Returns what loads on demand have done, and the memory of models.
    pub(crate) fn residency(&self) -> ResidencyReading {
        let table = self.table.lock();
        ResidencyReading {
            is_on_demand: self.options.mode.is_on_demand(),
            memory: self.memory.as_ref().map(|memory| (memory.used(), memory.capacity())),
            waiting: self.on_demand.waiting.used(),
            hits: table.hits(),
            models: table.memory(),
            start_cache: self.loader.start_cache(),
        }
    }
}

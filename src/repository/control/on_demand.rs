//! Loads that requests begin. A request for a model that is not loaded waits for one load, which all requests for the
//! model share. After a load that failed, requests get its reason at once until the next one is due.

use std::{
    collections::HashMap,
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{
    sync::watch,
    time::{Instant, timeout},
};

use super::{Control, Demand, fault::LoadFault};
use crate::{
    budget::Budget,
    observe::{ResidencyReading, ResidencyStats},
    repository::{
        ModelVersion, Overrides, ResolveError, config::model::PipelineStep, configuration, directory, scan::Found,
    },
};

/// Most requests that wait for models.
pub(crate) const MAX_WAITING: usize = 1024;

/// Time between a load that failed and the next one. Each further failure doubles it.
const FIRST_BACKOFF: Duration = Duration::from_secs(1);

/// Why loads end with the server.
const SHUTTING_DOWN: &str = "the server is shutting down";

/// Longest such time.
const LONGEST_BACKOFF: Duration = Duration::from_secs(60);

/// The loads that requests wait for.
#[derive(Debug)]
pub(crate) struct OnDemand {
    loads: Mutex<HashMap<String, SharedLoad>>,
    /// Limits the requests that wait.
    waiting: Arc<Budget>,
    /// Whether no load may begin any more.
    is_closed: AtomicBool,
}

/// The load of one model, as its requests share it.
#[derive(Debug)]
enum SharedLoad {
    /// Queued or in progress. `backoff` follows if it fails.
    Running { outcome: watch::Receiver<Option<Outcome>>, backoff: Duration },
    /// The last one failed; the next may begin at `retry_at`.
    Failed { fault: LoadFault, retry_at: Instant, backoff: Duration },
}

/// What came of a load. The versions are held, so that none is unloaded before the requests that waited have it.
type Outcome = Result<Vec<Arc<ModelVersion>>, LoadFault>;

impl Default for OnDemand {
    fn default() -> Self {
        Self { loads: Mutex::default(), waiting: Budget::of(MAX_WAITING), is_closed: AtomicBool::new(false) }
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

    /// Records the end of a load, from which on requests get its outcome.
    fn ended(&self, name: &str, outcome: &Outcome) {
        let mut loads = self.loads.lock();
        let Some(SharedLoad::Running { backoff, .. }) = loads.remove(name) else { return };
        if let Err(fault) = outcome
            && !fault.is_unload()
        {
            let (fault, retry_at) = (fault.clone(), Instant::now() + backoff);
            loads.insert(name.to_owned(), SharedLoad::Failed { fault, retry_at, backoff });
        }
    }
}

fn interrupted() -> LoadFault {
    "the load was interrupted".to_owned().into()
}

impl Control {
    /// Returns the version that a request names once its model is loaded: waits for the load that others wait for too,
    /// or else begins one. Dropping the future ends the wait, not the load.
    ///
    /// # Errors
    /// Fails if the load fails or failed shortly before, if there is no memory for the model, if the load takes too
    /// long, if too many requests wait, or as [`crate::repository::Repository::resolve`].
    pub(crate) async fn demand(self: &Arc<Self>, name: &str, version: &str) -> Result<Arc<ModelVersion>, ResolveError> {
        let stats = &self.stats.residency;
        ResidencyStats::count(&stats.misses);
        let waiting = &self.on_demand.waiting;
        let Some(_place) = waiting.take_one() else {
            ResidencyStats::count(&stats.refused_waiting);
            return Err(ResolveError::TooManyWaiting { name: name.to_owned(), limit: waiting.capacity() });
        };
        let refused = |counter: &AtomicU64, error: ResolveError| {
            ResidencyStats::count(counter);
            Err(error)
        };
        let limit = self.options.residency.load_timeout;
        // Held until the version has been resolved.
        let _loaded = match timeout(limit, self.load_on_demand(name)).await {
            Ok(Ok(loaded)) => loaded,
            Ok(Err((fault, retry))) => {
                let counter = if fault.is_memory() { &stats.refused_memory } else { &stats.refused_failed };
                return refused(counter, fault.into_error(name, retry));
            }
            Err(_) => return refused(&stats.refused_time, ResolveError::NotInTime { name: name.to_owned(), limit }),
        };
        self.serving.load().resolve(name, version).cloned()
    }

    /// Loads a model unless it is loaded; loads of one model at the same time are one. Returns its versions.
    ///
    /// # Errors
    /// Returns why the load failed, or the one before that failed recently, and the time until the next is due.
    pub(crate) async fn load_on_demand(
        self: &Arc<Self>,
        name: &str,
    ) -> Result<Vec<Arc<ModelVersion>>, (LoadFault, Duration)> {
        let mut outcome = self.shared_load(name)?;
        let ended = outcome.wait_for(Option::is_some).await.map(|outcome| outcome.clone());
        let outcome = ended.ok().flatten().unwrap_or_else(|| Err(interrupted()));
        outcome.map_err(|fault| (fault, self.time_to_retry(name)))
    }

    fn time_to_retry(&self, name: &str) -> Duration {
        match self.on_demand.loads.lock().get(name) {
            Some(SharedLoad::Failed { retry_at, .. }) => retry_at.saturating_duration_since(Instant::now()),
            Some(SharedLoad::Running { .. }) | None => Duration::ZERO,
        }
    }

    /// Returns where the outcome of a model's load appears; begins the load if none is in progress.
    fn shared_load(self: &Arc<Self>, name: &str) -> Result<watch::Receiver<Option<Outcome>>, (LoadFault, Duration)> {
        let mut loads = self.on_demand.loads.lock();
        if self.on_demand.is_closed.load(Ordering::Relaxed) {
            return Err((SHUTTING_DOWN.to_owned().into(), Duration::ZERO));
        }
        let backoff = match loads.get(name) {
            Some(SharedLoad::Running { outcome, .. }) => return Ok(outcome.clone()),
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
        let (sender, outcome) = watch::channel(None);
        loads.insert(name.to_owned(), SharedLoad::Running { outcome: outcome.clone(), backoff });
        drop(loads);
        let (control, model) = (Arc::clone(self), name.to_owned());
        // Two tasks, so that a load that panics ends too.
        let load = tokio::spawn(self.run_boxed(name.to_owned()));
        tokio::spawn(async move {
            let outcome = load.await.unwrap_or_else(|_| Err(interrupted()));
            control.on_demand.ended(&model, &outcome);
            // Fails if no request waits any more.
            let _ = sender.send(Some(outcome));
        });
        Ok(outcome)
    }

    /// As [`Self::run`], as a future whose type does not contain itself: the load of a pipeline loads its models.
    fn run_boxed(self: &Arc<Self>, name: String) -> Pin<Box<dyn Future<Output = Outcome> + Send>> {
        let control = Arc::clone(self);
        Box::pin(async move { control.run(&name).await })
    }

    /// Loads a model within the time limit, unless it is loaded.
    async fn run(self: &Arc<Self>, name: &str) -> Outcome {
        let loaded = || -> Vec<Arc<ModelVersion>> {
            let serving = self.serving.load();
            serving.models.get(name).map(|served| served.ready.clone()).unwrap_or_default()
        };
        let versions = loaded();
        if !versions.is_empty() {
            return Ok(versions);
        }
        let stats = &self.stats.residency;
        ResidencyStats::count(&stats.loads);
        let (began, limit) = (Instant::now(), self.options.residency.load_timeout);
        let attempt = self.attempt(name, &Overrides::default());
        let mut load = std::pin::pin!(self.load(name, Overrides::default(), &attempt, Demand::Request));
        let mut is_late = false;
        let ended = match timeout(limit, &mut load).await {
            Ok(ended) => ended,
            Err(_) => {
                is_late = true;
                attempt.stop(format!("it has not loaded within {limit:?} (--load-timeout-secs)"));
                load.await
            }
        };
        match ended {
            Ok(()) => {
                tracing::info!(model = name, took_ms = began.elapsed().as_millis() as u64, "model loaded on demand");
                Ok(loaded())
            }
            Err(error) => {
                let is_unload = !is_late && attempt.check().is_err();
                let fault = LoadFault::of(&error, is_unload);
                if is_unload {
                    tracing::info!(model = name, fault = %error, "a load on demand was ended");
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
        }
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
        let read = move || {
            let read = configuration::read(&directory, config_name.as_deref()).ok()?;
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

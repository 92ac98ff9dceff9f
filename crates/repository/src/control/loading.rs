//! How models are loaded: from their directories and from what clients send, version by version on loader threads.
//! `control` has what loads share, and publishes their results.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use paternoster_config::{Origin, Settings};
use paternoster_observe::{
    CardMemory,
    budget::{Reservation, SharedReservation},
};
use paternoster_pipeline::{Cached, Servable};
use tokio::{
    task::JoinSet,
    time::{Instant, timeout},
};
use tracing::{
    field::{Empty, display},
    info_span,
};

use super::{
    Control, Demand, Kept,
    card_room::{Tried, Unprofiled},
    memory_budget::estimated_bytes,
};
use crate::{
    ControlError, LoadAttempt, LoadError, LoadErrorKind, ModelVersion, Overrides, ResolvedVersion,
    blocking::blocking,
    configuration,
    directory::{self, Fingerprint},
    loader::version_latencies,
    prepare::{Completion, FoundModel, PlannedPipeline},
    resolving::resolve,
    scan::{self, Found},
    stores::LetGo,
    table::{Footprint, Measured, Retired},
};

/// Time for a load that was ended early to return. If it does not, its result is dropped when it does.
const STOP_GRACE: Duration = Duration::from_secs(5);

/// What is to be loaded.
pub(crate) struct Source {
    directory: Option<PathBuf>,
    overrides: Overrides,
    config: Option<(Settings, Origin)>,
    demand: Demand,
    /// Whether the directory is known not to hold a model: the load then only records the reason.
    is_stray: bool,
}

impl Source {
    /// A model exactly as its directory has it.
    pub(crate) fn of_directory(directory: PathBuf, demand: Demand) -> Self {
        Self { directory: Some(directory), overrides: Overrides::default(), config: None, demand, is_stray: false }
    }

    /// Returns whether readiness waits for the model even if none of its versions can be tried.
    fn is_asked_for(&self) -> bool {
        matches!(self.demand, Demand::Named | Demand::Start) && !self.is_stray
    }

    /// Returns the directory if everything of the model comes from it.
    fn only_directory(&self) -> Option<PathBuf> {
        let as_it_is = self.config.is_none() && self.overrides.versions().is_none();
        self.directory.clone().filter(|_| as_it_is)
    }
}

/// A load that may begin: the models that it needs are there, and there is memory for it.
struct Admitted {
    /// What it is expected to take, by its files.
    estimated_bytes: usize,
    /// What is expected now: what it took when it was loaded before, if it was.
    bytes: usize,
    /// What is reserved; `None` if the memory of models is not limited.
    memory: Option<Reservation>,
}

/// A version that was loaded.
struct Loaded {
    version: Arc<ModelVersion>,
    /// What it was loaded from, if profiling it may pay off.
    unprofiled: Option<ResolvedVersion>,
    /// How long that took, once it had a thread.
    took: Duration,
}

impl Control {
    /// Loads the named models, or all models in `found`, in parallel.
    pub(crate) async fn load_all(self: &Arc<Self>, names: Option<Vec<String>>, found: BTreeMap<String, Found>) {
        let demand = if names.is_some() { Demand::Named } else { Demand::Start };
        let names: BTreeSet<String> = match names {
            Some(names) => names.into_iter().collect(),
            None => found.keys().cloned().collect(),
        };
        let mut loads = JoinSet::new();
        for name in names {
            let (control, found) = (self.clone(), found.get(&name).cloned());
            loads.spawn(async move { control.load_found(&name, found, demand).await });
        }
        while loads.join_next().await.is_some() {}
    }

    /// Loads what a scan or poll found under a name. Returns false if the next poll is to try it again: if it could not
    /// be fetched, since a store may fail to deliver what it listed, or if there was no memory for it.
    pub(crate) async fn load_found(self: &Arc<Self>, name: &str, found: Option<Found>, demand: Demand) -> bool {
        let (gate, attempt) = (self.gates.of(name), LoadAttempt::of_repository());
        gate.register(&attempt);
        let _turn = gate.turn.lock().await;
        let fetched = match found {
            Some(Found::At(directory)) => self.fetch(&directory).await.map(Found::At).map(Some),
            found => Ok(found),
        };
        let mut is_there = fetched.is_ok();
        let outcome = match fetched {
            Err(error) => self.refuse(name, error, demand != Demand::Poll),
            Ok(Some(Found::At(directory))) => {
                let is_stray = demand != Demand::Named && !self.holds_model(&directory).await;
                let source = Source { is_stray, ..Source::of_directory(directory, demand) };
                self.load_source(name, source, &attempt).await
            }
            Ok(Some(Found::Twice(first, second))) => {
                let reason = duplicate(&first, &second);
                self.change(|table| table.conflict(name, &reason, demand != Demand::Poll)).await;
                Err(LoadError::files(reason).into_control(name))
            }
            Ok(None) => {
                let error = LoadError::files("no repository has a model directory of that name");
                self.refuse(name, error, true)
            }
        };
        if let Err(fault) = outcome {
            tracing::error!(model = name, %fault, "load failed; the model is not served as its repository has it");
            is_there &= !fault.is_memory();
        }
        is_there
    }

    /// Returns the local directory of a model. Fetching it may remove copies of models that are not loaded.
    async fn fetch(self: &Arc<Self>, directory: &Path) -> Result<PathBuf, LoadError> {
        let control = self.clone();
        // Waiting for another model's gate could deadlock: its holder may itself be waiting for room.
        let let_go: LetGo = Arc::new(move |name| {
            let turn = Arc::clone(&control.gates.of(name).turn).try_lock_owned().ok()?;
            (!control.table.lock().needs(name)).then_some(turn)
        });
        self.places.fetch(directory, &let_go).await
    }

    /// Returns whether a directory holds a model. A directory that cannot be read counts as one.
    async fn holds_model(&self, directory: &Path) -> bool {
        let (directory, config_name) = (directory.to_owned(), self.options.config_name.clone());
        let check = move || {
            let configurations = configuration::configurations(&directory, config_name.as_deref());
            directory::holds_model(&directory, &configurations).unwrap_or(true)
        };
        self.places.readers().run(check).await.unwrap_or(true)
    }

    /// Returns the attempt of a load at a client's request, which an unload ends from now on.
    pub(crate) fn attempt(&self, name: &str, overrides: &Overrides) -> Arc<LoadAttempt> {
        let attempt = if overrides.is_empty() {
            LoadAttempt::of_repository()
        } else {
            LoadAttempt::of_client(&self.options.sent_model_bytes)
        };
        self.gates.of(name).register(&attempt);
        attempt
    }

    /// Loads a model at the request of a client, with what the client sent of it. A load that ends early because the
    /// model is not wanted any more has one error, at whatever step that is.
    pub(crate) async fn load(
        self: &Arc<Self>,
        name: &str,
        overrides: Overrides,
        attempt: &Arc<LoadAttempt>,
        demand: Demand,
    ) -> Result<(), ControlError> {
        self.load_in_turn(name, overrides, attempt, demand).await.map_err(|error| match (error, attempt.unwanted()) {
            (ControlError::LoadFailed { name, .. }, Some(reason)) => {
                ControlError::Stopped { name, reason: reason.to_owned() }
            }
            (error, _) => error,
        })
    }

    async fn load_in_turn(
        self: &Arc<Self>,
        name: &str,
        overrides: Overrides,
        attempt: &Arc<LoadAttempt>,
        demand: Demand,
    ) -> Result<(), ControlError> {
        let unknown = || ControlError::UnknownModel { name: name.to_owned() };
        let no_place = |error: &LoadError| ControlError::NoPlace { name: name.to_owned(), reason: error.to_string() };
        if !scan::is_model_name(name) {
            return Err(unknown());
        }
        if overrides.lack_config() {
            return Err(ControlError::FilesWithoutConfig { name: name.to_owned() });
        }
        overrides
            .check()
            .map_err(|error| ControlError::BadOverride { name: name.to_owned(), reason: error.to_string() })?;
        let config = configuration::read_override(&overrides, &self.options.custom_policies)
            .map_err(|fault| ControlError::BadConfig { name: name.to_owned(), reason: fault.to_string() })?;
        let directory = match self.places.find(name).await {
            Ok(Some(Found::At(directory))) => Some(directory),
            // If files came with the request, no directory is needed.
            _ if overrides.versions().is_some() => None,
            Ok(Some(Found::Twice(first, second))) => {
                return Err(ControlError::NoPlace { name: name.to_owned(), reason: duplicate(&first, &second) });
            }
            Ok(None) => return Err(unknown()),
            Err(error) => return Err(no_place(&error)),
        };
        // Everything above only reads, so that bad requests do not wait behind a slow load of the same model.
        let gate = self.gates.of(name);
        let stopped = |error: LoadError| ControlError::Stopped { name: name.to_owned(), reason: error.to_string() };
        let _turn = attempt.unless_stopped(gate.turn.lock()).await.map_err(stopped)?;
        if self.table.lock().is_closed() {
            return Err(ControlError::ShuttingDown);
        }
        if demand == Demand::Request && self.table.lock().serves(name) {
            return Ok(());
        }
        let directory = match directory {
            None => None,
            Some(directory) => match attempt.unless_stopped(self.fetch(&directory)).await.map_err(stopped)? {
                Ok(directory) => Some(directory),
                Err(_) if overrides.versions().is_some() => None,
                Err(error) => return Err(no_place(&error)),
            },
        };
        // A load with files is complete by itself, so a configuration kept from an earlier request no longer applies.
        if overrides.versions().is_some() {
            let held = overrides.held.clone();
            let source = Source { directory, overrides, config, demand, is_stray: false };
            self.load_source(name, source, attempt).await?;
            // Files that the loaded programs still refer to are a part of what the version keeps.
            held.iter().for_each(SharedReservation::release);
            self.kept.lock().remove(name);
            return Ok(());
        }
        // Taken before the load: a change during the load then counts as a change after it.
        let fingerprint = self.fingerprint(directory.as_deref()).await;
        let config = config.or_else(|| self.kept(name, fingerprint.as_ref()));
        let source = Source { directory, overrides, config: config.clone(), demand, is_stray: false };
        let loaded = self.load_source(name, source, attempt).await;
        if loaded.is_err() && demand == Demand::Request && attempt.unwanted().is_some() {
            self.change(|table| table.forget_failure(name)).await;
        }
        loaded?;
        match (config, fingerprint) {
            (Some(config), Some(fingerprint)) => {
                drop(self.kept.lock().insert(name.to_owned(), Kept { config, fingerprint }))
            }
            (Some(_), None) => {}
            (None, _) => drop(self.kept.lock().remove(name)),
        }
        Ok(())
    }

    /// Returns the fingerprint of a model's directory; `None` if it cannot be read.
    async fn fingerprint(&self, directory: Option<&Path>) -> Option<Fingerprint> {
        let directory = directory?.to_owned();
        self.places.readers().run(move || Fingerprint::of(&directory)).await.ok()?.ok()
    }

    /// Returns the configuration from an earlier load request, unless the directory has changed since.
    fn kept(&self, name: &str, fingerprint: Option<&Fingerprint>) -> Option<(Settings, Origin)> {
        let kept = self.kept.lock();
        let holds = |kept: &&Kept| fingerprint.is_none_or(|fingerprint| *fingerprint == kept.fingerprint);
        kept.get(name).filter(holds).map(|kept| kept.config.clone())
    }

    /// Loads a model: finds it, waits for what it needs, loads its versions and publishes what became of them.
    pub(crate) async fn load_source(
        self: &Arc<Self>,
        name: &str,
        source: Source,
        attempt: &Arc<LoadAttempt>,
    ) -> Result<(), ControlError> {
        let (directory, asked, demand) = (source.only_directory(), source.is_asked_for(), source.demand);
        let (found, estimated_bytes) = match self.find(name, source, attempt).await {
            Ok((found, bytes)) => (Arc::new(found), bytes),
            Err(error) => return self.refuse(name, self.places.by_location(name, error), asked),
        };
        self.warn(name, &found);
        let assembling = if found.is_pipeline() && self.options.mode.is_on_demand() {
            attempt.unless_stopped(self.assemble(name)).await
        } else {
            Ok(None)
        };
        let stopped = |error: LoadError| ControlError::Stopped { name: name.to_owned(), reason: error.to_string() };
        let _assembling = assembling.map_err(stopped)?;
        let admitted = match self.dependencies.begin(name, &found.models) {
            Ok(()) => self.admit(name, &found, estimated_bytes, demand, attempt).await,
            Err(cycle) => Err(cycle),
        };
        let admitted = match admitted {
            Ok(admitted) => admitted,
            Err(error) => {
                self.dependencies.end(name, false);
                return self.refuse(name, error, asked);
            }
        };
        let versions = found.versions.clone();
        self.change(|table| {
            table.begin(name, &versions, demand.concerns_readiness());
            Retired::new()
        })
        .await;
        let tried = self.load_with_card_room(name, &found, attempt).await;
        let unprofiled = self.finish(name, &found, tried, admitted, attempt).await?;
        tracing::info!(model = name, versions = ?found.versions, "model loaded");
        self.on_demand.forget_failure(name);
        self.load_dependents(name);
        for (version, resolved) in unprofiled {
            if let Some(directory) = &directory {
                self.profile_later(directory.clone(), version, resolved);
            }
        }
        Ok(())
    }

    /// Reads a model's configuration and picks its versions. Returns it with the bytes that they are expected to take.
    async fn find(
        self: &Arc<Self>,
        name: &str,
        source: Source,
        attempt: &LoadAttempt,
    ) -> Result<(FoundModel, usize), LoadError> {
        let stray = source.is_stray.then(|| source.only_directory());
        let (control, model) = (self.clone(), name.to_owned());
        let Source { directory, overrides, config, .. } = source;
        let read = move || {
            let completion = Completion::of(&control.options);
            let found = FoundModel::read(&model, directory, overrides, config, completion)?;
            let bytes = estimated_bytes(&found);
            Ok::<_, LoadError>((found, bytes))
        };
        let found = attempt.unless_stopped(self.places.readers().run(read)).await???;
        let Some(directory) = stray else { return Ok(found) };
        let misnamed = directory.as_deref().and_then(configuration::misnamed).unwrap_or_default();
        let what = "it holds no model: no configuration, and no version with a file 'model.<something>'";
        Err(LoadError::files(format!("{what}{misnamed}")))
    }

    /// Waits for the models that a model needs, and for memory.
    async fn admit(
        self: &Arc<Self>,
        name: &str,
        found: &FoundModel,
        estimated_bytes: usize,
        demand: Demand,
        attempt: &Arc<LoadAttempt>,
    ) -> Result<Admitted, LoadError> {
        self.settle(&found.models, demand, attempt).await?;
        let bytes = self.table.lock().measured(name, estimated_bytes).unwrap_or(estimated_bytes);
        let memory = self.reserve(name, bytes, attempt).await?;
        Ok(Admitted { estimated_bytes, bytes, memory })
    }

    /// Publishes what became of a model's versions, which keep the memory that is reserved for them. Returns the
    /// versions that profiling may pay off for.
    async fn finish(
        self: &Arc<Self>,
        name: &str,
        found: &FoundModel,
        tried: Tried,
        admitted: Admitted,
        attempt: &LoadAttempt,
    ) -> Result<Unprofiled, ControlError> {
        let Tried { mut results, unprofiled, took: load_took } = tried;
        let Admitted { estimated_bytes, bytes, mut memory } = admitted;
        if let Some(rollout) = &found.rollout {
            rollout.bind(&mut results, &self.options.request_budgets.bytes);
        }
        let failed = failure(&results);
        self.dependencies.end(name, failed.is_none());
        let closed = self.table.lock().is_closed();
        let measured = Measured { estimated_bytes, bytes: attempt.measured() };
        let footprint = memory.as_mut().filter(|_| failed.is_none()).map(|memory| {
            let bytes = measured.bytes.unwrap_or(bytes);
            memory.shrink_to(bytes);
            memory.grow_anyway(bytes - memory.amount());
            let (loaded_at, is_pinned) = (self.now(), found.is_pinned() || self.is_named(name));
            Footprint { bytes, loaded_at, load_took, is_pinned, is_sent: found.is_sent() }
        });
        if footprint.is_some() {
            // Given back with the last of the versions; at once if the load failed.
            attempt.keep(memory.take().into_iter().collect());
        }
        // The table drops the results of a load that finishes after shutdown.
        self.change(|table| {
            let reason = |error: LoadError| error.to_string();
            let results = results.into_iter().map(|(version, result)| (version, result.map_err(reason)));
            let retired = table.finish(name, results.collect(), &found.available);
            if let Some(footprint) = footprint {
                table.settle(name, footprint, measured);
            }
            retired
        })
        .await;
        self.return_to_budget().await;
        match (closed, failed) {
            (true, _) => Err(ControlError::ShuttingDown),
            (false, None) => Ok(unprofiled),
            (false, Some(error)) => {
                let lacks_memory = attempt.card_lack().is_some();
                let error = if lacks_memory { error.of_kind(LoadErrorKind::Memory) } else { error };
                Err(error.into_control(name))
            }
        }
    }

    /// Tries to load all versions side by side.
    pub(crate) async fn load_versions(
        self: &Arc<Self>,
        name: &str,
        found: &Arc<FoundModel>,
        attempt: &Arc<LoadAttempt>,
    ) -> Tried {
        attempt.begin_try();
        let mut loads = JoinSet::new();
        for &version in &found.versions {
            let load = self.clone().load_version(found.clone(), version, attempt.clone());
            loads.spawn(async move { (version, load.await) });
        }
        // A version whose task is cancelled or panics leaves this default behind.
        let mut tried = Tried::failed(found, &LoadError::internal("the load was interrupted"));
        while let Some(joined) = loads.join_next().await {
            if let Ok((version, result)) = joined {
                let result = result.map(|loaded: Loaded| {
                    tried.took = tried.took.max(loaded.took);
                    tried
                        .unprofiled
                        .extend(loaded.unprofiled.map(|resolved| (Arc::downgrade(&loaded.version), resolved)));
                    loaded.version
                });
                tried
                    .results
                    .insert(version, result.map_err(|error| self.places.by_location(name, error.of_model(name))));
            }
        }
        tried
    }

    /// Loads one version once a loader thread is free. If the load is ended early and does not return in time, this
    /// returns without it; the thread counts until it has returned, and its result is dropped.
    async fn load_version(
        self: Arc<Self>,
        found: Arc<FoundModel>,
        version: i64,
        attempt: Arc<LoadAttempt>,
    ) -> Result<Loaded, LoadError> {
        let places = [attempt.is_of_client().then_some(&self.loads_of_clients), Some(&self.loads)];
        let mut permits = Vec::with_capacity(places.len());
        for place in places.into_iter().flatten() {
            let permit = attempt.unless_stopped(place.clone().acquire_owned()).await?;
            permits.push(permit.map_err(LoadError::internal)?);
        }
        let (control, trying) = (self.clone(), attempt.clone());
        let work = move || {
            let loaded = load_version(&control, &found, version, &trying);
            drop(permits);
            loaded
        };
        let mut working = std::pin::pin!(blocking(work));
        tokio::select! {
            loaded = &mut working => loaded?,
            stopped = attempt.stopped() => match timeout(STOP_GRACE, working).await {
                Ok(loaded) => loaded?,
                Err(_) => Err(stopped),
            },
        }
    }

    /// Puts the cache in front of a version, if its configuration asks for that and there is one.
    fn with_cache(&self, found: &FoundModel, servable: Servable) -> Servable {
        match self.options.response_cache.as_ref().filter(|_| found.has_cache()) {
            Some(cache) => Servable::Cached(Arc::new(Cached::new(servable, Arc::clone(cache)))),
            None => servable,
        }
    }

    fn warn(&self, name: &str, found: &FoundModel) {
        let mut warned = self.warned.lock();
        for hint in &found.hints {
            if warned.insert((name.to_owned(), hint.key.clone())) {
                tracing::warn!(model = name, key = %hint.key, reason = %hint.text, "configuration key has no effect");
            }
        }
    }
}

/// Returns why a load failed: each failed version with its reason. The kind is that of the first.
fn failure(results: &BTreeMap<i64, Result<Arc<ModelVersion>, LoadError>>) -> Option<LoadError> {
    let failed = || results.iter().filter_map(|(version, result)| Some((version, result.as_ref().err()?)));
    let texts = failed().map(|(version, error)| format!("version {version} is at UNAVAILABLE state: {error}"));
    let (_, first) = failed().next()?;
    Some(LoadError::new(first.kind(), texts.collect::<Vec<_>>().join("; ")))
}

/// Returns why a name in two repositories is served from neither, in Triton's words with the directories added.
fn duplicate(first: &Path, second: &Path) -> String {
    format!("model appears in two or more repositories: {} and {}", first.display(), second.display())
}

fn load_version(
    control: &Arc<Control>,
    found: &FoundModel,
    version: i64,
    attempt: &LoadAttempt,
) -> Result<Loaded, LoadError> {
    let loader = control.loader.as_ref();
    let span = info_span!("load", model = found.name(), version, engine = Empty, placement = Empty);
    let _within = span.enter();
    let began = Instant::now();
    if found.is_pipeline() {
        let why_unserved = |model: &str| control.table.lock().why_unserved(model);
        let planned = found.pipeline(version, control.pipeline_options(), why_unserved)?;
        let PlannedPipeline { pipeline, config } = planned;
        pipeline.stats().keep_latencies(version_latencies(&loader.latencies(), &config));
        let took = began.elapsed();
        pipeline.stats().loaded_in(took);
        let servable = control.with_cache(found, Servable::Pipeline(pipeline));
        let version = ModelVersion::new(servable, config, found.rollout.clone(), attempt.kept());
        return Ok(Loaded { version: Arc::new(version), unprofiled: None, took });
    }
    let resolved = resolve(found, version, loader, attempt)?;
    span.record("engine", resolved.engine.name()).record("placement", display(&resolved.placement));
    let config = resolved.config.clone();
    // Warm-up requests have run by the time a version is profiled.
    let unprofiled =
        loader.may_profile(&resolved).then(|| ResolvedVersion { warmup: Vec::new(), held: None, ..resolved.clone() });
    let handle = loader.load(resolved, attempt)?;
    // A version whose load was ended meanwhile is dropped here.
    attempt.check()?;
    let took = began.elapsed();
    handle.stats().loaded_in(took);
    for CardMemory { card, bytes, .. } in handle.stats().card_memory() {
        tracing::info!(card, bytes, "memory of a CUDA card reserved");
    }
    let (servable, config) = match &found.text {
        None => (Servable::Model(handle), config),
        Some(text) => {
            let (pipeline, config) = text.around(handle, &config, control.pipeline_options())?;
            tracing::info!(text = text.describe(), "the model takes texts");
            (Servable::Pipeline(Arc::new(pipeline)), Arc::new(config))
        }
    };
    let version = ModelVersion::new(control.with_cache(found, servable), config, found.rollout.clone(), attempt.kept());
    Ok(Loaded { version: Arc::new(version), unprofiled, took })
}

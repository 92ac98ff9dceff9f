//! Loading and unloading: runs the blocking work on loader threads and publishes what comes of it.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tokio::{
    sync::{Semaphore, watch},
    task::JoinSet,
};
use tracing::{
    field::{Empty, display},
    info_span,
};

use super::{
    ControlError, LoadRequest, Loader, ModelVersion, Options, Overrides,
    blocking::blocking,
    config::{Origin, pb},
    directory::{self, Fingerprint},
    places::Places,
    prepare::{self, Completion, Plan},
    scan::{self, Found},
    serving::Serving,
    stores::LetGo,
    table::{Retired, Table},
};
use crate::observe::RepositoryStats;

/// What loads, unloads and polls share. The table is the truth; `serving` is the part of it that requests read.
pub(super) struct Control {
    pub(super) options: Options,
    pub(super) places: Places,
    pub(super) loader: Arc<dyn Loader>,
    pub(super) table: Mutex<Table>,
    pub(super) serving: ArcSwap<Serving>,
    pub(super) changes: watch::Sender<u64>,
    /// One load or unload of a model at a time.
    pub(super) gates: Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>,
    /// Bounds the loader threads.
    pub(super) loads: Arc<Semaphore>,
    /// Configurations that load requests gave in place of the directory's, by model.
    pub(super) kept: Mutex<HashMap<String, Kept>>,
    /// Whether every repository could be read at least once.
    pub(super) opened: AtomicBool,
    pub(super) stats: Arc<RepositoryStats>,
    /// Hints that were warned about, by model and key.
    pub(super) warned: Mutex<BTreeSet<(String, String)>>,
    /// One profile at a time.
    pub(super) profiling: Arc<tokio::sync::Mutex<()>>,
}

/// A configuration that a load request gave. It holds for later loads until an unload, as long as the directory is not
/// changed: of both, the later one counts.
pub(super) struct Kept {
    config: (pb::ModelConfig, Origin),
    /// The directory at that load.
    print: Fingerprint,
}

/// Who wants a model loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Demand {
    /// What named it.
    Named,
    /// Its directory was there at the start.
    Start,
    /// Its directory came or changed while the server served.
    Poll,
}

/// What is to be loaded.
pub(super) struct Source {
    directory: Option<PathBuf>,
    overrides: Overrides,
    config: Option<(pb::ModelConfig, Origin)>,
    /// Whether readiness counts the model even if no version of it can be tried.
    asked: bool,
    /// Whether the directory is known not to be a model's: then only the reason is wanted.
    is_stray: bool,
}

impl Source {
    /// A model as its directory has it.
    pub(super) fn of_directory(directory: PathBuf) -> Self {
        Self { directory: Some(directory), overrides: Overrides::default(), config: None, asked: true, is_stray: false }
    }

    /// The directory, if all of the model comes from there.
    fn only_directory(&self) -> Option<PathBuf> {
        let as_it_is = self.config.is_none() && self.overrides.versions().is_none();
        self.directory.clone().filter(|_| as_it_is)
    }
}

/// A version that was loaded.
struct Loaded {
    version: Arc<ModelVersion>,
    /// What it was loaded from, if it may gain from being profiled.
    unprofiled: Option<LoadRequest>,
}

impl Control {
    /// Loads the named models, or all that were found, in parallel.
    pub(super) async fn load_all(self: &Arc<Self>, names: Option<Vec<String>>, found: BTreeMap<String, Found>) {
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

    /// Loads what a look at the repositories found under a name. Whether it was there to be loaded: a store may not
    /// give what it has listed.
    pub(super) async fn load_found(self: &Arc<Self>, name: &str, found: Option<Found>, demand: Demand) -> bool {
        let gate = self.gate(name);
        let _turn = gate.lock().await;
        let brought = match found {
            Some(Found::At(directory)) => self.bring(&directory).await.map(Found::At).map(Some),
            found => Ok(found),
        };
        let was_brought = brought.is_ok();
        let outcome = match brought {
            Err(reason) => self.refuse(name, reason, demand != Demand::Poll),
            Ok(Some(Found::At(directory))) => {
                let is_stray = demand != Demand::Named && !self.holds_model(&directory).await;
                let asked = demand != Demand::Poll && !is_stray;
                self.load_source(name, Source { asked, is_stray, ..Source::of_directory(directory) }).await
            }
            Ok(Some(Found::Twice(first, second))) => {
                let reason = duplicate(&first, &second);
                self.change(|table| table.conflict(name, &reason, demand != Demand::Poll)).await;
                Err(ControlError::LoadFailed { name: name.to_owned(), reason })
            }
            Ok(None) => self.refuse(name, "no repository has a model directory of that name".to_owned(), true),
        };
        if let Err(fault) = outcome {
            tracing::error!(model = name, %fault, "the model is not served as its repository has it");
        }
        was_brought
    }

    /// The folder of a model on the disk, for which copies of models that are not loaded may have to go.
    async fn bring(self: &Arc<Self>, directory: &Path) -> Result<PathBuf, String> {
        let control = self.clone();
        let let_go: LetGo = Arc::new(move |name| {
            let turn = control.gate(name).try_lock_owned().ok()?;
            (!control.table.lock().needs(name)).then_some(turn)
        });
        self.places.bring(directory, &let_go).await
    }

    /// Whether a directory is a model's, or cannot be told not to be one.
    async fn holds_model(&self, directory: &Path) -> bool {
        let (directory, config_name) = (directory.to_owned(), self.options.config_name.clone());
        let look = move || {
            let configurations = prepare::configurations(&directory, config_name.as_deref());
            directory::holds_model(&directory, &configurations).unwrap_or(true)
        };
        blocking(look).await.unwrap_or(true)
    }

    /// Loads a model at a client's request.
    pub(super) async fn load(self: &Arc<Self>, name: &str, overrides: Overrides) -> Result<(), ControlError> {
        let unknown = || ControlError::UnknownModel { name: name.to_owned() };
        if !scan::is_model_name(name) {
            return Err(unknown());
        }
        if overrides.lack_config() {
            return Err(ControlError::FilesWithoutConfig { name: name.to_owned() });
        }
        overrides.check().map_err(|reason| ControlError::BadOverride { name: name.to_owned(), reason })?;
        let config = prepare::read_override(&overrides)
            .map_err(|fault| ControlError::BadConfig { name: name.to_owned(), reason: fault.to_string() })?;
        let directory = match self.places.find(name).await {
            Ok(Some(Found::At(directory))) => Some(directory),
            // Where files come with the request, nothing has to be on the disk.
            _ if overrides.versions().is_some() => None,
            Ok(Some(Found::Twice(first, second))) => {
                return Err(ControlError::NoPlace { name: name.to_owned(), reason: duplicate(&first, &second) });
            }
            Ok(None) => return Err(unknown()),
            Err(reason) => return Err(ControlError::NoPlace { name: name.to_owned(), reason }),
        };
        let gate = self.gate(name);
        let _turn = gate.lock().await;
        if self.table.lock().is_closed() {
            return Err(ControlError::ShuttingDown);
        }
        let directory = match directory {
            None => None,
            Some(directory) => match self.bring(&directory).await {
                Ok(directory) => Some(directory),
                Err(_) if overrides.versions().is_some() => None,
                Err(reason) => return Err(ControlError::NoPlace { name: name.to_owned(), reason }),
            },
        };
        if overrides.versions().is_some() {
            self.load_source(name, Source { directory, overrides, config, asked: true, is_stray: false }).await?;
            self.kept.lock().remove(name);
            return Ok(());
        }
        let print = self.print(directory.as_deref()).await;
        let config = config.or_else(|| self.kept(name, print.as_ref()));
        let source = Source { directory, overrides, config: config.clone(), asked: true, is_stray: false };
        self.load_source(name, source).await?;
        match (config, print) {
            (Some(config), Some(print)) => drop(self.kept.lock().insert(name.to_owned(), Kept { config, print })),
            (Some(_), None) => {}
            (None, _) => drop(self.kept.lock().remove(name)),
        }
        Ok(())
    }

    /// What a model's directory looks like; `None` where it cannot be looked at.
    async fn print(&self, directory: Option<&Path>) -> Option<Fingerprint> {
        let directory = directory?.to_owned();
        blocking(move || Fingerprint::of(&directory)).await.ok()?.ok()
    }

    /// The configuration that an earlier load request gave, unless the directory was changed since.
    fn kept(&self, name: &str, print: Option<&Fingerprint>) -> Option<(pb::ModelConfig, Origin)> {
        let kept = self.kept.lock();
        let holds = |kept: &&Kept| print.is_none_or(|print| *print == kept.print);
        kept.get(name).filter(holds).map(|kept| kept.config.clone())
    }

    pub(super) async fn load_source(self: &Arc<Self>, name: &str, source: Source) -> Result<(), ControlError> {
        let directory = source.only_directory();
        let (control, model) = (self.clone(), name.to_owned());
        let Source { directory: place, overrides, config, asked, is_stray } = source;
        let read = move || {
            let completion = Completion::of(&control.options);
            Plan::read(&model, place, overrides, config, completion)
        };
        let stray = || "it holds no model: no configuration, and no version with a file 'model.<something>'".to_owned();
        let planned = blocking(read).await.and_then(|plan| plan);
        let plan = match planned.and_then(|plan| if is_stray { Err(stray()) } else { Ok(plan) }) {
            Ok(plan) => Arc::new(plan),
            Err(reason) => return self.refuse(name, reason, asked),
        };
        self.warn(name, &plan);
        let versions = plan.versions.clone();
        self.change(|table| {
            table.begin(name, &versions);
            Retired::new()
        })
        .await;

        let mut loads = JoinSet::new();
        for version in versions.clone() {
            let load = self.clone().load_version(plan.clone(), version);
            loads.spawn(async move { (version, load.await) });
        }
        let mut results: BTreeMap<i64, Result<Arc<ModelVersion>, String>> =
            versions.into_iter().map(|version| (version, Err("the load was interrupted".to_owned()))).collect();
        let mut unprofiled = Vec::new();
        while let Some(joined) = loads.join_next().await {
            if let Ok((version, result)) = joined {
                let result = result.map(|loaded: Loaded| {
                    unprofiled.extend(loaded.unprofiled.map(|request| (Arc::downgrade(&loaded.version), request)));
                    loaded.version
                });
                results.insert(version, result);
            }
        }
        let failures = results.iter().filter_map(|(version, result)| {
            result.as_ref().err().map(|reason| format!("version {version} is at UNAVAILABLE state: {reason}"))
        });
        let failures: Vec<String> = failures.collect();
        let closed = self.table.lock().is_closed();
        self.change(|table| table.finish(name, results.into_iter().collect(), &plan.available)).await;
        match (closed, failures.as_slice()) {
            (true, _) => Err(ControlError::ShuttingDown),
            (false, []) => {
                tracing::info!(model = name, versions = ?plan.versions, "loaded");
                for (version, request) in unprofiled {
                    if let Some(directory) = &directory {
                        self.profile_later(directory.clone(), version, request);
                    }
                }
                Ok(())
            }
            (false, failures) => Err(ControlError::LoadFailed { name: name.to_owned(), reason: failures.join("; ") }),
        }
    }

    /// Unloads a model; nothing happens for one that was never loaded.
    pub(super) async fn unload(self: &Arc<Self>, name: &str) {
        if !self.table.lock().knows(name) {
            return;
        }
        let gate = self.gate(name);
        let _turn = gate.lock().await;
        self.kept.lock().remove(name);
        self.change(|table| table.unload(name)).await;
        self.places.touch(name).await;
        tracing::info!(model = name, "unloaded");
    }

    /// Lets go of everything for good.
    pub(super) fn close(&self) -> Retired {
        let retired = self.table.lock().close();
        self.publish();
        retired
    }

    /// Notes which models are to be loaded at the start.
    pub(super) fn begin_start<'n>(&self, names: impl IntoIterator<Item = &'n str>) {
        self.table.lock().begin_start(names);
        self.publish();
    }

    /// Notes that every model of the start was tried.
    pub(super) fn end_start(&self) {
        self.table.lock().end_start();
        self.publish();
    }

    /// Notes that every repository could be read.
    pub(super) fn open(&self) {
        if !self.opened.swap(true, Ordering::Relaxed) {
            self.changes.send_modify(|count| *count += 1);
        }
    }

    fn refuse(&self, name: &str, reason: String, asked: bool) -> Result<(), ControlError> {
        self.table.lock().refuse(name, &reason, asked);
        self.publish();
        Err(ControlError::LoadFailed { name: name.to_owned(), reason })
    }

    /// Changes the table, publishes it, and drops what retired on a thread that may block.
    async fn change(&self, change: impl FnOnce(&mut Table) -> Retired) {
        let retired = change(&mut self.table.lock());
        self.publish();
        if !retired.is_empty() {
            // A caller that waits for an unload finds the memory free, unless requests still hold the version.
            drop(tokio::task::spawn_blocking(move || drop(retired)).await);
        }
    }

    fn publish(&self) {
        // Built and stored under the lock, so that of two changes the later one stays.
        let table = self.table.lock();
        let old = self.serving.swap(Arc::new(table.serving()));
        drop(table);
        drop(old);
        self.changes.send_modify(|count| *count += 1);
    }

    /// Loads one version when a loader thread is free.
    async fn load_version(self: Arc<Self>, plan: Arc<Plan>, version: i64) -> Result<Loaded, String> {
        let permit = self.loads.clone().acquire_owned().await.map_err(|fault| fault.to_string())?;
        let work = move || {
            let loaded = load_version(self.loader.as_ref(), &plan, version);
            drop(permit);
            loaded
        };
        blocking(work).await.and_then(|loaded| loaded)
    }

    pub(super) fn gate(&self, name: &str) -> Arc<tokio::sync::Mutex<()>> {
        let mut gates = self.gates.lock();
        // Gates that nobody waits at are not kept, so that invented names leave nothing behind.
        gates.retain(|_, gate| Arc::strong_count(gate) > 1);
        gates.entry(name.to_owned()).or_default().clone()
    }

    fn warn(&self, name: &str, plan: &Plan) {
        let mut warned = self.warned.lock();
        for hint in &plan.hints {
            if warned.insert((name.to_owned(), hint.key.clone())) {
                tracing::warn!(model = name, key = %hint.key, reason = %hint.text, "has no effect");
            }
        }
    }
}

/// Why a name that is in two repositories is served from neither; as Triton says it, with the places.
fn duplicate(first: &Path, second: &Path) -> String {
    format!("model appears in two or more repositories: {} and {}", first.display(), second.display())
}

fn load_version(loader: &dyn Loader, plan: &Plan, version: i64) -> Result<Loaded, String> {
    let span = info_span!("load", model = plan.name(), version, engine = Empty, placement = Empty);
    let _within = span.enter();
    let began = Instant::now();
    let request = plan.request(version, loader)?;
    span.record("engine", request.engine.name()).record("placement", display(&request.placement));
    let config = request.config.clone();
    let unprofiled = loader.may_profile(&request).then(|| LoadRequest { warmup: Vec::new(), ..request.clone() });
    let handle = loader.load(request)?;
    handle.stats().loaded_in(began.elapsed());
    Ok(Loaded { version: Arc::new(ModelVersion::new(handle, config)), unprofiled })
}

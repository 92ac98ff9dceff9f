//! Loading and unloading: runs the blocking work on loader threads and publishes what comes of it.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    path::PathBuf,
    sync::Arc,
};

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tokio::{
    sync::{Semaphore, watch},
    task::JoinSet,
};

use super::{
    ControlError, LoadRequest, Loader, ModelVersion, Options, Overrides,
    background::Unprofiled,
    config::{Origin, pb},
    directory::{self, Found},
    prepare::{self, Plan},
    serving::Serving,
    table::{Retired, Table},
};

/// What loads, unloads and polls share. The table is the truth; `serving` is the part of it that requests read.
pub(super) struct Control {
    pub(super) options: Options,
    pub(super) loader: Arc<dyn Loader>,
    pub(super) table: Mutex<Table>,
    pub(super) serving: ArcSwap<Serving>,
    pub(super) changes: watch::Sender<u64>,
    /// One load or unload of a model at a time.
    pub(super) gates: Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>,
    /// Bounds the loader threads.
    pub(super) loads: Arc<Semaphore>,
    /// Hints that were warned about, by model and key.
    pub(super) warned: Mutex<BTreeSet<(String, String)>>,
    /// One profile at a time.
    pub(super) profiling: Arc<tokio::sync::Mutex<()>>,
}

/// What is to be loaded.
pub(super) struct Source {
    directory: Option<PathBuf>,
    overrides: Overrides,
    config: Option<(pb::ModelConfig, Origin)>,
}

impl Source {
    /// A model as its directory has it.
    pub(super) fn of_directory(directory: PathBuf) -> Self {
        Self { directory: Some(directory), overrides: Overrides::default(), config: None }
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
    /// Loads the named models, or all there are, in parallel.
    pub(super) async fn load_all(self: &Arc<Self>, names: Option<Vec<String>>) {
        let control = self.clone();
        let scanned = blocking(move || directory::scan(&control.options.repositories)).await;
        let found = scanned.unwrap_or_default();
        let names: BTreeSet<String> = match names {
            Some(names) => names.into_iter().collect(),
            None => found.keys().cloned().collect(),
        };
        let mut loads = JoinSet::new();
        for name in names {
            let (control, found) = (self.clone(), found.get(&name).cloned());
            loads.spawn(async move { control.load_found(&name, found).await });
        }
        while loads.join_next().await.is_some() {}
    }

    /// Loads what a look at the disk found under a name.
    pub(super) async fn load_found(self: &Arc<Self>, name: &str, found: Option<Found>) {
        let gate = self.gate(name);
        let _turn = gate.lock().await;
        let outcome = match place(found) {
            Ok(directory) => self.load_source(name, Source::of_directory(directory)).await,
            Err(reason) => self.refuse(name, reason),
        };
        if let Err(fault) = outcome {
            tracing::error!(model = name, %fault, "the model is not served as its repository has it");
        }
    }

    /// Loads a model at a client's request.
    pub(super) async fn load(self: &Arc<Self>, name: &str, overrides: Overrides) -> Result<(), ControlError> {
        let unknown = || ControlError::UnknownModel { name: name.to_owned() };
        if !directory::is_model_name(name) {
            return Err(unknown());
        }
        overrides.check().map_err(|reason| ControlError::BadOverride { name: name.to_owned(), reason })?;
        let config = prepare::read_override(&overrides)
            .map_err(|fault| ControlError::BadConfig { name: name.to_owned(), reason: fault.to_string() })?;
        let (control, wanted) = (self.clone(), name.to_owned());
        let looked = blocking(move || directory::find(&control.options.repositories, &wanted)).await;
        let found = looked.unwrap_or_default();
        let from_files = overrides.versions().is_some();
        if found.is_none() && !from_files {
            return Err(unknown());
        }
        let gate = self.gate(name);
        let _turn = gate.lock().await;
        if self.table.lock().is_closed() {
            return Err(ControlError::ShuttingDown);
        }
        let directory = match found {
            None => None,
            Some(found) => match place(Some(found)) {
                Ok(directory) => Some(directory),
                Err(reason) => return self.refuse(name, reason),
            },
        };
        self.load_source(name, Source { directory, overrides, config }).await
    }

    pub(super) async fn load_source(self: &Arc<Self>, name: &str, source: Source) -> Result<(), ControlError> {
        let directory = source.only_directory();
        let (model, auto_complete) = (name.to_owned(), self.options.auto_complete);
        let planned =
            blocking(move || Plan::read(&model, source.directory, source.overrides, source.config, auto_complete))
                .await;
        let plan = match planned.and_then(|plan| plan) {
            Ok(plan) => Arc::new(plan),
            Err(reason) => return self.refuse(name, reason),
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
        self.change(|table| table.finish(name, results.into_iter().collect())).await;
        match (closed, failures.as_slice()) {
            (true, _) => Err(ControlError::ShuttingDown),
            (false, []) => {
                tracing::info!(model = name, versions = ?plan.versions, "loaded");
                for (version, request) in unprofiled {
                    if let Some(directory) = &directory {
                        self.profile_later(Unprofiled { directory: directory.clone(), version, request });
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
        self.change(|table| table.unload(name)).await;
        tracing::info!(model = name, "unloaded");
    }

    /// Lets go of everything for good.
    pub(super) fn close(&self) -> Retired {
        let retired = self.table.lock().close();
        self.publish();
        retired
    }

    fn refuse(&self, name: &str, reason: String) -> Result<(), ControlError> {
        self.table.lock().refuse(name, &reason);
        self.publish();
        Err(ControlError::LoadFailed { name: name.to_owned(), reason })
    }

    /// Changes the table, publishes it, and drops what retired on a thread that may block.
    async fn change(&self, change: impl FnOnce(&mut Table) -> Retired) {
        let retired = change(&mut self.table.lock());
        self.publish();
        if !retired.is_empty() {
            // Whoever waits for an unload finds the memory free, unless requests still hold the version.
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
                tracing::warn!(model = name, key = %hint.key, "has no effect: {}", hint.text);
            }
        }
    }
}

/// Runs work that blocks off the runtime's threads; a panic in it becomes a reason.
pub(super) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, String> {
    tokio::task::spawn_blocking(work).await.map_err(|fault| format!("the loader failed: {fault}"))
}

fn place(found: Option<Found>) -> Result<PathBuf, String> {
    match found {
        Some(Found::At(directory)) => Ok(directory),
        Some(Found::Twice(first, second)) => {
            Err(format!("the model is in two repositories: {} and {}", first.display(), second.display()))
        }
        None => Err("no repository has a model directory of that name".to_owned()),
    }
}

fn load_version(loader: &dyn Loader, plan: &Plan, version: i64) -> Result<Loaded, String> {
    let request = plan.request(version, loader)?;
    let config = request.config.clone();
    let unprofiled = loader.may_profile(&request).then(|| LoadRequest { warmup: Vec::new(), ..request.clone() });
    let handle = loader.load(request)?;
    Ok(Loaded { version: Arc::new(ModelVersion::new(handle, config)), unprofiled })
}

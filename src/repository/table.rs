//! The states of all models and their versions, and how they change. Pure: no disk, no threads.

use std::{
    borrow::Cow,
    collections::{BTreeMap, HashMap},
    sync::{Arc, Weak},
};

use super::{ModelVersion, serving::Serving};
use crate::executor::ModelHandle;

/// One line of the repository's index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexEntry {
    /// The model.
    pub name: String,
    /// The version; empty for a model of which no version was ever tried.
    pub version: String,
    /// `READY`, `UNAVAILABLE`, `LOADING`, `UNLOADING`; empty for a model that was never loaded.
    pub state: &'static str,
    /// Why it is unavailable, or why its last reload failed; else empty.
    pub reason: String,
}

#[derive(Debug, Default)]
pub(super) struct Table {
    models: BTreeMap<String, Model>,
    closed: bool,
}

#[derive(Debug, Default)]
struct Model {
    /// Whether it should be loaded: a load was asked for and no unload since.
    wanted: bool,
    versions: BTreeMap<i64, State>,
    /// Why no version could be tried at all.
    fault: Option<String>,
}

#[derive(Debug)]
enum State {
    Loading,
    Ready {
        version: Arc<ModelVersion>,
        fault: Option<String>,
    },
    /// `spared`: what served before the failed load still does.
    Failed {
        reason: String,
        spared: bool,
    },
    /// Unloading while requests hold the handle, unloaded after.
    Unloaded {
        handle: Weak<ModelHandle>,
    },
}

/// Versions that no longer serve; to be dropped where dropping may take its time.
pub(super) type Retired = Vec<Arc<ModelVersion>>;

impl Model {
    fn serves(&self) -> bool {
        self.versions.values().any(|state| matches!(state, State::Ready { .. }))
    }

    fn complete(&self) -> bool {
        self.fault.is_none() && self.serves() && self.versions.values().all(State::is_well)
    }
}

impl Table {
    /// ## (any) => Loading, but what is Ready stays so until its successor is
    pub(super) fn begin(&mut self, name: &str, versions: &[i64]) {
        let model = self.models.entry(name.to_owned()).or_default();
        (model.wanted, model.fault) = (true, None);
        for version in versions {
            let state = model.versions.entry(*version).or_insert(State::Loading);
            if !matches!(state, State::Ready { .. }) {
                *state = State::Loading;
            }
        }
    }

    /// ## Loading => (Ready | Failed), Ready => (Ready | Unloaded)
    ///
    /// At the first load every version stands for itself. A reload is all or nothing: if one version fails, what served
    /// before goes on serving. Versions that are no longer wanted go once the new ones are there.
    pub(super) fn finish(&mut self, name: &str, results: Vec<(i64, Result<Arc<ModelVersion>, String>)>) -> Retired {
        if self.closed {
            return results.into_iter().filter_map(|(_, result)| result.ok()).collect();
        }
        let model = self.models.entry(name.to_owned()).or_default();
        let failures = results
            .iter()
            .filter_map(|(version, result)| result.as_ref().err().map(|reason| format!("version {version}: {reason}")));
        let failures: Vec<String> = failures.collect();
        if model.serves() && !failures.is_empty() {
            return model.keep(results, &failures.join("; "));
        }
        let mut retired = Retired::new();
        let tried: Vec<i64> = results.iter().map(|(version, _)| *version).collect();
        for (number, result) in results {
            let state = match result {
                Ok(version) => State::Ready { version, fault: None },
                Err(reason) => State::Failed { reason, spared: false },
            };
            if let Some(State::Ready { version, .. }) = model.versions.insert(number, state) {
                retired.push(version);
            }
        }
        model.versions.retain(|number, state| {
            if !tried.contains(number) {
                state.retire(&mut retired);
            }
            tried.contains(number) || matches!(state, State::Unloaded { .. })
        });
        retired
    }

    /// ## (any) => (any): the model cannot even be tried; what serves goes on serving
    pub(super) fn refuse(&mut self, name: &str, reason: &str) {
        let model = self.models.entry(name.to_owned()).or_default();
        model.wanted = true;
        if !model.serves() {
            model.versions.clear();
            model.fault = Some(reason.to_owned());
            return;
        }
        for state in model.versions.values_mut() {
            if let State::Ready { fault, .. } = state {
                *fault = Some(format!("the last reload failed: {reason}"));
            }
        }
    }

    /// ## (Ready | Failed) => Unloaded
    pub(super) fn unload(&mut self, name: &str) -> Retired {
        let mut retired = Retired::new();
        if let Some(model) = self.models.get_mut(name) {
            (model.wanted, model.fault) = (false, None);
            for state in model.versions.values_mut() {
                state.retire(&mut retired);
            }
        }
        retired
    }

    /// Unloads everything for good: what still loads is dropped when it is done.
    pub(super) fn close(&mut self) -> Retired {
        self.closed = true;
        let names: Vec<String> = self.models.keys().cloned().collect();
        names.iter().flat_map(|name| self.unload(name)).collect()
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed
    }

    /// Whether a load of this model was ever tried.
    pub(super) fn knows(&self, name: &str) -> bool {
        self.models.contains_key(name)
    }

    /// Whether every model that should be loaded is, with all its versions, and responds.
    pub(super) fn complete(&self) -> bool {
        !self.closed && self.models.values().all(|model| !model.wanted || model.complete())
    }

    pub(super) fn serving(&self) -> Serving {
        let models = self.models.iter().map(|(name, model)| {
            let ready = model.versions.values().filter_map(|state| match state {
                State::Ready { version, .. } => Some(version.clone()),
                _ => None,
            });
            (name.clone(), ready.collect())
        });
        Serving { models: models.collect::<HashMap<_, _>>() }
    }

    /// The index by name and version; `on_disk` names models that were perhaps never tried.
    pub(super) fn index(&self, ready_only: bool, on_disk: &[String]) -> Vec<IndexEntry> {
        let mut entries = Vec::new();
        for (name, model) in &self.models {
            let entry = |version: String, state, reason: &str| IndexEntry {
                name: name.clone(),
                version,
                state,
                reason: reason.to_owned(),
            };
            if model.versions.is_empty() {
                let state = if model.fault.is_some() { "UNAVAILABLE" } else { "" };
                entries.push(entry(String::new(), state, model.fault.as_deref().unwrap_or_default()));
            }
            for (version, state) in &model.versions {
                let (state, reason) = state.describe();
                entries.push(entry(version.to_string(), state, &reason));
            }
        }
        if ready_only {
            entries.retain(|entry| entry.state == "READY");
            return entries;
        }
        let untried = on_disk.iter().filter(|name| !self.models.contains_key(*name));
        entries.extend(untried.map(|name| IndexEntry {
            name: name.clone(),
            version: String::new(),
            state: "",
            reason: String::new(),
        }));
        // Stable: versions of a model stay in their numeric order.
        entries.sort_by(|left, right| left.name.cmp(&right.name));
        entries
    }
}

impl Model {
    /// Drops what a failed reload brought and notes why.
    fn keep(&mut self, results: Vec<(i64, Result<Arc<ModelVersion>, String>)>, failures: &str) -> Retired {
        let mut dropped = Retired::new();
        for (number, result) in results {
            let state = self.versions.entry(number).or_insert(State::Loading);
            let reason = match result {
                Ok(version) => {
                    dropped.push(version);
                    format!("not served, because the load failed: {failures}")
                }
                Err(reason) => reason,
            };
            match state {
                State::Ready { fault, .. } => *fault = Some(format!("the last reload failed: {failures}")),
                State::Loading | State::Failed { .. } | State::Unloaded { .. } => {
                    *state = State::Failed { reason, spared: true };
                }
            }
        }
        dropped
    }
}

impl State {
    fn retire(&mut self, retired: &mut Retired) {
        let handle = match self {
            Self::Ready { version, .. } => Arc::downgrade(version.handle()),
            Self::Failed { .. } => Weak::new(),
            Self::Loading | Self::Unloaded { .. } => return,
        };
        if let Self::Ready { version, .. } = std::mem::replace(self, Self::Unloaded { handle }) {
            retired.push(version);
        }
    }

    /// Whether nothing is wrong with a version that should serve.
    fn is_well(&self) -> bool {
        match self {
            Self::Ready { version, .. } => version.handle().is_responsive(),
            Self::Failed { spared, .. } => *spared,
            Self::Loading | Self::Unloaded { .. } => true,
        }
    }

    fn describe(&self) -> (&'static str, Cow<'_, str>) {
        match self {
            Self::Loading => ("LOADING", "".into()),
            Self::Ready { version, fault } => match version.handle().fault() {
                None => ("READY", fault.as_deref().unwrap_or_default().into()),
                Some(hangs) => ("UNAVAILABLE", hangs.into()),
            },
            Self::Failed { reason, .. } => ("UNAVAILABLE", reason.into()),
            Self::Unloaded { handle } if handle.strong_count() > 0 => ("UNLOADING", "".into()),
            Self::Unloaded { .. } => ("UNAVAILABLE", "unloaded".into()),
        }
    }
}

//! The states of all models and versions, and their transitions. Pure: no disk, no threads. `index` describes them, and
//! `residents` has what loaded models take, and which of them may leave.

mod index;
mod models;
mod residents;

use std::{collections::BTreeMap, sync::Arc};

use paternoster_pipeline::WeakServable;

pub use self::index::IndexEntry;
use self::models::Models;
pub(super) use self::residents::{Footprint, Measured};
use super::{
    ModelVersion,
    serving::{Served, Serving, Usage},
};

/// Most unloaded versions that are remembered per model, so that requests for them get a precise error.
const MAX_UNLOADED_VERSIONS: usize = 1000;

/// Number of models above which those with nothing loaded or failed are forgotten.
const MAX_MODELS: usize = 10_000;

#[derive(Debug, Default)]
pub(super) struct Table {
    models: Models,
    /// Whether startup models are still being loaded.
    starting: bool,
    /// Whether stores are still being listed, so that the names of the startup models are not known yet.
    is_listing: bool,
    closed: bool,
}

#[derive(Debug, Default)]
struct Model {
    /// Whether readiness waits for it: the server was to load it by itself, or tried one of its versions, and it was
    /// not unloaded since. Loads of clients do not count.
    wanted: bool,
    /// Whether it will be loaded at startup and has not been tried yet, so that its versions are unknown.
    expected: bool,
    versions: BTreeMap<i64, State>,
    /// Why none of its versions could be tried.
    fault: Option<String>,
    /// Whether a request loads it.
    is_on_demand: bool,
    /// Whether its directory says that it takes texts.
    takes_texts: bool,
    /// Whether it takes no further requests, because it is to make room for another model.
    is_draining: bool,
    usage: Arc<Usage>,
    /// What its ready versions take, where that is counted.
    footprint: Option<Footprint>,
    /// What it took when it was measured last, by the estimate that it had then: other files have another.
    measured: Option<Measured>,
}

#[derive(Debug)]
enum State {
    Loading,
    Ready {
        version: Arc<ModelVersion>,
        fault: Option<String>,
    },
    /// `spared`: the versions that served before the failed load still do.
    Failed {
        reason: String,
        spared: bool,
    },
    /// Unloading while requests hold it, unloaded afterwards. `gone`: its directory no longer exists.
    Unloaded {
        servable: WeakServable,
        gone: bool,
    },
}

/// Versions that no longer serve; to be dropped where blocking is allowed.
pub(super) type Retired = Vec<Arc<ModelVersion>>;

impl Model {
    fn serves(&self) -> bool {
        self.versions.values().any(|state| matches!(state, State::Ready { .. }))
    }

    fn is_loading(&self) -> bool {
        self.expected || self.versions.values().any(|state| matches!(state, State::Loading))
    }

    /// Returns what requests read of it. `is_loading`: whether its versions may be unknown.
    fn served(&self, is_loading: bool) -> Served {
        let (is_on_demand, usage) = (self.is_on_demand, Arc::clone(&self.usage));
        let mut served = Served { is_loading, is_on_demand, usage, ..Served::default() };
        for (number, state) in &self.versions {
            match state {
                State::Ready { version, .. } if !self.is_draining => served.ready.push(version.clone()),
                _ => served.unready.push(*number),
            }
        }
        served
    }

    fn complete(&self) -> bool {
        self.fault.is_none() && self.serves() && self.versions.values().all(State::is_healthy)
    }
}

impl Table {
    /// Marks the models to load at startup. From here on none of them is unknown, and the server is not ready before
    /// [`Self::end_start`]. While `is_listing`, no name is unknown.
    pub(super) fn begin_start<'n>(&mut self, names: impl IntoIterator<Item = &'n str>, is_listing: bool) {
        (self.starting, self.is_listing) = (true, is_listing);
        for name in names {
            self.models.entry(name).expected = true;
        }
    }

    /// Marks the end of startup. A marked model that no longer exists is forgotten.
    pub(super) fn end_start(&mut self) {
        self.starting = false;
        self.models.retain(|model| !std::mem::take(&mut model.expected));
    }

    pub(super) fn is_starting(&self) -> bool {
        self.starting
    }

    /// ## (any) => Loading; a Ready version stays Ready until its successor is
    ///
    /// `wanted` says whether readiness waits for the model from now on. If not, it depends on the model as before.
    pub(super) fn begin(&mut self, name: &str, versions: &[i64], wanted: bool) {
        self.make_room();
        let model = self.models.entry(name);
        model.wanted |= wanted;
        (model.expected, model.fault) = (false, None);
        for version in versions {
            let state = model.versions.entry(*version).or_insert(State::Loading);
            if !matches!(state, State::Ready { .. }) {
                *state = State::Loading;
            }
        }
    }

    /// Limits the number of models that are remembered although nothing of them is loaded.
    fn make_room(&mut self) {
        if self.models.len() >= MAX_MODELS {
            self.models.retain(|model| !model.is_dispensable());
        }
    }

    /// ## Loading => (Ready | Failed), Ready => (Ready | Unloaded)
    ///
    /// A load is all or nothing. If one version fails, the versions that served before stay and the loaded ones are
    /// dropped. Versions that are no longer wanted retire once the new ones are ready. `available` lists the versions
    /// in the model's directory.
    pub(super) fn finish(
        &mut self,
        name: &str,
        results: Vec<(i64, Result<Arc<ModelVersion>, String>)>,
        available: &[i64],
    ) -> Retired {
        if self.closed {
            return results.into_iter().filter_map(|(_, result)| result.ok()).collect();
        }
        let model = self.models.entry(name);
        let failures = results
            .iter()
            .filter_map(|(version, result)| result.as_ref().err().map(|reason| format!("version {version}: {reason}")));
        let failures: Vec<String> = failures.collect();
        if !failures.is_empty() {
            return model.keep(results, &failures.join("; "));
        }
        let mut retired = Retired::new();
        let tried: Vec<i64> = results.iter().map(|(version, _)| *version).collect();
        for (number, version) in results.into_iter().filter_map(|(number, result)| Some((number, result.ok()?))) {
            let state = State::Ready { version, fault: None };
            if let Some(State::Ready { version, .. }) = model.versions.insert(number, state) {
                retired.push(version);
            }
        }
        model.versions.retain(|number, state| {
            if tried.contains(number) {
                return true;
            }
            state.retire(&mut retired);
            if let State::Unloaded { gone, .. } = state {
                *gone = !available.contains(number);
            }
            matches!(state, State::Unloaded { .. })
        });
        model.forget_oldest();
        retired
    }

    /// ## (any) => (any): the model cannot be tried at all; serving versions stay
    ///
    /// `asked` says whether readiness waits for the model; otherwise it only appears in the index.
    pub(super) fn refuse(&mut self, name: &str, reason: &str, asked: bool) {
        self.make_room();
        let model = self.models.entry(name);
        model.wanted |= asked;
        model.expected = false;
        if !model.serves() {
            // No version is ready, so nothing retires.
            model.versions.values_mut().for_each(|state| state.retire(&mut Retired::new()));
            model.fault = Some(reason.to_owned());
            return;
        }
        for state in model.versions.values_mut() {
            if let State::Ready { fault, .. } = state {
                *fault = Some(format!("the last reload failed: {reason}"));
            }
        }
    }

    /// ## (Ready | Failed) => Unloaded: two repositories have the model, and neither copy is served
    pub(super) fn conflict(&mut self, name: &str, reason: &str, asked: bool) -> Retired {
        let retired = self.unload(name);
        let model = self.models.entry(name);
        (model.wanted, model.expected, model.fault) = (asked, false, Some(reason.to_owned()));
        retired
    }

    /// ## (Ready | Failed) => Unloaded
    pub(super) fn unload(&mut self, name: &str) -> Retired {
        let mut retired = Retired::new();
        if let Some(model) = self.models.change(name) {
            (model.wanted, model.expected, model.fault, model.footprint) = (false, false, None, None);
            model.is_draining = false;
            for state in model.versions.values_mut() {
                state.retire(&mut retired);
            }
            model.forget_oldest();
        }
        retired
    }

    /// ## Ready => Unloaded, for a load that follows: readiness waits for the model as before
    pub(super) fn make_way(&mut self, name: &str) -> Retired {
        let wanted = self.models.get(name).is_some_and(|model| model.wanted);
        let retired = self.unload(name);
        if let Some(model) = self.models.change(name) {
            model.wanted = wanted;
        }
        retired
    }

    /// ## Failed => Unloaded, unless it serves: nothing is wrong with a model whose load was ended early
    pub(super) fn forget_failure(&mut self, name: &str) -> Retired {
        if self.serves(name) { Retired::new() } else { self.make_way(name) }
    }

    /// Unloads everything permanently. The results of loads in progress are dropped when they finish.
    pub(super) fn close(&mut self) -> Retired {
        self.closed = true;
        let names: Vec<String> = self.models.keys().cloned().collect();
        names.iter().flat_map(|name| self.unload(name)).collect()
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed
    }

    /// Returns whether a load of this model was ever tried.
    pub(super) fn knows(&self, name: &str) -> bool {
        self.models.contains_key(name)
    }

    /// Returns whether a version of this model serves, is being loaded, or will be loaded at startup.
    pub(super) fn needs(&self, name: &str) -> bool {
        self.models.get(name).is_some_and(|model| model.serves() || model.is_loading())
    }

    /// Returns whether a version of this model is being loaded, or will be at startup.
    pub(super) fn is_loading(&self, name: &str) -> bool {
        !self.closed && self.models.get(name).is_some_and(Model::is_loading)
    }

    /// Returns whether a version of this model serves.
    pub(super) fn serves(&self, name: &str) -> bool {
        self.models.get(name).is_some_and(Model::serves)
    }

    /// Lets requests load these models from now on.
    pub(super) fn offer<'n>(&mut self, names: impl IntoIterator<Item = &'n str>) {
        for name in names {
            self.models.entry(name).is_on_demand = true;
        }
    }

    /// Records whether the directory of a model says that it takes texts.
    pub(super) fn announce(&mut self, name: &str, takes_texts: bool) {
        if let Some(model) = self.models.change(name) {
            model.takes_texts = takes_texts;
        }
    }

    /// Returns the models that take texts, as their directories say, and that the next request loads, by name.
    pub(super) fn loadable_texts(&self) -> Vec<String> {
        let is_loadable = |model: &Model| model.is_on_demand && model.takes_texts && !model.serves();
        let loadable =
            self.models.iter().filter(|(name, model)| is_loadable(model) && self.why_unserved(name).is_none());
        loadable.map(|(name, _)| name.clone()).collect()
    }

    /// Forgets that requests load a model, because it has no directory any more.
    pub(super) fn withdraw(&mut self, name: &str) {
        if let Some(model) = self.models.change(name) {
            model.is_on_demand = false;
        }
    }

    /// Forgets a model that is unloaded, unless requests still hold it.
    pub(super) fn forget(&mut self, name: &str) {
        if self.models.get(name).is_some_and(Model::is_dispensable) {
            self.models.remove(name);
        }
    }

    /// Returns whether startup is over and the table is not closed.
    pub(super) fn is_open(&self) -> bool {
        !self.starting && !self.closed
    }

    /// Returns whether every model that should be loaded is, with all its versions, and responds.
    pub(super) fn complete(&self) -> bool {
        self.is_open() && self.models.values().all(|model| !model.wanted || model.complete())
    }

    /// Returns the snapshot that requests read.
    pub(super) fn serving(&mut self) -> Serving {
        let models = self.models.serving(self.starting);
        let reads_headers =
            models.values().any(|served| served.rollout().is_some_and(|rollout| rollout.reads_headers()));
        Serving { models, is_listing: self.is_listing, reads_headers }
    }

    /// Returns why the last load of a model failed that is not served.
    pub(super) fn why_unserved(&self, name: &str) -> Option<String> {
        let model = self.models.get(name).filter(|model| !model.serves())?;
        let reason = model.versions.values().rev().find_map(|state| match state {
            State::Failed { reason, .. } => Some(reason),
            _ => None,
        });
        model.fault.as_ref().or(reason).cloned()
    }
}

impl Model {
    /// Returns whether nothing of it is loaded, failed or expected.
    fn is_idle(&self) -> bool {
        !self.wanted && !self.expected && self.fault.is_none() && self.versions.values().all(State::is_idle)
    }

    /// Returns whether readiness does not depend on it, and nothing of it is loaded or may soon be.
    fn is_dispensable(&self) -> bool {
        let is_over = |state: &State| matches!(state, State::Failed { .. }) || state.is_idle();
        !self.wanted && !self.expected && !self.is_on_demand && self.versions.values().all(is_over)
    }

    /// Limits the number of unloaded versions that are remembered.
    fn forget_oldest(&mut self) {
        let idle: Vec<i64> =
            self.versions.iter().filter(|(_, state)| state.is_idle()).map(|(number, _)| *number).collect();
        for number in &idle[..idle.len().saturating_sub(MAX_UNLOADED_VERSIONS)] {
            self.versions.remove(number);
        }
    }

    /// Drops the versions of a failed load and records why.
    fn keep(&mut self, results: Vec<(i64, Result<Arc<ModelVersion>, String>)>, failures: &str) -> Retired {
        let spared = self.serves();
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
                    *state = State::Failed { reason, spared };
                }
            }
        }
        dropped
    }
}

impl State {
    fn retire(&mut self, retired: &mut Retired) {
        let servable = match self {
            Self::Ready { version, .. } => version.servable().downgrade(),
            Self::Failed { .. } => WeakServable::none(),
            Self::Loading | Self::Unloaded { .. } => return,
        };
        if let Self::Ready { version, .. } = std::mem::replace(self, Self::Unloaded { servable, gone: false }) {
            retired.push(version);
        }
    }

    /// Returns whether it is unloaded and no request holds it.
    fn is_idle(&self) -> bool {
        matches!(self, Self::Unloaded { servable, .. } if !servable.is_held())
    }

    /// Returns false if the version should serve but does not.
    fn is_healthy(&self) -> bool {
        match self {
            Self::Ready { version, .. } => version.servable().is_responsive(),
            Self::Failed { spared, .. } => *spared,
            Self::Loading | Self::Unloaded { .. } => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_unloaded_versions_and_models_are_remembered_than_bounded() {
        let mut table = Table::default();
        let versions: Vec<i64> = (1..=MAX_UNLOADED_VERSIONS as i64 + 5).collect();
        table.begin("m", &versions, true);
        let failures = versions.iter().map(|version| (*version, Err("bad".to_owned())));
        table.finish("m", failures.collect(), &versions);
        table.unload("m");
        let kept: Vec<i64> = table.models["m"].versions.keys().copied().collect();
        assert_eq!(kept, versions[5..], "the newest");

        table.begin("stays", &[1], true);
        for number in 0..MAX_MODELS {
            let name = format!("m{number}");
            table.begin(&name, &[1], true);
            table.finish(&name, vec![(1, Err("bad".to_owned()))], &[1]);
            table.unload(&name);
        }
        assert!(table.models.len() <= MAX_MODELS, "{}", table.models.len());
        assert!(table.knows("stays"), "one that is wanted");
    }
}

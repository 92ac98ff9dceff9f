//! The repository index: what clients and operators see of the states.

use std::{borrow::Cow, collections::BTreeSet};

use super::{Model, State, Table};

/// State of a version, or of a whole model, that a request loads.
const ON_DEMAND: &str = "ON_DEMAND";

/// State of a version, or of a whole model, that does not serve.
const UNAVAILABLE: &str = "UNAVAILABLE";

/// Reason of a version that a client unloaded.
const UNLOADED: &str = "unloaded";

/// One row of the repository index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexEntry {
    /// The model.
    pub name: String,
    /// The version; empty for a model without any version tried.
    pub version: String,
    /// `READY`, `UNAVAILABLE`, `LOADING`, `UNLOADING` or `ON_DEMAND`; empty for a model that was never loaded.
    pub state: &'static str,
    /// Why it is unavailable, or why its last reload failed; empty otherwise.
    pub reason: String,
}

impl Table {
    /// Returns the entries of one model in the index, by version; none if it is unknown.
    pub(crate) fn index_of(&self, name: &str) -> Vec<IndexEntry> {
        let mut entries = Vec::new();
        if let Some(model) = self.models.get(name) {
            model.index(name, &mut entries);
        }
        entries
    }

    /// Returns the index by name and version. `on_disk` names models on disk, tried or not. If `all_seen`, a model that
    /// is not in `on_disk` has no directory, and leaves the index once it is unloaded.
    pub(crate) fn index(&self, ready_only: bool, on_disk: &BTreeSet<String>, all_seen: bool) -> Vec<IndexEntry> {
        let mut entries = Vec::new();
        for (name, model) in self.models.iter() {
            if all_seen && !on_disk.contains(name) && model.is_idle() {
                continue;
            }
            model.index(name, &mut entries);
        }
        if ready_only {
            entries.retain(|entry| entry.state == "READY");
            return entries;
        }
        let untried = on_disk.iter().filter(|name| !self.models.contains_key(*name));
        entries.extend(untried.map(|name| IndexEntry {
            name: name.clone(),
            version: String::new(),
            // Once the stores are listed, all models of the start are loaded.
            state: if self.is_listing { "LOADING" } else { "" },
            reason: String::new(),
        }));
        // A stable sort, so that the versions of a model stay in numeric order.
        entries.sort_by(|left, right| left.name.cmp(&right.name));
        entries
    }
}

impl IndexEntry {
    /// Returns whether it should serve and does not.
    pub fn is_failed(&self) -> bool {
        self.state == UNAVAILABLE && self.reason != UNLOADED
    }

    /// Returns whether it serves, or is being loaded or unloaded.
    pub fn is_in_use(&self) -> bool {
        ![UNAVAILABLE, ON_DEMAND, ""].contains(&self.state)
    }
}

impl Model {
    /// Adds its entries of the index, by version.
    fn index(&self, name: &str, entries: &mut Vec<IndexEntry>) {
        let entry = |version: String, state, reason: &str| IndexEntry {
            name: name.to_owned(),
            version,
            state,
            reason: reason.to_owned(),
        };
        if let Some(fault) = &self.fault {
            entries.push(entry(String::new(), UNAVAILABLE, fault));
        } else if self.expected {
            entries.push(entry(String::new(), "LOADING", ""));
        } else if self.versions.is_empty() {
            entries.push(entry(String::new(), if self.is_on_demand { ON_DEMAND } else { "" }, ""));
        }
        let shown = self.versions.iter().filter(|(_, state)| match state {
            State::Unloaded { gone, .. } => !state.is_idle() || !gone && self.fault.is_none(),
            _ => true,
        });
        for (version, state) in shown {
            let (state, reason) = match state.describe() {
                _ if self.is_on_demand && state.is_idle() => (ON_DEMAND, Cow::default()),
                described => described,
            };
            entries.push(entry(version.to_string(), state, &reason));
        }
    }
}

impl State {
    fn describe(&self) -> (&'static str, Cow<'_, str>) {
        match self {
            Self::Loading => ("LOADING", "".into()),
            Self::Ready { version, fault } => match version.servable().fault() {
                None => ("READY", fault.as_deref().unwrap_or_default().into()),
                Some(hangs) => (UNAVAILABLE, hangs.into()),
            },
            Self::Failed { reason, .. } => (UNAVAILABLE, reason.into()),
            Self::Unloaded { .. } if self.is_idle() => (UNAVAILABLE, UNLOADED.into()),
            Self::Unloaded { .. } => ("UNLOADING", "".into()),
        }
    }
}

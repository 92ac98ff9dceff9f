//! The models of a table by name, with what requests read of each. A change rebuilds that of the model alone.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    mem,
    ops::Deref,
    sync::Arc,
};

use super::{Model, Served};

/// Models by name. Only the methods here change one, and note it.
#[derive(Debug, Default)]
pub(super) struct Models {
    models: BTreeMap<String, Model>,
    /// Those that may have changed since the last [`Self::serving`].
    changed: BTreeSet<String>,
    serving: HashMap<Arc<str>, Arc<Served>>,
}

impl Deref for Models {
    type Target = BTreeMap<String, Model>;

    fn deref(&self) -> &Self::Target {
        &self.models
    }
}

impl Models {
    pub(super) fn change(&mut self, name: &str) -> Option<&mut Model> {
        let model = self.models.get_mut(name)?;
        self.changed.insert(name.to_owned());
        Some(model)
    }

    pub(super) fn entry(&mut self, name: &str) -> &mut Model {
        self.changed.insert(name.to_owned());
        self.models.entry(name.to_owned()).or_default()
    }

    pub(super) fn remove(&mut self, name: &str) {
        self.changed.insert(name.to_owned());
        self.models.remove(name);
    }

    /// Keeps those for which `is_kept`, which may change them.
    pub(super) fn retain(&mut self, mut is_kept: impl FnMut(&mut Model) -> bool) {
        self.changed.extend(self.models.keys().cloned());
        self.models.retain(|_, model| is_kept(model));
    }

    /// Returns what requests read of each model. `is_starting`: whether the server is.
    pub(super) fn serving(&mut self, is_starting: bool) -> HashMap<Arc<str>, Arc<Served>> {
        for name in mem::take(&mut self.changed) {
            match self.models.get(&name) {
                Some(model) => {
                    let served = Arc::new(model.served(is_starting && model.is_loading()));
                    self.serving.insert(name.into(), served);
                }
                None => drop(self.serving.remove(name.as_str())),
            }
        }
        self.serving.clone()
    }
}

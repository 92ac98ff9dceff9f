//! Which pipelines need which models: their order of loading, cycles among them, and what a model's load makes
//! servable.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Weak,
};

use parking_lot::Mutex;

use super::control::Control;
use crate::pipeline::{Models, Servable};

/// The models that each pipeline needs, by the pipeline's name: of all pipelines whose load was tried and that were not
/// unloaded since.
#[derive(Debug, Default)]
pub(super) struct Dependencies(Mutex<HashMap<String, Vec<String>>>);

impl Dependencies {
    /// Records the models that a pipeline needs; none for a model that is no pipeline.
    ///
    /// # Errors
    /// If the pipeline needs itself, directly or through others; with the names in order.
    pub(super) fn set(&self, name: &str, models: &[String]) -> Result<(), String> {
        let mut known = self.0.lock();
        if models.is_empty() {
            known.remove(name);
            return Ok(());
        }
        known.insert(name.to_owned(), models.to_vec());
        match path_back(&known, name) {
            Some(path) => Err(format!("the pipeline needs itself: {}", path.join(" -> "))),
            None => Ok(()),
        }
    }

    /// Forgets a pipeline, and returns the models that no other one needs.
    pub(super) fn remove(&self, name: &str) -> Vec<String> {
        let mut known = self.0.lock();
        let mut models = known.remove(name).unwrap_or_default();
        models.retain(|model| !known.values().any(|needed| needed.contains(model)));
        models
    }

    /// Returns the pipelines that need a model.
    pub(super) fn dependents(&self, model: &str) -> Vec<String> {
        let known = self.0.lock();
        let needs = known.iter().filter(|(_, models)| models.iter().any(|needed| needed == model));
        needs.map(|(name, _)| name.clone()).collect()
    }
}

/// Returns a path from a name to itself, if there is one.
fn path_back(known: &HashMap<String, Vec<String>>, name: &str) -> Option<Vec<String>> {
    let mut seen = BTreeSet::new();
    let mut paths = vec![vec![name.to_owned()]];
    while let Some(path) = paths.pop() {
        let last = path.last().map_or(name, String::as_str);
        for model in known.get(last).into_iter().flatten() {
            let longer: Vec<String> = path.iter().chain([model]).cloned().collect();
            if model == name {
                return Some(longer);
            }
            if seen.insert(model.clone()) {
                paths.push(longer);
            }
        }
    }
    None
}

/// The models that the repository serves, for the steps of its pipelines.
pub(super) struct ServedModels(pub(super) Weak<Control>);

impl Models for ServedModels {
    fn resolve(&self, model: &str, version: Option<i64>) -> Result<Servable, String> {
        let Some(control) = self.0.upgrade() else { return Err("the server is shutting down".to_owned()) };
        let version = version.map(|version| version.to_string()).unwrap_or_default();
        let serving = control.serving.load();
        serving.resolve(model, &version).map(|version| version.servable().clone()).map_err(|error| error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn models(names: &[&str]) -> Vec<String> {
        names.iter().map(|&name| name.to_owned()).collect()
    }

    #[test]
    fn a_pipeline_that_needs_itself_is_refused_with_the_path() {
        let known = Dependencies::default();
        known.set("a", &models(&["x", "b"])).expect("no cycle yet");
        known.set("b", &models(&["x", "c"])).expect("no cycle yet");
        let cycle = known.set("c", &models(&["a"])).expect_err("a cycle");
        assert_eq!(cycle, "the pipeline needs itself: c -> a -> b -> c");
        assert_eq!(known.set("d", &models(&["d"])).expect_err("itself"), "the pipeline needs itself: d -> d");
        known.set("c", &models(&["x"])).expect("it was changed");
        known.set("e", &models(&["a", "b"])).expect("two ways to b are no cycle");
    }

    #[test]
    fn models_of_a_pipeline_that_others_need_stay() {
        let known = Dependencies::default();
        known.set("a", &models(&["x", "y"])).expect("no cycle");
        known.set("b", &models(&["y"])).expect("no cycle");
        let mut dependents = known.dependents("y");
        dependents.sort();
        assert_eq!(dependents, ["a", "b"]);
        assert_eq!(known.remove("a"), ["x"]);
        assert!(known.remove("a").is_empty());
        assert_eq!(known.remove("b"), ["y"]);
    }
}

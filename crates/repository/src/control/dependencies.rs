//! Which pipelines need which models: their order of loading, cycles among them, and what a model's load makes
//! servable.

use std::{
    collections::{BTreeSet, HashMap},
    pin::Pin,
    sync::{Arc, Weak},
    time::Duration,
};

use parking_lot::Mutex;
use paternoster_pipeline::{Models, PipelineOptions, Servable};
use tokio::{
    sync::OwnedMutexGuard,
    time::{sleep, timeout},
};

use super::{Control, Demand};
use crate::{ControlMode, LoadAttempt, LoadError, LoadErrorKind, LoadPlace, scan::Found};

/// Time between two looks at whether a pipeline that waits for its turn is needed by the one whose turn it is.
const LOOK: Duration = Duration::from_millis(20);

/// The models that pipelines need, by the pipeline's name.
#[derive(Debug, Default)]
pub(crate) struct Dependencies(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    /// Of pipelines that are served.
    served: HashMap<String, Vec<String>>,
    /// Of pipelines that are being loaded, which may replace what is served.
    loading: HashMap<String, Vec<String>>,
    /// Of pipelines whose last load failed.
    failed: HashMap<String, Vec<String>>,
}

impl Dependencies {
    /// Records that a load begins of a pipeline that needs these models; of a model that is no pipeline with none.
    ///
    /// # Errors
    /// If the pipeline would need itself, directly or through others that are served or being loaded; with the names in
    /// order.
    pub(crate) fn begin(&self, name: &str, models: &[String]) -> Result<(), LoadError> {
        let mut known = self.0.lock();
        known.failed.remove(name);
        known.loading.insert(name.to_owned(), models.to_vec());
        match path_back(&known, name) {
            Some(path) => {
                let message = format!("the pipeline needs itself: {}", path.join(" -> "));
                Err(LoadError::new(LoadErrorKind::Dependency, message))
            }
            None => Ok(()),
        }
    }

    /// Records how the load that began last ended.
    pub(crate) fn end(&self, name: &str, is_served: bool) {
        let mut known = self.0.lock();
        let Some(models) = known.loading.remove(name) else { return };
        let ended = if is_served { &mut known.served } else { &mut known.failed };
        if models.is_empty() {
            ended.remove(name);
        } else {
            ended.insert(name.to_owned(), models);
        }
    }

    /// Forgets a model that is unloaded. Returns the models that it needed, if it was a pipeline, and that no other one
    /// needs.
    pub(crate) fn remove(&self, name: &str) -> Vec<String> {
        let mut known = self.0.lock();
        known.failed.remove(name);
        let mut models = known.served.remove(name).unwrap_or_default();
        models.retain(|model| !known.all().any(|(_, needed)| needed.contains(model)));
        models
    }

    /// Returns the pipelines that are served or being loaded, by the models that they need.
    pub(crate) fn by_model(&self) -> HashMap<String, Vec<String>> {
        let mut pipelines: HashMap<String, Vec<String>> = HashMap::new();
        for (pipeline, models) in self.0.lock().all() {
            for model in models {
                let of_model = pipelines.entry(model.clone()).or_default();
                if !of_model.contains(pipeline) {
                    of_model.push(pipeline.clone());
                }
            }
        }
        pipelines
    }

    /// Returns the pipelines whose last load failed and that need a model.
    pub(crate) fn failed_for(&self, model: &str) -> Vec<String> {
        let known = self.0.lock();
        let needs = known.failed.iter().filter(|(_, models)| models.iter().any(|needed| needed == model));
        needs.map(|(name, _)| name.clone()).collect()
    }
}

impl Known {
    fn all(&self) -> impl Iterator<Item = (&String, &Vec<String>)> {
        self.served.iter().chain(&self.loading)
    }
}

/// Returns a path from a name to itself, if there is one.
fn path_back(known: &Known, name: &str) -> Option<Vec<String>> {
    let mut seen = BTreeSet::new();
    let mut paths = vec![vec![name.to_owned()]];
    while let Some(path) = paths.pop() {
        let last = path.last().map_or(name, String::as_str);
        // What a load of the pipeline itself replaces no longer counts.
        let replaced = last == name && known.loading.contains_key(name);
        let served = known.served.get(last).filter(|_| !replaced).into_iter().flatten();
        for model in served.chain(known.loading.get(last).into_iter().flatten()) {
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

impl Control {
    /// Unloads a pipeline, and the models of its steps that no other pipeline needs.
    pub(crate) async fn unload_with_models(self: &Arc<Self>, name: &str) {
        let mut names = vec![name.to_owned()];
        while let Some(name) = names.pop() {
            names.extend(self.dependencies.remove(&name));
            self.unload(&name).await;
        }
    }

    /// Unloads the pipelines that need a model, directly or through others, the outermost first.
    pub(crate) async fn unload_pipelines_of(self: &Arc<Self>, model: &str) {
        let by_model = self.dependencies.by_model();
        let (mut found, mut next) = (Vec::new(), vec![model.to_owned()]);
        while let Some(name) = next.pop() {
            for pipeline in by_model.get(&name).into_iter().flatten() {
                found.retain(|known| known != pipeline);
                found.push(pipeline.clone());
                next.push(pipeline.clone());
            }
        }
        for pipeline in found.iter().rev() {
            self.unload(pipeline).await;
        }
    }

    /// Waits until no other pipeline has its models loaded for it: two that each hold a part of the memory would wait
    /// for each other. A pipeline that others need belongs to their turn. A turn that takes long, as with a model that
    /// hangs, is waited for no longer than a quarter of the time that a load may take.
    pub(crate) async fn assemble(&self, name: &str) -> Option<OwnedMutexGuard<()>> {
        let limit = self.options.residency.load_timeout / 4;
        let needed = async {
            while !self.dependencies.by_model().contains_key(name) {
                sleep(LOOK).await;
            }
        };
        tokio::select! {
            turn = timeout(limit, Arc::clone(&self.assembling).lock_owned()) => turn.ok(),
            // The pipeline whose turn it is may turn out to need this one.
            () = needed => None,
        }
    }

    /// Waits until loads of a pipeline's models that are in progress or due have ended. Where clients and the command
    /// line decide what is loaded, those that are not loaded are now, as in Triton.
    pub(crate) async fn settle(
        self: &Arc<Self>,
        models: &[String],
        demand: Demand,
        attempt: &Arc<LoadAttempt>,
    ) -> Result<(), LoadError> {
        let mut changes = self.changes.subscribe();
        for model in models {
            let is_due = matches!(demand, Demand::Named | Demand::Client | Demand::Request);
            if is_due && self.options.mode.is_on_demand() {
                // Shared with requests for the model, and bounded as their loads are.
                match attempt.unless_stopped(self.load_for_pipeline(model)).await? {
                    Err(error) if error.is_memory() => return Err(error.within(LoadPlace::Step(model.clone()))),
                    // The pipeline says why a model of its steps is not served.
                    Ok(()) | Err(_) => {}
                }
            } else if is_due && !self.table.lock().needs(model) {
                let found = self.places.find(model).await?;
                // A task of its own, because the model may be a pipeline itself, and chains may be long.
                let load = tokio::spawn(self.load_boxed(model.clone(), found, demand));
                drop(attempt.unless_stopped(load).await?);
            }
            while self.table.lock().is_loading(model) {
                // The sender is a part of `self`.
                let _ = attempt.unless_stopped(changes.changed()).await?;
            }
        }
        Ok(())
    }

    /// As [`Self::load_found`], as a future whose type does not contain itself.
    fn load_boxed(
        self: &Arc<Self>,
        name: String,
        found: Option<Found>,
        demand: Demand,
    ) -> Pin<Box<dyn Future<Output = bool> + Send>> {
        let control = Arc::clone(self);
        Box::pin(async move { control.load_found(&name, found, demand).await })
    }

    /// Tries the pipelines again that could not be loaded without this model.
    pub(crate) fn load_dependents(self: &Arc<Self>, model: &str) {
        match self.options.mode {
            ControlMode::Explicit { .. } => return,
            ControlMode::OnDemand { .. } => {
                self.dependencies.failed_for(model).iter().for_each(|name| self.on_demand.forget_failure(name));
                return;
            }
            ControlMode::None | ControlMode::Poll { .. } => {}
        }
        for name in self.dependencies.failed_for(model) {
            let control = Arc::clone(self);
            tokio::spawn(async move {
                // Behind a load in progress, which may well succeed.
                drop(control.gates.of(&name).turn.lock().await);
                if control.table.lock().needs(&name) {
                    return;
                }
                if let Ok(found) = control.places.find(&name).await {
                    control.load_found(&name, found, Demand::Poll).await;
                }
            });
        }
    }

    /// What the steps of pipelines need.
    pub(crate) fn pipeline_options(self: &Arc<Self>) -> PipelineOptions {
        PipelineOptions {
            models: Arc::new(ServedModels(Arc::downgrade(self))),
            budgets: self.options.request_budgets.clone(),
            workers: self.workers.clone(),
        }
    }
}

/// The models that the repository serves, for the steps of its pipelines.
struct ServedModels(Weak<Control>);

impl Models for ServedModels {
    fn resolve(&self, model: &str, version: Option<i64>) -> Result<Servable, String> {
        let Some(control) = self.0.upgrade() else { return Err("the server is shutting down".to_owned()) };
        let version = version.map(|version| version.to_string()).unwrap_or_default();
        let serving = control.serving.load();
        let (served, found) = serving.find(model, &version).map_err(|error| error.to_string())?;
        let shared = served.rollout().filter(|_| version.is_empty());
        let chosen = shared.and_then(|rollout| rollout.largest(&served.ready)).unwrap_or(found);
        Ok(chosen.servable().clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn models(names: &[&str]) -> Vec<String> {
        names.iter().map(|&name| name.to_owned()).collect()
    }

    fn load(known: &Dependencies, name: &str, needs: &[&str]) {
        known.begin(name, &models(needs)).expect("no cycle");
        known.end(name, true);
    }

    #[test]
    fn a_pipeline_that_needs_itself_is_refused_with_the_path() {
        let known = Dependencies::default();
        load(&known, "a", &["x", "b"]);
        known.begin("b", &models(&["x", "c"])).expect("no cycle yet");
        let cycle = known.begin("c", &models(&["a"])).expect_err("a cycle, though b is still being loaded");
        assert_eq!(cycle.to_string(), "the pipeline needs itself: c -> a -> b -> c");
        known.end("c", false);
        known.end("b", true);
        let cycle = known.begin("d", &models(&["d"])).expect_err("itself");
        assert_eq!(cycle.to_string(), "the pipeline needs itself: d -> d");
        known.end("d", false);
        load(&known, "c", &["x"]);
        load(&known, "e", &["a", "b"]);
    }

    #[test]
    fn what_is_served_counts_until_it_is_replaced() {
        let known = Dependencies::default();
        load(&known, "a", &["b"]);
        known.begin("a", &models(&["x"])).expect("no cycle");
        known.end("a", false);
        assert!(known.begin("b", &models(&["a"])).is_err(), "the reload failed: a still needs b");
        known.end("b", false);
        load(&known, "a", &["x"]);
        load(&known, "b", &["a"]);
        assert_eq!((known.remove("a"), known.remove("b")), (models(&["x"]), models(&["a"])));
    }

    #[test]
    fn a_refused_pipeline_leaves_no_trace_but_for_what_would_mend_it() {
        let known = Dependencies::default();
        known.begin("a", &models(&["b"])).expect("no cycle");
        known.end("a", false);
        assert_eq!(known.failed_for("b"), ["a"]);
        known.begin("b", &models(&["a"])).expect("a is not served");
        known.end("b", false);
        load(&known, "a", &["x"]);
        assert!(known.failed_for("b").is_empty());
    }

    #[test]
    fn models_of_a_pipeline_that_others_need_stay() {
        let known = Dependencies::default();
        load(&known, "a", &["x", "y"]);
        load(&known, "b", &["y"]);
        known.begin("a", &models(&["z"])).expect("no cycle");
        known.end("a", false);
        assert_eq!(known.remove("a"), ["x"], "what is served, not what failed");
        assert!(known.remove("a").is_empty());
        assert_eq!(known.remove("b"), ["y"]);
    }

    #[test]
    fn pipelines_that_are_served_or_loading_need_their_models() {
        let known = Dependencies::default();
        load(&known, "a", &["x"]);
        known.begin("b", &models(&["x", "y"])).expect("no cycle");
        let mut needs = known.by_model();
        needs.values_mut().for_each(|pipelines| pipelines.sort_unstable());
        assert_eq!((&needs["x"], &needs["y"]), (&models(&["a", "b"]), &models(&["b"])));
        known.end("b", false);
        assert_eq!(known.by_model(), HashMap::from([("x".to_owned(), models(&["a"]))]));
    }
}

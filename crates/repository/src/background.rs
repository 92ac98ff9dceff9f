//! Profiles versions while they serve, one at a time, and reloads them if the profile advises something else.

use std::{
    path::PathBuf,
    sync::{Arc, Weak},
};

use super::{
    LoadAttempt, ModelVersion, ResolvedVersion,
    blocking::blocking,
    control::{Control, Demand, loading::Source},
};

impl Control {
    /// Profiles a version that serves without a profile when its turn comes, and reloads the model in `directory` if
    /// that changes how it is served. `resolved` is what the version was loaded from. Does nothing if the version is
    /// unloaded meanwhile.
    pub(super) fn profile_later(
        self: &Arc<Self>,
        directory: PathBuf,
        version: Weak<ModelVersion>,
        resolved: ResolvedVersion,
    ) {
        // Weak, so that queued profiles do not keep a dropped repository alive.
        let (control, turns, loader) = (Arc::downgrade(self), self.profiling.clone(), self.loader.clone());
        let (asked, profiled_version) = (control.clone(), version.clone());
        let is_wanted = move || asked.upgrade().is_some_and(|control| control.serves(&profiled_version));
        tokio::spawn(async move {
            let _turn = turns.lock().await;
            let name = resolved.spec.name.clone();
            let profiled = blocking(move || loader.profile(&resolved, &is_wanted)).await;
            match profiled.and_then(|profiled| profiled) {
                Ok(false) => return,
                Ok(true) => {}
                Err(reason) => {
                    tracing::warn!(
                        model = name,
                        reason = reason.to_string(),
                        "profiling failed; serving without a profile"
                    );
                    return;
                }
            }
            if let Some(control) = control.upgrade() {
                control.switch(&name, directory, &version).await;
            }
        });
    }

    /// Returns whether new requests reach a version. Its pointer alone does not show that: requests in flight keep an
    /// unloaded version alive.
    fn serves(&self, version: &Weak<ModelVersion>) -> bool {
        let serving = self.serving.load();
        let mut versions = serving.models.values().flat_map(|versions| &versions.ready);
        versions.any(|serving| std::ptr::eq(Arc::as_ptr(serving), version.as_ptr()))
    }

    /// Reloads a model, unless the profiled version no longer serves.
    async fn switch(self: &Arc<Self>, name: &str, directory: PathBuf, version: &Weak<ModelVersion>) {
        let (gate, attempt) = (self.gates.of(name), LoadAttempt::of_repository());
        gate.register(&attempt);
        let _turn = gate.turn.lock().await;
        if !self.serves(version) {
            return;
        }
        let source = Source::of_directory(directory, Demand::Client);
        if let Err(fault) = self.load_source(name, source, &attempt).await {
            tracing::warn!(model = name, %fault, "reload with the new profile failed; the model is served as before");
        }
    }
}

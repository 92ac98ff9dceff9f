//! Profiles versions that serve, one at a time, and loads them again where their profile advises something else.

use std::{
    path::PathBuf,
    sync::{Arc, Weak},
};

use super::{
    LoadRequest, ModelVersion,
    control::{Control, Source, blocking},
};

/// A version that serves without a profile.
pub(super) struct Unprofiled {
    /// The model's directory.
    pub(super) directory: PathBuf,
    pub(super) version: Weak<ModelVersion>,
    /// What it was loaded from.
    pub(super) request: LoadRequest,
}

impl Control {
    /// Profiles a version when its turn comes, and switches it over. Ends without a trace if the version goes
    /// meanwhile.
    pub(super) fn profile_later(self: &Arc<Self>, unprofiled: Unprofiled) {
        // Whatever waits for its turn keeps no repository alive.
        let (control, turns, loader) = (Arc::downgrade(self), self.profiling.clone(), self.loader.clone());
        let Unprofiled { directory, version, request } = unprofiled;
        let (asked, profiled_version) = (control.clone(), version.clone());
        let is_wanted = move || asked.upgrade().is_some_and(|control| control.serves(&profiled_version));
        tokio::spawn(async move {
            let _turn = turns.lock().await;
            let name = request.spec.name.clone();
            let profiled = blocking(move || loader.profile(&request, &is_wanted)).await;
            match profiled.and_then(|profiled| profiled) {
                Ok(false) => return,
                Ok(true) => {}
                Err(reason) => {
                    tracing::warn!(model = name, reason, "is served on without a profile");
                    return;
                }
            }
            if let Some(control) = control.upgrade() {
                control.switch(&name, directory, &version).await;
            }
        });
    }

    /// Whether requests still come to a version; those in flight may keep one that was unloaded.
    fn serves(&self, version: &Weak<ModelVersion>) -> bool {
        let serving = self.serving.load();
        let mut versions = serving.models.values().flat_map(|versions| &versions.ready);
        versions.any(|serving| std::ptr::eq(Arc::as_ptr(serving), version.as_ptr()))
    }

    /// Loads a model again, unless the version that was profiled serves no more.
    async fn switch(self: &Arc<Self>, name: &str, directory: PathBuf, version: &Weak<ModelVersion>) {
        let gate = self.gate(name);
        let _turn = gate.lock().await;
        if !self.serves(version) {
            return;
        }
        if let Err(fault) = self.load_source(name, Source::of_directory(directory)).await {
            tracing::warn!(model = name, %fault, "is served on as before it was profiled");
        }
    }
}

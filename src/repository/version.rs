//! A loaded version of a model.

use std::sync::Arc;

use super::{attempt::KeptMemory, config::pb};
use crate::{executor::ModelHandle, model::ModelSpec};

/// A version that serves. Unloading only drops the repository's reference; requests that hold the version or its handle
/// keep it alive.
#[derive(Debug)]
pub struct ModelVersion {
    handle: Arc<ModelHandle>,
    config: Arc<pb::ModelConfig>,
    _memory: Arc<KeptMemory>,
}

impl ModelVersion {
    /// `memory` is what the version keeps of the budget for models that clients send.
    pub(super) fn new(handle: Arc<ModelHandle>, config: Arc<pb::ModelConfig>, memory: Arc<KeptMemory>) -> Self {
        Self { handle, config, _memory: memory }
    }

    /// Returns the handle to which requests are submitted.
    pub fn handle(&self) -> &Arc<ModelHandle> {
        &self.handle
    }

    /// Returns the version's inputs, outputs and largest batch.
    pub fn spec(&self) -> &ModelSpec {
        self.handle.spec()
    }

    /// Returns the complete configuration, as ModelConfig returns it.
    pub fn config(&self) -> &Arc<pb::ModelConfig> {
        &self.config
    }
}

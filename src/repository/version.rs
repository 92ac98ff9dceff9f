//! One ready version of a model.

use std::sync::Arc;

use super::config::pb;
use crate::{executor::ModelHandle, model::ModelSpec};

/// A version that serves. Each holder of it, or of its handle, keeps it alive; unloading only lets go of it.
#[derive(Debug)]
pub struct ModelVersion {
    handle: Arc<ModelHandle>,
    config: Arc<pb::ModelConfig>,
}

impl ModelVersion {
    pub(super) fn new(handle: Arc<ModelHandle>, config: Arc<pb::ModelConfig>) -> Self {
        Self { handle, config }
    }

    /// Where requests are submitted.
    pub fn handle(&self) -> &Arc<ModelHandle> {
        &self.handle
    }

    /// What the version takes and gives.
    pub fn spec(&self) -> &ModelSpec {
        self.handle.spec()
    }

    /// The complete configuration, as ModelConfig shows it.
    pub fn config(&self) -> &Arc<pb::ModelConfig> {
        &self.config
    }
}

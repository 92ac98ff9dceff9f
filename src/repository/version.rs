//! A loaded version of a model.

use std::sync::Arc;

use super::{attempt::KeptMemory, config::pb};
use crate::{model::ModelSpec, pipeline::Servable};

/// A version that serves. Unloading only drops the repository's reference; requests that hold the version or what
/// serves it keep it alive.
#[derive(Debug)]
pub struct ModelVersion {
    servable: Servable,
    config: Arc<pb::ModelConfig>,
    _memory: Arc<KeptMemory>,
}

impl ModelVersion {
    /// `memory` is what the version keeps of the budget for models that clients send.
    pub(super) fn new(servable: Servable, config: Arc<pb::ModelConfig>, memory: Arc<KeptMemory>) -> Self {
        Self { servable, config, _memory: memory }
    }

    /// Returns the model or pipeline to which requests are submitted.
    pub fn servable(&self) -> &Servable {
        &self.servable
    }

    /// Returns the version's inputs, outputs and largest batch.
    pub fn spec(&self) -> &ModelSpec {
        self.servable.spec()
    }

    /// Returns the complete configuration, as ModelConfig returns it.
    pub fn config(&self) -> &Arc<pb::ModelConfig> {
        &self.config
    }
}

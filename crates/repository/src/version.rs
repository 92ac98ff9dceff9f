//! A loaded version of a model.

use std::sync::Arc;

use paternoster_config::pb::{self, model_config::SchedulingChoice};
use paternoster_executor::InferRequest;
use paternoster_model::ModelSpec;
use paternoster_pipeline::{PendingResponse, Servable};

use super::{attempt::KeptMemory, rollout::Rollout};

/// The parameter of a configuration that says what a classifier of texts does, as Hugging Face names it.
pub(super) const PROBLEM_TYPE: &str = "problem_type";

/// Its value where several classes of a text may be true.
pub(super) const MULTI_LABEL: &str = "multi_label_classification";

/// A version that serves. Unloading only drops the repository's reference; requests that hold the version or what
/// serves it keep it alive.
#[derive(Debug)]
pub struct ModelVersion {
    servable: Servable,
    config: Arc<pb::ModelConfig>,
    rollout: Option<Arc<Rollout>>,
    _memory: Arc<KeptMemory>,
}

impl ModelVersion {
    /// `memory` is what the version keeps of the budget for models that clients send.
    pub(super) fn new(
        servable: Servable,
        config: Arc<pb::ModelConfig>,
        rollout: Option<Arc<Rollout>>,
        memory: Arc<KeptMemory>,
    ) -> Self {
        Self { servable, config, rollout, _memory: memory }
    }

    /// Whether several classes of a text may be true.
    pub fn is_multi_label(&self) -> bool {
        self.config.parameters.get(PROBLEM_TYPE).is_some_and(|kind| kind.string_value == MULTI_LABEL)
    }

    /// Submits a client's request that has exactly one response. Dropping the response cancels the request. If another
    /// version answers for comparison, the request is submitted to that one too.
    ///
    /// Must be called within a tokio runtime.
    #[inline]
    pub fn submit(&self, request: InferRequest) -> PendingResponse {
        match self.rollout.as_ref().and_then(|rollout| rollout.shadow()) {
            Some(shadow) => shadow.submit(self, request),
            None => self.servable.submit(request),
        }
    }

    /// Returns the priority of the least important requests; 0 where there are no levels.
    pub(super) fn lowest_priority(&self) -> u64 {
        match &self.config.scheduling_choice {
            Some(SchedulingChoice::DynamicBatching(batching)) => batching.priority_levels,
            _ => 0,
        }
    }

    /// Returns how the requests of its model are divided among the versions.
    #[inline]
    pub(super) fn rollout(&self) -> Option<&Arc<Rollout>> {
        self.rollout.as_ref()
    }

    /// Returns the model or pipeline to which requests are submitted.
    #[inline]
    pub fn servable(&self) -> &Servable {
        &self.servable
    }

    /// Returns the version's inputs, outputs and largest batch.
    #[inline]
    pub fn spec(&self) -> &ModelSpec {
        self.servable.spec()
    }

    /// Returns the complete configuration, as ModelConfig returns it.
    pub fn config(&self) -> &Arc<pb::ModelConfig> {
        &self.config
    }
}

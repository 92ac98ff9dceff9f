//! Models that take texts, in a server that was built without the feature `text`: they are refused.

use std::{path::Path, sync::Arc};

use paternoster_config::{
    SettingError,
    model::{PipelineStep, Text},
    pb,
};
use paternoster_executor::ModelHandle;
use paternoster_pipeline::{BuiltIn, Pipeline, PipelineOptions};

use super::LoadError;

/// Default largest batch of the program, in texts.
pub(super) const DEFAULT_MAX_BATCH_SIZE: i32 = 32;

/// Returns whether the program has an input that tells padding from tokens.
pub(super) fn has_mask(_inputs: &[pb::ModelInput]) -> bool {
    false
}

/// Refuses a built-in step.
///
/// # Errors
/// Always.
pub(super) fn built_in(_directory: &Path, _step: &PipelineStep) -> Result<Arc<dyn BuiltIn>, SettingError> {
    Err("the server was built without the feature 'text'".into())
}

/// There is none.
#[derive(Debug)]
pub(super) enum TextModel {}

impl TextModel {
    /// Refuses the model.
    ///
    /// # Errors
    /// Always.
    pub(super) fn read(_directory: &Path, _section: &Text) -> Result<Self, LoadError> {
        Err(LoadError::settings("text: the server was built without the feature 'text'"))
    }

    pub(super) fn pad_token(&self) -> i64 {
        match *self {}
    }

    pub(super) fn describe(&self) -> String {
        match *self {}
    }

    pub(super) fn around(
        &self,
        _handle: Arc<ModelHandle>,
        _config: &pb::ModelConfig,
        _options: PipelineOptions,
    ) -> Result<(Pipeline, pb::ModelConfig), LoadError> {
        match *self {}
    }
}

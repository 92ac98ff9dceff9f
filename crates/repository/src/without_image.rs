//! The built-in step `image`, in a server that was built without the feature `image`: it is refused.

use std::sync::Arc;

use paternoster_config::{SettingError, model::ImageStepSettings};
use paternoster_pipeline::BuiltIn;

/// Refuses the step.
///
/// # Errors
/// Always.
pub(super) fn built_in(_step: &ImageStepSettings) -> Result<Arc<dyn BuiltIn>, SettingError> {
    Err("the server was built without the feature 'image'".into())
}

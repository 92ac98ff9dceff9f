//! ModelReady, ModelMetadata, ModelConfig.

use tonic::Status;

use super::unresolved;
use crate::frontend::Services;
use crate::wire::{metadata, pb};

/// Answers ModelReady; an unknown or failed model is not ready, nor is one that a request would load.
///
/// # Errors
/// INVALID_ARGUMENT for a version that is not a number.
pub(in crate::frontend) fn model_ready(
    services: &Services,
    request: pb::ModelReadyRequest,
) -> Result<pb::ModelReadyResponse, Status> {
    match services.repository.is_ready(&request.name, &request.version) {
        Ok(ready) => Ok(pb::ModelReadyResponse { ready }),
        Err(error) => Err(unresolved(&error).into()),
    }
}

/// Answers ModelMetadata. Waits for the model where requests load models, since clients ask before they infer.
///
/// # Errors
/// NOT_FOUND for a model or version that is not ready, INVALID_ARGUMENT for a version that is not a number.
pub(in crate::frontend) async fn model_metadata(
    services: &Services,
    request: pb::ModelMetadataRequest,
) -> Result<pb::ModelMetadataResponse, Status> {
    let version = services.repository.resolve_or_load(&request.name, &request.version).await;
    let version = version.map_err(|error| unresolved(&error))?;
    let versions = services.repository.ready_versions(&request.name);
    Ok(metadata::metadata(version.spec(), &versions, &version.config().platform))
}

/// Answers ModelConfig.
///
/// # Errors
/// The same as ModelMetadata.
pub(in crate::frontend) async fn model_config(
    services: &Services,
    request: pb::ModelConfigRequest,
) -> Result<pb::ModelConfigResponse, Status> {
    let version = services.repository.resolve_or_load(&request.name, &request.version).await;
    let version = version.map_err(|error| unresolved(&error))?;
    Ok(pb::ModelConfigResponse { config: Some(version.config().as_ref().clone()) })
}

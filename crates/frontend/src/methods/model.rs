//! ModelReady, ModelMetadata, ModelConfig.

use std::sync::Arc;

use http::HeaderName;
use paternoster_repository::{ModelVersion, Requester, ResolveError};
use paternoster_wire::{metadata, pb};
use tonic::Status;

use super::unresolved;
use crate::Services;

/// Answers ModelReady; an unknown or failed model is not ready, nor is one that a request would load.
///
/// # Errors
/// INVALID_ARGUMENT for a version that is not a number.
pub(crate) fn model_ready(
    services: &Services,
    request: pb::ModelReadyRequest,
) -> Result<pb::ModelReadyResponse, Status> {
    match services.repository.is_ready(&request.name, &request.version) {
        Ok(ready) => Ok(pb::ModelReadyResponse { ready }),
        Err(error) => Err(unresolved(&error).into()),
    }
}

/// Why a call has no version to describe.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Undescribed {
    #[error(transparent)]
    Unresolved(#[from] ResolveError),
    /// The model is not loaded, and the call may not load it. Names the header that it lacks.
    #[error("{0}")]
    Restricted(String),
}

impl From<Undescribed> for Status {
    fn from(error: Undescribed) -> Self {
        match error {
            Undescribed::Unresolved(error) => unresolved(&error).into(),
            Undescribed::Restricted(message) => Self::unavailable(message),
        }
    }
}

/// Returns the version that a call asks about. Waits for its model where requests load models, since clients ask before
/// they infer. `loader` is the client for which the call may load models, or the header that it lacks.
///
/// # Errors
/// For a model or version that is not ready, and for a version that is not a number.
pub(crate) async fn described(
    services: &Services,
    name: &str,
    version: &str,
    loader: Result<Requester, &HeaderName>,
) -> Result<Arc<ModelVersion>, Undescribed> {
    match (loader, services.repository.resolve(name, version)) {
        (Ok(requester), Err(ResolveError::NotLoaded { .. })) => {
            Ok(services.repository.resolve_or_load(name, version, requester).await?)
        }
        (Err(header), Err(ResolveError::NotLoaded { .. })) => Err(Undescribed::Restricted(format!(
            "model '{name}' is not loaded, and loading it is restricted, expecting header '{header}'"
        ))),
        (_, resolved) => Ok(resolved?),
    }
}

/// Answers ModelMetadata.
///
/// # Errors
/// As [`described`].
pub(crate) async fn model_metadata(
    services: &Services,
    request: pb::ModelMetadataRequest,
    loader: Result<Requester, &HeaderName>,
) -> Result<pb::ModelMetadataResponse, Undescribed> {
    let version = described(services, &request.name, &request.version, loader).await?;
    let versions = services.repository.ready_versions(&request.name);
    Ok(metadata::metadata(version.spec(), &versions, &version.config().platform))
}

/// Answers ModelConfig.
///
/// # Errors
/// As [`described`].
pub(crate) async fn model_config(
    services: &Services,
    request: pb::ModelConfigRequest,
    loader: Result<Requester, &HeaderName>,
) -> Result<pb::ModelConfigResponse, Undescribed> {
    let version = described(services, &request.name, &request.version, loader).await?;
    Ok(pb::ModelConfigResponse { config: Some(version.config().as_ref().clone()) })
}

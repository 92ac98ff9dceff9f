//! What the routes ask of the repository.

use std::sync::Arc;

use super::Problem;
use crate::{
    frontend::Readiness,
    observe::LoadedVersion,
    repository::{Repository, ResolveError, config::pb::ModelConfig},
    wire::{self, pb::ModelMetadataResponse},
};

/// The models of a server, as HTTP shows them. An empty version means the latest ready one.
pub trait Models: Send + Sync {
    /// Whether the server came up.
    fn server_live(&self) -> bool;

    /// Whether the server wants traffic.
    fn server_ready(&self) -> bool;

    /// Whether a model can be called; unknown models cannot.
    ///
    /// # Errors
    /// For a version that is no number.
    fn model_ready(&self, name: &str, version: &str) -> Result<bool, Problem>;

    /// Names, datatypes and shapes of a model's tensors.
    ///
    /// # Errors
    /// For a model that is unknown or not ready, and a version that is no number.
    fn metadata(&self, name: &str, version: &str) -> Result<ModelMetadataResponse, Problem>;

    /// A model's complete configuration.
    ///
    /// # Errors
    /// As [`Self::metadata`].
    fn config(&self, name: &str, version: &str) -> Result<Arc<ModelConfig>, Problem>;

    /// All loaded versions, sorted by name and version.
    fn loaded(&self) -> Vec<LoadedVersion>;
}

/// The models of a repository.
#[derive(Debug)]
pub struct Served {
    repository: Arc<Repository>,
    readiness: Arc<Readiness>,
}

impl Served {
    /// The models of a repository, and the server's readiness.
    pub fn new(repository: Arc<Repository>, readiness: Arc<Readiness>) -> Self {
        Self { repository, readiness }
    }

    /// All loaded versions of a repository with their counters.
    pub fn loaded_of(repository: &Repository) -> Vec<LoadedVersion> {
        let counted = |version: &Arc<crate::repository::ModelVersion>| LoadedVersion {
            name: version.spec().name.clone(),
            version: version.spec().version,
            stats: Arc::clone(version.handle().stats()),
        };
        repository.loaded().iter().map(counted).collect()
    }
}

impl Models for Served {
    fn server_live(&self) -> bool {
        self.readiness.live()
    }

    fn server_ready(&self) -> bool {
        self.readiness.ready()
    }

    fn model_ready(&self, name: &str, version: &str) -> Result<bool, Problem> {
        Ok(self.repository.is_ready(name, version)?)
    }

    fn metadata(&self, name: &str, version: &str) -> Result<ModelMetadataResponse, Problem> {
        let resolved = self.repository.resolve(name, version)?;
        let versions = self.repository.ready_versions(name);
        Ok(wire::metadata::metadata(resolved.spec(), &versions, &resolved.config().platform))
    }

    fn config(&self, name: &str, version: &str) -> Result<Arc<ModelConfig>, Problem> {
        Ok(Arc::clone(self.repository.resolve(name, version)?.config()))
    }

    fn loaded(&self) -> Vec<LoadedVersion> {
        Self::loaded_of(&self.repository)
    }
}

impl From<ResolveError> for Problem {
    fn from(error: ResolveError) -> Self {
        match error {
            ResolveError::BadVersion { .. } => Self::Invalid(error.to_string()),
            ResolveError::UnknownModel { .. }
            | ResolveError::NoAvailableVersion { .. }
            | ResolveError::UnknownVersion { .. } => Self::NotFound(error.to_string()),
            ResolveError::UnreadyVersion { .. } => Self::Unavailable(error.to_string()),
        }
    }
}

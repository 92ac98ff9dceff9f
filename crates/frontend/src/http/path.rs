//! The names that a request's path carries.

use std::collections::HashMap;

use axum::extract::{FromRequestParts, Path};
use http::request::Parts;

use super::Problem;

/// All names of a path; empty where the path has no such part.
#[derive(Debug, Default)]
pub(super) struct PathNames {
    pub(super) model: String,
    pub(super) region: String,
    pub(super) repository: String,
    version: String,
}

impl<S: Send + Sync> FromRequestParts<S> for PathNames {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let captured = Path::<HashMap<String, String>>::from_request_parts(parts, state).await;
        let Path(mut captured) = captured.map_err(|rejection| Problem::invalid(rejection.body_text()))?;
        let mut take = |name| captured.remove(name).unwrap_or_default();
        Ok(Self {
            model: take("model"),
            region: take("region"),
            repository: take("repository"),
            version: take("version"),
        })
    }
}

/// The model that a path names, and its version; empty where the path names none.
#[derive(Debug)]
pub(super) struct ModelPath {
    pub(super) model: String,
    pub(super) version: String,
}

impl<S: Send + Sync> FromRequestParts<S> for ModelPath {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let PathNames { model, version, .. } = PathNames::from_request_parts(parts, state).await?;
        Ok(Self { model, version })
    }
}

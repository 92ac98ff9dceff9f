//! Why a request has no answer, as the client reads it.

use axum::{
    Json,
    response::{IntoResponse, Response},
};
use http::StatusCode;
use serde_json::json;

/// An error with Triton's status for its kind and the body `{"error": "…"}`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// 404: no such route, model or version.
    #[error("{0}")]
    NotFound(String),
    /// 400: anything wrong with the request.
    #[error("{0}")]
    Invalid(String),
    /// 503: what is asked for does not serve now.
    #[error("{0}")]
    Unavailable(String),
    /// 405: the route exists, for another method.
    #[error("{0}")]
    Method(String),
    /// 500: the server's own fault.
    #[error("{0}")]
    Internal(String),
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = match &self {
            Self::NotFound(_) => StatusCode::NOT_FOUND,
            Self::Invalid(_) => StatusCode::BAD_REQUEST,
            Self::Unavailable(_) => StatusCode::SERVICE_UNAVAILABLE,
            Self::Method(_) => StatusCode::METHOD_NOT_ALLOWED,
            Self::Internal(_) => StatusCode::INTERNAL_SERVER_ERROR,
        };
        (status, Json(json!({ "error": self.to_string() }))).into_response()
    }
}

//! HTTP errors, as the client reads them.

use axum::{
    Json,
    response::{IntoResponse, Response},
};
use http::StatusCode;
use paternoster_repository::ResolveError;
use paternoster_wire::{Kind, RequestError};
use serde_json::json;
use tonic::{Code, Status};
use tracing::Span;

use crate::{
    methods::{Undescribed, unresolved},
    span,
};

/// Status that nginx and Triton use for a request whose client has disconnected.
const CLIENT_CLOSED_REQUEST: u16 = 499;

/// An error with Triton's status for its kind, and the body `{"error": "…"}`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub(super) struct Problem {
    status: StatusCode,
    message: String,
}

impl Problem {
    pub(super) fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self { status, message: message.into() }
    }

    /// 400: the request is invalid.
    pub(super) fn invalid(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, message)
    }

    /// Logs the error as the outcome of this span's request.
    pub(super) fn log(&self, span: &Span) {
        span::refused(span, self.status.as_u16(), &self.message);
    }

    /// Returns its status and message, for interfaces with other bodies of errors.
    pub(super) fn into_parts(self) -> (StatusCode, String) {
        (self.status, self.message)
    }

    /// 500: an internal error.
    pub(super) fn internal(error: &dyn std::error::Error) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string())
    }
}

/// Returns the status for a gRPC code, as in Triton; Triton has none for the last two.
fn status_of(code: Code) -> StatusCode {
    match code {
        Code::InvalidArgument | Code::AlreadyExists => StatusCode::BAD_REQUEST,
        Code::NotFound => StatusCode::NOT_FOUND,
        Code::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        Code::Unimplemented => StatusCode::NOT_IMPLEMENTED,
        Code::Cancelled => StatusCode::from_u16(CLIENT_CLOSED_REQUEST).unwrap_or(StatusCode::BAD_REQUEST),
        Code::DeadlineExceeded => StatusCode::GATEWAY_TIMEOUT,
        Code::ResourceExhausted => StatusCode::PAYLOAD_TOO_LARGE,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

impl From<Status> for Problem {
    fn from(status: Status) -> Self {
        Self::new(status_of(status.code()), status.message())
    }
}

impl From<RequestError> for Problem {
    fn from(error: RequestError) -> Self {
        Self::new(status_of(Kind::code(error.kind())), error.message())
    }
}

impl From<&ResolveError> for Problem {
    fn from(error: &ResolveError) -> Self {
        match error {
            // The status of RESOURCE_EXHAUSTED would blame the request's size.
            ResolveError::NoMemory { .. } => Self::new(StatusCode::SERVICE_UNAVAILABLE, error.to_string()),
            _ => unresolved(error).into(),
        }
    }
}

impl From<Undescribed> for Problem {
    fn from(error: Undescribed) -> Self {
        match error {
            Undescribed::Unresolved(error) => Self::from(&error),
            Undescribed::Restricted(_) => Self::new(StatusCode::FORBIDDEN, error.to_string()),
        }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        (self.status, Json(json!({ "error": self.message }))).into_response()
    }
}

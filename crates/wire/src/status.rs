//! Errors sent to clients: kind, text and request id, and their conversion to a gRPC status.

use std::fmt;

use paternoster_executor::InferError;
use tonic::Status;

use super::{fault::Fault, kind::Kind, shared_memory::SharedMemoryError};

/// Maximum length of a message. A message may quote names chosen by the client; gRPC clients reject headers beyond 8
/// KiB, where a status message is percent-encoded with up to three bytes per byte.
const MESSAGE_LIMIT_BYTES: usize = 2048;

/// Maximum length of a request id quoted in front of a message, so that the message itself still fits.
const QUOTED_ID_LIMIT_BYTES: usize = 256;

/// An error response: a unary call converts it to a status, and a stream sends it in-band.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[error("{message}")]
pub struct RequestError {
    kind: Kind,
    id: String,
    message: String,
}

impl RequestError {
    /// Creates an error that does not concern an inference request, or does not name it.
    pub fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self { kind, id: String::new(), message: clipped(message.into(), MESSAGE_LIMIT_BYTES) }
    }

    /// Returns the error as the reply to the request with this id (empty if the request has none).
    #[must_use]
    pub fn with_id(mut self, id: impl Into<String>) -> Self {
        self.id = id.into();
        self
    }

    /// Converts the end of an admitted request that has no (further) response.
    pub fn from_infer(error: &InferError, id: &str) -> Self {
        let kind = match error.cause() {
            InferError::QueueFull
            | InferError::QueueTimeout
            | InferError::Late
            | InferError::ShuttingDown
            | InferError::Unavailable(_)
            | InferError::DeviceLost => Kind::Unavailable,
            InferError::Invalid(_) | InferError::NoMemory => Kind::InvalidArgument,
            InferError::Expired => Kind::DeadlineExceeded,
            InferError::Cancelled => Kind::Cancelled,
            InferError::Unread(_) | InferError::NoState(_) | InferError::NoRoom(_) => Kind::ResourceExhausted,
            InferError::Engine(_) | InferError::SchedulerFailed | InferError::InStep { .. } => Kind::Internal,
        };
        let names_request = matches!(error.cause(), InferError::QueueFull | InferError::Late);
        Self::about(kind, names_request, id.to_owned(), error)
    }

    /// Creates an error for a request that was rejected before admission.
    pub(super) fn from_fault(fault: &Fault, id: String) -> Self {
        Self::about(fault.kind(), fault.names_request(), id, fault)
    }

    fn about(kind: Kind, names_request: bool, id: String, cause: &dyn fmt::Display) -> Self {
        let message = if names_request { format!("[request id: {}] {cause}", quoted(&id)) } else { cause.to_string() };
        Self { kind, id, message: clipped(message, MESSAGE_LIMIT_BYTES) }
    }

    /// Returns the kind.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Returns the request's id; empty if it has none, or if no request is concerned.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Returns the text for the client.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// Returns id and text, for a response within a stream.
    pub(super) fn into_parts(self) -> (String, String) {
        (self.id, self.message)
    }
}

impl From<SharedMemoryError> for RequestError {
    fn from(error: SharedMemoryError) -> Self {
        Self::new(error.kind(), error.to_string())
    }
}

impl From<RequestError> for Status {
    fn from(error: RequestError) -> Self {
        Self::new(error.kind.code(), error.message)
    }
}

fn quoted(id: &str) -> String {
    if id.is_empty() { "<id_unknown>".to_owned() } else { clipped(id.to_owned(), QUOTED_ID_LIMIT_BYTES) }
}

fn clipped(mut text: String, limit_bytes: usize) -> String {
    if text.len() > limit_bytes {
        text.truncate(text.floor_char_boundary(limit_bytes));
        text.push('…');
    }
    text
}

#[cfg(test)]
mod tests {
    use tonic::Code;

    use super::*;

    #[test]
    fn every_end_of_an_admitted_request_has_the_code_of_the_protocol() {
        let code = |error: InferError| Status::from(RequestError::from_infer(&error, "")).code();
        assert_eq!(code(InferError::QueueFull), Code::Unavailable);
        assert_eq!(code(InferError::QueueTimeout), Code::Unavailable);
        assert_eq!(code(InferError::Late), Code::Unavailable);
        assert_eq!(code(InferError::Expired), Code::DeadlineExceeded);
        assert_eq!(code(InferError::Cancelled), Code::Cancelled);
        assert_eq!(code(InferError::Engine("negative count".to_owned())), Code::Internal);
        assert_eq!(code(InferError::ShuttingDown), Code::Unavailable);
        assert_eq!(code(InferError::DeviceLost), Code::Unavailable);
        assert_eq!(code(InferError::SchedulerFailed), Code::Internal);
    }

    #[test]
    fn an_error_of_a_step_has_the_code_of_its_cause_and_says_where_it_was() {
        let within = |place: &str, error| InferError::InStep { place: place.to_owned(), error: Box::new(error) };
        let full = within(
            "in pipeline 'outer', step 0 (model 'p')",
            within("in pipeline 'p', step 1 (model 'm')", InferError::QueueFull),
        );
        let error = RequestError::from_infer(&full, "q3");
        assert_eq!(error.kind(), Kind::Unavailable);
        let place = "in pipeline 'outer', step 0 (model 'p'): in pipeline 'p', step 1 (model 'm')";
        assert_eq!(error.message(), format!("[request id: q3] {place}: Exceeds maximum queue size"));
        assert_eq!((full.end(), full.is_refusal()), (InferError::QueueFull.end(), true));
    }

    #[test]
    fn a_queue_error_names_its_request_and_an_engine_error_is_passed_on_as_it_is() {
        let full = RequestError::from_infer(&InferError::QueueFull, "q3");
        assert_eq!(full.message(), "[request id: q3] Exceeds maximum queue size");
        assert_eq!(full.id(), "q3");
        let failed = RequestError::from_infer(&InferError::Engine("negative count".to_owned()), "d");
        assert_eq!(failed.message(), "negative count");
        assert_eq!(failed.id(), "d");
    }

    #[test]
    fn a_request_without_id_is_named_unknown() {
        let full = RequestError::from_infer(&InferError::QueueFull, "");
        assert_eq!(full.message(), "[request id: <id_unknown>] Exceeds maximum queue size");
    }

    #[test]
    fn a_queue_timeout_is_told_without_the_id_as_by_triton() {
        let timeout = RequestError::from_infer(&InferError::QueueTimeout, "q4");
        assert_eq!((timeout.message(), timeout.id()), ("Request timeout expired", "q4"));
    }

    #[test]
    fn a_huge_name_or_id_is_cut_in_the_message_and_the_echoed_id_stays_whole() {
        let id = "é".repeat(100_000);
        let error = RequestError::from_infer(&InferError::QueueFull, &id);
        assert!(error.message().len() < 2 * QUOTED_ID_LIMIT_BYTES, "the id is cut: {} bytes", error.message().len());
        assert!(error.message().ends_with("Exceeds maximum queue size"), "the fact is still there");
        assert_eq!(error.id(), id);
        let long = RequestError::new(Kind::Internal, "é".repeat(100_000));
        assert!(long.message().len() <= MESSAGE_LIMIT_BYTES + '…'.len_utf8(), "the message is cut");
    }
}

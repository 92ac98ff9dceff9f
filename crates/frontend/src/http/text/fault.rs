//! Why a request has no response.

use http::StatusCode;
use paternoster_executor::InferError;
use paternoster_wire::{Kind, RequestError};

use super::super::Problem;

/// Why a request has no response, whatever the interface.
#[derive(Debug)]
pub(super) enum Fault {
    /// No model can answer it, or none of this name.
    Model(String),
    /// The request, or one of its texts, is wrong.
    Request(String),
    /// It can never have the memory that it takes.
    TooLarge(String),
    /// The server has no capacity for it now.
    Overloaded(String),
    /// The server is starting, and the model is not there yet.
    Starting(String),
    /// Anything else.
    Server(StatusCode, String),
}

impl Fault {
    pub(super) fn message(&self) -> &str {
        match self {
            Self::Model(text)
            | Self::Request(text)
            | Self::TooLarge(text)
            | Self::Overloaded(text)
            | Self::Starting(text)
            | Self::Server(_, text) => text,
        }
    }
}

impl From<Problem> for Fault {
    fn from(problem: Problem) -> Self {
        let (status, message) = problem.into_parts();
        match status {
            StatusCode::SERVICE_UNAVAILABLE => Self::Overloaded(message),
            StatusCode::PAYLOAD_TOO_LARGE => Self::TooLarge(message),
            StatusCode::BAD_REQUEST => Self::Request(message),
            StatusCode::NOT_FOUND => Self::Model(message),
            status => Self::Server(status, message),
        }
    }
}

impl From<InferError> for Fault {
    fn from(error: InferError) -> Self {
        let never_fits = matches!(error.cause(), InferError::NoRoom(full) if full.never_fits());
        let is_gone = matches!(error.cause(), InferError::Unavailable(_) | InferError::DeviceLost);
        let error = RequestError::from_infer(&error, "");
        match error.kind() {
            // More capacity would not help.
            Kind::Unavailable if is_gone => Self::Server(StatusCode::SERVICE_UNAVAILABLE, error.message().to_owned()),
            Kind::InvalidArgument => Self::Request(error.message().to_owned()),
            Kind::ResourceExhausted if never_fits => Self::TooLarge(error.message().to_owned()),
            Kind::Unavailable | Kind::ResourceExhausted => Self::Overloaded(error.message().to_owned()),
            _ => Problem::from(error).into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use paternoster_observe::budget::Exhausted;

    use super::*;

    #[test]
    fn what_can_never_fit_is_too_large_and_what_does_not_fit_now_is_overload() {
        let fault = |wanted| {
            let (held, capacity, largest) = (1 << 29, 1 << 30, 1 << 30);
            Fault::from(InferError::NoRoom(Exhausted { wanted, held, capacity, largest }))
        };
        assert!(matches!(fault(1 << 31), Fault::TooLarge(_)));
        assert!(matches!(fault(1 << 30), Fault::Overloaded(_)));
    }
}

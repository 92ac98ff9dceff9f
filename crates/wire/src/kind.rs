//! The kinds of errors that the protocol distinguishes.

use tonic::Code;

/// The kind of an error, as far as the protocol distinguishes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// The request is invalid.
    InvalidArgument,
    /// A model, version or shared-memory region does not exist.
    NotFound,
    /// The server cannot accept the request now, or not in its mode of operation.
    Unavailable,
    /// The request needs more resources than the server grants to one request or client.
    ResourceExhausted,
    /// The protocol defines it, but this server or this model does not support it.
    Unimplemented,
    /// The engine or the server failed.
    Internal,
    /// The client cancelled the request.
    Cancelled,
    /// The client's deadline passed.
    DeadlineExceeded,
}

impl Kind {
    /// Returns the gRPC status code.
    pub const fn code(self) -> Code {
        match self {
            Self::InvalidArgument => Code::InvalidArgument,
            Self::NotFound => Code::NotFound,
            Self::Unavailable => Code::Unavailable,
            Self::ResourceExhausted => Code::ResourceExhausted,
            Self::Unimplemented => Code::Unimplemented,
            Self::Internal => Code::Internal,
            Self::Cancelled => Code::Cancelled,
            Self::DeadlineExceeded => Code::DeadlineExceeded,
        }
    }
}

//! Why shared memory could not be registered or used.

use super::super::kind::Kind;

/// Why shared memory could not be registered or used.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum SharedMemoryError {
    #[error("Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable.")]
    Disabled,
    #[error("a shared memory region needs a name")]
    Unnamed,
    #[error("the name of a shared memory region may have {limit} bytes, this one has {length}")]
    NameTooLong { length: usize, limit: usize },
    #[error("failed to register shared memory region '{name}': {limit} regions are registered, which is the most")]
    TooMany { name: String, limit: usize },
    #[error("shared memory region '{name}' already in manager")]
    AlreadyRegistered { name: String },
    #[error("unable to find shared memory region: '{name}'")]
    Unknown { name: String },
    #[error("unable to find {kind} shared memory region: '{name}'")]
    UnknownOfKind { name: String, kind: &'static str },
    #[error("the region named '{name}' is registered as {registered} shared memory, not {asked} shared memory")]
    OfOtherKind { name: String, registered: &'static str, asked: &'static str },
    #[error("Unable to open shared memory region: '{key}' (region '{name}'): {reason}")]
    Open { name: String, key: String, reason: String },
    #[error("failed to register shared memory region '{name}': it needs a byte size > 0")]
    Empty { name: String },
    #[error(
        "failed to register shared memory region '{name}': offset {offset} + byte size {byte_size} is beyond the \
         {available} bytes of '{key}'"
    )]
    BeyondFile { name: String, key: String, offset: u64, byte_size: u64, available: u64 },
    #[error(
        "failed to register CUDA shared memory region '{name}': this server uses no CUDA card ({reason}), use system \
         shared memory"
    )]
    NoCards { name: String, reason: String },
    #[error(
        "failed to register CUDA shared memory region '{name}': there is no device_id {device}, expected {expected}"
    )]
    UnknownDevice { name: String, device: i64, expected: String },
    #[error("failed to register CUDA shared memory region '{name}': raw_handle has {got} bytes, expected {expected}")]
    HandleSize { name: String, got: usize, expected: usize },
    #[error("failed to register CUDA shared memory region '{name}': the driver does not take its raw_handle: {reason}")]
    Handle { name: String, reason: String },
    #[error(
        "failed to register CUDA shared memory region '{name}': byte size {byte_size} is beyond the {available} bytes \
         of the memory that its raw_handle names"
    )]
    BeyondAllocation { name: String, byte_size: u64, available: u64 },
    #[error(
        "invalid offset + byte size for shared memory region '{name}': {offset} + {byte_size} is beyond its \
         {available} bytes"
    )]
    BeyondRegion { name: String, offset: u64, byte_size: u64, available: u64 },
    #[error("shared memory region '{name}' has become shorter than it was registered")]
    Shrunk { name: String },
    #[error("shared memory region '{name}' cannot be used: {reason}")]
    Io { name: String, reason: String },
    #[error("shared memory region '{name}' cannot be used: its card: {reason}")]
    Card { name: String, reason: String },
    #[error(
        "a request may read {limit} bytes from shared memory: {byte_size} from region '{name}' are too many, {left} \
         of them are left"
    )]
    OverLimit { name: String, byte_size: u64, limit: u64, left: u64 },
    #[error("no memory for {byte_size} bytes from shared memory region '{name}'")]
    NoMemory { name: String, byte_size: u64 },
}

impl SharedMemoryError {
    /// What kind of answer the error makes.
    pub fn kind(&self) -> Kind {
        match self {
            Self::Unknown { .. } | Self::UnknownOfKind { .. } | Self::OfOtherKind { .. } => Kind::NotFound,
            Self::Disabled => Kind::Unimplemented,
            Self::NoMemory { .. } | Self::Card { .. } => Kind::Unavailable,
            Self::OverLimit { .. } | Self::TooMany { .. } => Kind::ResourceExhausted,
            Self::Open { .. } | Self::Io { .. } => Kind::Internal,
            Self::Unnamed
            | Self::NameTooLong { .. }
            | Self::AlreadyRegistered { .. }
            | Self::Empty { .. }
            | Self::BeyondFile { .. }
            | Self::NoCards { .. }
            | Self::UnknownDevice { .. }
            | Self::HandleSize { .. }
            | Self::Handle { .. }
            | Self::BeyondAllocation { .. }
            | Self::BeyondRegion { .. }
            | Self::Shrunk { .. } => Kind::InvalidArgument,
        }
    }
}

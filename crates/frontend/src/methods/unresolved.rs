//! Converts errors of the repository to errors of the protocol.

use paternoster_repository::{ControlError, ResolveError};
use paternoster_wire::{Kind, RequestError};

/// Returns the error for a name or version that cannot be resolved.
pub(crate) fn unresolved(error: &ResolveError) -> RequestError {
    let kind = match error {
        ResolveError::UnknownModel { .. }
        | ResolveError::NoAvailableVersion { .. }
        | ResolveError::UnknownVersion { .. } => Kind::NotFound,
        ResolveError::Loading { .. }
        | ResolveError::UnreadyVersion { .. }
        | ResolveError::NotLoaded { .. }
        | ResolveError::NotLoadable { .. }
        | ResolveError::NotInTime { .. }
        | ResolveError::TooManyWaiting { .. } => Kind::Unavailable,
        ResolveError::NoMemory { .. } => Kind::ResourceExhausted,
        ResolveError::BadVersion { .. } => Kind::InvalidArgument,
    };
    RequestError::new(kind, error.to_string())
}

/// Returns the error for a failed load or unload.
pub(super) fn uncontrolled(error: &ControlError) -> RequestError {
    let kind = match error {
        ControlError::NotExplicit
        | ControlError::NotReady
        | ControlError::ShuttingDown
        | ControlError::TooManyPending { .. }
        | ControlError::Stopped { .. } => Kind::Unavailable,
        ControlError::NoMemory { .. } => Kind::ResourceExhausted,
        ControlError::UnknownModel { .. }
        | ControlError::BadConfig { .. }
        | ControlError::FilesWithoutConfig { .. }
        | ControlError::NoPlace { .. } => Kind::Internal,
        ControlError::BadOverride { .. } | ControlError::LoadFailed { .. } => Kind::InvalidArgument,
    };
    RequestError::new(kind, error.to_string())
}

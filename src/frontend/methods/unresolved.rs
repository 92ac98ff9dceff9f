//! Models that are not there, as errors of the protocol.

use crate::{
    repository::{ControlError, ResolveError},
    wire::{Kind, RequestError},
};

/// The error for a name or version that leads to no model.
pub(in crate::frontend) fn unresolved(error: &ResolveError) -> RequestError {
    let kind = match error {
        ResolveError::UnknownModel { .. }
        | ResolveError::NoAvailableVersion { .. }
        | ResolveError::UnknownVersion { .. } => Kind::NotFound,
        ResolveError::Loading { .. } | ResolveError::UnreadyVersion { .. } => Kind::Unavailable,
        ResolveError::BadVersion { .. } => Kind::InvalidArgument,
    };
    RequestError::new(kind, error.to_string())
}

/// The error for a load or unload that did not come about.
pub(super) fn uncontrolled(error: &ControlError) -> RequestError {
    let kind = match error {
        ControlError::NotExplicit | ControlError::NotReady | ControlError::ShuttingDown => Kind::Unavailable,
        ControlError::UnknownModel { .. }
        | ControlError::BadConfig { .. }
        | ControlError::FilesWithoutConfig { .. }
        | ControlError::NoPlace { .. } => Kind::Internal,
        ControlError::BadOverride { .. } | ControlError::LoadFailed { .. } => Kind::InvalidArgument,
    };
    RequestError::new(kind, error.to_string())
}

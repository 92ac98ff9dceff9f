//! Why a load failed, for requests and pipelines that need the model.

use std::time::Duration;

use crate::{ControlError, ResolveError};

/// Why a load failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LoadFault {
    reason: String,
    /// Whether there was no memory for the model, rather than anything wrong with it.
    is_memory: bool,
    /// Whether the model was not wanted any more: nothing is wrong with it, and the next request loads it.
    is_unwanted: bool,
}

impl From<String> for LoadFault {
    fn from(reason: String) -> Self {
        Self { reason, is_memory: false, is_unwanted: false }
    }
}

impl LoadFault {
    /// There is no memory for the model.
    pub(crate) fn of_memory(reason: String) -> Self {
        Self { reason, is_memory: true, is_unwanted: false }
    }

    pub(crate) fn reason(&self) -> &str {
        &self.reason
    }

    /// Returns whether there was no memory for the model.
    pub(crate) fn is_memory(&self) -> bool {
        self.is_memory
    }

    /// Returns the fault as that of a pipeline that needs the model.
    pub(crate) fn within(self, model: &str) -> Self {
        Self { reason: format!("model '{model}' of its steps: {}", self.reason), ..self }
    }

    /// Returns the fault as that of a load.
    pub(crate) fn into_control(self, name: &str) -> ControlError {
        let (name, reason) = (name.to_owned(), self.reason);
        if self.is_memory { ControlError::NoMemory { name, reason } } else { ControlError::LoadFailed { name, reason } }
    }

    /// Returns the fault of a load. `is_unwanted` says whether it ended early because the model was
    /// not wanted any more.
    pub(crate) fn of(error: &ControlError, is_unwanted: bool) -> Self {
        let fault = match error {
            ControlError::NoMemory { reason, .. } => Self::of_memory(reason.clone()),
            ControlError::LoadFailed { reason, .. }
            | ControlError::NoPlace { reason, .. }
            | ControlError::Stopped { reason, .. } => reason.clone().into(),
            other => other.to_string().into(),
        };
        Self { is_unwanted, ..fault }
    }

    /// Returns whether the model was not wanted any more.
    pub(crate) fn is_unwanted(&self) -> bool {
        self.is_unwanted
    }

    /// Returns the fault as that of a request that waited for the load.
    pub(crate) fn into_error(self, name: &str, retry: Duration) -> ResolveError {
        let (name, reason) = (name.to_owned(), self.reason);
        if self.is_memory {
            ResolveError::NoMemory { name, reason }
        } else {
            ResolveError::NotLoadable { name, reason, retry }
        }
    }
}

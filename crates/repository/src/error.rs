//! Why the repository cannot start, resolve a version or load a model.

use std::{io, path::PathBuf, time::Duration};

use super::load_error::LoadErrorKind;

/// Why a repository cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// No repository was given.
    #[error("no model repository given")]
    NoRepository,
    /// A directory or a store cannot be read.
    #[error("cannot read the model repository {}: {source}", path.display())]
    Unreadable {
        /// The directory, or the location of the store.
        path: PathBuf,
        /// The error of the operating system or the store.
        source: io::Error,
    },
    /// A location in an object store has an unknown form.
    #[error("{0}")]
    Location(String),
    /// The credential file for object stores cannot be used.
    #[error("{0}")]
    Credentials(String),
    /// The client of an object store cannot be created.
    #[error("cannot open the model repository {location}: {reason}")]
    Store {
        /// Location of the repository.
        location: String,
        /// The reason, without secrets.
        reason: String,
    },
    /// The cache directory for models from object stores cannot be used.
    #[error("cannot use the folder for fetched models (--repository-cache-directory): {0}")]
    Cache(io::Error),
}

/// Why a request has no version to run on.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum ResolveError {
    /// No model of that name was ever loaded. NOT_FOUND.
    #[error("Request for unknown model: '{name}' is not found")]
    UnknownModel {
        /// The model, as the request names it.
        name: String,
    },
    /// The server is starting and the model is still being loaded. UNAVAILABLE, with Triton's wording for a server that
    /// is not ready.
    #[error("Server not ready: model '{name}' is still being loaded")]
    Loading {
        /// The model.
        name: String,
    },
    /// The model is not loaded, and a request for it loads it. UNAVAILABLE for what does not wait for that.
    #[error("model '{name}' is not loaded: a request for it loads it")]
    NotLoaded {
        /// The model.
        name: String,
    },
    /// The load that the request waited for failed, or one failed shortly before. UNAVAILABLE.
    #[error("model '{name}' could not be loaded: {reason}; it is tried again {}", after(*.retry))]
    NotLoadable {
        /// The model.
        name: String,
        /// Each failed version with its reason.
        reason: String,
        /// Time until a request loads it again.
        retry: Duration,
    },
    /// There is no memory for the model. RESOURCE_EXHAUSTED.
    #[error("model '{name}' could not be loaded: {reason}")]
    NoMemory {
        /// The model.
        name: String,
        /// What it takes, and what holds the memory.
        reason: String,
    },
    /// The model was not loaded in time. UNAVAILABLE.
    #[error("model '{name}' was not loaded within {limit:?} (--load-timeout-secs)")]
    NotInTime {
        /// The model.
        name: String,
        /// The limit.
        limit: Duration,
    },
    /// Too many requests wait for models. UNAVAILABLE.
    #[error("model '{name}' is not loaded, and {limit} requests{} wait for models already, the limit",
        if *.is_of_client { " of this client" } else { "" })]
    TooManyWaiting {
        /// The model.
        name: String,
        /// The limit.
        limit: usize,
        /// Whether it is that of a client.
        is_of_client: bool,
    },
    /// The model failed to load or was unloaded. NOT_FOUND.
    #[error("Request for unknown model: '{name}' has no available versions")]
    NoAvailableVersion {
        /// The model.
        name: String,
    },
    /// The model does not have this version and never had it. NOT_FOUND.
    #[error("Request for unknown model: '{name}' version {version} is not found")]
    UnknownVersion {
        /// The model.
        name: String,
        /// The requested version.
        version: i64,
    },
    /// The model has or had this version, but it does not serve: it is loading, failed to load or was unloaded.
    /// UNAVAILABLE.
    #[error("Request for unknown model: '{name}' version {version} is not at ready state")]
    UnreadyVersion {
        /// The model.
        name: String,
        /// The requested version.
        version: i64,
    },
    /// The version is not an integer above 0. INVALID_ARGUMENT.
    #[error(
        "failed to get model version from specified version string '{given}', version should be an integral value > 0"
    )]
    BadVersion {
        /// The version, as the request has it.
        given: String,
    },
}

fn after(retry: Duration) -> String {
    if retry.is_zero() { "at the next request".to_owned() } else { format!("after {retry:.1?}") }
}

/// Why a load or unload was rejected or failed.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum ControlError {
    /// The model control mode does not let clients load and unload. UNAVAILABLE. Triton has these words for both modes,
    /// and its tests look for them.
    #[error(
        "explicit model load / unload is not allowed if polling is enabled or models are not controlled: expected \
         --model-control-mode=explicit or on-demand"
    )]
    NotExplicit,
    /// The server is starting. UNAVAILABLE, with Triton's wording.
    #[error("Server not ready: its models are still being loaded")]
    NotReady,
    /// The server is shutting down. UNAVAILABLE.
    #[error("the server is shutting down")]
    ShuttingDown,
    /// Too many loads and unloads wait. UNAVAILABLE.
    #[error("the server has {limit} pending loads and unloads, its limit")]
    TooManyPending {
        /// The limit.
        limit: usize,
    },
    /// The load was ended before its turn came. UNAVAILABLE.
    #[error("the load of model '{name}' was ended early: {reason}")]
    Stopped {
        /// The model.
        name: String,
        /// Why it was ended.
        reason: String,
    },
    /// There is no memory for the model. RESOURCE_EXHAUSTED.
    #[error("load failed for model '{name}': {reason}")]
    NoMemory {
        /// The model.
        name: String,
        /// What it takes, and what holds the memory.
        reason: String,
    },
    /// No repository has a model of that name. INTERNAL.
    #[error("failed to load '{name}', failed to poll from model repository: there is no such model directory")]
    UnknownModel {
        /// The model.
        name: String,
    },
    /// The `config` parameter is not a model configuration. INTERNAL.
    #[error("failed to load '{name}', failed to poll from model repository: {reason}")]
    BadConfig {
        /// The model.
        name: String,
        /// Where the fault is, and what it is.
        reason: String,
    },
    /// Files came without the `config` parameter. INTERNAL.
    #[error(
        "failed to load '{name}', failed to poll from model repository: override files need the parameter 'config' \
         beside them"
    )]
    FilesWithoutConfig {
        /// The model.
        name: String,
    },
    /// The directory of the model is not known: a repository cannot be read, or two have a model of that name.
    /// INTERNAL.
    #[error("failed to load '{name}', failed to poll from model repository: {reason}")]
    NoPlace {
        /// The model.
        name: String,
        /// The directories and the reason.
        reason: String,
    },
    /// A file override cannot be used. INVALID_ARGUMENT.
    #[error("failed to load '{name}': {reason}")]
    BadOverride {
        /// The model.
        name: String,
        /// The file and the reason.
        reason: String,
    },
    /// The model, or a version of it, failed to load. INVALID_ARGUMENT.
    #[error("load failed for model '{name}': {reason}")]
    LoadFailed {
        /// The model.
        name: String,
        /// What kind of fault it is, that of the first version if several failed.
        kind: LoadErrorKind,
        /// Each failed version with its reason.
        reason: String,
    },
}

impl ControlError {
    /// Returns whether there was no memory for the model.
    pub(super) fn is_memory(&self) -> bool {
        matches!(self, Self::NoMemory { .. })
    }
}

//! Why the repository cannot start, resolve or load.

use std::{io, path::PathBuf};

/// Why there is no repository to serve from.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// No repository was named.
    #[error("no model repository given")]
    NoRepository,
    /// A directory or a store cannot be read.
    #[error("cannot read the model repository {}: {source}", path.display())]
    Unreadable {
        /// The directory or the store's location.
        path: PathBuf,
        /// What the system or the store says.
        source: io::Error,
    },
    /// What was given has no form of a repository in an object store.
    #[error("{0}")]
    Location(String),
    /// The credential file of object stores cannot be used.
    #[error("{0}")]
    Credentials(String),
    /// The client of an object store cannot be made.
    #[error("cannot open the model repository {location}: {reason}")]
    Store {
        /// Where the repository is.
        location: String,
        /// Why; without a secret.
        reason: String,
    },
    /// The folder for models of object stores cannot be used.
    #[error("cannot use the folder for fetched models (--repository-cache-directory): {0}")]
    Cache(io::Error),
}

/// Why a request has no model version.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum ResolveError {
    /// Nothing of that name was ever loaded. NOT_FOUND.
    #[error("Request for unknown model: '{name}' is not found")]
    UnknownModel {
        /// As the request has it.
        name: String,
    },
    /// The server is starting and the model is still being loaded. UNAVAILABLE, in Triton's words for a server that
    /// initializes.
    #[error("Server not ready: model '{name}' is still being loaded")]
    Loading {
        /// The model.
        name: String,
    },
    /// The model failed to load or was unloaded. NOT_FOUND.
    #[error("Request for unknown model: '{name}' has no available versions")]
    NoAvailableVersion {
        /// The model.
        name: String,
    },
    /// The model has no such version, and never had. NOT_FOUND.
    #[error("Request for unknown model: '{name}' version {version} is not found")]
    UnknownVersion {
        /// The model.
        name: String,
        /// The version asked for.
        version: i64,
    },
    /// The model has this version, or had it, but it does not serve: it loads, failed to, or was unloaded. UNAVAILABLE.
    #[error("Request for unknown model: '{name}' version {version} is not at ready state")]
    UnreadyVersion {
        /// The model.
        name: String,
        /// The version asked for.
        version: i64,
    },
    /// The version is not a whole number above 0. INVALID_ARGUMENT.
    #[error(
        "failed to get model version from specified version string '{given}', version should be an integral value > 0"
    )]
    BadVersion {
        /// As the request has it.
        given: String,
    },
}

/// Why a load or unload was refused or failed.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum ControlError {
    /// Clients do not decide in this control mode. UNAVAILABLE.
    #[error("explicit model load / unload is not allowed if the model control mode is not explicit")]
    NotExplicit,
    /// The server is starting. UNAVAILABLE, in Triton's words.
    #[error("Server not ready: its models are still being loaded")]
    NotReady,
    /// The server is shutting down. UNAVAILABLE.
    #[error("the server is shutting down")]
    ShuttingDown,
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
        /// Place and fault.
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
    /// Where the model lies cannot be said: a repository cannot be read, or two have a model of that name. INTERNAL.
    #[error("failed to load '{name}', failed to poll from model repository: {reason}")]
    NoPlace {
        /// The model.
        name: String,
        /// The directories and why.
        reason: String,
    },
    /// A file override cannot be used. INVALID_ARGUMENT.
    #[error("failed to load '{name}': {reason}")]
    BadOverride {
        /// The model.
        name: String,
        /// Which one, and why.
        reason: String,
    },
    /// The model, or a version of it, failed to load. INVALID_ARGUMENT.
    #[error("load failed for model '{name}': {reason}")]
    LoadFailed {
        /// The model.
        name: String,
        /// Each version that failed, and why.
        reason: String,
    },
}

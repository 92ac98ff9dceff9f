//! How a repository is run.

use std::{path::PathBuf, time::Duration};

/// What the command line says of the repository.
#[derive(Clone, Debug)]
pub struct Options {
    /// Directories that hold model directories, and locations in object stores (`--model-repository`).
    pub repositories: Vec<PathBuf>,
    /// Where models of object stores are kept; a temporary folder where not given (`--repository-cache-directory`).
    pub cache_directory: Option<PathBuf>,
    /// Most bytes that they may take there together (`--repository-cache-max-bytes`).
    pub cache_max_bytes: Option<u64>,
    /// Who decides what is loaded.
    pub mode: ControlMode,
    /// Whether [`super::Repository::ready`] waits for every model that should be loaded (`--strict-readiness`).
    pub strict_readiness: bool,
    /// Whether missing configuration is completed from the graph (off: `--disable-auto-complete-config`).
    pub auto_complete: bool,
    /// Largest batch of models that can batch and do not say; 0: they do not batch
    /// (`--backend-config=default-max-batch-size`).
    pub default_max_batch_size: i32,
    /// Whether the server has CUDA cards, so that instances whose place is left to it may be there.
    pub has_cards: bool,
    /// Name of the configuration to take, `configs/<name>.pbtxt`, where a model has it (`--model-config-name`).
    pub config_name: Option<String>,
    /// Whether a repository that cannot be read does not keep the others from being served; the server does not count
    /// as live until it can be (`--exit-on-error=false`).
    pub start_unreadable: bool,
    /// Most versions that load at the same time; 0 counts as 1 (`--model-load-thread-count`).
    pub load_threads: usize,
}

impl Options {
    /// Returns the options of a repository in one directory from which models are loaded on request. Tests and
    /// benchmarks change what they need.
    pub fn on_request(repository: PathBuf) -> Self {
        Self {
            repositories: vec![repository],
            cache_directory: None,
            cache_max_bytes: None,
            mode: ControlMode::Explicit { startup: Vec::new() },
            strict_readiness: true,
            auto_complete: true,
            default_max_batch_size: 4,
            has_cards: false,
            config_name: None,
            start_unreadable: false,
            load_threads: 1,
        }
    }
}

/// Triton's `--model-control-mode`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ControlMode {
    /// Everything is loaded at the start, and nothing afterwards.
    None,
    /// Everything is loaded, and the directories are looked through for changes.
    Poll {
        /// Time between two looks.
        period: Duration,
    },
    /// Clients load and unload.
    Explicit {
        /// Models to load at the start; `*` for all.
        startup: Vec<String>,
    },
}

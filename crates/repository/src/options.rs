//! Options of a repository.

use std::{path::PathBuf, sync::Arc, time::Duration};

use paternoster_config::CustomPolicies;
use paternoster_observe::{RequestBudgets, budget::Budget};
use paternoster_pipeline::ResponseCache;

/// What the command line configures of the repository.
#[derive(Clone, Debug)]
pub struct Options {
    /// Directories that hold model directories, and locations in object stores (`--model-repository`).
    pub repositories: Vec<PathBuf>,
    /// Directory for copies of models from object stores; `None` uses a temporary one (`--repository-cache-directory`).
    pub cache_directory: Option<PathBuf>,
    /// Limit on the total size of those copies, in bytes (`--repository-cache-max-bytes`).
    pub cache_max_bytes: Option<u64>,
    /// What decides which models are loaded (`--model-control-mode`).
    pub mode: ControlMode,
    /// Whether [`super::Repository::ready`] waits for every model that should be loaded (`--strict-readiness`).
    pub strict_readiness: bool,
    /// Whether missing configuration is completed from the graph; `--disable-auto-complete-config` turns it off.
    pub auto_complete: bool,
    /// Largest batch of models that can batch and do not configure it; with 0 they do not batch
    /// (`--backend-config=default-max-batch-size`).
    pub default_max_batch_size: i32,
    /// Whether the server has CUDA cards, so that instances of kind `KIND_AUTO` may use them.
    pub has_cards: bool,
    /// Name of the configuration `configs/<name>.pbtxt` to prefer in models that have it (`--model-config-name`).
    pub config_name: Option<String>,
    /// Whether the server starts although a repository cannot be read; it is not live until it can be
    /// (`--exit-on-error=false`).
    pub start_unreadable: bool,
    /// Most versions that load at the same time; 0 counts as 1 (`--model-load-thread-count`).
    pub load_threads: usize,
    /// Bytes that models and configurations from load requests may take, while they load and as long as they are
    /// loaded (`--max-sent-model-bytes`).
    pub sent_model_bytes: Arc<Budget>,
    /// What the steps of pipelines are charged to, as the requests of clients are.
    pub request_budgets: RequestBudgets,
    /// Keeps the responses of models that ask for it; `None` keeps none (`--cache-config`).
    pub response_cache: Option<Arc<ResponseCache>>,
    /// What bounds the models that are loaded.
    pub residency: ResidencyOptions,
    /// Policies of other crates that configurations may name.
    pub custom_policies: CustomPolicies,
}

/// What bounds the models that are loaded, and the loads that requests begin.
#[derive(Clone, Debug)]
pub struct ResidencyOptions {
    /// Bytes that models may take; `None`: no limit (`--memory-budget-bytes`).
    pub memory_budget: Option<usize>,
    /// Longest time that a request waits for its model, and that the load takes (`--load-timeout-secs`).
    pub load_timeout: Duration,
    /// Time without requests after which a model that was loaded on demand is unloaded; `None`: never
    /// (`--idle-unload-secs`).
    pub idle_unload: Option<Duration>,
}

impl Default for ResidencyOptions {
    fn default() -> Self {
        Self { memory_budget: None, load_timeout: Duration::from_secs(60), idle_unload: None }
    }
}

impl Options {
    /// Returns the options of a single directory whose models are loaded on request. Tests and benchmarks change the
    /// fields that they need.
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
            sent_model_bytes: Budget::of(usize::MAX),
            request_budgets: RequestBudgets::unlimited(),
            response_cache: None,
            residency: ResidencyOptions::default(),
            custom_policies: CustomPolicies::default(),
        }
    }
}

impl ControlMode {
    /// Returns whether the models of the start are named, so that they do not depend on what the repositories have.
    pub(super) fn names_models(&self) -> bool {
        matches!(self, Self::Explicit { startup } if !startup.iter().any(|name| name == "*"))
    }

    /// Returns the models that the command line names.
    pub(super) fn startup(&self) -> &[String] {
        match self {
            Self::Explicit { startup } | Self::OnDemand { startup, .. } => startup,
            Self::None | Self::Poll { .. } => &[],
        }
    }

    /// Returns whether requests load models.
    pub(super) fn is_on_demand(&self) -> bool {
        matches!(self, Self::OnDemand { .. })
    }
}

/// Triton's `--model-control-mode`, and loading on demand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ControlMode {
    /// Every model is loaded at startup, and nothing afterwards.
    None,
    /// Every model is loaded, and the repositories are polled for changes.
    Poll {
        /// Time between two polls.
        period: Duration,
    },
    /// Clients load and unload models.
    Explicit {
        /// Models to load at startup; `*` for all.
        startup: Vec<String>,
    },
    /// Requests load models, which are unloaded again to make room. Clients may load and unload too.
    OnDemand {
        /// Models to load at startup and to keep loaded; `*` for all.
        startup: Vec<String>,
        /// Time between two polls of the repositories.
        period: Duration,
    },
}

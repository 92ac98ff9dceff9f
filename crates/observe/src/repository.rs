//! Counters of the model repository.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counters of the repository.
#[derive(Debug, Default)]
pub struct RepositoryStats {
    /// Failed reads of a repository, a model directory or an entry, whose result was ignored.
    pub failed_scans: AtomicU64,
    /// Loads on demand, and what makes room for them.
    pub residency: ResidencyStats,
}

/// Counters of models that are loaded on demand and unloaded without a client's request.
#[derive(Debug, Default)]
pub struct ResidencyStats {
    /// Requests that found their model not loaded.
    pub misses: AtomicU64,
    /// Loads that requests began.
    pub loads: AtomicU64,
    /// Of those, loads that failed.
    pub failed_loads: AtomicU64,
    /// Models unloaded to make room for a load.
    pub unloaded_for_room: AtomicU64,
    /// Models unloaded because they had no requests.
    pub unloaded_idle: AtomicU64,
    /// Requests refused because there was no memory for their model.
    pub refused_memory: AtomicU64,
    /// Requests refused because the load of their model failed, or had failed shortly before.
    pub refused_failed: AtomicU64,
    /// Requests refused because too many others waited.
    pub refused_waiting: AtomicU64,
    /// Requests refused because their model was not loaded in time.
    pub refused_time: AtomicU64,
}

impl ResidencyStats {
    /// Counts one.
    pub fn count(counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

/// The memory of models and what waits for it, as of one instant.
#[derive(Clone, Debug, Default)]
pub struct ResidencyReading {
    /// Whether requests load models.
    pub is_on_demand: bool,
    /// Bytes that models take or have reserved, and the budget; `None` without a budget.
    pub memory: Option<(usize, usize)>,
    /// Requests that wait for a load.
    pub waiting: usize,
    /// Requests that found their model loaded.
    pub hits: u64,
    /// Each loaded model.
    pub models: Vec<ModelMemory>,
    /// How often a program was found in the cache directory; `None` if nothing is kept.
    pub start_cache: Option<StartCacheReading>,
}

/// How often a program was found to have opened in a process of its own before, and how often not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StartCacheReading {
    /// Programs that were found.
    pub hits: u64,
    /// Programs that were not.
    pub misses: u64,
}

/// The memory of one loaded model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelMemory {
    /// Its name.
    pub name: String,
    /// Bytes as estimated from its files.
    pub estimated_bytes: usize,
    /// Bytes as measured in a separate process, if it was.
    pub measured_bytes: Option<usize>,
}

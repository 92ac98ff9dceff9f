//! Counters of the model repository.

use std::sync::atomic::AtomicU64;

/// Counters of the repository's disk accesses.
#[derive(Debug, Default)]
pub struct RepositoryStats {
    /// Failed reads of a repository, a model directory or an entry, whose result was ignored.
    pub failed_scans: AtomicU64,
}

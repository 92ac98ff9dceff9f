//! Counters of the model repository.

use std::sync::atomic::AtomicU64;

/// What went on between the repository and its disk.
#[derive(Debug, Default)]
pub struct RepositoryStats {
    /// Looks at a repository, a model's directory or an entry that failed and were taken for no information.
    pub failed_scans: AtomicU64,
}

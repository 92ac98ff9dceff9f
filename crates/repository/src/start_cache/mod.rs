//! What the server keeps of models across restarts: which opened in a process of their own, and what memory that took.
//!
//! A program is recognised by its content. Everything here can be found out again, so that a cache that is empty,
//! damaged or read-only costs time alone: it never fails a load. `entries` reads and writes small files. This module
//! must not know engines or loads.

mod entries;
#[cfg(test)]
mod tests;

use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use parking_lot::Mutex;
use paternoster_observe::StartCacheReading;

use self::entries::Entries;
use super::isolation::MemoryReport;

/// The cache directory of a server (`--cache-directory`). Several servers of one user may share it.
#[derive(Clone, Debug)]
pub struct StartCache(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    entries: Entries,
    hits: AtomicU64,
    misses: AtomicU64,
    /// SHA-256 of the engines' libraries, in hexadecimal digits.
    libraries: Mutex<BTreeMap<PathBuf, String>>,
}

impl StartCache {
    /// Uses a directory, which is created when something is kept for the first time.
    pub fn new(directory: &Path) -> Self {
        let entries = Entries::new(directory.join("start-cache"));
        Self(Arc::new(Shared {
            entries,
            hits: AtomicU64::new(0),
            misses: AtomicU64::new(0),
            libraries: Mutex::default(),
        }))
    }

    /// Returns the memory that a program took when it opened in a process of its own; `None` if it is not known to have
    /// opened. `key` says what was opened, by which engine and within which limits.
    pub(super) fn opened(&self, key: &str) -> Option<MemoryReport> {
        let Shared { entries, hits, misses, .. } = &*self.0;
        let found = entries.read(key);
        let counter = if found.is_some() { hits } else { misses };
        counter.fetch_add(1, Ordering::Relaxed);
        found
    }

    /// Keeps that a program opened in a process of its own.
    pub(super) fn keep_opened(&self, key: &str, memory: MemoryReport) {
        self.0.entries.write(key, &memory);
    }

    /// Returns the SHA-256 of an engine's library, in hexadecimal digits. Reads it once.
    ///
    /// # Errors
    /// If it cannot be read.
    pub(super) fn library(&self, path: &Path) -> io::Result<String> {
        let mut known = self.0.libraries.lock();
        if let Some(digest) = known.get(path) {
            return Ok(digest.clone());
        }
        let digest = paternoster_profile::digest(path)?;
        known.insert(path.to_owned(), digest.clone());
        Ok(digest)
    }

    /// Returns how often a program was found and how often not.
    pub fn reading(&self) -> StartCacheReading {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        StartCacheReading { hits: read(&self.0.hits), misses: read(&self.0.misses) }
    }
}

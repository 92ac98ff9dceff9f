//! The directory for copies of fetched models: one that the operator chose, or a temporary one.

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
};

use parking_lot::Mutex;
use sha2::{Digest, Sha256};
use tempfile::TempDir;

use super::{Location, room::Room};

/// The cache directory of all repositories in stores. Only one process may use it at a time.
#[derive(Debug)]
pub(crate) struct Cache {
    root: PathBuf,
    temporary: Mutex<Option<TempDir>>,
    pub(super) room: Room,
    /// Holds the lock on the directory for the life of the process.
    _lock: File,
}

impl Cache {
    /// Opens the directory, or creates a temporary one. `most_bytes` limits the total size of the copies.
    ///
    /// # Errors
    /// Fails if the directory cannot be created, or another process uses it.
    pub(crate) fn open(given: Option<&Path>, most_bytes: Option<u64>) -> io::Result<Self> {
        let (root, temporary) = match given {
            Some(root) => {
                fs::create_dir_all(root)?;
                (root.canonicalize()?, None)
            }
            None => {
                let folder = tempfile::Builder::new().prefix("paternoster-models-").tempdir()?;
                (folder.path().to_owned(), Some(folder))
            }
        };
        let lock = File::create(root.join(".lock"))?;
        lock.try_lock().map_err(|fault| match fault {
            fs::TryLockError::WouldBlock => io::Error::other("another process uses it"),
            fs::TryLockError::Error(fault) => fault,
        })?;
        let room = Room::new(root.clone(), most_bytes);
        Ok(Self { root, temporary: Mutex::new(temporary), room, _lock: lock })
    }

    /// Returns whether it outlives the process.
    pub(super) fn is_kept(&self) -> bool {
        self.temporary.lock().is_none()
    }

    /// Returns the directory of one repository. Its name is readable, and the same in every process.
    pub(super) fn folder(&self, location: &Location) -> PathBuf {
        let plain = |letter: char| if letter.is_ascii_alphanumeric() { letter } else { '-' };
        let readable: String = location.as_str().chars().map(plain).take(64).collect();
        let digest = Sha256::digest(location.as_str());
        let digest: String = digest[..8].iter().map(|byte| format!("{byte:02x}")).collect();
        self.root.join(format!("{readable}-{digest}"))
    }

    /// Removes the directory if it is temporary.
    pub(crate) fn close(&self) {
        let Some(folder) = self.temporary.lock().take() else { return };
        let path = folder.path().to_owned();
        if let Err(fault) = folder.close() {
            tracing::warn!(folder = %path.display(), %fault, "temporary directory of models cannot be removed");
        }
    }
}

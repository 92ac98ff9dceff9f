//! Limits the total size of the copies of models. If a fetch has no room, the least recently used copies are removed,
//! except those of loaded models.

use std::{
    collections::HashSet,
    fs, io,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::SystemTime,
};

use tokio::sync::{Mutex, MutexGuard, OwnedMutexGuard};

use super::{StoreFault, snapshot::SnapshotDir};
use crate::blocking::blocking;

/// Permits the removal of a model's copy: returns a guard if no model of that name is loaded, and none is loaded while
/// the guard lives.
pub(crate) type LetGo = Arc<dyn Fn(&str) -> Option<OwnedMutexGuard<()>> + Send + Sync>;

/// The room in a cache.
#[derive(Debug)]
pub(super) struct Room {
    root: PathBuf,
    /// Limit on the total size; `None` for no limit.
    most_bytes: Option<u64>,
    /// Directories of the repositories being served. Copies in other directories belong to no repository.
    served: parking_lot::Mutex<HashSet<PathBuf>>,
    /// Bytes reserved by fetches in progress.
    fetching: Arc<AtomicU64>,
    /// Serializes counting and changing the copies and reservations.
    turn: Mutex<()>,
}

/// Reserved room for a fetch; dropping it returns the room.
#[derive(Debug)]
pub(super) struct Reserved {
    bytes: u64,
    fetching: Arc<AtomicU64>,
}

impl Drop for Reserved {
    fn drop(&mut self) {
        self.fetching.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// The copy of a model.
#[derive(Debug)]
struct Copy {
    folder: PathBuf,
    name: String,
    bytes: u64,
    used: SystemTime,
    is_served: bool,
}

impl Room {
    pub(super) fn new(root: PathBuf, most_bytes: Option<u64>) -> Self {
        Self { root, most_bytes, served: Default::default(), fetching: Arc::default(), turn: Mutex::default() }
    }

    /// Records that the repository of a directory is served.
    pub(super) fn serve(&self, folder: &Path) {
        self.served.lock().insert(folder.to_owned());
    }

    /// Reserves room for a fetch, and removes other copies if needed.
    ///
    /// # Errors
    /// Fails if the copies of loaded models leave too little room, or a copy cannot be removed.
    pub(super) async fn reserve(&self, bytes: u64, let_go: &LetGo) -> Result<Reserved, StoreFault> {
        let _turn = self.turn.lock().await;
        if let Some(most_bytes) = self.most_bytes {
            self.make_room(bytes, most_bytes, let_go).await?;
        }
        self.fetching.fetch_add(bytes, Ordering::Relaxed);
        Ok(Reserved { bytes, fetching: self.fetching.clone() })
    }

    /// Waits for its turn and blocks other counts until the guard is dropped, while a fetch turns into a copy.
    pub(super) async fn turn(&self) -> MutexGuard<'_, ()> {
        self.turn.lock().await
    }

    async fn make_room(&self, bytes: u64, most_bytes: u64, let_go: &LetGo) -> Result<(), StoreFault> {
        let (root, served) = (self.root.clone(), self.served.lock().clone());
        let mut copies = on_disk(move || copies(&root, &served)).await?;
        // Copies of no repository first, then the least recently used.
        copies.sort_by_key(|copy| (copy.is_served, copy.used));
        let all: u64 = copies.iter().map(|copy| copy.bytes).sum();
        let mut taken = all + self.fetching.load(Ordering::Relaxed);
        // Selects first and removes later, so that nothing is removed if all of it would not be enough.
        let mut going = Vec::new();
        for copy in copies {
            if taken.saturating_add(bytes) <= most_bytes {
                break;
            }
            let guard = if copy.is_served { let_go(&copy.name) } else { None };
            if copy.is_served && guard.is_none() {
                continue;
            }
            taken = taken.saturating_sub(copy.bytes);
            going.push((copy, guard));
        }
        if taken.saturating_add(bytes) > most_bytes {
            return Err(StoreFault(format!(
                "there is no room for its {bytes} bytes: models that are loaded or being fetched take {taken} of the \
                 {most_bytes} that --repository-cache-max-bytes allows"
            )));
        }
        for (Copy { folder, name, bytes: freed, .. }, guard) in going {
            let model = name.clone();
            on_disk(move || SnapshotDir::of(&folder).remove(&model)).await?;
            drop(guard);
            tracing::info!(model = name, bytes = freed, "copy removed to make room for another model");
        }
        Ok(())
    }
}

/// Returns all copies below the root of a cache.
fn copies(root: &Path, served: &HashSet<PathBuf>) -> io::Result<Vec<Copy>> {
    let mut found = Vec::new();
    for folder in fs::read_dir(root)? {
        let folder = folder?.path();
        if !folder.is_dir() {
            continue;
        }
        let (shelf, is_served) = (SnapshotDir::of(&folder), served.contains(&folder));
        for name in shelf.names()? {
            if let Some((bytes, used)) = shelf.usage(&name) {
                found.push(Copy { folder: folder.clone(), name, bytes, used, is_served });
            }
        }
    }
    Ok(found)
}

/// Runs disk work off the threads of the runtime.
async fn on_disk<T: Send + 'static>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> Result<T, StoreFault> {
    let fault = |fault: io::Error| StoreFault(format!("the cache of models cannot be read or written: {fault}"));
    blocking(work).await?.map_err(fault)
}

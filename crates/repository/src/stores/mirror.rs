//! A repository in a store, and the local copies of its models.

use std::{
    collections::BTreeSet,
    fmt, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use futures_util::{StreamExt, TryStreamExt, stream};
use object_store::{GetOptions, path::Path as Key};
use tokio::{fs::File, io::AsyncWriteExt, sync::Semaphore};

use super::{
    Cache, Credentials, LetGo, Location, Object, StoreFault, client,
    listing::{Bounds, Contents, Lister, Store},
    object::Tag,
    snapshot::SnapshotDir,
};
use crate::blocking::blocking;

/// Most concurrent requests to all stores.
pub(crate) const PARALLEL_REQUESTS: usize = 8;

/// One repository.
pub(crate) struct Mirror {
    location: Location,
    store: Arc<dyn Store>,
    shelf: Arc<SnapshotDir>,
    requests: Arc<Semaphore>,
    cache: Arc<Cache>,
}

impl Mirror {
    /// Creates the client of a store and opens its cache directory. Sends no request yet.
    ///
    /// # Errors
    /// Fails if the credentials cannot be used, or the directory cannot be written.
    pub(crate) fn open(
        location: Location,
        credentials: &Credentials,
        cache: &Arc<Cache>,
        requests: Arc<Semaphore>,
    ) -> Result<Self, StoreFault> {
        let store = client::open(&location, credentials)?;
        Self::over(store, location, cache, requests)
    }

    pub(super) fn over(
        store: Arc<dyn Store>,
        location: Location,
        cache: &Arc<Cache>,
        requests: Arc<Semaphore>,
    ) -> Result<Self, StoreFault> {
        let folder = cache.folder(&location);
        let shelf = SnapshotDir::open(&folder).map_err(|fault| disk(&fault))?;
        cache.room.serve(&folder);
        Ok(Self { location, store, shelf: Arc::new(shelf), requests, cache: cache.clone() })
    }

    /// Returns the location, as the path that represents the repository.
    pub(crate) fn root(&self) -> &Path {
        Path::new(self.location.as_str())
    }

    /// Returns the names of its models, from one listing.
    ///
    /// # Errors
    /// Fails if the store cannot be listed.
    pub(crate) async fn models(&self) -> Result<BTreeSet<String>, StoreFault> {
        let _permit = self.permit().await?;
        self.lister().models().await
    }

    /// Returns the objects of all its models.
    ///
    /// # Errors
    /// Fails if the store cannot be listed.
    pub(crate) async fn contents(&self) -> Result<Contents, StoreFault> {
        let _permit = self.permit().await?;
        self.lister().contents().await
    }

    /// Returns whether it has a model.
    ///
    /// # Errors
    /// Fails if the store cannot be listed.
    pub(crate) async fn has(&self, name: &str) -> Result<bool, StoreFault> {
        let _permit = self.permit().await?;
        self.lister().has_model(name).await
    }

    /// Fetches what changed of a model, and returns its local directory. If the model changes while it is fetched, the
    /// earlier copy stays, since the fetched objects may belong to different states of the model. If there is no room,
    /// copies of models that are not loaded may be removed.
    ///
    /// Loads of one model must not overlap.
    ///
    /// # Errors
    /// Fails if the store does not deliver every object, a key cannot be a file, the disk cannot be written, there is
    /// no room, or the model changed during the fetch.
    pub(crate) async fn fetch(&self, name: &str, let_go: &LetGo) -> Result<PathBuf, StoreFault> {
        let objects = self.objects(name).await?;
        if objects.is_empty() {
            return Err(StoreFault("the store has nothing of that model".to_owned()));
        }
        let (shelf, model, wanted) = (self.shelf.clone(), name.to_owned(), objects.clone());
        let begun = on_disk(move || {
            let earlier = shelf.current(&model);
            if earlier.as_ref().is_some_and(|earlier| earlier.objects == wanted) {
                shelf.touch(&model);
                return Ok(None);
            }
            let draft = shelf.begin()?;
            let missing = draft.take_over(earlier.as_ref(), wanted)?;
            Ok(Some((draft, missing)))
        });
        // Room is reserved for the missing objects only; those taken over are hard links.
        let Some((draft, missing)) = begun.await? else { return Ok(self.shelf.model(name)) };
        let needed = missing.iter().map(|(object, _)| object.size).sum();
        let reserved = self.cache.room.reserve(needed, let_go).await?;
        let fetches = stream::iter(missing).map(|(object, file)| self.fetch_object(name, object, file));
        let bytes: Vec<u64> = fetches.buffer_unordered(PARALLEL_REQUESTS).try_collect().await?;
        // Listed again: every object matched its tag when it was fetched, but objects may have been added or removed.
        if self.objects(name).await? != objects {
            return Err(changed());
        }
        let (shelf, model) = (self.shelf.clone(), name.to_owned());
        // Published and accounted for in one turn, so that the bytes are never counted twice or not at all.
        let turn = self.cache.room.turn().await;
        let folder = on_disk(move || shelf.publish(&model, draft, &objects)).await?;
        drop((reserved, turn));
        let (count, bytes) = (bytes.len(), bytes.iter().sum::<u64>());
        tracing::info!(model = name, repository = %self.location, objects = count, bytes, "model fetched");
        Ok(folder)
    }

    /// Replaces the paths of a model's local copy in a message by its location in the store, which its operator knows.
    pub(crate) fn by_location(&self, name: &str, message: String) -> String {
        let location = self.root().join(name).display().to_string();
        let paths = self.shelf.shown_paths(name);
        paths.iter().fold(message, |message, path| message.replace(&path.display().to_string(), &location))
    }

    /// Records that a model was in use until now.
    pub(crate) async fn touch(&self, name: &str) {
        let (shelf, model) = (self.shelf.clone(), name.to_owned());
        // Fails only when the runtime shuts down.
        let _ = blocking(move || shelf.touch(&model)).await;
    }

    /// Removes the copy of a model that is no longer in the store.
    pub(crate) async fn forget(&self, name: &str) {
        let (shelf, model) = (self.shelf.clone(), name.to_owned());
        if let Err(fault) = on_disk(move || shelf.remove(&model)).await {
            let repository = &self.location;
            tracing::warn!(model = name, %repository, %fault, "copy of a removed model cannot be deleted");
        }
    }

    async fn objects(&self, name: &str) -> Result<Vec<Object>, StoreFault> {
        let _permit = self.permit().await?;
        self.lister().objects(name).await
    }

    fn lister(&self) -> Lister<'_> {
        Lister { store: self.store.as_ref(), location: &self.location, bounds: Bounds::default() }
    }

    /// Streams one object to its file, and returns its size in bytes.
    async fn fetch_object(&self, name: &str, object: Object, path: PathBuf) -> Result<u64, StoreFault> {
        let _permit = self.permit().await?;
        let key = format!("{}/{name}/{}", self.location.prefix, object.path);
        let key = Key::parse(key).map_err(object_store::Error::from)?;
        let found = self.store.get_opts(&key, GetOptions::default()).await;
        let found = found.map_err(|fault| match fault {
            object_store::Error::NotFound { .. } => changed(),
            fault => fault.into(),
        })?;
        if found.meta.size != object.size || Tag::of(&found.meta) != object.tag {
            return Err(changed());
        }
        let mut content = found.into_stream();
        let mut file = File::create_new(&path).await.map_err(|fault| disk(&fault))?;
        let mut left = object.size;
        while let Some(bytes) = content.try_next().await? {
            left = left.checked_sub(bytes.len() as u64).ok_or_else(changed)?;
            file.write_all(&bytes).await.map_err(|fault| disk(&fault))?;
        }
        file.flush().await.map_err(|fault| disk(&fault))?;
        if self.cache.is_kept() {
            file.sync_all().await.map_err(|fault| disk(&fault))?;
        }
        if left == 0 { Ok(object.size) } else { Err(changed()) }
    }

    async fn permit(&self) -> Result<tokio::sync::SemaphorePermit<'_>, StoreFault> {
        self.requests.acquire().await.map_err(|fault| StoreFault(fault.to_string()))
    }
}

impl fmt::Debug for Mirror {
    /// Leaves out the client, which holds the credentials.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Mirror").field("location", &self.location).finish_non_exhaustive()
    }
}

fn changed() -> StoreFault {
    StoreFault("the model changed in the store while it was fetched".to_owned())
}

fn disk(fault: &io::Error) -> StoreFault {
    StoreFault(format!("the cache of models cannot be written: {fault}"))
}

/// Runs disk work off the threads of the runtime.
async fn on_disk<T: Send + 'static>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> Result<T, StoreFault> {
    blocking(work).await?.map_err(|fault| disk(&fault))
}

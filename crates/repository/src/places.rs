//! Where models are: local directories, and object stores that are mirrored into directories.
//!
//! The rest of the repository treats a repository in a store as a directory named `s3://bucket/path`, and its models as
//! directories named `s3://bucket/path/model`. [`Places::fetch`] returns the local directory of such a model.

use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use futures_util::future::{join_all, try_join_all};
use tokio::sync::Semaphore;

use super::{
    Options, StartError,
    blocking::{Readers, blocking},
    changes::PollResult,
    directory::Fingerprint,
    load_error::{LoadError, cannot_read},
    scan::{self, Found, Listing, Scan},
    stores::{Cache, Credentials, LetGo, Location, Mirror, PARALLEL_REQUESTS, StoreFault, is_remote},
};

/// The repositories of the command line.
#[derive(Debug)]
pub(super) struct Places {
    directories: Vec<PathBuf>,
    stores: Vec<Mirror>,
    cache: Option<Arc<Cache>>,
    readers: Readers,
}

impl Places {
    /// Opens the cache for fetched models, if there are stores, and a client for each store. Duplicates are dropped.
    /// Neither directories nor stores are read yet.
    ///
    /// # Errors
    /// Fails if there is no repository, or if a store's location, its credentials or the cache cannot be used.
    pub(super) fn open(options: &Options) -> Result<Self, StartError> {
        if options.repositories.is_empty() {
            return Err(StartError::NoRepository);
        }
        let (remote, directories): (Vec<PathBuf>, Vec<PathBuf>) =
            options.repositories.iter().cloned().partition(|root| is_remote(root));
        let readers = Readers::new(options.load_threads);
        if remote.is_empty() {
            return Ok(Self { directories, stores: Vec::new(), cache: None, readers });
        }
        let cache = Cache::open(options.cache_directory.as_deref(), options.cache_max_bytes);
        let cache = Arc::new(cache.map_err(StartError::Cache)?);
        let fail = |fault: StoreFault| StartError::Credentials(fault.to_string());
        let credentials = Credentials::of_environment().map_err(fail)?;
        let requests = Arc::new(Semaphore::new(PARALLEL_REQUESTS));
        let mut stores: Vec<Mirror> = Vec::new();
        for root in remote {
            let location = Location::parse(&root.to_string_lossy())?;
            if stores.iter().any(|store| store.root() == Path::new(location.as_str())) {
                continue;
            }
            let text = location.to_string();
            let store = Mirror::open(location, &credentials, &cache, requests.clone());
            stores.push(store.map_err(|fault| StartError::Store { location: text, reason: fault.to_string() })?);
        }
        Ok(Self { directories, stores, cache: Some(cache), readers })
    }

    /// Lists the models of all repositories: directories first, then stores, each in the order of the command line. A
    /// repository that cannot be read has its error in the result.
    ///
    /// # Errors
    /// Returns the message of a panic in the scan.
    pub(super) async fn scan(&self) -> Result<Scan, LoadError> {
        let mut scan = self.scan_directories().await?;
        scan.extend(self.scan_stores().await);
        Ok(scan)
    }

    /// Returns the threads that read the files of models.
    pub(super) fn readers(&self) -> &Readers {
        &self.readers
    }

    /// Returns whether there are repositories in stores.
    pub(super) fn has_stores(&self) -> bool {
        !self.stores.is_empty()
    }

    /// As [`Self::scan`], for directories only.
    ///
    /// # Errors
    /// As [`Self::scan`].
    pub(super) async fn scan_directories(&self) -> Result<Scan, LoadError> {
        let directories = self.directories.clone();
        blocking(move || scan::scan(&directories)).await
    }

    /// As [`Self::scan`], for stores only, which may take minutes.
    pub(super) async fn scan_stores(&self) -> Scan {
        let listed = self.stores.iter().map(async |store| {
            let named = store.models().await.map(|names| {
                let models = names.into_iter().map(|name| (name.clone(), store.root().join(name)));
                Listing { models: models.collect(), ..Listing::default() }
            });
            (store.root().to_owned(), named.map_err(io::Error::from))
        });
        join_all(listed).await
    }

    /// As [`Self::scan`], with the fingerprint of each model.
    ///
    /// # Errors
    /// As [`Self::scan`].
    pub(super) async fn poll(&self) -> Result<PollResult, LoadError> {
        let directories = self.directories.clone();
        let mut poll = blocking(move || poll_directories(&directories)).await?;
        let contents = self.stores.iter().map(async |store| (store.root().to_owned(), store.contents().await));
        for (root, contents) in join_all(contents).await {
            let mut listing = Listing::default();
            let contents = match contents {
                Ok(contents) => contents,
                Err(fault) => {
                    poll.scan.push((root, Err(fault.into())));
                    continue;
                }
            };
            for (name, objects) in contents {
                let directory = root.join(&name);
                // A key that cannot be a file is the model's own fault; loading the model reports it.
                let fingerprint =
                    objects.map_or_else(|fault| Fingerprint::of_fault(&fault.to_string()), Fingerprint::of_objects);
                poll.fingerprints.insert(directory.clone(), Ok(fingerprint));
                listing.models.insert(name, directory);
            }
            poll.scan.push((root, Ok(listing)));
        }
        Ok(poll)
    }

    /// Returns the directory of one model, or both directories if two repositories have it; `None` if no repository
    /// does.
    ///
    /// # Errors
    /// Returns the repository and the reason if one cannot be read.
    pub(super) async fn find(&self, name: &str) -> Result<Option<Found>, LoadError> {
        if !scan::is_model_name(name) {
            return Ok(None);
        }
        let (directories, model) = (self.directories.clone(), name.to_owned());
        let mut found = self.readers.run(move || scan::find_all(&directories, &model)).await??;
        let in_stores = self.stores.iter().map(async |store| {
            let has = store.has(name).await;
            let has = has.map_err(|fault| cannot_read(store.root())(fault.into()))?;
            Ok::<_, LoadError>(has.then(|| store.root().join(name)))
        });
        found.extend(try_join_all(in_stores).await?.into_iter().flatten());
        Ok(scan::place(found))
    }

    /// Returns the local directory of a model. For a model in a store, fetches what changed first.
    ///
    /// Loads of one model must not overlap.
    ///
    /// # Errors
    /// Returns the model and the reason if the store does not deliver it.
    pub(super) async fn fetch(&self, directory: &Path, let_go: &LetGo) -> Result<PathBuf, LoadError> {
        let Some((store, name)) = self.in_store(directory) else { return Ok(directory.to_owned()) };
        let failed = |fault| LoadError::files(format!("cannot fetch {}: {fault}", directory.display()));
        store.fetch(name, let_go).await.map_err(failed)
    }

    /// Replaces paths of local copies of a model in an error by its location in the store.
    pub(super) fn by_location(&self, name: &str, error: LoadError) -> LoadError {
        let located = |text| self.stores.iter().fold(text, |text, store| store.by_location(name, text));
        if self.stores.is_empty() { error } else { error.worded(located) }
    }

    /// Records that a model was in use until now.
    pub(super) async fn touch(&self, name: &str) {
        for store in &self.stores {
            store.touch(name).await;
        }
    }

    /// Removes local copies of a model that is no longer in its store.
    pub(super) async fn forget(&self, name: &str) {
        for store in &self.stores {
            store.forget(name).await;
        }
    }

    /// Removes temporary copies at shutdown.
    pub(super) fn close(&self) {
        if let Some(cache) = &self.cache {
            cache.close();
        }
    }

    fn in_store<'d>(&self, directory: &'d Path) -> Option<(&Mirror, &'d str)> {
        let (root, name) = (directory.parent()?, directory.file_name()?.to_str()?);
        self.stores.iter().find(|store| store.root() == root).map(|store| (store, name))
    }
}

/// Lists directories and takes the fingerprints of the models in them.
fn poll_directories(directories: &[PathBuf]) -> PollResult {
    let scan = scan::scan(directories);
    let listings = scan.iter().filter_map(|(_, listed)| listed.as_ref().ok());
    let models = listings.flat_map(|listing| listing.models.values());
    let fingerprints: BTreeMap<_, _> = models.map(|model| (model.clone(), Fingerprint::of(model))).collect();
    PollResult { scan, fingerprints }
}

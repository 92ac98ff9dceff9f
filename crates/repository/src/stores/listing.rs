//! Lists a store page by page: the names of the models, and the objects of each.
//!
//! A listing is bounded in pages, in bytes and in time, whatever the store answers.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use async_trait::async_trait;
use object_store::{
    ListResult, ObjectMeta, ObjectStore,
    list::{PaginatedListOptions, PaginatedListResult, PaginatedListStore},
    path::Path as Key,
};
use tokio::time::{Instant, timeout_at};

use super::{
    Location, StoreFault, keys,
    object::{Object, Tag},
    pages::original,
};
use crate::scan::is_model_name;

/// Most objects that are listed in a repository, so that a wrong path does not exhaust memory.
const MAX_OBJECTS: usize = 200_000;

/// The objects of every model in a repository, or why a model cannot be a directory.
pub(super) type Contents = BTreeMap<String, Result<Vec<Object>, StoreFault>>;

/// A store whose listings come in pages.
#[async_trait]
pub(super) trait Store: ObjectStore {
    /// Returns one page of the keys with a prefix.
    async fn page(&self, prefix: &str, options: PaginatedListOptions) -> object_store::Result<PaginatedListResult>;
}

#[async_trait]
impl<S: ObjectStore + PaginatedListStore> Store for S {
    async fn page(&self, prefix: &str, options: PaginatedListOptions) -> object_store::Result<PaginatedListResult> {
        self.list_paginated((!prefix.is_empty()).then_some(prefix), options).await
    }
}

/// Bounds of one listing.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    /// Stores send 1,000 keys a page or more, but may leave pages empty.
    pub(super) pages: usize,
    /// Bytes of all keys.
    pub(super) bytes: usize,
    pub(super) time: Duration,
    /// Time between two records of the log while it goes on.
    pub(super) log_every: Duration,
}

impl Default for Bounds {
    fn default() -> Self {
        Self { pages: 2_000, bytes: 64 << 20, time: Duration::from_secs(300), log_every: Duration::from_secs(10) }
    }
}

/// Lists one repository.
#[derive(Clone, Copy)]
pub(super) struct Lister<'a> {
    pub(super) store: &'a dyn Store,
    pub(super) location: &'a Location,
    pub(super) bounds: Bounds,
}

impl Lister<'_> {
    /// Returns the names that can be models', from a listing of this level only.
    pub(super) async fn models(&self) -> Result<BTreeSet<String>, StoreFault> {
        let mut pages = self.pages(folder(self.location.prefix.as_ref()), true);
        let mut names = BTreeSet::new();
        while let Some(page) = pages.next().await? {
            let found = page.common_prefixes.iter().filter_map(|key| relative(key, &pages.prefix));
            names.extend(found.filter(|name| is_model_name(name)));
        }
        Ok(names)
    }

    /// Returns whether a model has any object.
    pub(super) async fn has_model(&self, name: &str) -> Result<bool, StoreFault> {
        let mut pages = self.pages(self.folder_of(name), false);
        while let Some(page) = pages.next().await? {
            if !page.objects.is_empty() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Returns the objects of one model.
    ///
    /// # Errors
    /// Fails if the store cannot be listed, or a key cannot be a file.
    pub(super) async fn objects(&self, name: &str) -> Result<Vec<Object>, StoreFault> {
        let mut pages = self.pages(self.folder_of(name), false);
        let mut objects = Vec::new();
        while let Some(page) = pages.next().await? {
            let found =
                page.objects.iter().filter_map(|meta| Some(object(relative(&meta.location, &pages.prefix)?, meta)));
            objects.extend(found);
            if objects.len() > keys::MAX_OBJECTS {
                break;
            }
        }
        keys::check(objects)
    }

    /// Returns the objects of all models, from one listing. A key that cannot be a file only affects its own model.
    pub(super) async fn contents(&self) -> Result<Contents, StoreFault> {
        let mut pages = self.pages(folder(self.location.prefix.as_ref()), false);
        let mut found: BTreeMap<String, Vec<Object>> = BTreeMap::new();
        while let Some(page) = pages.next().await? {
            for meta in &page.objects {
                let Some(path) = relative(&meta.location, &pages.prefix) else { continue };
                let Some((model, path)) = path.split_once('/').filter(|(model, _)| is_model_name(model)) else {
                    continue;
                };
                found.entry(model.to_owned()).or_default().push(object(path.to_owned(), meta));
            }
        }
        Ok(found.into_iter().map(|(name, objects)| (name, keys::check(objects))).collect())
    }

    fn folder_of(&self, name: &str) -> String {
        format!("{}{name}/", folder(self.location.prefix.as_ref()))
    }

    fn pages(&self, prefix: String, only_level: bool) -> Pages<'_> {
        let began = Instant::now();
        let (lister, token) = (*self, None);
        Pages {
            lister,
            prefix,
            only_level,
            token,
            is_over: false,
            pages: 0,
            objects: 0,
            bytes: 0,
            began,
            logged: began,
        }
    }
}

/// The pages of a listing that is going on.
struct Pages<'a> {
    lister: Lister<'a>,
    prefix: String,
    /// Whether keys that have a further slash are shown as folders.
    only_level: bool,
    token: Option<String>,
    is_over: bool,
    pages: usize,
    objects: usize,
    bytes: usize,
    began: Instant,
    /// When the log was last written.
    logged: Instant,
}

impl Pages<'_> {
    /// Returns the next page; `None` after the last.
    ///
    /// # Errors
    /// Fails if the store does not answer, or if a bound is exceeded.
    async fn next(&mut self) -> Result<Option<ListResult>, StoreFault> {
        if self.is_over {
            return Ok(None);
        }
        let Bounds { pages, bytes, time, log_every } = self.lister.bounds;
        if self.pages >= pages {
            return Err(StoreFault(format!("its listing has more than {pages} pages")));
        }
        let options = PaginatedListOptions {
            delimiter: self.only_level.then_some("/".into()),
            page_token: self.token.take(),
            ..PaginatedListOptions::default()
        };
        let page = self.lister.store.page(&self.prefix, options);
        let page = timeout_at(self.began + time, page).await;
        let PaginatedListResult { result, page_token } =
            page.map_err(|_| StoreFault(format!("its listing has not ended within {time:?}")))??;
        self.pages += 1;
        self.objects += result.objects.len() + result.common_prefixes.len();
        let keys = result.objects.iter().map(|meta| &meta.location).chain(&result.common_prefixes);
        self.bytes += keys.map(|key| key.as_ref().len()).sum::<usize>();
        if self.objects > MAX_OBJECTS {
            return Err(StoreFault(format!("it has more than {MAX_OBJECTS} objects")));
        }
        if self.bytes > bytes {
            return Err(StoreFault(format!("its keys have more than {bytes} bytes")));
        }
        self.is_over = page_token.is_none();
        self.token = page_token;
        if !self.is_over && self.logged.elapsed() >= log_every {
            self.logged = Instant::now();
            let (repository, pages, objects) = (self.lister.location, self.pages, self.objects);
            tracing::info!(%repository, pages, objects, "listing of the repository goes on");
        }
        Ok(Some(result))
    }
}

fn object(path: String, meta: &ObjectMeta) -> Object {
    Object { path, size: meta.size, tag: Tag::of(meta) }
}

/// Returns the prefix of the keys in a folder; empty for the whole store.
fn folder(prefix: &str) -> String {
    if prefix.is_empty() { String::new() } else { format!("{prefix}/") }
}

/// Returns the part of a key after the prefix of its folder, as it is in the store; `None` for a key that represents
/// the folder itself.
fn relative(key: &Key, folder: &str) -> Option<String> {
    original(key.as_ref()).strip_prefix(folder).filter(|path| !path.is_empty() || !folder.is_empty()).map(str::to_owned)
}

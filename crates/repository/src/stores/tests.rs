//! Mirrors of an in-memory store, which counts requests and fails on demand.

use std::{
    fmt, fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use futures_util::{TryStreamExt, stream::BoxStream};
use object_store::{
    CopyOptions, Extensions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    ObjectStoreExt, PutMultipartOptions, PutOptions, PutPayload, PutResult,
    list::{PaginatedListOptions, PaginatedListResult, PaginatedListStore},
    memory::InMemory,
    path::Path as Key,
};
use parking_lot::Mutex;
use tempfile::TempDir;
use tokio::sync::Semaphore;

use super::{
    Cache, LetGo, Location, Mirror,
    listing::{Bounds, Lister},
};

#[derive(Debug, Default)]
struct CountingStore {
    objects: InMemory,
    /// Keys of the objects fetched.
    fetched: Mutex<Vec<String>>,
    /// Puts this object during the next fetch.
    puts_at_fetch: Mutex<Option<(String, String)>>,
    /// Whether its listings never end.
    is_endless: AtomicBool,
    /// Whether its listings are not answered.
    is_silent: AtomicBool,
    /// Fails the fetches of keys with this suffix.
    refused: Mutex<Option<String>>,
}

impl CountingStore {
    async fn write(&self, key: &str, text: &str) {
        self.objects.put(&Key::from(key), text.to_owned().into()).await.expect("memory takes it");
    }

    async fn erase(&self, key: &str) {
        self.objects.delete(&Key::from(key)).await.expect("it was there");
    }

    /// Returns what was fetched since the last call, in the order of the keys.
    fn fetched(&self) -> Vec<String> {
        let mut keys = std::mem::take(&mut *self.fetched.lock());
        keys.sort();
        keys
    }
}

impl fmt::Display for CountingStore {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("CountingStore")
    }
}

type StoreResult<T> = object_store::Result<T>;

#[async_trait]
impl ObjectStore for CountingStore {
    async fn put_opts(&self, key: &Key, payload: PutPayload, options: PutOptions) -> StoreResult<PutResult> {
        self.objects.put_opts(key, payload, options).await
    }

    async fn put_multipart_opts(
        &self,
        key: &Key,
        options: PutMultipartOptions,
    ) -> StoreResult<Box<dyn MultipartUpload>> {
        self.objects.put_multipart_opts(key, options).await
    }

    async fn get_opts(&self, key: &Key, options: GetOptions) -> StoreResult<GetResult> {
        self.fetched.lock().push(key.to_string());
        let change = self.puts_at_fetch.lock().take();
        if let Some((changed, text)) = change {
            self.write(&changed, &text).await;
        }
        if self.refused.lock().as_ref().is_some_and(|end| key.as_ref().ends_with(end)) {
            let source = "status code: 403 Forbidden: <Code>AccessDenied</Code>".into();
            return Err(object_store::Error::Generic { store: "test", source });
        }
        self.objects.get_opts(key, options).await
    }

    fn delete_stream(&self, keys: BoxStream<'static, StoreResult<Key>>) -> BoxStream<'static, StoreResult<Key>> {
        self.objects.delete_stream(keys)
    }

    fn list(&self, prefix: Option<&Key>) -> BoxStream<'static, StoreResult<ObjectMeta>> {
        self.objects.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Key>) -> StoreResult<ListResult> {
        self.objects.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Key, to: &Key, options: CopyOptions) -> StoreResult<()> {
        self.objects.copy_opts(from, to, options).await
    }
}

#[async_trait]
impl PaginatedListStore for CountingStore {
    /// One object or folder a page. The token is the number of those before it.
    async fn list_paginated(
        &self,
        prefix: Option<&str>,
        options: PaginatedListOptions,
    ) -> StoreResult<PaginatedListResult> {
        if self.is_silent.load(Ordering::Relaxed) {
            std::future::pending::<()>().await;
        }
        let prefix = prefix.map(|prefix| Key::from(prefix.trim_end_matches('/')));
        let mut result = match options.delimiter {
            Some(_) => self.objects.list_with_delimiter(prefix.as_ref()).await?,
            None => {
                let objects = self.objects.list(prefix.as_ref()).try_collect().await?;
                ListResult { objects, common_prefixes: Vec::new(), extensions: Extensions::default() }
            }
        };
        let before = options.page_token.map_or(0, |token| token.parse().expect("a token of its own"));
        let (objects, folders) = (result.objects.len(), result.common_prefixes.len());
        result.objects = result.objects.into_iter().skip(before).take(1).collect();
        result.common_prefixes = result.common_prefixes.into_iter().skip(before.saturating_sub(objects)).collect();
        result.common_prefixes.truncate(usize::from(before >= objects));
        let is_last = before + 1 >= objects + folders && !self.is_endless.load(Ordering::Relaxed);
        Ok(PaginatedListResult { result, page_token: (!is_last).then(|| (before + 1).to_string()) })
    }
}

/// A store with one model, and a directory for its copy.
struct Fixture {
    store: Arc<CountingStore>,
    folder: TempDir,
    cache: Arc<Cache>,
}

impl Fixture {
    async fn new() -> Self {
        Self::of_room(None).await
    }

    /// A fixture whose cache has room for `most_bytes`.
    async fn of_room(most_bytes: Option<u64>) -> Self {
        let store = Arc::new(CountingStore::default());
        store.write("models/m/config.pbtxt", "config").await;
        store.write("models/m/1/model.onnx", "one").await;
        let folder = tempfile::tempdir().expect("a folder");
        let cache = Arc::new(Cache::open(Some(folder.path()), most_bytes).expect("a cache"));
        Self { store, folder, cache }
    }

    fn mirror(&self) -> Mirror {
        let location = Location::parse("s3://bucket/models/").expect("a location");
        Mirror::over(self.store.clone(), location, &self.cache, Arc::new(Semaphore::new(2))).expect("a mirror")
    }

    /// Returns the directory of the repository, with a copy of this model in it.
    async fn shelf_of(&self, name: &str) -> PathBuf {
        let model = self.mirror().fetch(name, &keep_all()).await.expect("it is fetched");
        model.parent().and_then(Path::parent).expect("a repository").to_owned()
    }

    /// Returns the number of snapshots on disk, complete or not.
    fn snapshots(&self) -> usize {
        let mut entries = fs::read_dir(self.folder.path()).expect("the cache").map(|entry| entry.expect("one").path());
        let shelf = entries.find(|path| path.is_dir()).expect("a repository");
        fs::read_dir(shelf.join("snapshots")).expect("snapshots").count()
    }
}

/// Lets no copy be removed.
fn keep_all() -> LetGo {
    Arc::new(|_| None)
}

fn text(folder: &Path, file: &str) -> String {
    fs::read_to_string(folder.join(file)).expect(file)
}

#[tokio::test]
async fn an_object_is_fetched_once_for_each_of_its_contents() {
    let fixture = Fixture::new().await;
    let (store, mirror) = (&fixture.store, fixture.mirror());
    let folder = mirror.fetch("m", &keep_all()).await.unwrap();
    assert_eq!(store.fetched(), ["models/m/1/model.onnx", "models/m/config.pbtxt"]);
    assert_eq!((text(&folder, "1/model.onnx"), text(&folder, "config.pbtxt")), ("one".to_owned(), "config".to_owned()));
    let program = fs::metadata(folder.join("1/model.onnx")).unwrap();

    assert_eq!(mirror.fetch("m", &keep_all()).await.unwrap(), folder);
    assert_eq!(store.fetched(), [""; 0], "nothing changed");

    store.write("models/m/config.pbtxt", "another").await;
    assert_eq!(mirror.fetch("m", &keep_all()).await.unwrap(), folder);
    assert_eq!(store.fetched(), ["models/m/config.pbtxt"]);
    assert_eq!(text(&folder, "config.pbtxt"), "another");
    let same = fs::metadata(folder.join("1/model.onnx")).unwrap();
    assert_eq!((same.ino(), same.mtime()), (program.ino(), program.mtime()), "what did not change is the same file");
    assert_eq!(fixture.snapshots(), 1, "the earlier state is gone");

    store.write("models/m/2/model.onnx", "two").await;
    store.erase("models/m/1/model.onnx").await;
    mirror.fetch("m", &keep_all()).await.unwrap();
    assert_eq!(store.fetched(), ["models/m/2/model.onnx"]);
    assert!(!folder.join("1").exists() && folder.join("2/model.onnx").exists());
}

#[tokio::test]
async fn a_model_that_changes_while_it_is_fetched_is_left_as_it_was() {
    let fixture = Fixture::new().await;
    let (store, mirror) = (&fixture.store, fixture.mirror());
    for (key, new) in [("models/m/3/model.onnx", "half"), ("models/m/1/model.onnx", "other")] {
        *store.puts_at_fetch.lock() = Some((key.to_owned(), new.to_owned()));
        let fault = mirror.fetch("m", &keep_all()).await.unwrap_err().to_string();
        assert_eq!(fault, "the model changed in the store while it was fetched", "{key}");
        assert_eq!(fixture.snapshots(), 0, "nothing is left of it");
    }
    let folder = mirror.fetch("m", &keep_all()).await.unwrap();
    assert_eq!(text(&folder, "3/model.onnx"), "half");

    store.write("models/m/config.pbtxt", "newer").await;
    *store.puts_at_fetch.lock() = Some(("models/m/3/model.onnx".to_owned(), "whole".to_owned()));
    mirror.fetch("m", &keep_all()).await.unwrap_err();
    assert_eq!(
        (text(&folder, "config.pbtxt"), text(&folder, "3/model.onnx")),
        ("config".to_owned(), "half".to_owned())
    );
    mirror.fetch("m", &keep_all()).await.unwrap();
    assert_eq!(
        (text(&folder, "config.pbtxt"), text(&folder, "3/model.onnx")),
        ("newer".to_owned(), "whole".to_owned())
    );
}

#[tokio::test]
async fn an_object_that_the_store_refuses_leaves_the_model_as_it_was() {
    let fixture = Fixture::new().await;
    let (store, mirror) = (&fixture.store, fixture.mirror());
    let folder = mirror.fetch("m", &keep_all()).await.unwrap();
    store.write("models/m/2/model.onnx", "two").await;
    *store.refused.lock() = Some("2/model.onnx".to_owned());
    let fault = mirror.fetch("m", &keep_all()).await.unwrap_err().to_string();
    assert_eq!(fault, "the store refuses these credentials (403 AccessDenied)");
    assert!(folder.join("1").exists() && !folder.join("2").exists());
    assert_eq!(fixture.snapshots(), 1);
    *store.refused.lock() = None;
    mirror.fetch("m", &keep_all()).await.unwrap();
    assert_eq!(text(&folder, "2/model.onnx"), "two");
}

#[tokio::test]
async fn a_cache_that_is_kept_spares_the_next_process_the_fetch() {
    let fixture = Fixture::new().await;
    let store = &fixture.store;
    store.write("models/other/1/model.onnx", "o").await;
    let folder = fixture.mirror().fetch("m", &keep_all()).await.unwrap();
    fixture.mirror().fetch("other", &keep_all()).await.unwrap();
    store.fetched();
    let left = folder.canonicalize().unwrap().parent().unwrap().with_file_name("model-left");
    fs::create_dir_all(left.join("files")).unwrap();

    let next = fixture.mirror();
    assert!(!left.exists(), "what was not completed is removed");
    assert_eq!(next.fetch("m", &keep_all()).await.unwrap(), folder);
    assert_eq!(store.fetched(), [""; 0]);
    fs::write(folder.join("1/model.onnx"), "o").unwrap();
    next.fetch("m", &keep_all()).await.unwrap();
    assert_eq!(store.fetched().len(), 2, "a copy of another size is not trusted");
    assert_eq!(text(&folder, "1/model.onnx"), "one");

    next.forget("m").await;
    assert!(!folder.exists() && fixture.snapshots() == 1);
    next.forget("never").await;
}

#[tokio::test]
async fn models_are_known_by_one_listing() {
    let fixture = Fixture::new().await;
    let (store, mirror) = (&fixture.store, fixture.mirror());
    for key in
        ["models/readme.txt", "models/.git/head", "models/lost+found/x", "elsewhere/m2/1/model.onnx", "modelsx/y/z"]
    {
        store.write(key, "x").await;
    }
    store.write("models/n/1/model.onnx", "n").await;
    store.write("models/n/1", "").await;
    let names: Vec<String> = mirror.models().await.unwrap().into_iter().collect();
    assert_eq!(names, ["m", "n"]);
    let contents = mirror.contents().await.unwrap();
    let paths = |name: &str| -> Vec<PathBuf> {
        contents[name].as_ref().unwrap().iter().map(|object| object.path.clone().into()).collect()
    };
    assert_eq!(contents.len(), 2);
    assert_eq!(paths("m"), [PathBuf::from("1/model.onnx"), PathBuf::from("config.pbtxt")]);
    assert_eq!(paths("n"), [PathBuf::from("1/model.onnx")], "an empty object stands for a folder");
    assert!(mirror.has("n").await.unwrap() && !mirror.has("none").await.unwrap());
    assert!(mirror.fetch("none", &keep_all()).await.unwrap_err().to_string().contains("nothing of that model"));
    assert_eq!(store.fetched(), [""; 0], "nothing was fetched for it");
}

#[tokio::test]
async fn a_key_that_is_a_file_and_a_folder_refuses_its_model_alone() {
    let fixture = Fixture::new().await;
    let mirror = fixture.mirror();
    fixture.store.write("models/bad/1/model.onnx", "file").await;
    fixture.store.write("models/bad/1/model.onnx/weights", "in it").await;
    let contents = mirror.contents().await.unwrap();
    assert!(contents["m"].is_ok() && contents["bad"].as_ref().unwrap_err().to_string().contains("'1/model.onnx'"));
    let fault = mirror.fetch("bad", &keep_all()).await.unwrap_err().to_string();
    assert!(fault.contains("other keys need a folder of that name"), "{fault}");
}

#[test]
fn one_process_uses_a_cache_and_a_temporary_one_goes() {
    let folder = tempfile::tempdir().unwrap();
    let cache = Cache::open(Some(&folder.path().join("new/cache")), None).unwrap();
    let again = Cache::open(Some(&folder.path().join("new/cache")), None).unwrap_err();
    assert_eq!(again.to_string(), "another process uses it");
    cache.close();
    assert!(folder.path().join("new/cache").exists(), "it is the operator's");

    let temporary = Cache::open(None, None).unwrap();
    let place = temporary.folder(&Location::parse("gs://bucket/models").unwrap());
    fs::create_dir_all(&place).unwrap();
    let root = place.parent().unwrap().to_owned();
    temporary.close();
    assert!(!root.exists());
    assert_eq!(Cache::open(Some(Path::new("/proc/none")), None).unwrap_err().kind(), io::ErrorKind::NotFound);
}

/// Lets copies be removed except those of these models, as if they were loaded.
fn keep(loaded: &'static [&'static str]) -> LetGo {
    Arc::new(move |name| {
        let gate = Arc::new(tokio::sync::Mutex::new(()));
        (!loaded.contains(&name)).then(|| gate.try_lock_owned().expect("no other owner"))
    })
}

/// A fixture with room for 20 bytes, and models of 8 bytes each.
async fn bounded() -> Fixture {
    let fixture = Fixture::of_room(Some(20)).await;
    for model in ["a", "b", "c"] {
        fixture.store.write(&format!("models/{model}/1/model.onnx"), "8 bytes.").await;
    }
    fixture
}

#[tokio::test]
async fn without_room_the_copy_that_was_used_longest_ago_goes() {
    let fixture = bounded().await;
    let mirror = fixture.mirror();
    let folder = mirror.fetch("a", &keep_all()).await.unwrap();
    let other = mirror.fetch("b", &keep_all()).await.unwrap();
    mirror.fetch("a", &keep_all()).await.unwrap();
    mirror.fetch("c", &keep(&[])).await.unwrap();
    assert!(folder.exists() && !other.exists(), "it was used after the other");
    mirror.touch("a").await;
    mirror.fetch("b", &keep(&[])).await.unwrap();
    assert!(folder.exists() && !folder.with_file_name("c").exists());
    assert_eq!(fixture.snapshots(), 2);
}

#[tokio::test]
async fn copies_of_loaded_models_stay_and_a_fetch_without_room_says_so() {
    let fixture = bounded().await;
    let (store, mirror) = (&fixture.store, fixture.mirror());
    let folder = mirror.fetch("a", &keep_all()).await.unwrap();
    let other = mirror.fetch("b", &keep_all()).await.unwrap();
    store.fetched();
    let fault = mirror.fetch("c", &keep(&["a", "b"])).await.unwrap_err().to_string();
    let expected = "there is no room for its 8 bytes: models that are loaded or being fetched take 16 of the 20 that \
                    --repository-cache-max-bytes allows";
    assert_eq!(fault, expected);
    assert_eq!(store.fetched(), [""; 0], "nothing is fetched that has no room");

    store.write("models/c/2/model.onnx", "twelve bytes").await;
    mirror.fetch("c", &keep(&["a"])).await.unwrap_err();
    assert!(folder.exists() && other.exists(), "nothing goes where that is not enough");
    assert_eq!(fixture.snapshots(), 2);

    mirror.fetch("c", &keep(&[])).await.unwrap();
    assert!(!folder.exists() && !other.exists());
}

#[tokio::test]
async fn what_is_being_fetched_counts_until_it_is_there_or_given_up() {
    let fixture = bounded().await;
    let (store, mirror) = (&fixture.store, fixture.mirror());
    let first = fixture.cache.room.reserve(13, &keep_all()).await.unwrap();
    let fault = mirror.fetch("a", &keep(&[])).await.unwrap_err().to_string();
    assert!(fault.contains("take 13 of the 20"), "{fault}");
    drop(first);
    *store.refused.lock() = Some("a/1/model.onnx".to_owned());
    mirror.fetch("a", &keep(&[])).await.unwrap_err();
    *store.refused.lock() = None;
    mirror.fetch("b", &keep_all()).await.unwrap();
    mirror.fetch("a", &keep_all()).await.unwrap();
    assert_eq!(fixture.snapshots(), 2, "what failed gave its room back");
}

#[tokio::test]
async fn copies_of_repositories_that_are_not_served_any_more_go_first() {
    let fixture = bounded().await;
    let gone = fixture.folder.path().join("s3---gone-0123");
    fs::rename(fixture.shelf_of("a").await, &gone).unwrap();
    let mirror = fixture.mirror();
    let folder = mirror.fetch("b", &keep_all()).await.unwrap();
    mirror.fetch("c", &keep_all()).await.unwrap();
    assert!(folder.exists() && !gone.join("models/a").exists(), "no lock is requested");
}

#[tokio::test(start_paused = true)]
async fn a_listing_that_does_not_end_is_given_up_at_its_bounds() {
    let fixture = Fixture::new().await;
    let location = Location::parse("s3://bucket/models/").expect("a location");
    let listed = async |bounds| {
        let lister = Lister { store: &*fixture.store, location: &location, bounds };
        lister.contents().await.map(|contents| contents.len()).map_err(|fault| fault.to_string())
    };
    let all = Bounds::default();
    assert_eq!(listed(all).await, Ok(1), "two objects on two pages");
    let keys = "models/m/config.pbtxtmodels/m/1/model.onnx".len();
    assert_eq!(listed(Bounds { pages: 2, bytes: keys, ..all }).await, Ok(1));
    assert_eq!(listed(Bounds { pages: 1, ..all }).await, Err("its listing has more than 1 pages".to_owned()));
    let long = listed(Bounds { bytes: keys - 1, ..all }).await;
    assert_eq!(long, Err(format!("its keys have more than {} bytes", keys - 1)));

    fixture.store.is_endless.store(true, Ordering::Relaxed);
    assert_eq!(listed(all).await, Err("its listing has more than 2000 pages".to_owned()));
    fixture.store.is_silent.store(true, Ordering::Relaxed);
    let late = listed(Bounds { time: Duration::from_secs(7), ..all }).await;
    assert_eq!(late, Err("its listing has not ended within 7s".to_owned()));
}

pub(crate) fn refusals(all: &mut crate::tests::refusals::Refusals) {
    super::location::tests::refusals(all);
    super::keys::tests::refusals(all);
}

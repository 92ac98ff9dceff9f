//! What a repository returns while the startup models are being loaded.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use super::fake::{Directory, FakeLoader, GARBAGE, explicit, index, options, states, until};
use crate::{ControlError, ControlMode, Options, Overrides, Repository, ResolveError, Startup};

async fn open(options: Options, loader: &Arc<FakeLoader>) -> (Arc<Repository>, Startup) {
    let startup = Repository::open(options, loader.clone()).await.unwrap();
    (startup.repository().clone(), startup)
}

fn loading(name: &str) -> ResolveError {
    ResolveError::Loading { name: name.to_owned() }
}

#[tokio::test]
async fn models_of_the_start_are_loading_before_they_are_ready_and_never_unknown() {
    let directory = Directory::new();
    directory.model("early").model("late").write("notes/todo.txt", "nothing");
    for mode in [ControlMode::None, ControlMode::Poll { period: Duration::from_secs(3600) }] {
        let loader = Arc::new(FakeLoader::default());
        loader.hold("late");
        let (repository, startup) = open(options(&[&directory], mode), &loader).await;
        assert!(repository.live() && !repository.ready(), "nothing was tried yet");
        assert_eq!(repository.resolve("early", "").unwrap_err(), loading("early"));
        assert_eq!(repository.resolve("early", "1").unwrap_err(), loading("early"), "its versions are not known yet");
        assert_eq!(repository.is_ready("early", ""), Ok(false));
        let unknown = ResolveError::UnknownModel { name: "nope".to_owned() };
        assert_eq!(repository.resolve("nope", "").unwrap_err(), unknown);
        assert!(index(&repository).await.iter().all(|entry| entry[2] == "LOADING"), "{:?}", index(&repository).await);

        let load = tokio::spawn(startup.load());
        until(&repository, |repository| repository.is_ready("early", "") == Ok(true)).await;
        until(&repository, |repository| states(repository).iter().any(|entry| entry[0] == "late" && entry[1] == "1"))
            .await;
        assert!(!repository.ready(), "one is still loading");
        assert_eq!(repository.resolve("late", "").unwrap_err(), loading("late"));
        let unready = ResolveError::UnreadyVersion { name: "late".to_owned(), version: 1 };
        assert_eq!(repository.resolve("late", "1").unwrap_err(), unready, "its versions are known now");

        loader.release("late");
        load.await.unwrap().unwrap();
        assert!(repository.ready());
        assert_eq!(repository.is_ready("late", ""), Ok(true));
        let stray = index(&repository).await.into_iter().find(|entry| entry[0] == "notes").unwrap();
        assert_eq!(stray[2], "UNAVAILABLE", "no model, and nothing that readiness waits for");
    }
}

#[tokio::test]
async fn clients_neither_load_nor_unload_while_models_of_the_start_are_loading() {
    let directory = Directory::new();
    directory.model("a").model("b");
    let loader = Arc::new(FakeLoader::default());
    loader.hold("a");
    let named = ControlMode::Explicit { startup: vec!["a".to_owned()] };
    let (repository, startup) = open(options(&[&directory], named), &loader).await;
    let load = tokio::spawn(startup.load());
    assert_eq!(repository.load("b", Overrides::default()).await, Err(ControlError::NotReady));
    assert_eq!(repository.unload("a", false).await, Err(ControlError::NotReady));
    loader.release("a");
    load.await.unwrap().unwrap();
    assert_eq!(repository.is_ready("a", ""), Ok(true), "it was not unloaded");
    repository.load("b", Overrides::default()).await.unwrap();
}

#[tokio::test]
async fn readiness_that_is_not_strict_waits_for_the_end_of_the_start_too() {
    let directory = Directory::new();
    directory.write("broken/1/model.onnx", GARBAGE);
    let loader = Arc::new(FakeLoader::default());
    let lenient = Options { strict_readiness: false, ..options(&[&directory], ControlMode::None) };
    let (repository, startup) = open(lenient, &loader).await;
    assert!(!repository.ready());
    startup.load().await.unwrap();
    assert!(repository.ready());
    let failed = ResolveError::NoAvailableVersion { name: "broken".to_owned() };
    assert_eq!(repository.resolve("broken", "").unwrap_err(), failed, "it does not load any more");
}

#[tokio::test]
async fn a_start_that_is_given_up_never_makes_the_repository_ready() {
    let directory = Directory::new();
    directory.model("m");
    let loader = Arc::new(FakeLoader::default());
    loader.hold("m");
    let (repository, startup) = open(options(&[&directory], ControlMode::None), &loader).await;
    let load = tokio::spawn(startup.load());
    until(&repository, |repository| states(repository).iter().any(|entry| entry[1] == "1")).await;
    load.abort();
    assert!(load.await.unwrap_err().is_cancelled());
    repository.shutdown();
    loader.release("m");
    assert!(!repository.ready() && repository.loaded().is_empty());
}

#[tokio::test]
async fn with_nothing_to_load_a_start_is_over_at_once() {
    let (repository, startup) = open(options(&[&Directory::new()], explicit()), &Arc::new(FakeLoader::default())).await;
    assert!(!repository.ready());
    startup.load().await.unwrap();
    assert!(repository.ready());
}

#[test]
fn the_threads_of_a_start_do_not_grow_with_the_models() {
    const MODELS: usize = 200;
    let directory = Directory::new();
    for model in 0..MODELS {
        directory.model(&format!("m{model}"));
    }
    let threads = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&threads);
    let count = move || {
        counted.fetch_add(1, Ordering::Relaxed);
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().on_thread_start(count).build().unwrap();
    let options = Options { load_threads: 1, ..options(&[&directory], ControlMode::None) };
    let repository = runtime.block_on(Repository::start(options, Arc::new(FakeLoader::default()))).unwrap();
    assert_eq!(repository.loaded().len(), MODELS);
    let threads = threads.load(Ordering::Relaxed);
    assert!(threads <= MODELS / 10, "one reader and one loader at a time, but {threads} threads were started");
}

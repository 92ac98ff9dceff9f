//! Loading and unloading at a client's request.

use std::{
    collections::BTreeMap,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use bytes::Bytes;
use paternoster_observe::budget::{Budget, Reservation, SharedReservation};
use tokio::{task::JoinHandle, time::timeout};

use super::fake::{Directory, GARBAGE, explicit, index, load, start, start_with, states, until};
use crate::{ControlError, Overrides, Repository, ResolveError};

fn row(name: &str, version: &str, state: &str, reason: &str) -> [String; 4] {
    [name, version, state, reason].map(str::to_owned)
}

#[tokio::test]
async fn states_walk_as_triton_shows_them() {
    let directory = Directory::new();
    directory.model("slow").model("other");
    let (repository, _) = start(&directory, explicit()).await;
    assert!(repository.ready(), "nothing is wanted yet");
    assert_eq!(index(&repository).await, [row("other", "", "", ""), row("slow", "", "", "")]);
    let unknown = repository.resolve("slow", "").unwrap_err();
    assert_eq!(unknown, ResolveError::UnknownModel { name: "slow".to_owned() });

    load(&repository, "slow").await.unwrap();
    assert_eq!(index(&repository).await[1], row("slow", "1", "READY", ""));
    assert_eq!(repository.ready_versions("slow"), [1]);
    let in_flight = repository.resolve("slow", "1").unwrap().servable().clone();

    repository.unload("slow", false).await.unwrap();
    assert_eq!(index(&repository).await[1], row("slow", "1", "UNLOADING", ""), "a request still holds it");
    let gone = repository.resolve("slow", "").unwrap_err();
    assert_eq!(gone, ResolveError::NoAvailableVersion { name: "slow".to_owned() });
    assert_eq!(repository.is_ready("slow", ""), Ok(false));
    drop(in_flight);
    assert_eq!(index(&repository).await[1], row("slow", "1", "UNAVAILABLE", "unloaded"));
    assert!(repository.ready(), "what was unloaded is not wanted");

    load(&repository, "slow").await.unwrap();
    assert_eq!(index(&repository).await[1], row("slow", "1", "READY", ""));
}

#[tokio::test]
async fn unloading_what_is_not_loaded_or_not_known_is_no_error() {
    let directory = Directory::new();
    directory.model("m");
    let (repository, _) = start(&directory, explicit()).await;
    assert_eq!(repository.unload("m", true).await, Ok(()));
    assert_eq!(repository.unload("nope", false).await, Ok(()));
    assert_eq!(index(&repository).await, [row("m", "", "", "")]);
}

#[tokio::test]
async fn what_cannot_be_found_is_an_unknown_model() {
    let directory = Directory::new();
    directory.model("m").write("file", "not a directory").write(".hidden/1/model.onnx", "good");
    let (repository, _) = start(&directory, explicit()).await;
    for name in ["nope", "", ".", "..", "../m", "m/1", "/etc", "file", ".hidden", "m\0"] {
        let refusal = repository.load(name, Overrides::default()).await.unwrap_err();
        assert_eq!(refusal, ControlError::UnknownModel { name: name.to_owned() });
    }
    let text = load(&repository, "nope").await.unwrap_err();
    assert!(text.starts_with("failed to load 'nope', failed to poll from model repository"), "{text}");
    assert_eq!(index(&repository).await, [row("m", "", "", "")], "refused names leave nothing behind");
}

#[tokio::test]
async fn a_broken_model_is_unavailable_with_its_reason() {
    let directory = Directory::new();
    directory.write("broken/1/model.onnx", GARBAGE);
    let (repository, _) = start(&directory, explicit()).await;
    let text = load(&repository, "broken").await.unwrap_err();
    assert!(text.starts_with("load failed for model 'broken': version 1 is at UNAVAILABLE state: "), "{text}");
    assert!(text.ends_with("broken/1/model.onnx: protobuf parsing failed"), "{text}");
    let [name, version, state, reason] = index(&repository).await.remove(0);
    assert_eq!((name.as_str(), version.as_str(), state.as_str()), ("broken", "1", "UNAVAILABLE"));
    assert!(reason.contains("protobuf parsing failed"), "{reason}");
    assert!(repository.ready(), "readiness does not depend on what a client loads");

    repository.unload("broken", false).await.unwrap();
    assert!(repository.ready());
    assert_eq!(index(&repository).await, [row("broken", "1", "UNAVAILABLE", "unloaded")]);
}

#[tokio::test]
async fn a_failed_reload_leaves_the_old_version_serving() {
    let directory = Directory::new();
    directory.model("m");
    let (repository, _) = start(&directory, explicit()).await;
    load(&repository, "m").await.unwrap();
    let before = repository.resolve("m", "").unwrap();

    directory.write("m/1/model.onnx", GARBAGE);
    assert!(load(&repository, "m").await.is_err());
    assert!(std::sync::Arc::ptr_eq(&before, &repository.resolve("m", "").unwrap()), "the very same");
    let [_, _, state, reason] = index(&repository).await.remove(0);
    assert_eq!(state, "READY");
    assert!(reason.starts_with("the last reload failed: version 1: "), "{reason}");

    directory.write("m/config.pbtxt", "max_batch_size: x");
    assert!(load(&repository, "m").await.unwrap_err().contains("m/config.pbtxt:1:17: expected an integer"));
    directory.write("m/config.pbtxt", "").write("m/1/model.onnx", "good").write("m/2/model.onnx", GARBAGE);
    assert!(load(&repository, "m").await.is_err());
    assert_eq!(repository.ready_versions("m"), [1], "the old one does not go before the new one is there");
    assert_eq!(index(&repository).await[1][2], "UNAVAILABLE");
    assert!(repository.ready(), "what served before still does");

    directory.write("m/2/model.onnx", "good");
    drop(before);
    load(&repository, "m").await.unwrap();
    assert_eq!(repository.ready_versions("m"), [2]);
    assert_eq!(index(&repository).await, [row("m", "1", "UNAVAILABLE", "unloaded"), row("m", "2", "READY", "")]);
}

#[tokio::test]
async fn the_old_version_serves_until_the_new_one_is_ready() {
    let directory = Directory::new();
    directory.model("m");
    let (repository, loader) = start(&directory, explicit()).await;
    load(&repository, "m").await.unwrap();
    directory.write("m/2/model.onnx", "good");
    loader.hold("m");
    let loading = tokio::spawn({
        let repository = repository.clone();
        async move { load(&repository, "m").await }
    });
    until(&repository, |repository| states(repository).len() == 2).await;
    assert_eq!(index(&repository).await, [row("m", "1", "READY", ""), row("m", "2", "LOADING", "")]);
    assert_eq!(repository.resolve("m", "").unwrap().spec().version, 1);
    loader.release("m");
    loading.await.unwrap().unwrap();
    assert_eq!(repository.resolve("m", "").unwrap().spec().version, 2);
    let old = repository.resolve("m", "1").unwrap_err();
    assert_eq!(old, ResolveError::UnreadyVersion { name: "m".to_owned(), version: 1 });
}

#[tokio::test]
async fn loads_and_unloads_of_one_model_run_one_after_another() {
    let directory = Directory::new();
    directory.model("a").model("b").model("c").model("d").model("e").model("f");
    let (repository, loader) = start(&directory, explicit()).await;
    let mut tasks = tokio::task::JoinSet::new();

    loader.hold("a");
    for _ in 0..2 {
        let repository = repository.clone();
        tasks.spawn(async move { load(&repository, "a").await.unwrap() });
    }
    until(&repository, |repository| states(repository).iter().any(|entry| entry[2] == "LOADING")).await;
    // These loads finish after anything that a second load of `a` could do meanwhile.
    for name in ["b", "c", "d"] {
        load(&repository, name).await.unwrap();
    }
    assert_eq!(loader.most_of_one_version.load(Ordering::SeqCst), 1, "the second load waits for the first");
    loader.release("a");

    for round in 0..8 {
        for name in ["a", "b", "c", "d", "e", "f"] {
            let repository = repository.clone();
            tasks.spawn(async move {
                if round % 4 == 3 {
                    repository.unload(name, false).await.unwrap();
                } else {
                    load(&repository, name).await.unwrap();
                }
            });
        }
    }
    while tasks.join_next().await.is_some() {}
    assert_eq!(loader.most_of_one_version.load(Ordering::SeqCst), 1);
    load(&repository, "a").await.unwrap();
    assert_eq!(repository.is_ready("a", "1"), Ok(true));
}

#[tokio::test]
async fn no_more_versions_load_at_once_than_there_are_loader_threads() {
    let names = ["a", "b", "c", "d", "e", "f", "g", "h"];
    let directory = Directory::new();
    let (repository, loader) = start(&directory, explicit()).await;
    let mut tasks = tokio::task::JoinSet::new();
    for name in names {
        directory.model(name);
        loader.hold(name);
        let repository = repository.clone();
        tasks.spawn(async move { load(&repository, name).await.unwrap() });
    }
    until(&repository, |repository| states(repository).iter().all(|entry| entry[2] == "LOADING")).await;
    let began = loader.clone();
    tokio::task::spawn_blocking(move || began.until_at_once(4)).await.unwrap();
    // Other work for the blocking threads, so that a load that does not wait for its turn has begun by now.
    for _ in 0..20 {
        load(&repository, "nope").await.unwrap_err();
    }
    for name in names {
        loader.release(name);
    }
    while tasks.join_next().await.is_some() {}
    assert_eq!(loader.most_at_once.load(Ordering::SeqCst), 4);
    assert_eq!(repository.loaded().len(), names.len());
}

/// Starts a load in a task of its own, which the test can abort as a client that leaves.
fn client(repository: &Arc<Repository>, name: &'static str, given: Overrides) -> JoinHandle<Result<(), ControlError>> {
    let repository = repository.clone();
    tokio::spawn(async move { repository.load(name, given).await })
}

/// Waits until a model is loading.
async fn until_loading(repository: &Repository, name: &str) {
    let is_loading = |entry: &[String; 4]| entry[0] == name && entry[2] == "LOADING";
    until(repository, |repository| states(repository).iter().any(is_loading)).await;
}

#[tokio::test]
async fn a_load_whose_client_left_is_ended_and_what_it_holds_is_given_back() {
    let directory = Directory::new();
    let (repository, loader) = start(&directory, explicit()).await;
    let budget = Budget::of(100);
    let sent = || overrides_within(&budget, &[("1/model.onnx", "sent")]);
    loader.hold("m");
    let first = client(&repository, "m", sent());
    until_loading(&repository, "m").await;
    assert!(repository.ready(), "readiness does not depend on what a client loads");
    let queued = client(&repository, "m", sent());
    until_used(&budget, 8).await;
    queued.abort();
    until_used(&budget, 4).await;
    first.abort();
    until(&repository, |repository| states(repository) == [row("m", "1", "UNAVAILABLE", "its client left")]).await;
    until_used(&budget, 0).await;
    assert!(repository.ready() && loader.loads_of("m").is_empty());
    loader.release("m");
    repository.load("m", sent()).await.unwrap();
    assert_eq!(repository.ready_versions("m"), [1], "the next client is served");
}

#[tokio::test]
async fn a_thread_that_does_not_return_keeps_its_place_and_its_bytes() {
    let directory = Directory::new();
    directory.model("other");
    let (repository, loader) = start_with(&directory, |options| options.load_threads = 2).await;
    let budget = Budget::of(100);
    loader.hold_for_good("stuck");
    let stuck = client(&repository, "stuck", overrides_within(&budget, &[("1/model.onnx", "sent")]));
    until_loading(&repository, "stuck").await;
    tokio::time::pause();
    stuck.abort();
    // A clock that stands does not advance by itself while a blocking thread runs.
    while states(&repository)[0][2] != "UNAVAILABLE" {
        tokio::time::advance(Duration::from_secs(1)).await;
    }
    tokio::time::resume();
    assert_eq!(budget.used(), 4, "its thread still works on the file");
    load(&repository, "other").await.unwrap();
    let waiting = client(&repository, "sent", overrides_within(&budget, &[("1/model.onnx", "sent")]));
    until_loading(&repository, "sent").await;
    assert!(loader.loads_of("sent").is_empty(), "clients' models have one thread, which is not back yet");
    loader.release("stuck");
    waiting.await.unwrap().unwrap();
    until_used(&budget, 0).await;
}

#[tokio::test]
async fn an_unload_ends_the_loads_before_it() {
    let directory = Directory::new();
    directory.model("m");
    let (repository, loader) = start(&directory, explicit()).await;
    loader.hold("m");
    let first = client(&repository, "m", Overrides::default());
    until_loading(&repository, "m").await;
    let queued = client(&repository, "m", Overrides::default());
    until_used(&repository.control.pending, 2).await;
    repository.unload("m", false).await.unwrap();
    let expected = ControlError::Stopped { name: "m".to_owned(), reason: "the model is being unloaded".to_owned() };
    assert_eq!(first.await.unwrap(), Err(expected.clone()), "in its thread");
    assert_eq!(queued.await.unwrap(), Err(expected), "before its turn");
    assert_eq!(index(&repository).await, [row("m", "1", "UNAVAILABLE", "unloaded")]);
    loader.release("m");
    load(&repository, "m").await.unwrap();
}

#[tokio::test]
async fn loads_that_wait_are_bounded() {
    let directory = Directory::new();
    directory.model("m").model("other");
    let (repository, loader) = start(&directory, explicit()).await;
    let limit = repository.control.pending.capacity();
    loader.hold("m");
    let clients: Vec<_> = (0..limit).map(|_| client(&repository, "m", Overrides::default())).collect();
    until_loading(&repository, "m").await;
    until_used(&repository.control.pending, limit).await;
    let refused = repository.load("other", Overrides::default()).await.unwrap_err();
    assert_eq!(refused, ControlError::TooManyPending { limit });
    assert_eq!(repository.unload("other", false).await, Err(ControlError::TooManyPending { limit }));
    clients.iter().for_each(JoinHandle::abort);
    for client in clients {
        assert!(client.await.unwrap_err().is_cancelled());
    }
    until_used(&repository.control.pending, 0).await;
    load(&repository, "other").await.unwrap();
}

/// Waits until a budget is used that far.
async fn until_used(budget: &Budget, bytes: usize) {
    let waiting = async {
        while budget.used() != bytes {
            tokio::task::yield_now().await;
        }
    };
    timeout(Duration::from_secs(60), waiting).await.unwrap_or_else(|_| panic!("{} are used", budget.used()));
}

/// Files of a load request, which hold their bytes in a budget.
fn overrides_within(budget: &Arc<Budget>, files: &[(&str, &str)]) -> Overrides {
    let given = overrides("{}", files);
    let mut held = Reservation::none(budget);
    assert!(held.try_grow(given.files.values().map(Bytes::len).sum()), "there is room");
    let held = SharedReservation::new(held);
    let files = given.files.into_iter().map(|(path, content)| (path, held.attach(content)));
    Overrides { files: files.collect(), held: Some(held), ..given }
}

fn overrides(config: &str, files: &[(&str, &str)]) -> Overrides {
    let files = files.iter().map(|(path, text)| ((*path).to_owned(), Bytes::from((*text).to_owned())));
    let files: BTreeMap<String, Bytes> = files.collect();
    Overrides { config_json: (!config.is_empty()).then(|| config.to_owned()), files, held: None }
}

#[tokio::test]
async fn a_config_override_stands_in_for_the_file() {
    let directory = Directory::new();
    directory.model("m").write("m/config.pbtxt", "max_batch_size: 64");
    let (repository, _) = start(&directory, explicit()).await;
    load(&repository, "m").await.unwrap();
    assert_eq!(repository.resolve("m", "").unwrap().spec().max_batch_size, 64);
    let config = r#"{"backend": "onnxruntime", "max_batch_size": 2}"#;
    repository.load("m", overrides(config, &[])).await.unwrap();
    assert_eq!(repository.resolve("m", "").unwrap().spec().max_batch_size, 2);
    load(&repository, "m").await.unwrap();
    assert_eq!(repository.resolve("m", "").unwrap().spec().max_batch_size, 2, "a reload keeps it");
    directory.write("m/2/model.onnx", "good");
    load(&repository, "m").await.unwrap();
    let reloaded = repository.resolve("m", "").unwrap();
    assert_eq!((reloaded.spec().version, reloaded.spec().max_batch_size), (2, 64), "what was written later counts");
    repository.load("m", overrides(config, &[])).await.unwrap();
    repository.unload("m", false).await.unwrap();
    load(&repository, "m").await.unwrap();
    assert_eq!(repository.resolve("m", "").unwrap().spec().max_batch_size, 64, "an unload ends it");

    let refusal = repository.load("m", overrides("not json", &[])).await.unwrap_err();
    assert!(matches!(refusal, ControlError::BadConfig { .. }), "{refusal}");
    let refusal = repository.load("m", overrides(r#"{"backend": "python"}"#, &[])).await.unwrap_err();
    assert!(matches!(refusal, ControlError::LoadFailed { .. }), "{refusal}");
    assert_eq!(repository.resolve("m", "").unwrap().spec().max_batch_size, 64, "still served");
}

#[tokio::test]
async fn file_overrides_stand_in_for_the_directory() {
    let directory = Directory::new();
    directory.model("m");
    let (repository, loader) = start(&directory, explicit()).await;
    load(&repository, "m").await.unwrap();
    repository.load("m", overrides("{}", &[("7/model.onnx", "sent")])).await.unwrap();
    assert_eq!(repository.ready_versions("m"), [7], "no version from the disk");
    assert_eq!(loader.requests.lock().last().unwrap().program.bytes.as_deref(), Some(b"sent".as_slice()));

    repository.load("new", overrides("{}", &[("1/model.onnx", "sent")])).await.unwrap();
    assert_eq!(repository.is_ready("new", "1"), Ok(true), "a model that is not on disk at all");

    let refusal = repository.load("m", overrides("", &[("1/model.onnx", "x")])).await.unwrap_err();
    assert!(matches!(refusal, ControlError::FilesWithoutConfig { .. }), "{refusal}");
    for path in ["../x", "1/../../x", "model.onnx"] {
        let refusal = repository.load("m", overrides("{}", &[(path, "x")])).await.unwrap_err();
        assert!(matches!(refusal, ControlError::BadOverride { .. }), "{path}: {refusal}");
    }
    let refusal = repository.load("m", overrides("{}", &[("7/other", "x")])).await.unwrap_err();
    assert!(
        refusal.to_string().contains("no override file '7/model.onnx': the request has [\"7/other\"]"),
        "{refusal}"
    );
    assert_eq!(repository.ready_versions("m"), [7], "what served goes on serving");
}

#[tokio::test]
async fn a_shutdown_lets_go_of_everything() {
    let directory = Directory::new();
    directory.model("m");
    let (repository, loader) = start(&directory, explicit()).await;
    load(&repository, "m").await.unwrap();
    let handle = repository.resolve("m", "").unwrap().servable().downgrade();
    loader.hold("m");
    let reload = tokio::spawn({
        let repository = repository.clone();
        async move { repository.load("m", Overrides::default()).await }
    });
    let started = *repository.changes().borrow();
    until(&repository, |repository| *repository.changes().borrow() > started).await;
    repository.shutdown();
    assert!(!handle.is_held());
    assert!(!repository.ready());
    assert!(repository.loaded().is_empty());
    loader.release("m");
    assert_eq!(reload.await.unwrap(), Err(ControlError::ShuttingDown));
    assert!(repository.resolve("m", "").is_err(), "what was loading is dropped");
}

//! Scans that fail, and entries of repositories that are not models.

use std::{fs, sync::Arc, time::Duration};

use super::fake::{Directory, FakeLoader, GARBAGE, index, options, polled, start};
use crate::{ControlMode, Options, Repository, changes::ChangeDetector, polling};

const POLL: ControlMode = ControlMode::Poll { period: Duration::from_secs(3600) };

/// Polls as often as a change needs to be acted on, and once more.
async fn settle(repository: &Repository, detector: &mut ChangeDetector) {
    for _ in 0..3 {
        polling::poll_again(&repository.control, detector).await;
    }
}

#[tokio::test]
async fn a_repository_that_cannot_be_read_is_not_an_empty_one() {
    let directory = Directory::new();
    directory.model("models/m");
    let (root, aside) = (directory.path().join("models"), directory.path().join("aside"));
    let options = Options { repositories: vec![root.clone()], ..options(&[], POLL) };
    let (repository, mut detector) = polled(options, Arc::default()).await;
    fs::rename(&root, &aside).unwrap();
    settle(&repository, &mut detector).await;
    assert_eq!(repository.ready_versions("m"), [1], "the directory is gone");
    fs::write(&root, "no directory").unwrap();
    settle(&repository, &mut detector).await;
    assert_eq!(repository.ready_versions("m"), [1], "a file is in its place");
    assert!(repository.ready());
    assert_eq!(repository.index(false).await.len(), 1);
    fs::remove_file(&root).unwrap();
    fs::rename(&aside, &root).unwrap();
    directory.write("models/m/2/model.onnx", "good").model("models/new");
    settle(&repository, &mut detector).await;
    assert_eq!(repository.ready_versions("m"), [2], "followed again");
    assert_eq!(repository.ready_versions("new"), [1]);
}

#[tokio::test]
async fn a_repository_that_cannot_be_read_keeps_no_other_from_being_followed() {
    let (one, two) = (Directory::new(), Directory::new());
    one.model("models/a");
    two.model("b");
    let root = one.path().join("models");
    let options = Options { repositories: vec![root.clone(), two.path()], ..options(&[], POLL) };
    let (repository, mut detector) = polled(options, Arc::default()).await;
    fs::rename(&root, one.path().join("aside")).unwrap();
    two.model("c");
    fs::remove_dir_all(two.path().join("b")).unwrap();
    settle(&repository, &mut detector).await;
    let ready: Vec<_> = repository.loaded().iter().map(|version| version.spec().name.clone()).collect();
    assert_eq!(ready, ["a", "c"]);
}

#[tokio::test]
async fn a_directory_without_a_model_does_not_count() {
    let directory = Directory::new();
    directory.model("m").write("lost+found/x", "").write("readme/text", "at the start");
    let (repository, mut detector) = polled(options(&[&directory], POLL), Arc::default()).await;
    assert!(repository.ready(), "{:?}", index(&repository).await);
    fs::create_dir(directory.path().join("notes")).unwrap();
    directory.write("drafts/2024/plan.txt", "").write("half/config.pbtxt", "max_batch_size: [");
    settle(&repository, &mut detector).await;
    assert!(repository.ready(), "{:?}", index(&repository).await);
    let reasons = index(&repository).await.into_iter().filter(|entry| entry[2] == "UNAVAILABLE").collect::<Vec<_>>();
    let names: Vec<&str> = reasons.iter().map(|entry| entry[0].as_str()).collect();
    assert_eq!(names, ["drafts", "half", "notes", "readme"], "they are shown with their reasons");
    assert!(reasons.iter().all(|entry| !entry[3].is_empty()), "{reasons:?}");
}

#[tokio::test]
async fn a_server_told_to_start_without_a_repository_is_not_live_until_it_comes() {
    let directory = Directory::new();
    let root = directory.path().join("later");
    let missing = Options { repositories: vec![root], ..options(&[], POLL) };
    let refusal = Repository::start(missing.clone(), Arc::new(FakeLoader::default())).await.unwrap_err();
    assert!(refusal.to_string().contains("cannot read the model repository "), "{refusal}");
    let lenient = Options { start_unreadable: true, strict_readiness: false, ..missing };
    let (repository, mut detector) = polled(lenient, Arc::default()).await;
    settle(&repository, &mut detector).await;
    assert!(!repository.live() && !repository.ready());
    directory.model("later/m");
    settle(&repository, &mut detector).await;
    assert!(repository.live() && repository.ready());
    assert_eq!(repository.ready_versions("m"), [1]);
}

#[tokio::test]
async fn a_named_configuration_comes_before_the_others() {
    let directory = Directory::new();
    directory.model("m").write("m/config.pbtxt", "max_batch_size: 1").write("m/model.yaml", "max_batch_size: 2");
    directory.write("m/configs/large.pbtxt", "max_batch_size: 3");
    directory.model("other").write("other/config.pbtxt", "max_batch_size: 4");
    let named = Options { config_name: Some("large".to_owned()), ..options(&[&directory], ControlMode::None) };
    let repository = Repository::start(named, Arc::new(FakeLoader::default())).await.unwrap();
    let size = |name: &str| repository.resolve(name, "").unwrap().spec().max_batch_size;
    assert_eq!((size("m"), size("other")), (3, 4));
}

#[tokio::test]
async fn a_directory_that_cannot_be_looked_at_at_the_start_counts() {
    for mode in [ControlMode::None, POLL] {
        let directory = Directory::new();
        directory.model("m");
        std::os::unix::fs::symlink("circle", directory.path().join("circle")).unwrap();
        let (repository, _) = start(&directory, mode).await;
        assert_eq!(repository.ready_versions("m"), [1]);
        assert!(!repository.ready());
        let [name, _, state, reason] = index(&repository).await.remove(0);
        assert_eq!((name.as_str(), state.as_str()), ("circle", "UNAVAILABLE"), "{reason}");
    }
}

#[tokio::test]
async fn a_model_that_was_there_at_the_start_or_was_tried_counts() {
    for files in [("m/config.pbtxt", "max_batch_size: ["), ("m/1/model.plan", ""), ("m/1/model.onnx", GARBAGE)] {
        let directory = Directory::new();
        directory.write(files.0, files.1);
        let (repository, _) = start(&directory, POLL).await;
        assert!(!repository.ready(), "{files:?}: it was there at the start");
    }
    let directory = Directory::new();
    directory.model("m");
    let (repository, mut detector) = polled(options(&[&directory], POLL), Arc::default()).await;
    directory.write("late/1/model.onnx", GARBAGE);
    settle(&repository, &mut detector).await;
    assert!(!repository.ready(), "one of its versions was tried");
    let named = ControlMode::Explicit { startup: vec!["notes".to_owned()] };
    directory.write("notes/text", "");
    let (repository, _) = start(&directory, named).await;
    assert!(!repository.ready(), "it was asked for by name");
}

#[tokio::test]
async fn versions_that_are_gone_leave_the_index_and_are_not_at_ready_state() {
    let directory = Directory::new();
    directory.model("m").write("m/2/model.onnx", "good").write("m/config.pbtxt", "version_policy { all { } }");
    directory.model("goes");
    let (repository, mut detector) = polled(options(&[&directory], POLL), Arc::default()).await;
    fs::remove_dir_all(directory.path().join("m/1")).unwrap();
    fs::remove_dir_all(directory.path().join("goes")).unwrap();
    settle(&repository, &mut detector).await;
    let rows: Vec<String> = index(&repository).await.iter().map(|entry| entry.join(" ")).collect();
    assert_eq!(rows, ["m 2 READY "]);
    let refusal = |name: &str, version: &str| repository.resolve(name, version).unwrap_err().to_string();
    assert_eq!(refusal("m", "1"), "Request for unknown model: 'm' version 1 is not at ready state");
    assert_eq!(refusal("m", "9"), "Request for unknown model: 'm' version 9 is not found");
    assert_eq!(refusal("goes", "1"), "Request for unknown model: 'goes' version 1 is not at ready state");
    assert_eq!(refusal("goes", ""), "Request for unknown model: 'goes' has no available versions");
    assert_eq!(repository.is_ready("m", "1"), Ok(false));
}

#[tokio::test]
async fn one_bad_version_of_several_keeps_all_from_being_served() {
    let directory = Directory::new();
    directory.model("m").write("m/2/model.onnx", GARBAGE).write("m/config.pbtxt", "version_policy { all { } }");
    let (repository, _) = start(&directory, ControlMode::None).await;
    assert!(repository.ready_versions("m").is_empty());
    assert!(!repository.ready());
    let rows = index(&repository).await;
    assert!(rows.iter().all(|row| row[2] == "UNAVAILABLE"), "{rows:?}");
    assert!(rows[0][3].contains("version 2: "), "version 1 says why it is not served: {}", rows[0][3]);
    let refusal = repository.resolve("m", "1").unwrap_err().to_string();
    assert_eq!(refusal, "Request for unknown model: 'm' version 1 is not at ready state");
}

#[tokio::test]
async fn a_name_that_comes_twice_is_served_by_neither_until_one_goes() {
    let (one, two) = (Directory::new(), Directory::new());
    one.model("m").model("a");
    two.model("b");
    let (repository, mut detector) = polled(options(&[&one, &two], POLL), Arc::default()).await;
    two.model("m");
    settle(&repository, &mut detector).await;
    assert!(repository.ready_versions("m").is_empty(), "as Triton does it");
    assert_eq!(repository.loaded().len(), 2, "the others are served");
    assert!(repository.ready(), "nothing that was asked for failed");
    let rows: Vec<_> = index(&repository).await.into_iter().filter(|entry| entry[0] == "m").collect();
    assert_eq!((rows.len(), rows[0][2].as_str()), (1, "UNAVAILABLE"), "{rows:?}");
    assert!(rows[0][3].starts_with("model appears in two or more repositories: "), "{rows:?}");
    fs::remove_dir_all(two.path().join("m")).unwrap();
    settle(&repository, &mut detector).await;
    assert_eq!(repository.ready_versions("m"), [1]);
}

#[tokio::test]
async fn a_repository_given_twice_is_one() {
    let directory = Directory::new();
    directory.model("m");
    std::os::unix::fs::symlink(directory.path(), directory.path().join(".again")).unwrap();
    let (path, again) = (directory.path(), directory.path().join(".again"));
    let twice = Options { repositories: vec![path.clone(), path, again], ..options(&[], POLL) };
    let repository = Repository::start(twice, Arc::new(FakeLoader::default())).await.unwrap();
    assert_eq!(repository.ready_versions("m"), [1], "{:?}", index(&repository).await);
    let twice = Options { mode: super::fake::explicit(), ..repository.control.options.clone() };
    let repository = Repository::start(twice, Arc::new(FakeLoader::default())).await.unwrap();
    super::fake::load(&repository, "m").await.unwrap();
}

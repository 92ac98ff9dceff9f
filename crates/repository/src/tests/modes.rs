//! What is loaded without a request: at startup and when directories change.

use std::{fs, sync::Arc, time::Duration};

use super::fake::{self, Directory, FakeLoader, GARBAGE, index, options, start, until};
use crate::{ControlError, ControlMode, Overrides, Repository, ResolveError, changes::ChangeDetector, polling};

#[tokio::test]
async fn everything_is_loaded_and_a_broken_model_stops_nothing() {
    let directory = Directory::new();
    for number in 0..30 {
        directory.model(&format!("m{number:02}"));
    }
    directory.write("m07/1/model.onnx", GARBAGE);
    let (repository, _) = start(&directory, ControlMode::None).await;
    let (ready, broken): (Vec<_>, Vec<_>) = index(&repository).await.into_iter().partition(|entry| entry[2] == "READY");
    assert_eq!(ready.len(), 29);
    assert_eq!(broken[0][0], "m07");
    assert_eq!(repository.index(true).await.len(), 29);
    assert!(!repository.ready(), "one that should be loaded is not");
    let names: Vec<String> = repository.loaded().iter().map(|version| version.spec().name.clone()).collect();
    assert!(names.is_sorted() && names.len() == 29);
    let refusal = repository.resolve("m07", "").unwrap_err();
    assert_eq!(refusal, ResolveError::NoAvailableVersion { name: "m07".to_owned() });
}

#[tokio::test]
async fn readiness_that_is_not_strict_waits_for_no_model() {
    let directory = Directory::new();
    directory.write("broken/1/model.onnx", GARBAGE);
    let lenient = crate::Options { strict_readiness: false, ..options(&[&directory], ControlMode::None) };
    let repository = Repository::start(lenient, Arc::new(FakeLoader::default())).await.unwrap();
    assert!(repository.ready());
}

#[tokio::test]
async fn clients_decide_in_explicit_mode_only() {
    let directory = Directory::new();
    directory.model("m");
    for mode in [ControlMode::None, ControlMode::Poll { period: Duration::from_secs(3600) }] {
        let (repository, _) = start(&directory, mode).await;
        assert_eq!(repository.control_allowed(), Err(ControlError::NotExplicit));
        assert_eq!(repository.load("m", Overrides::default()).await, Err(ControlError::NotExplicit));
        assert_eq!(repository.unload("m", false).await, Err(ControlError::NotExplicit));
        assert_eq!(repository.is_ready("m", ""), Ok(true));
    }
}

#[tokio::test]
async fn explicit_mode_loads_what_the_command_line_names() {
    let directory = Directory::new();
    directory.model("a").model("b");
    let named =
        |names: &[&str]| ControlMode::Explicit { startup: names.iter().map(|name| (*name).to_owned()).collect() };
    let (repository, _) = start(&directory, named(&["b"])).await;
    assert_eq!((repository.is_ready("a", ""), repository.is_ready("b", "")), (Ok(false), Ok(true)));
    let (repository, _) = start(&directory, named(&["*"])).await;
    assert_eq!(repository.loaded().len(), 2);
    let (repository, _) = start(&directory, named(&["a", "nope"])).await;
    assert_eq!(repository.is_ready("a", ""), Ok(true));
    assert!(!repository.ready(), "a model that was asked for is not there");
    let missing = index(&repository).await.into_iter().find(|entry| entry[0] == "nope").unwrap();
    assert_eq!(missing[2], "UNAVAILABLE");
}

#[tokio::test]
async fn versions_are_asked_for_by_number() {
    let directory = Directory::new();
    directory.write("m/config.pbtxt", "version_policy { all { } }");
    for version in ["1", "3", "10", "02", "x"] {
        directory.write(&format!("m/{version}/model.onnx"), "good");
    }
    let (repository, _) = start(&directory, ControlMode::None).await;
    assert_eq!(repository.ready_versions("m"), [1, 3, 10]);
    assert_eq!(repository.resolve("m", "").unwrap().spec().version, 10, "the latest");
    assert_eq!(repository.resolve("m", "3").unwrap().spec().version, 3);
    let unknown = repository.resolve("m", "9").unwrap_err();
    assert_eq!(unknown, ResolveError::UnknownVersion { name: "m".to_owned(), version: 9 });
    for bad in ["abc", "-1", "0", "1.0", " 1", "+1", "99999999999999999999"] {
        let refusal = Err(ResolveError::BadVersion { given: bad.to_owned() });
        assert_eq!(repository.is_ready("m", bad), refusal);
        assert_eq!(repository.is_ready("nope", bad), refusal, "whatever the model");
    }
    assert_eq!(repository.is_ready("nope", "1"), Ok(false));
}

#[tokio::test]
async fn a_name_in_two_repositories_is_refused_with_both() {
    let (one, two) = (Directory::new(), Directory::new());
    one.model("m").model("a");
    two.model("m").model("b");
    let both = options(&[&one, &two], ControlMode::None);
    let repository = Repository::start(both, Arc::new(FakeLoader::default())).await.unwrap();
    assert_eq!(repository.loaded().len(), 2, "the others are served");
    let refused = index(&repository).await.into_iter().find(|entry| entry[0] == "m").unwrap();
    for directory in [&one, &two] {
        assert!(refused[3].contains(&*directory.path().to_string_lossy()), "{}", refused[3]);
    }
    let both = options(&[&one, &two], fake::explicit());
    let repository = Repository::start(both, Arc::new(FakeLoader::default())).await.unwrap();
    let refusal = repository.load("m", Overrides::default()).await.unwrap_err();
    assert!(matches!(refusal, ControlError::NoPlace { .. }), "{refusal}");
    assert!(repository.ready(), "nothing was tried");
    fs::rename(two.path(), two.path().with_extension("aside")).unwrap();
    let refusal = repository.load("b", Overrides::default()).await.unwrap_err();
    assert!(matches!(refusal, ControlError::NoPlace { .. }), "not an unknown model: {refusal}");
    fs::rename(two.path().with_extension("aside"), two.path()).unwrap();
}

#[tokio::test]
async fn linked_model_and_version_directories_are_followed() {
    let (elsewhere, directory) = (Directory::new(), Directory::new());
    elsewhere.model("real").write("v5/model.onnx", "good");
    let link = |target: &str, name: &str| {
        std::os::unix::fs::symlink(elsewhere.path().join(target), directory.path().join(name)).unwrap();
    };
    link("real", "linked");
    directory.model("m");
    link("v5", "m/5");
    let (repository, _) = start(&directory, ControlMode::None).await;
    assert_eq!(repository.ready_versions("linked"), [1]);
    assert_eq!(repository.ready_versions("m"), [5]);
}

/// A repository in poll mode over one directory, its loader, and a change detector for the test's own polls.
async fn polled(directory: &Directory) -> (Arc<Repository>, Arc<FakeLoader>, ChangeDetector) {
    let loader = Arc::new(FakeLoader::default());
    let mode = ControlMode::Poll { period: Duration::from_secs(3600) };
    let (repository, detector) = fake::polled(options(&[directory], mode), loader.clone()).await;
    (repository, loader, detector)
}

#[tokio::test]
async fn polling_loads_what_changed_once_it_holds_still() {
    let directory = Directory::new();
    directory.model("same").model("changes").model("goes");
    let (repository, loader, mut detector) = polled(&directory).await;
    assert!(!polling::poll_again(&repository.control, &mut detector).await, "nothing new");

    directory.write("changes/2/model.onnx", GARBAGE).model("comes");
    fs::remove_dir_all(directory.path().join("goes")).unwrap();
    assert!(polling::poll_again(&repository.control, &mut detector).await, "something new, left alone for now");
    assert_eq!(repository.ready_versions("changes"), [1]);
    directory.write("changes/2/model.onnx", "good, and whole");
    polling::poll_again(&repository.control, &mut detector).await;
    assert_eq!(repository.ready_versions("changes"), [1], "it was still being written");
    assert_eq!(repository.is_ready("comes", ""), Ok(true));
    assert_eq!(repository.is_ready("goes", ""), Ok(false));
    polling::poll_again(&repository.control, &mut detector).await;
    assert_eq!(repository.ready_versions("changes"), [2]);
    assert!(!polling::poll_again(&repository.control, &mut detector).await);
    assert_eq!(loader.loads_of("changes"), [2], "loaded once");
    assert!(loader.loads_of("same").is_empty(), "what did not change is left alone");
}

#[tokio::test]
async fn a_bad_change_keeps_the_old_version_until_it_is_repaired() {
    let directory = Directory::new();
    directory.model("m");
    let (repository, _, mut detector) = polled(&directory).await;
    directory.write("m/config.pbtxt", "max_batch_size: [");
    for _ in 0..3 {
        polling::poll_again(&repository.control, &mut detector).await;
    }
    assert_eq!(repository.ready_versions("m"), [1]);
    assert!(index(&repository).await[0][3].contains("config.pbtxt:1:17"), "{:?}", index(&repository).await);
    directory.write("m/config.pbtxt", "max_batch_size: 32");
    for _ in 0..2 {
        polling::poll_again(&repository.control, &mut detector).await;
    }
    assert_eq!(repository.resolve("m", "").unwrap().spec().max_batch_size, 32);
    assert_eq!(index(&repository).await[0][3], "");
}

#[tokio::test]
async fn the_poller_runs_by_itself() {
    let directory = Directory::new();
    directory.model("m");
    let (repository, _) = start(&directory, ControlMode::Poll { period: Duration::from_millis(1) }).await;
    directory.write("m/2/model.onnx", "good");
    until(&repository, |repository| repository.ready_versions("m") == [2]).await;
}

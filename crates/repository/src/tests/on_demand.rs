//! Models that requests load, and what makes room for them.

use std::{
    fs,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use bytes::Bytes;
use paternoster_observe::ResidencyReading;
use tokio::{
    task::JoinHandle,
    time::{advance, pause, resume, sleep},
};

use super::fake::{Directory, FakeLoader, GARBAGE, explicit, index, load, options, start_with, states, until};
use crate::{
    ControlError, ControlMode, ModelVersion, Options, Overrides, Repository, Requester, ResidencyOptions, ResolveError,
    changes::ChangeDetector, control::on_demand::MAX_WAITING, polling,
};

const LONG: Duration = Duration::from_secs(3600);

/// Bytes that hold one model of the fake loader, but not two.
const ONE_MODEL: usize = (1 << 20) + 4096;
/// The client of requests for which it does not matter.
const CLIENT: Requester = Requester::Connection(0);
/// The same of a pipeline.
const ONE_PIPELINE: usize = 128 << 10;

fn on_demand(startup: &[&str]) -> ControlMode {
    ControlMode::OnDemand { startup: startup.iter().map(|&name| name.to_owned()).collect(), period: LONG }
}

async fn start(directory: &Directory, change: impl FnOnce(&mut Options)) -> (Arc<Repository>, Arc<FakeLoader>) {
    start_with(directory, |options| {
        options.mode = on_demand(&[]);
        change(options);
    })
    .await
}

/// Starts with a budget for this many models.
async fn start_within(directory: &Directory, models: usize) -> (Arc<Repository>, Arc<FakeLoader>) {
    let residency = ResidencyOptions {
        memory_budget: Some(models * ONE_MODEL),
        load_timeout: Duration::from_secs(60),
        ..ResidencyOptions::default()
    };
    start(directory, |options| options.residency = residency).await
}

async fn version(repository: &Repository, name: &str) -> Result<Arc<ModelVersion>, ResolveError> {
    repository.resolve_or_load(name, "", CLIENT).await
}

async fn request(repository: &Repository, name: &str) -> Result<(), ResolveError> {
    version(repository, name).await.map(drop)
}

type Waiting = JoinHandle<Result<Arc<ModelVersion>, ResolveError>>;

fn waits(repository: &Arc<Repository>, name: &str) -> Waiting {
    waits_as(repository, name, CLIENT)
}

fn waits_as(repository: &Arc<Repository>, name: &str, requester: Requester) -> Waiting {
    let (repository, name) = (Arc::clone(repository), name.to_owned());
    tokio::spawn(async move { repository.resolve_or_load(&name, "", requester).await })
}

/// Loads a model, which takes this long in virtual time.
async fn load_taking(repository: &Arc<Repository>, loader: &FakeLoader, name: &str, took: Duration) {
    loader.hold(name);
    let waiting = waits(repository, name);
    takes(loader, name, took).await;
    waiting.await.unwrap().unwrap();
}

/// Lets the load of a model that is held take this long in virtual time.
async fn takes(loader: &FakeLoader, name: &str, took: Duration) {
    for look in 1_u32.. {
        if loader.is_loading(name) {
            break;
        }
        tokio::task::yield_now().await;
        // The load may wait for a timer before it has a thread.
        if look.is_multiple_of(1000) {
            advance(Duration::from_millis(1)).await;
        }
    }
    advance(took).await;
    loader.release(name);
}

/// Waits until this many requests wait for models.
async fn until_waiting(repository: &Repository, count: usize) {
    while repository.residency().waiting != count {
        tokio::task::yield_now().await;
    }
}

/// Lets a minute pass, after which every model has stayed long enough and every load may be tried again.
async fn let_all_have_stayed() {
    pause();
    advance(Duration::from_secs(61)).await;
    resume();
}

fn ready(repository: &Repository) -> Vec<String> {
    repository.loaded().iter().map(|version| version.spec().name.clone()).collect()
}

fn row(name: &str, version: &str, state: &str, reason: &str) -> [String; 4] {
    [name, version, state, reason].map(str::to_owned)
}

fn text(error: ResolveError) -> String {
    error.to_string()
}

#[tokio::test]
async fn a_request_loads_its_model_and_probes_do_not() {
    let directory = Directory::new();
    directory.model("a").model("b").write("c/1/model.onnx", GARBAGE);
    let (repository, loader) = start(&directory, |_| {}).await;
    assert!(repository.ready(), "nothing stays loaded");
    let known = ["a", "b", "c"].map(|name| row(name, "", "ON_DEMAND", ""));
    assert_eq!(index(&repository).await, known);
    assert_eq!(repository.is_ready("a", ""), Ok(false));
    assert_eq!(repository.look_up("a", "").unwrap_err(), ResolveError::NotLoaded { name: "a".to_owned() });
    assert!(loader.requests.lock().is_empty(), "nothing of this loads a model");

    let version = version(&repository, "a").await.unwrap();
    assert_eq!(version.spec().version, 1);
    assert_eq!(index(&repository).await[..2], [row("a", "1", "READY", ""), known[1].clone()]);
    assert_eq!(repository.is_ready("a", ""), Ok(true));
    let of_other_versions = repository.resolve_or_load("b", "7", CLIENT).await.unwrap_err();
    assert_eq!(of_other_versions, ResolveError::UnknownVersion { name: "b".to_owned(), version: 7 });
    assert_eq!(loader.loads_of("b"), [1]);
    request(&repository, "a").await.unwrap();
    let ResidencyReading { hits, .. } = repository.residency();
    assert_eq!((hits, loader.loads_of("a").len()), (1, 1));
    assert!(repository.ready());
}

#[tokio::test]
async fn invented_names_are_not_found_and_never_looked_for_on_disk() {
    let directory = Directory::new();
    directory.model("a");
    let (repository, loader) = start(&directory, |_| {}).await;
    directory.model("new");
    for name in ["new", "../a", "", "a/1"] {
        let unknown = ResolveError::UnknownModel { name: name.to_owned() };
        assert_eq!(request(&repository, name).await, Err(unknown));
    }
    let bad = repository.resolve_or_load("a", "x", CLIENT).await.unwrap_err();
    assert_eq!(bad, ResolveError::BadVersion { given: "x".to_owned() });
    assert!(loader.requests.lock().is_empty());
    assert_eq!(index(&repository).await, [row("a", "", "ON_DEMAND", "")]);
}

#[tokio::test]
async fn requests_for_one_model_share_one_load_and_one_that_leaves_does_not_end_it() {
    let directory = Directory::new();
    directory.model("m");
    let (repository, loader) = start(&directory, |_| {}).await;
    loader.hold("m");
    let requests: Vec<_> = (0..20).map(|_| waits(&repository, "m")).collect();
    until_waiting(&repository, 20).await;
    until(&repository, |repository| states(repository)[0][2] == "LOADING").await;
    assert_eq!(repository.is_ready("m", ""), Ok(false));
    requests[..19].iter().for_each(JoinHandle::abort);
    until_waiting(&repository, 1).await;
    loader.release("m");
    let last = requests.into_iter().next_back().expect("twenty");
    assert_eq!(last.await.unwrap().unwrap().spec().name, "m");
    assert_eq!(loader.loads_of("m"), [1]);
    assert_eq!(repository.residency().waiting, 0);
}

#[tokio::test]
async fn a_load_that_no_request_waits_for_ends() {
    let directory = Directory::new();
    directory.model("m");
    let (repository, loader) = start(&directory, |_| {}).await;
    let stats = repository.stats();
    for _ in 0..3 {
        loader.hold("m");
        let only = waits(&repository, "m");
        until(&repository, |repository| states(repository)[0][2] == "LOADING").await;
        only.abort();
        until(&repository, |repository| states(repository)[0][2..] == ["ON_DEMAND", ""]).await;
        loader.release("m");
        assert_eq!(stats.residency.failed_loads.load(Ordering::Relaxed), 0, "nothing is wrong with the model");
    }
    assert!(loader.loads_of("m").is_empty());
    request(&repository, "m").await.unwrap();
}

#[tokio::test]
async fn a_request_that_comes_when_the_others_have_left_is_answered() {
    let directory = Directory::new();
    directory.model("m");
    let (repository, loader) = start(&directory, |_| {}).await;
    for _ in 0..20 {
        loader.hold("m");
        let first = waits(&repository, "m");
        until(&repository, |repository| states(repository)[0][2] == "LOADING").await;
        first.abort();
        assert!(first.await.unwrap_err().is_cancelled());
        // The first load may still be ending.
        let second = waits(&repository, "m");
        loader.release("m");
        second.await.unwrap().unwrap();
        repository.unload("m", false).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_load_without_requests_evicts_nothing() {
    let directory = Directory::new();
    directory.model("used").model("other");
    let residency = ResidencyOptions { memory_budget: Some(ONE_MODEL), ..ResidencyOptions::default() };
    let (repository, loader) = start(&directory, |options| options.residency = residency).await;
    let in_flight = version(&repository, "used").await.unwrap();
    let waiting = waits(&repository, "other");
    until_waiting(&repository, 1).await;
    waiting.abort();
    until_waiting(&repository, 0).await;
    drop(in_flight);
    sleep(Duration::from_secs(90)).await;
    assert_eq!((ready(&repository), loader.loads_of("other")), (vec!["used".to_owned()], Vec::new()));
}

#[tokio::test]
async fn loads_that_wait_are_taken_in_turn_from_clients() {
    let directory = Directory::new();
    let names: Vec<String> = (0..8).map(|number| format!("m{number}")).collect();
    for name in &names {
        directory.model(name);
    }
    directory.model("other");
    let (repository, loader) = start(&directory, |options| options.load_threads = 1).await;
    loader.hold("m0");
    let greedy: Vec<_> = names.iter().map(|name| waits_as(&repository, name, Requester::Connection(1))).collect();
    until_waiting(&repository, names.len()).await;
    while !loader.is_loading("m0") {
        tokio::task::yield_now().await;
    }
    let other = waits_as(&repository, "other", Requester::Connection(2));
    let is_loading = |name: &str, repository: &Repository| repository.states_of(name)[0].state == "LOADING";
    until(&repository, |repository| is_loading("other", repository)).await;
    assert!(!is_loading("m1", &repository), "it is not begun");
    greedy[3].abort();
    loader.release("m0");
    other.await.unwrap().unwrap();
    for (number, waiting) in greedy.into_iter().enumerate().filter(|(number, _)| *number != 3) {
        waiting.await.unwrap().unwrap_or_else(|fault| panic!("{number}: {fault}"));
    }
    let loaded: Vec<String> = loader.requests.lock().iter().map(|request| request.spec.name.clone()).collect();
    assert_eq!(loaded, ["m0", "other", "m1", "m2", "m4", "m5", "m6", "m7"]);
}

#[tokio::test]
async fn a_model_that_several_clients_ask_for_is_loaded_in_the_first_turn() {
    let directory = Directory::new();
    directory.model("slow").model("m");
    let (repository, loader) = start(&directory, |options| options.load_threads = 2).await;
    loader.hold("slow");
    let slow = waits_as(&repository, "slow", Requester::Connection(1));
    until_waiting(&repository, 1).await;
    let requests = [1, 1, 2].map(|client| waits_as(&repository, "m", Requester::Connection(client)));
    for request in requests {
        request.await.unwrap().unwrap();
    }
    assert_eq!(loader.loads_of("m"), [1]);
    loader.release("slow");
    slow.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_load_that_fails_gives_every_request_its_reason_and_the_next_load_waits_longer_each_time() {
    let directory = Directory::new();
    directory.write("m/1/model.onnx", GARBAGE);
    let (repository, _) = start(&directory, |_| {}).await;
    let stats = repository.stats();
    let loads = || stats.residency.loads.load(Ordering::Relaxed);
    let requests: Vec<_> = (0..3).map(|_| waits(&repository, "m")).collect();
    let mut faults = Vec::new();
    for request in requests {
        faults.push(request.await.unwrap().unwrap_err());
    }
    let seconds_to_retry = |fault: &ResolveError| match fault {
        ResolveError::NotLoadable { retry, .. } => retry.as_secs_f64(),
        other => panic!("{other}"),
    };
    for fault in &faults {
        let text = fault.to_string();
        assert!(text.starts_with("model 'm' could not be loaded: version 1") && text.contains("protobuf"), "{text}");
        assert!((0.5..=1.0).contains(&seconds_to_retry(fault)), "{text}");
    }
    pause();
    for seconds in [1, 2, 4, 8, 16, 32, 60, 60] {
        let failures = loads();
        let fault = request(&repository, "m").await.unwrap_err();
        assert_eq!(loads(), failures, "at once, without a load");
        assert!(seconds_to_retry(&fault) <= f64::from(seconds), "{fault}");
        advance(Duration::from_secs_f64(seconds_to_retry(&fault)) + Duration::from_millis(1)).await;
        let fault = request(&repository, "m").await.unwrap_err();
        assert_eq!(loads(), failures + 1);
        let next = f64::from((seconds * 2).min(60));
        assert!((next - 0.5..=next).contains(&seconds_to_retry(&fault)), "{seconds}: {fault}");
    }
    assert_eq!(index(&repository).await[0][2], "UNAVAILABLE");
    assert!(repository.ready(), "readiness does not depend on it");
    resume();
}

#[tokio::test]
async fn a_change_of_the_directory_ends_the_wait_after_a_failure_and_reloads_what_is_loaded() {
    let directory = Directory::new();
    directory.write("m/1/model.onnx", GARBAGE).model("old").model("other");
    let (repository, loader) = start(&directory, |_| {}).await;
    let mut detector = ChangeDetector::default();
    polling::first_poll(&repository.control, &mut detector).await;
    request(&repository, "m").await.unwrap_err();
    request(&repository, "old").await.unwrap();
    directory.model("m").model("new").write("old/2/model.onnx", "good").write("other/2/model.onnx", "good");
    for _ in 0..2 {
        polling::poll_again(&repository.control, &mut detector).await;
    }
    request(&repository, "m").await.unwrap();
    assert_eq!(repository.ready_versions("old"), [2], "it is loaded again");
    assert!(loader.loads_of("other").is_empty(), "it is not loaded because it changed");
    request(&repository, "new").await.unwrap();

    fs::remove_dir_all(directory.path().join("old")).unwrap();
    fs::remove_dir_all(directory.path().join("other")).unwrap();
    for _ in 0..2 {
        polling::poll_again(&repository.control, &mut detector).await;
    }
    for name in ["old", "other"] {
        let gone = request(&repository, name).await.unwrap_err();
        assert_eq!(gone, ResolveError::UnknownModel { name: name.to_owned() });
    }
    let known: Vec<String> = index(&repository).await.into_iter().map(|[name, ..]| name).collect();
    assert_eq!(known, ["m", "new"], "what is gone is forgotten");
}

#[cfg(feature = "text")]
#[tokio::test]
async fn models_that_take_texts_are_known_before_they_are_loaded() {
    let directory = Directory::new();
    directory.model("plain").write("laid-out/model.onnx", "good").write("laid-out/tokenizer.json", "{}");
    directory.model("section").write("section/model.yaml", "text: {}");
    directory.write("steps/model.yaml", "pipeline: [{ tokenize: { inputs: { TEXT: TEXT }, outputs: { ids: ids } } }]");
    let (repository, _) = start(&directory, |_| {}).await;
    assert_eq!(repository.loadable_texts(), ["laid-out", "section", "steps"]);
    request(&repository, "section").await.expect_err("it has no tokenizer");
    assert_eq!(repository.loadable_texts(), ["laid-out", "steps"], "it cannot be loaded");

    let mut detector = ChangeDetector::default();
    polling::first_poll(&repository.control, &mut detector).await;
    fs::remove_file(directory.path().join("laid-out/tokenizer.json")).unwrap();
    directory.write("new/onnx/model.onnx", "good").write("new/tokenizer.json", "{}");
    poll_twice(&repository, &mut detector).await;
    assert_eq!(repository.loadable_texts(), ["new", "steps"]);
}

/// Polls until a change of the directories has been acted on.
async fn poll_twice(repository: &Repository, detector: &mut ChangeDetector) {
    for _ in 0..2 {
        polling::poll_again(&repository.control, detector).await;
    }
}

#[tokio::test]
async fn a_changed_model_is_loaded_again_where_there_is_no_room_for_old_and_new() {
    for pin in ["", "pin: true"] {
        let directory = Directory::new();
        directory.model("m").write("m/model.yaml", pin);
        let (repository, _) = start_within(&directory, 1).await;
        let mut detector = ChangeDetector::default();
        polling::first_poll(&repository.control, &mut detector).await;
        request(&repository, "m").await.unwrap();
        directory.write("m/2/model.onnx", "good");
        poll_twice(&repository, &mut detector).await;
        assert_eq!(repository.ready_versions("m"), [2], "{pin}");
        load(&repository, "m").await.unwrap();
        assert_eq!((repository.ready_versions("m"), repository.ready()), (vec![2], true), "{pin}");
        directory.write("m/3/model.onnx", GARBAGE);
        load(&repository, "m").await.unwrap_err();
        assert_eq!(repository.ready(), pin.is_empty(), "readiness waits for what is to stay loaded");
    }
}

#[tokio::test]
async fn nothing_is_wrong_with_a_model_that_is_unloaded_while_requests_wait_for_it() {
    let directory = Directory::new();
    directory.model("m");
    let (repository, loader) = start(&directory, |_| {}).await;
    let stats = repository.stats();
    for _ in 0..3 {
        loader.hold("m");
        let waiting = waits(&repository, "m");
        until(&repository, |repository| states(repository)[0][2] == "LOADING").await;
        repository.unload("m", false).await.unwrap();
        let fault = text(waiting.await.unwrap().unwrap_err());
        assert!(fault.contains("the model is being unloaded"), "{fault}");
        loader.release("m");
        request(&repository, "m").await.unwrap();
        repository.unload("m", false).await.unwrap();
    }
    assert_eq!(stats.residency.failed_loads.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn a_load_of_a_client_that_succeeds_ends_the_wait_after_a_failure() {
    let directory = Directory::new();
    directory.write("m/1/model.onnx", GARBAGE);
    let (repository, _) = start(&directory, |_| {}).await;
    request(&repository, "m").await.unwrap_err();
    directory.model("m");
    load(&repository, "m").await.unwrap();
    repository.unload("m", false).await.unwrap();
    request(&repository, "m").await.unwrap();
}

#[tokio::test]
async fn requests_that_wait_for_models_are_answered_before_the_server_ends() {
    let directory = Directory::new();
    directory.model("m").model("other");
    let (repository, loader) = start(&directory, |_| {}).await;
    request(&repository, "other").await.unwrap();
    loader.hold("m");
    let waiting = waits(&repository, "m");
    until_waiting(&repository, 1).await;
    repository.end_loads_on_demand();
    for fault in [waiting.await.unwrap().unwrap_err(), request(&repository, "m").await.unwrap_err()] {
        let fault = text(fault);
        assert!(fault.contains("the server is shutting down"), "{fault}");
    }
    request(&repository, "other").await.unwrap();
}

#[tokio::test]
async fn a_load_that_hangs_is_ended_and_its_requests_do_not_wait_longer() {
    let directory = Directory::new();
    directory.model("m");
    let limit = Duration::from_millis(50);
    let residency = ResidencyOptions { load_timeout: limit, ..ResidencyOptions::default() };
    let (repository, loader) = start(&directory, |options| options.residency = residency).await;
    loader.hold("m");
    let fault = request(&repository, "m").await.unwrap_err();
    assert_eq!(fault, ResolveError::NotInTime { name: "m".to_owned(), limit });
    assert_eq!(text(fault), "model 'm' was not loaded within 50ms (--load-timeout-secs)");
    until(&repository, |repository| states(repository)[0][2] == "UNAVAILABLE").await;
    let reason = "it has not loaded within 50ms (--load-timeout-secs)";
    assert!(states(&repository)[0][3].contains(reason), "{:?}", states(&repository));
    let fault = loop {
        match request(&repository, "m").await.unwrap_err() {
            ResolveError::NotInTime { .. } => {}
            fault => break text(fault),
        }
    };
    assert!(fault.contains(reason), "{fault}");
}

#[tokio::test]
async fn no_more_requests_wait_than_may() {
    let directory = Directory::new();
    directory.model("m");
    let (repository, loader) = start(&directory, |_| {}).await;
    loader.hold("m");
    let of_client = |client| (0..MAX_WAITING / 4).map(move |_| Requester::Connection(client));
    let wait = |requester| waits_as(&repository, "m", requester);
    let mut requests: Vec<_> = of_client(0).map(wait).collect();
    until_waiting(&repository, MAX_WAITING / 4).await;
    let refused = request(&repository, "m").await.unwrap_err();
    let expected = "model 'm' is not loaded, and 256 requests of this client wait for models already, the limit";
    assert_eq!(text(refused), expected);
    requests.extend((1..4).flat_map(of_client).map(wait));
    until_waiting(&repository, MAX_WAITING).await;
    let refused = waits_as(&repository, "m", Requester::Connection(4)).await.unwrap().unwrap_err();
    assert_eq!(text(refused), "model 'm' is not loaded, and 1024 requests wait for models already, the limit");
    loader.release("m");
    for request in requests {
        request.await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn the_least_recently_used_model_leaves_for_another() {
    let directory = Directory::new();
    directory.model("a").model("b").model("c");
    let (repository, loader) = start_within(&directory, 2).await;
    for name in ["a", "b", "a"] {
        request(&repository, name).await.unwrap();
    }
    let_all_have_stayed().await;
    request(&repository, "c").await.unwrap();
    assert_eq!(ready(&repository), ["a", "c"]);
    let shown = index(&repository).await;
    assert_eq!(shown[1], row("b", "1", "ON_DEMAND", ""));
    let ResidencyReading { memory, models, .. } = repository.residency();
    let estimates: usize = models.iter().map(|model| model.estimated_bytes).sum();
    assert_eq!(memory, Some((estimates, 2 * ONE_MODEL)));
    let_all_have_stayed().await;
    request(&repository, "b").await.unwrap();
    assert_eq!((ready(&repository), loader.loads_of("b").len()), (vec!["b".to_owned(), "c".to_owned()], 2));
}

#[tokio::test]
async fn two_models_that_evict_each_other_are_both_served() {
    let directory = Directory::new();
    directory.model("a").model("b");
    let (repository, _) = start_within(&directory, 1).await;
    for _ in 0..5 {
        for name in ["a", "b"] {
            request(&repository, name).await.unwrap();
            assert_eq!(ready(&repository), [name]);
        }
    }
    assert_eq!(tokio::join!(request(&repository, "a"), request(&repository, "b")), (Ok(()), Ok(())), "at once");
}

#[tokio::test]
async fn a_budget_below_one_model_is_refused_with_the_flag() {
    let directory = Directory::new();
    directory.model("m");
    let residency = ResidencyOptions { memory_budget: Some(1000), ..ResidencyOptions::default() };
    let (repository, loader) = start(&directory, |options| options.residency = residency).await;
    let refused = request(&repository, "m").await.unwrap_err();
    assert!(matches!(refused, ResolveError::NoMemory { .. }), "{refused:?}");
    let refused = text(refused);
    let expected = "model 'm' could not be loaded: no memory: it takes 1048584 bytes, more than --memory-budget-bytes \
                    (1000)";
    assert_eq!(refused, expected);
    assert!(loader.requests.lock().is_empty());
}

#[tokio::test]
async fn a_model_with_requests_stays_until_they_end() {
    let directory = Directory::new();
    directory.model("a").model("b");
    let (repository, _) = start_within(&directory, 1).await;
    let in_flight = version(&repository, "a").await.unwrap();
    let waiting = waits(&repository, "b");
    until_waiting(&repository, 1).await;
    drop(in_flight);
    waiting.await.unwrap().unwrap();
    assert_eq!(ready(&repository), ["b"], "it left once its request had ended");
}

#[tokio::test(start_paused = true)]
async fn a_model_that_is_used_more_stays_while_others_wait_for_ten_times_its_load() {
    let directory = Directory::new();
    directory.model("used").model("other");
    let residency = ResidencyOptions { memory_budget: Some(ONE_MODEL), ..ResidencyOptions::default() };
    let (repository, loader) = start(&directory, |options| options.residency = residency).await;
    let use_for = async |tenths: u32| {
        for _ in 0..tenths {
            request(&repository, "used").await.unwrap();
            sleep(Duration::from_millis(100)).await;
        }
    };
    load_taking(&repository, &loader, "used", Duration::from_secs(1)).await;
    use_for(110).await;
    let waiting = waits(&repository, "other");
    use_for(95).await;
    assert_eq!((loader.loads_of("used").len(), waiting.is_finished()), (1, false), "it has stayed long enough");
    waiting.await.unwrap().unwrap();
    assert_eq!(ready(&repository), ["other"]);
}

#[tokio::test(start_paused = true)]
async fn a_busy_model_leaves_for_one_that_has_waited_for_ten_times_its_load() {
    let directory = Directory::new();
    directory.model("busy").model("other");
    let residency = ResidencyOptions { memory_budget: Some(ONE_MODEL), ..ResidencyOptions::default() };
    let (repository, loader) = start(&directory, |options| options.residency = residency).await;
    load_taking(&repository, &loader, "busy", Duration::from_millis(100)).await;
    for round in 0..3 {
        let in_flight = version(&repository, "busy").await.unwrap();
        sleep(Duration::from_millis(1100)).await;
        let waiting = waits(&repository, "other");
        sleep(Duration::from_millis(900)).await;
        let also_in_flight = version(&repository, "busy").await.unwrap();
        assert!(!waiting.is_finished(), "round {round}: nine times its load");
        sleep(Duration::from_millis(300)).await;
        let held_off = waits(&repository, "busy");
        sleep(Duration::from_millis(300)).await;
        assert!(!held_off.is_finished() && !waiting.is_finished(), "round {round}: it has requests to answer");
        assert_eq!(repository.states_of("busy")[0].state, "READY");
        loader.hold("busy");
        drop((in_flight, also_in_flight));
        waiting.await.unwrap().unwrap();
        // The other one's load took no time, so it need not stay.
        takes(&loader, "busy", Duration::from_millis(100)).await;
        held_off.await.unwrap().unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_model_that_cannot_leave_in_time_takes_requests_again() {
    let directory = Directory::new();
    directory.model("busy").model("other");
    let residency = ResidencyOptions {
        memory_budget: Some(ONE_MODEL),
        load_timeout: Duration::from_secs(20),
        ..ResidencyOptions::default()
    };
    let (repository, loader) = start(&directory, |options| options.residency = residency).await;
    load_taking(&repository, &loader, "busy", Duration::from_millis(100)).await;
    let in_flight = version(&repository, "busy").await.unwrap();
    let waiting = waits(&repository, "other");
    sleep(Duration::from_secs(3)).await;
    assert_eq!(repository.is_ready("busy", ""), Ok(false), "it takes no requests");
    let held_off = waits(&repository, "busy");
    let refused = text(waiting.await.unwrap().unwrap_err());
    assert!(refused.ends_with("held by 'busy' (1048584 bytes, busy)"), "{refused}");
    assert!(Arc::ptr_eq(&held_off.await.unwrap().unwrap(), &in_flight), "it is not loaded again");
    assert_eq!((repository.is_ready("busy", ""), loader.loads_of("busy").len()), (Ok(true), 1));
    drop(in_flight);
}

#[tokio::test]
async fn pinned_models_are_loaded_at_the_start_and_never_leave() {
    let directory = Directory::new();
    directory.model("by_yaml").write("by_yaml/model.yaml", "pin: true");
    directory.model("by_pbtxt");
    directory.write("by_pbtxt/config.pbtxt", "parameters { key: \"pin\" value { string_value: \"true\" } }");
    directory.model("by_flag").model("other").model("broken");
    directory.write("broken/model.yaml", "pin: true").write("broken/1/model.onnx", GARBAGE);
    let (repository, _) = start(&directory, |options| {
        options.mode = on_demand(&["by_flag"]);
        options.residency.memory_budget = Some(3 * ONE_MODEL);
    })
    .await;
    let pinned = ["by_flag", "by_pbtxt", "by_yaml"];
    assert_eq!(ready(&repository), pinned);
    assert!(!repository.ready(), "one that should be loaded is not");
    let refused = text(request(&repository, "other").await.unwrap_err());
    assert!(refused.contains("'by_yaml' (") && refused.matches("pinned").count() == 3, "{refused}");
    assert_eq!(ready(&repository), pinned);
    repository.unload("by_flag", false).await.unwrap();
    request(&repository, "other").await.unwrap();
    repository.unload("broken", false).await.unwrap();
    assert!(repository.ready());
}

/// A pipeline of models a and b, and another model.
fn with_pipeline() -> Directory {
    let directory = Directory::new();
    directory.model("other");
    write_pipeline(&directory, "p", ["a", "b"]);
    directory
}

/// Writes a pipeline of two models, and these.
fn write_pipeline(directory: &Directory, name: &str, [first, second]: [&str; 2]) {
    let step = |model: &str, from: &str, to: &str| {
        format!("- model: {{ name: {model}, inputs: {{ INPUT0: {from} }}, outputs: {{ OUTPUT0: {to} }} }}\n")
    };
    let tensor = "{ name: X, dtype: FP32, dims: [16] }";
    let text = format!(
        "max_batch_size: 4\ninputs: [{tensor}]\noutputs: [{}]\npipeline:\n{}{}",
        tensor.replace('X', "Y"),
        step(first, "X", "H"),
        step(second, "H", "Y")
    );
    directory.model(first).model(second).write(&format!("{name}/model.yaml"), &text);
}

#[tokio::test]
async fn pipelines_of_which_only_one_has_room_are_loaded_one_after_the_other() {
    let directory = Directory::new();
    write_pipeline(&directory, "p", ["a", "b"]);
    write_pipeline(&directory, "q", ["c", "d"]);
    let residency = ResidencyOptions {
        memory_budget: Some(2 * ONE_MODEL + ONE_PIPELINE),
        load_timeout: Duration::from_secs(20),
        ..ResidencyOptions::default()
    };
    let (repository, _) = start(&directory, |options| options.residency = residency).await;
    for _ in 0..3 {
        assert_eq!(tokio::join!(request(&repository, "p"), request(&repository, "q")), (Ok(()), Ok(())));
    }
}

#[tokio::test]
async fn a_pipeline_whose_model_was_away_is_loaded_again_once_it_is_back() {
    let directory = with_pipeline();
    let (repository, _) = start(&directory, |_| {}).await;
    let mut detector = ChangeDetector::default();
    polling::first_poll(&repository.control, &mut detector).await;
    request(&repository, "p").await.unwrap();
    let elsewhere = Directory::new();
    let [place, away] = [&directory, &elsewhere].map(|directory| directory.path().join("b"));
    fs::rename(&place, &away).unwrap();
    poll_twice(&repository, &mut detector).await;
    let fault = text(request(&repository, "p").await.unwrap_err());
    assert!(fault.contains("'b'"), "{fault}");
    fs::rename(&away, &place).unwrap();
    poll_twice(&repository, &mut detector).await;
    request(&repository, "p").await.unwrap();
    assert_eq!(ready(&repository), ["a", "b", "p"]);
}

#[tokio::test]
async fn a_pipeline_is_loaded_with_its_models_and_they_leave_together() {
    let directory = with_pipeline();
    let (repository, loader) = start_within(&directory, 3).await;
    let in_flight = version(&repository, "p").await.unwrap();
    assert_eq!(ready(&repository), ["a", "b", "p"]);
    request(&repository, "a").await.unwrap();
    assert_eq!(loader.loads_of("a"), [1], "the load of the pipeline");
    drop(in_flight);

    let residency = ResidencyOptions {
        memory_budget: Some(2 * ONE_MODEL + ONE_PIPELINE),
        load_timeout: Duration::from_secs(5),
        ..ResidencyOptions::default()
    };
    let (repository, _) = start(&directory, |options| options.residency = residency).await;
    let in_flight = version(&repository, "p").await.unwrap();
    let refused = text(request(&repository, "other").await.unwrap_err());
    assert!(refused.contains("needed by 'p'") && refused.contains("'p' (") && refused.contains("busy"), "{refused}");
    assert_eq!(ready(&repository), ["a", "b", "p"]);
    drop(in_flight);
    let_all_have_stayed().await;
    request(&repository, "other").await.unwrap();
    assert_eq!(ready(&repository), ["b", "other"], "the pipeline leaves, and as many of its models as it takes");
}

#[tokio::test(start_paused = true)]
async fn models_of_a_pipeline_take_its_requests_until_it_has_left() {
    let directory = with_pipeline();
    let residency = ResidencyOptions {
        memory_budget: Some(2 * ONE_MODEL + ONE_PIPELINE),
        load_timeout: Duration::from_secs(20),
        ..ResidencyOptions::default()
    };
    let (repository, _) = start(&directory, |options| options.residency = residency).await;
    let in_flight = version(&repository, "p").await.unwrap();
    let waiting = waits(&repository, "other");
    sleep(Duration::from_secs(3)).await;
    let are_ready = ["p", "a", "b"].map(|name| repository.is_ready(name, ""));
    assert_eq!(are_ready, [Ok(false), Ok(true), Ok(true)], "the pipeline is to leave, and has a request");
    drop(in_flight);
    waiting.await.unwrap().unwrap();
    assert!(!ready(&repository).contains(&"p".to_owned()));
}

#[tokio::test]
async fn a_client_that_unloads_a_model_unloads_its_pipelines() {
    let directory = with_pipeline();
    let (repository, _) = start(&directory, |_| {}).await;
    request(&repository, "p").await.unwrap();
    repository.unload("b", false).await.unwrap();
    assert_eq!(ready(&repository), ["a"]);
    request(&repository, "p").await.unwrap();
    assert_eq!(ready(&repository), ["a", "b", "p"]);
    repository.unload("p", true).await.unwrap();
    assert_eq!(ready(&repository), Vec::<String>::new());
}

#[tokio::test]
async fn models_without_requests_are_unloaded_after_a_while() {
    let directory = Directory::new();
    directory.model("idle").model("used").model("pinned").write("pinned/model.yaml", "pin: true");
    let residency = ResidencyOptions { idle_unload: Some(Duration::from_millis(20)), ..ResidencyOptions::default() };
    let (repository, _) = start(&directory, |options| options.residency = residency).await;
    let in_flight = version(&repository, "used").await.unwrap();
    request(&repository, "idle").await.unwrap();
    until(&repository, |repository| ready(repository) == ["pinned", "used"]).await;
    drop(in_flight);
    until(&repository, |repository| ready(repository) == ["pinned"]).await;
    request(&repository, "idle").await.unwrap();
}

#[tokio::test]
async fn clients_may_load_and_unload_and_what_they_sent_stays() {
    let directory = Directory::new();
    directory.model("a").model("b").model("c");
    let (repository, loader) = start_within(&directory, 2).await;
    load(&repository, "a").await.unwrap();
    let sent = Overrides {
        config_json: Some("{}".to_owned()),
        files: [("1/model.onnx".to_owned(), Bytes::from_static(b"sent"))].into(),
        held: None,
    };
    repository.load("b", sent).await.unwrap();
    request(&repository, "c").await.unwrap();
    assert_eq!(ready(&repository), ["b", "c"], "the server could not load it again as it was sent");
    repository.unload("b", false).await.unwrap();
    request(&repository, "b").await.unwrap();
    assert_eq!(loader.loads_of("b").len(), 2, "as the directory has it");
}

#[tokio::test]
async fn a_configuration_that_a_client_sent_outlives_an_eviction() {
    let directory = Directory::new();
    directory.model("a").model("b");
    let (repository, _) = start_within(&directory, 1).await;
    let config_json = Some("{\"max_batch_size\": 7}".to_owned());
    repository.load("a", Overrides { config_json, ..Overrides::default() }).await.unwrap();
    request(&repository, "b").await.unwrap();
    let version = version(&repository, "a").await.unwrap();
    assert_eq!(version.spec().max_batch_size, 7);
}

#[tokio::test]
async fn a_repository_that_vanishes_leaves_what_is_loaded() {
    let directory = Directory::new();
    directory.model("models/a").model("models/b");
    let [models, away] = ["models", "away"].map(|name| directory.path().join(name));
    let (repository, _) = start(&directory, |options| options.repositories = vec![models.clone()]).await;
    let mut detector = ChangeDetector::default();
    polling::first_poll(&repository.control, &mut detector).await;
    request(&repository, "a").await.unwrap();
    fs::rename(&models, &away).unwrap();
    for _ in 0..3 {
        polling::poll_again(&repository.control, &mut detector).await;
    }
    request(&repository, "a").await.unwrap();
    let fault = text(request(&repository, "b").await.unwrap_err());
    assert!(fault.starts_with("model 'b' could not be loaded: cannot read"), "{fault}");
    fs::rename(&away, &models).unwrap();
    let_all_have_stayed().await;
    request(&repository, "b").await.unwrap();
}

#[tokio::test]
async fn in_other_modes_a_load_without_room_is_refused() {
    let directory = Directory::new();
    directory.model("a").model("b").model("c");
    let (repository, _) = start_with(&directory, |options| {
        options.mode = explicit();
        options.residency.memory_budget = Some(2 * ONE_MODEL);
    })
    .await;
    load(&repository, "a").await.unwrap();
    load(&repository, "b").await.unwrap();
    let refused = repository.load("c", Overrides::default()).await.unwrap_err();
    assert!(matches!(refused, ControlError::NoMemory { .. }), "{refused:?}");
    let refused = refused.to_string();
    assert!(refused.ends_with("held by 'a' (1048584 bytes, loaded), 'b' (1048584 bytes, loaded)"), "{refused}");
    assert_eq!(ready(&repository), ["a", "b"]);
    repository.unload("a", false).await.unwrap();
    load(&repository, "c").await.unwrap();

    let all = Options { mode: ControlMode::None, ..options(&[&directory], explicit()) };
    let residency = ResidencyOptions { memory_budget: Some(2 * ONE_MODEL), ..ResidencyOptions::default() };
    let repository = Repository::start(Options { residency, ..all }, Arc::new(FakeLoader::default())).await.unwrap();
    assert_eq!(repository.loaded().len(), 2, "the third has its reason in the index");
    assert!(index(&repository).await.iter().any(|entry| entry[3].starts_with("no memory: ")));
}

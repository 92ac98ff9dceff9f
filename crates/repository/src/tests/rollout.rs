//! How requests are divided among the versions of a model.

use std::{
    collections::BTreeMap,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue};
use parking_lot::Mutex;
use paternoster_executor::{InferRequest, ModelHandle, Pool, PoolOptions};
use paternoster_model::{Dims, InputTensor};
use paternoster_observe::{RequestBudgets, ShadowResult, budget::Budget};
use paternoster_onnx::Signature;
use paternoster_testing::program::{FakeProgram, identity};

use super::{
    fake::{Directory, FakeLoader, options, start},
    refusals::Refusals,
};
use crate::{
    ControlMode, LoadAttempt, LoadError, LoadErrorKind, Loader, Options, Repository, Requester, ResolvedVersion,
};

const CLIENT: Requester = Requester::Connection(0);

/// A directory with a model of three versions.
fn directory(rollout: &str) -> Directory {
    let directory = Directory::new();
    directory.write("m/model.yaml", &format!("version_policy: all\nrollout: {rollout}\n"));
    for version in 1..=3 {
        directory.write(&format!("m/{version}/model.onnx"), "good");
    }
    directory
}

async fn served(rollout: &str) -> std::sync::Arc<Repository> {
    let (repository, _) = start(&directory(rollout), ControlMode::None).await;
    assert!(repository.ready(), "{:?}", repository.states());
    repository
}

fn route(repository: &Repository, version: &str, headers: &[(&'static str, &str)]) -> i64 {
    let headers: HeaderMap =
        headers.iter().map(|(name, value)| (name.parse().unwrap(), HeaderValue::from_str(value).unwrap())).collect();
    repository.route("m", version, &repository.caller(&headers, CLIENT)).unwrap().spec().version
}

#[tokio::test]
async fn requests_without_a_version_are_divided_at_random() {
    let repository = served("{ traffic: { 1: 60, 2: 40, 3: 0 } }").await;
    let mut counts = BTreeMap::<i64, u32>::new();
    for _ in 0..2000 {
        *counts.entry(route(&repository, "", &[])).or_default() += 1;
    }
    assert_eq!(counts.keys().copied().collect::<Vec<_>>(), [1, 2], "{counts:?}");
    assert!((600..1000).contains(&counts[&2]), "800 are expected, five deviations are 110: {counts:?}");
    assert_eq!(route(&repository, "3", &[]), 3, "a named version is not divided");
    assert_eq!(repository.resolve("m", "").unwrap().spec().version, 3, "metadata is that of the latest");
}

#[tokio::test]
async fn a_header_decides_and_the_largest_share_has_those_without() {
    let repository = served("{ traffic: { 1: 20, 2: 60, 3: 20 }, header: X-User }").await;
    let of = |user: &str| route(&repository, "", &[("x-user", user)]);
    let first: Vec<i64> = (0..200).map(|user| of(&format!("user {user}"))).collect();
    let again: Vec<i64> = (0..200).map(|user| of(&format!("user {user}"))).collect();
    assert_eq!(first, again, "each client keeps its version");
    assert!([1, 2, 3].iter().all(|version| first.contains(version)), "{first:?}");
    assert!((0..50).all(|_| route(&repository, "", &[]) == 2));
}

#[tokio::test]
async fn a_model_without_shares_is_served_by_the_latest() {
    let repository = served("{ shadow: 1 }").await;
    assert!((0..50).all(|_| route(&repository, "", &[]) == 3));
    assert!(repository.route("other", "", &repository.caller(&HeaderMap::new(), CLIENT)).is_err());
}

pub(super) async fn refusals(all: &mut Refusals) {
    all.title("rollouts of three versions");
    for rollout in [
        "{ traffic: { 1: 95, 4: 5 } }",
        "{ shadow: 9 }",
        "{ traffic: { 1: 0, 2: 0 } }",
        "{ traffic: { one: 5 } }",
        "{ traffic: { 01: 5 } }",
        "{}",
        "{ traffic: { 1: 5 }, header: x-user-bin }",
        "{ traffic: { 0: 5 } }",
        "{ traffic: { 1: -5 } }",
        "{ traffic: {} }",
        "{ header: x-user }",
        "{ traffic: { 1: 5 }, header: 'x user' }",
        "{ tolerance: 0.1 }",
        "{ shadow: 1, tolerance: 2 }",
        "{ shadows: 1 }",
    ] {
        let text = format!("version_policy: all\nrollout: {rollout}");
        let versions = ["1/model.onnx", "2/model.onnx", "3/model.onnx"].map(|file| (file, "good"));
        all.load(LoadErrorKind::Settings, &[&versions[..], &[("model.yaml", &text)]].concat()).await;
    }
}

#[tokio::test]
async fn a_text_configuration_has_the_same_section() {
    let directory = directory("{ shadow: 1 }");
    std::fs::remove_file(directory.path().join("m/model.yaml")).unwrap();
    let config = r#"
        version_policy { all { } }
        parameters { key: "paternoster" value { string_value: "rollout: { traffic: { 2: 1 } }" } }
    "#;
    directory.write("m/config.pbtxt", config);
    let (repository, _) = start(&directory, ControlMode::None).await;
    assert_eq!(route(&repository, "", &[]), 2);
}

/// Loads programs that return their input; those of version 2 once they may.
struct EchoLoader {
    pool: Arc<Pool>,
    copies: Arc<Copies>,
}

#[derive(Default)]
struct Copies {
    /// Runs of version 2 that have begun and not ended.
    running: Mutex<usize>,
    may_end: AtomicBool,
}

impl Loader for EchoLoader {
    fn load(&self, request: ResolvedVersion, _: &LoadAttempt) -> Result<Arc<ModelHandle>, LoadError> {
        let copies = (request.spec.version == 2).then(|| Arc::clone(&self.copies));
        let program = FakeProgram::new(move |batch| {
            if let Some(copies) = &copies {
                *copies.running.lock() += 1;
                // It does not notice that it is asked to stop, as a large operator.
                while !copies.may_end.load(Ordering::Relaxed) {
                    thread::yield_now();
                }
                *copies.running.lock() -= 1;
            }
            identity(batch)
        });
        self.pool.bring_up(request.spec, request.knobs, Arc::new(program)).map(Arc::new).map_err(LoadError::engine)
    }

    fn signature(&self, program: &Path, bytes: Option<&Bytes>) -> Result<Signature, LoadError> {
        FakeLoader::default().signature(program, bytes)
    }
}

/// A model whose version 1 answers clients, and version 2 for comparison.
struct Shadowed {
    repository: Arc<Repository>,
    copies: Arc<Copies>,
    room: Arc<Budget>,
    _directory: Directory,
}

impl Shadowed {
    async fn start(lanes: u16, room: usize) -> Self {
        let directory = directory("{ traffic: { 1: 1 }, shadow: 2 }");
        let pool = Pool::start(&PoolOptions { cpu_lanes: lanes, ..PoolOptions::default() }).unwrap();
        let copies = Arc::<Copies>::default();
        let loader = Arc::new(EchoLoader { pool, copies: Arc::clone(&copies) });
        let room = Budget::of(room);
        let request_budgets = RequestBudgets { bytes: Arc::clone(&room), ..RequestBudgets::unlimited() };
        let options = Options { request_budgets, ..options(&[&directory], ControlMode::None) };
        let repository = Repository::start(options, loader).await.unwrap();
        assert!(repository.ready(), "{:?}", repository.states());
        Self { repository, copies, room, _directory: directory }
    }

    async fn ask(&self) {
        let version = self.repository.route("m", "", &self.repository.caller(&HeaderMap::new(), CLIENT)).unwrap();
        let input = InputTensor { shape: Dims::from_slice(&[1, 16]), data: Bytes::from_static(&[0; 64]) };
        version.submit(InferRequest::new(1, vec![Some(input)])).await.unwrap();
    }

    /// Returns how many copies had each result, in the order of [`ShadowResult`].
    fn results(&self) -> [u64; ShadowResult::ALL.len()] {
        self.repository.look_up("m", "2").unwrap().servable().stats().reading().shadow.unwrap()
    }

    async fn until(&self, holds: impl Fn(&Self) -> bool) {
        let waiting = async {
            while !holds(self) {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), waiting).await.expect("it holds within a minute");
    }
}

#[tokio::test]
async fn copies_leave_a_lane_to_clients() {
    for lanes in [2, 3] {
        let shadowed = Shadowed::start(lanes, usize::MAX).await;
        for _ in 0..100 {
            let answered = tokio::time::timeout(Duration::from_secs(60), shadowed.ask()).await;
            answered.expect("a lane is free for clients");
        }
        shadowed.until(|shadowed| *shadowed.copies.running.lock() == usize::from(lanes) - 1).await;
        assert!(shadowed.room.used() > 0, "the bytes of copies count");
        shadowed.copies.may_end.store(true, Ordering::Relaxed);
        shadowed.until(|shadowed| shadowed.results().iter().sum::<u64>() == 100).await;
        shadowed.until(|shadowed| shadowed.room.used() == 0).await;
        let skipped = shadowed.results()[ShadowResult::Skipped as usize];
        assert!(skipped >= 36, "at most 64 are waited for: {skipped}");
    }
}

#[tokio::test]
async fn copies_are_compared_where_there_is_room_for_their_bytes() {
    for (room, expected) in [(0, ShadowResult::Skipped), (64, ShadowResult::Skipped), (192, ShadowResult::Equal)] {
        let shadowed = Shadowed::start(2, room).await;
        shadowed.copies.may_end.store(true, Ordering::Relaxed);
        for asked in 1..=20 {
            shadowed.ask().await;
            shadowed.until(|shadowed| shadowed.results().iter().sum::<u64>() == asked).await;
        }
        assert_eq!(shadowed.results()[expected as usize], 20, "{room}: {:?}", shadowed.results());
        assert_eq!(shadowed.room.used(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_copy_that_takes_much_longer_than_the_answer_is_given_up() {
    let shadowed = Shadowed::start(2, usize::MAX).await;
    shadowed.ask().await;
    shadowed.until(|shadowed| *shadowed.copies.running.lock() == 1).await;
    let began = tokio::time::Instant::now();
    while shadowed.results()[ShadowResult::Skipped as usize] == 0 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(began.elapsed() <= Duration::from_secs(2), "{:?}", began.elapsed());
    assert_eq!(shadowed.room.used(), 0);
    shadowed.copies.may_end.store(true, Ordering::Relaxed);
}

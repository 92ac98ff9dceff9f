//! How requests are divided among the versions of a model.

use std::collections::BTreeMap;

use http::{HeaderMap, HeaderValue};

use super::fake::{Directory, explicit, load, start};
use crate::repository::{ControlMode, Repository, Requester};

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

async fn refusal(rollout: &str) -> String {
    let directory = directory(rollout);
    let (repository, _) = start(&directory, explicit()).await;
    load(&repository, "m").await.expect_err("a wrong configuration")
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

#[tokio::test]
async fn wrong_rollouts_are_refused() {
    for (rollout, expected) in [
        ("{ traffic: { 1: 95, 4: 5 } }", "expected a version that is served"),
        ("{ shadow: 9 }", "(1, 2, 3), but found 9"),
        ("{ traffic: { 1: 0, 2: 0 } }", "expected a share above 0"),
        ("{ traffic: { one: 5 } }", "expected a version, a number above 0, but found 'one'"),
        ("{ traffic: { 01: 5 } }", "expected a version, a number above 0, but found '01'"),
        ("{}", "expected 'traffic' or 'shadow'"),
        ("{ traffic: { 1: 5 }, header: x-user-bin }", "is binary in gRPC"),
        ("{ traffic: { 0: 5 } }", "expected a version, a number above 0, but found '0'"),
        ("{ traffic: { 1: -5 } }", "but found -5"),
        ("{ traffic: {} }", "expected at least one entry"),
        ("{ header: x-user }", "expected 'traffic' too"),
        ("{ traffic: { 1: 5 }, header: 'x user' }", "expected the name of a header"),
        ("{ tolerance: 0.1 }", "expected 'shadow' too"),
        ("{ shadow: 1, tolerance: 2 }", "but found 2"),
        ("{ shadows: 1 }", "shadow"),
    ] {
        let message = refusal(rollout).await;
        assert!(message.contains(expected), "{rollout}: {message}");
        assert!(message.contains("model.yaml:2:"), "{rollout}: {message}");
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

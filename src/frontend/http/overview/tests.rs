//! Content of the overview, how often it is rebuilt, and when batches are recorded for it.

use http_body_util::BodyExt;
use serde_json::{Value, json};

use super::{super::fixture::Fixture, *};
use crate::{
    budget::Budgets,
    observe::{
        ExecutionTimings, RequestEnd, RequestTimings, Tally,
        timeline::{TaskLaunch, TaskRows},
    },
};

/// Creates an overview of the fixture's small models, and the timeline that it reads.
async fn overview() -> (Fixture, Arc<Timeline>, Overview) {
    let fixture = Fixture::start(Budgets::default()).await;
    let timeline = Arc::new(Timeline::off());
    let overview = Overview::new(Arc::new(fixture.services.clone()), Arc::clone(&timeline));
    (fixture, timeline, overview)
}

async fn asked(overview: &Overview) -> (usize, Value) {
    let answer = overview.clone().answer().await.expect("an answer");
    let body = answer.into_body().collect().await.expect("a body").to_bytes();
    (body.len(), serde_json::from_slice(&body).expect("JSON"))
}

/// Records a request that ran alone in a task.
fn run(timeline: &Timeline, at_ns: u64, number: u64) {
    timeline.arrived(at_ns, number, 0, 1);
    let launch = TaskLaunch { task: number, model: 0, stage: 0, lane: 0, batch: number, bucket_rows: 1, lengths: &[] };
    timeline.launched(at_ns + 10, &launch, [TaskRows { req: number, start: 0, count: 1, at: 0 }]);
    timeline.completed(at_ns + 20, number, false);
    timeline.ended(at_ns + 20, number, RequestEnd::Completed);
}

#[tokio::test(start_paused = true)]
async fn models_load_and_batches_are_shown() {
    let (fixture, timeline, overview) = overview().await;
    timeline.watch(MOST_EVENTS);
    timeline.model_up(0, "ident", 3);
    run(&timeline, 1_000, 1);
    let version = fixture.services.repository.resolve("ident", "3").expect("it is loaded");
    let stats = version.servable().stats();
    stats.admitted();
    stats.success(2, &RequestTimings { total_ns: 3_000_000, queue_ns: 2_000_000, ..RequestTimings::default() });
    stats.execution(2, &ExecutionTimings::default());

    let (_, shown) = asked(&overview).await;
    assert_eq!(shown["server"]["ready"], true);
    assert_eq!(shown["load"]["pending_requests"]["limit"], fixture.services.budgets.requests.capacity());
    let models = shown["models"].as_array().expect("a list");
    let names: Vec<(&str, &str)> = models
        .iter()
        .map(|model| (model["name"].as_str().unwrap_or_default(), model["version"].as_str().unwrap_or_default()))
        .collect();
    assert_eq!(names, [("half", "1"), ("ident", "1"), ("ident", "3"), ("repeat", "1"), ("text", "1")]);
    let expected = json!({
        "name": "ident", "version": "3", "state": "READY", "reason": "", "waiting": 1, "succeeded": 1, "failed": 0,
        "executions": 1, "executed_rows": 2, "batch_sizes": [{ "rows": 2, "executions": 1 }], "policy": "serial",
        "durations": [0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1], "queue_us": 2_000,
    });
    assert_eq!(shown["duration_bounds_us"][6], 5_000, "the first bound above 3 ms");
    assert_eq!(models[2], expected);
    let tracks = shown["timeline"]["tracks"].as_array().expect("a list");
    assert_eq!(tracks[0]["name"], "ident · version 3");
    assert_eq!(tracks[1]["rows"][0]["spans"][0]["kind"], "task");
}

#[tokio::test(start_paused = true)]
async fn batches_are_recorded_while_somebody_asks_and_a_few_seconds_longer() {
    let (_fixture, timeline, overview) = overview().await;
    assert!(timeline.recording().is_none(), "no page asked");
    asked(&overview).await;
    for _ in 0..3 {
        tokio::time::sleep(WATCH / 2).await;
        assert!(timeline.recording().is_some());
        asked(&overview).await;
    }
    tokio::time::sleep(WATCH * 2).await;
    assert!(timeline.recording().is_none(), "no page asks");
    asked(&overview).await;
    assert!(timeline.recording().is_some(), "a page asks again");
}

#[tokio::test(start_paused = true)]
async fn it_is_made_anew_only_when_it_is_old() {
    let (fixture, _, overview) = overview().await;
    let version = fixture.services.repository.resolve("ident", "1").expect("it is loaded");
    let (_, first) = asked(&overview).await;
    version.servable().stats().admitted();
    assert_eq!(asked(&overview).await.1, first, "however often it is asked for");
    tokio::time::sleep(FRESH).await;
    assert_eq!(asked(&overview).await.1["models"][1]["waiting"], 1);
}

#[tokio::test(start_paused = true)]
async fn however_much_happened_it_is_small() {
    let (_fixture, timeline, overview) = overview().await;
    timeline.watch(MOST_EVENTS);
    (0..1_000_000).for_each(|number| run(&timeline, number * 100, number));
    let (bytes, shown) = asked(&overview).await;
    assert!(bytes < 256 << 10, "{bytes} bytes");
    let rows = shown["timeline"]["tracks"][1]["rows"].as_array().expect("a list");
    assert!(rows[0]["spans"].as_array().is_some_and(|spans| spans.len() > 100), "the latest are there");
    assert!(shown["timeline"]["left_out"].as_u64().is_some_and(|left_out| left_out > 0));
}

#[test]
fn models_and_reasons_beyond_the_bounds_are_left_out() {
    let entry = |number: usize| IndexEntry {
        name: format!("m{number}"),
        version: "1".to_owned(),
        state: "UNAVAILABLE",
        reason: "ü".repeat(1000),
    };
    let (shown, left_out) = models((0..MOST_MODELS + 7).map(entry).collect(), &[]);
    assert_eq!((shown.len(), left_out), (MOST_MODELS, 7));
    assert!(shown.iter().all(|model| model.reason == "ü".repeat(MOST_REASON)));
}

#[test]
fn the_sizes_that_ran_most_often_are_shown_in_order() {
    let ran = (1..=100).map(|rows| BatchStats {
        batch_size: rows,
        compute_infer: Tally { count: if rows % 3 == 0 { 100 } else { 1 }, ns: 1 },
        ..BatchStats::default()
    });
    let shown = sizes(ran.collect());
    assert_eq!(shown.len(), MOST_SIZES);
    assert_eq!(shown[0], Size { rows: 3, executions: 100 });
    assert!(shown.iter().all(|size| size.rows % 3 == 0) && shown.is_sorted_by_key(|size| size.rows));
}

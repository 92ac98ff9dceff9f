//! Content of the overview, how often it is rebuilt, and when batches are recorded for it.

use http_body_util::BodyExt;
use paternoster_observe::{
    ExecutionTimings, LoadedVersion, ModelStats, RequestEnd, RequestTimings,
    budget::Budgets,
    timeline::{TaskLaunch, TaskRows},
};
use serde_json::{Value, json};

use super::{
    super::fixture::Fixture,
    response::{ModelOverview, OverviewResponse},
    *,
};

/// Less than a sample: requests within it are counted at the next one.
const MOMENT: Duration = Duration::from_millis(100);

/// Creates an overview of the fixture's small models, and the timeline that it reads.
async fn overview() -> (Fixture, Arc<Timeline>, Overview) {
    let fixture = Fixture::start(Budgets::default()).await;
    let timeline = Arc::new(Timeline::off());
    let overview = Overview::new(Arc::new(fixture.services.clone()), Arc::clone(&timeline));
    (fixture, timeline, overview)
}

async fn asked(overview: &Overview) -> (usize, Value) {
    asked_for(overview, Query::default()).await
}

async fn asked_for(overview: &Overview, query: Query) -> (usize, Value) {
    let answer = overview.clone().answer(query).await.expect("an answer");
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

fn of_model(name: &str) -> Query {
    Query { model: Some(name.to_owned()), timeline: None }
}

#[tokio::test(start_paused = true)]
async fn models_load_and_batches_are_shown() {
    let (fixture, timeline, overview) = overview().await;
    timeline.watch(MOST_EVENTS);
    timeline.model_up(0, "ident", 3);
    run(&timeline, 1_000, 1);
    overview.sample();
    tokio::time::sleep(MOMENT).await;
    let version = fixture.services.repository.resolve("ident", "3").expect("it is loaded");
    let stats = version.servable().stats();
    stats.admitted(true);
    stats.admitted(true);
    stats.left_queue();
    let compute = ExecutionTimings { compute_infer_ns: 500_000, ..ExecutionTimings::default() };
    stats.success(2, &RequestTimings { total_ns: 3_000_000, queue_ns: 2_000_000, compute });
    stats.execution(2, &ExecutionTimings::default());
    tokio::time::sleep(SAMPLE).await;

    let (_, shown) = asked(&overview).await;
    assert_eq!(shown["server"]["ready"], true);
    assert_eq!(shown["load"]["pending_requests"]["limit"], fixture.services.budgets.requests.capacity());
    assert_eq!((&shown["memory"], &shown["on_demand"]), (&Value::Null, &Value::Null), "it is not counted");
    let models = shown["models"].as_array().expect("a list");
    let names: Vec<(&str, &str)> = models
        .iter()
        .map(|model| (model["name"].as_str().unwrap_or_default(), model["version"].as_str().unwrap_or_default()))
        .collect();
    assert_eq!(names, [("half", "1"), ("ident", "1"), ("ident", "3"), ("repeat", "1"), ("text", "1")]);
    let expected = json!({
        "name": "ident", "version": "3", "state": "READY", "reason": "", "attention": null, "policy": "serial",
        "requests_per_second": 1.0, "failures_per_second": 0.0, "p50_ms": 3.75, "p99_ms": 4.975, "queue_ms": 2.0,
        "compute_ms": 0.5, "mean_batch_rows": 2.0, "batch_sizes": [{ "rows": 2, "executions": 1 }],
        "in_flight_requests": 1, "pending_requests": 1, "succeeded_requests": 1, "failed_requests": 0,
        "memory_estimated_bytes": null, "memory_measured_bytes": null, "card_memory_bytes": null,
        "history": { "requests_per_second": [1.0], "p50_ms": [3.75], "p99_ms": [4.975], "queue_ms": [2.0] },
    });
    assert_eq!(models[2], expected, "3 ms is in the bucket from 2.5 to 5");
    assert_eq!(models[0]["history"]["requests_per_second"], json!([]), "it had no requests");
    let tracks = shown["timeline"]["tracks"].as_array().expect("a list");
    assert_eq!(tracks[0]["name"], "ident · version 3");
    assert_eq!(tracks[1]["rows"][0]["spans"][0]["kind"], "task");
}

#[tokio::test(start_paused = true)]
async fn one_model_can_be_asked_for_without_recording_batches() {
    let (_fixture, timeline, overview) = overview().await;
    let (_, shown) = asked_for(&overview, of_model("ident")).await;
    let versions: Vec<&Value> = shown["models"].as_array().expect("a list").iter().map(|one| &one["version"]).collect();
    assert_eq!(versions, ["1", "3"]);
    assert_eq!(asked_for(&overview, of_model("unknown")).await.1["models"], json!([]));
    let (_, all) = asked_for(&overview, Query { model: None, timeline: Some(false) }).await;
    assert_eq!(all["models"].as_array().map(Vec::len), Some(5));
    assert!(all.get("timeline").is_none() && shown.get("timeline").is_none());
    assert!(timeline.recording().is_none(), "no request asked for batches");
}

#[tokio::test(start_paused = true)]
async fn the_answer_is_read_back_as_it_was_written() {
    let (_fixture, _, overview) = overview().await;
    let (_, shown) = asked(&overview).await;
    let read: OverviewResponse = serde_json::from_value(shown).expect("the same types");
    assert_eq!((read.models.len(), read.recent_seconds), (5, RECENT_SAMPLES));
}

#[tokio::test(start_paused = true)]
async fn samples_end_with_the_overview() {
    let (fixture, _, overview) = overview().await;
    overview.sample();
    tokio::time::sleep(SAMPLE * 3).await;
    let shared = Arc::downgrade(&overview.0);
    drop(overview);
    tokio::time::sleep(SAMPLE * 2).await;
    assert_eq!(shared.strong_count(), 0);
    drop(fixture);
}

/// Busy versions, as many as can have a trend, after a minute.
fn busy_trends() -> (Trends, Vec<IndexEntry>) {
    let (mut trends, mut now) = (Trends::default(), std::time::Instant::now());
    let names: Vec<String> = (0..models::MOST_MODELS).map(|number| format!("model-of-usual-length-{number}")).collect();
    let stats: Vec<Arc<ModelStats>> = names.iter().map(|_| Arc::default()).collect();
    for second in 0..=62_u64 {
        let loaded = names.iter().zip(&stats);
        let loaded = loaded.map(|(name, stats)| LoadedVersion { name: name.clone(), version: 1, stats: stats.clone() });
        trends.sample(now, loaded.collect());
        now += SAMPLE;
        for (number, stats) in (0..).zip(&stats) {
            let queue_ns = 1_000_000 + 12_347 * (second * 7 + number);
            stats.success(1, &RequestTimings { total_ns: 3 * queue_ns, queue_ns, ..RequestTimings::default() });
        }
    }
    let state = |name: String| IndexEntry { name, version: "1".to_owned(), state: "READY", reason: String::new() };
    (trends, names.into_iter().map(state).collect())
}

#[test]
fn hundreds_of_busy_models_take_little_more_than_a_megabyte() {
    let (trends, states) = busy_trends();
    let sources = Sources { loaded: &[], memory: &[], trends: &trends, most_reason: MOST_REASON };
    let (models, left_out) = models::models(states, &sources);
    assert_eq!((models.len(), left_out), (models::MOST_MODELS, 0));
    let is_busy = |model: &ModelOverview| model.history.requests_per_second.len() == 60;
    assert!(models.iter().all(is_busy));
    let bytes = serde_json::to_vec(&models).expect("plain data").len();
    assert!(bytes < 5 << 18, "{bytes} bytes");
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
    version.servable().stats().admitted(true);
    assert_eq!(asked(&overview).await.1, first, "however often it is asked for");
    tokio::time::sleep(FRESH).await;
    assert_eq!(asked(&overview).await.1["models"][1]["pending_requests"], 1);
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

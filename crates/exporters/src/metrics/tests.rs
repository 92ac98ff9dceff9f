//! The text of the endpoint, compared with the metric families measured on Triton.

use std::{collections::BTreeMap, time::Duration};

use parking_lot::Mutex;
use paternoster_observe::{
    CardMemory, ExecutionTimings, FailureReason, LatencyMetrics, MetaCounters, ModelMemory, ModelStats, RequestTimings,
    StartCacheReading, TokenCounts, VersionLatencies, budget::Budget,
};

use super::*;

const TIMINGS: RequestTimings = RequestTimings {
    total_ns: 2_000_000,
    queue_ns: 60_000,
    compute: ExecutionTimings { compute_input_ns: 3_000, compute_infer_ns: 1_500_000, compute_output_ns: 4_999 },
};

fn version(name: &str, version: i64) -> LoadedVersion {
    LoadedVersion { name: name.to_owned(), version, stats: Arc::new(ModelStats::new(8)) }
}

fn staged(name: &str, version: i64) -> LoadedVersion {
    LoadedVersion { name: name.to_owned(), version, stats: Arc::new(ModelStats::with_stages(8, 2)) }
}

fn metrics_of(loaded: Vec<LoadedVersion>) -> Metrics {
    let metrics = Metrics::new(move || loaded.clone(), Arc::default(), Budgets::default()).expect("names are unique");
    metrics.with_machine(MachineMetrics { cpu: true, cards: None, interval: Duration::ZERO }).expect("names are unique")
}

/// Returns `name type` of every family whose name starts with a prefix, sorted.
fn families(text: &str, prefix: &str) -> Vec<String> {
    let mut found: Vec<String> = text
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE "))
        .filter(|family| family.starts_with(prefix))
        .map(str::to_owned)
        .collect();
    found.sort();
    found
}

fn assert_has(text: &str, line: &str) {
    assert!(text.lines().any(|found| found == line), "no line `{line}` in:\n{text}");
}

#[test]
fn memory_of_cards_is_shown_for_each_card() {
    let loaded = version("identity_onnx", 1);
    assert!(!metrics_of(vec![loaded.clone()]).render().expect("renders").contains("paternoster_model_gpu_memory"));
    for (card, bytes) in [(0, 12), (1, 34)] {
        loaded.stats.reserved_on_card(CardMemory { card, uuid: format!("GPU-{card}"), bytes });
    }
    let metrics = metrics_of(vec![loaded.clone()]);
    let text = metrics.render().expect("renders");
    let name = "paternoster_model_gpu_memory_bytes";
    assert_eq!(families(&text, name), [format!("{name} gauge")]);
    for (card, bytes) in [(0, 12), (1, 34)] {
        let labels = format!(r#"gpu_uuid="GPU-{card}",model="identity_onnx",version="1""#);
        assert_has(&text, &format!("{name}{{{labels}}} {bytes}"));
    }
    loaded.stats.left_cards();
    assert!(!metrics.render().expect("renders").contains(name));
}

#[test]
fn families_and_types_are_those_of_triton() {
    let loaded = version("identity_onnx", 1);
    loaded.stats.loaded_in(Duration::from_millis(1500));
    let text = metrics_of(vec![loaded]).render().expect("renders");
    assert_has(&text, r#"nv_model_load_duration_secs{model="identity_onnx",version="1"} 1.5"#);
    let measured = [
        "nv_cpu_memory_total_bytes gauge",
        "nv_cpu_memory_used_bytes gauge",
        "nv_cpu_utilization gauge",
        "nv_inference_compute_infer_duration_us counter",
        "nv_inference_compute_input_duration_us counter",
        "nv_inference_compute_output_duration_us counter",
        "nv_inference_count counter",
        "nv_inference_exec_count counter",
        "nv_inference_pending_request_count gauge",
        "nv_inference_queue_duration_us counter",
        "nv_inference_request_duration_us counter",
        "nv_inference_request_failure counter",
        "nv_inference_request_success counter",
        "nv_model_load_duration_secs gauge",
        "nv_pinned_memory_pool_total_bytes gauge",
        "nv_pinned_memory_pool_used_bytes gauge",
    ];
    assert_eq!(families(&text, "nv_"), measured);
}

#[test]
fn our_families_stand_beside_them() {
    let text = metrics_of(vec![version("identity_onnx", 1)]).render().expect("renders");
    let ours = [
        "paternoster_batch_rows histogram",
        "paternoster_batch_slack_misses_total counter",
        "paternoster_connections gauge",
        "paternoster_connections_limit gauge",
        "paternoster_connections_refused_total counter",
        "paternoster_expired_requests_total counter",
        "paternoster_invalid_requests_total counter",
        "paternoster_lanes_replaced_total counter",
        "paternoster_lanes_stuck gauge",
        "paternoster_pending_bytes gauge",
        "paternoster_pending_bytes_limit gauge",
        "paternoster_pending_bytes_refused_total counter",
        "paternoster_pending_requests gauge",
        "paternoster_pending_requests_limit gauge",
        "paternoster_pending_requests_refused_total counter",
        "paternoster_queue_duration_seconds histogram",
        "paternoster_rejection_seconds histogram",
        "paternoster_reply_pauses_total counter",
        "paternoster_reply_refusals_total counter",
        "paternoster_request_duration_seconds histogram",
        "paternoster_requests_moved_total counter",
        "paternoster_scheduler_seconds_total counter",
        "paternoster_scheduler_steps_total counter",
        "paternoster_sent_model_bytes gauge",
        "paternoster_sent_model_bytes_limit gauge",
        "paternoster_sent_model_bytes_refused_total counter",
        "paternoster_tasks_abandoned gauge",
        "paternoster_tasks_overdue_total counter",
        "paternoster_tasks_running gauge",
        "paternoster_tasks_total counter",
        "paternoster_tasks_unwanted_total counter",
        "paternoster_waiting_reply_bytes gauge",
    ];
    assert_eq!(families(&text, "paternoster_"), ours);
}

#[test]
fn resources_are_shown_by_name_and_device_where_there_is_a_rate_limiter() {
    let resource = |name: &str, device: &str, in_use| ResourceReading {
        name: name.to_owned(),
        device: device.to_owned(),
        units: 4,
        in_use,
        waited_ns: 1_500_000_000,
    };
    let read = move || vec![resource("R1", "cpu", 3), resource("R2", "global", 0)];
    let metrics = metrics_of(Vec::new());
    assert!(!metrics.render().expect("renders").contains("paternoster_rate_limit"));
    let text = metrics.with_rate_limiter(read).expect("names are unique").render().expect("renders");
    for line in [
        "paternoster_rate_limit_resource{device=\"cpu\",name=\"R1\"} 4",
        "paternoster_rate_limit_resource_in_use{device=\"cpu\",name=\"R1\"} 3",
        "paternoster_rate_limit_resource_in_use{device=\"global\",name=\"R2\"} 0",
        "paternoster_rate_limit_wait_seconds_total{device=\"global\",name=\"R2\"} 1.5",
    ] {
        assert_has(&text, line);
    }
}

#[test]
fn every_series_is_there_at_zero_from_the_start() {
    let text = metrics_of(vec![version("identity_onnx", 1)]).render().expect("renders");
    for line in [
        "nv_inference_request_success{model=\"identity_onnx\",version=\"1\"} 0",
        "nv_inference_request_failure{model=\"identity_onnx\",reason=\"BACKEND\",version=\"1\"} 0",
        "nv_inference_request_failure{model=\"identity_onnx\",reason=\"CANCELED\",version=\"1\"} 0",
        "nv_inference_request_failure{model=\"identity_onnx\",reason=\"OTHER\",version=\"1\"} 0",
        "nv_inference_request_failure{model=\"identity_onnx\",reason=\"REJECTED\",version=\"1\"} 0",
        "nv_inference_pending_request_count{model=\"identity_onnx\",version=\"1\"} 0",
        "nv_pinned_memory_pool_total_bytes 0",
    ] {
        assert_has(&text, line);
    }
}

#[test]
fn samples_are_the_counters_in_the_units_of_their_names() {
    let loaded = version("slow", 3);
    loaded.stats.admitted(true);
    loaded.stats.execution(4, &ExecutionTimings::default());
    loaded.stats.execution(4, &ExecutionTimings::default());
    loaded.stats.success(4, &TIMINGS);
    loaded.stats.failure(FailureReason::Expired, 1);
    let text = metrics_of(vec![loaded]).render().expect("renders");
    for line in [
        "nv_inference_count{model=\"slow\",version=\"3\"} 4",
        "nv_inference_exec_count{model=\"slow\",version=\"3\"} 2",
        "nv_inference_request_duration_us{model=\"slow\",version=\"3\"} 2000",
        "nv_inference_queue_duration_us{model=\"slow\",version=\"3\"} 60",
        "nv_inference_compute_output_duration_us{model=\"slow\",version=\"3\"} 4",
        "nv_inference_request_failure{model=\"slow\",reason=\"CANCELED\",version=\"3\"} 1",
        "nv_inference_pending_request_count{model=\"slow\",version=\"3\"} 1",
        "paternoster_expired_requests_total{model=\"slow\",version=\"3\"} 1",
        "paternoster_request_duration_seconds_bucket{model=\"slow\",version=\"3\",le=\"0.001\"} 0",
        "paternoster_request_duration_seconds_bucket{model=\"slow\",version=\"3\",le=\"0.0025\"} 1",
        "paternoster_request_duration_seconds_sum{model=\"slow\",version=\"3\"} 0.002",
        "paternoster_queue_duration_seconds_bucket{model=\"slow\",version=\"3\",le=\"0.00005\"} 0",
        "paternoster_queue_duration_seconds_bucket{model=\"slow\",version=\"3\",le=\"+Inf\"} 1",
        "paternoster_batch_rows_bucket{model=\"slow\",version=\"3\",le=\"2\"} 0",
        "paternoster_batch_rows_bucket{model=\"slow\",version=\"3\",le=\"4\"} 2",
        "paternoster_batch_rows_count{model=\"slow\",version=\"3\"} 2",
    ] {
        assert_has(&text, line);
    }
}

#[test]
fn stages_are_shown_apart_for_versions_of_several() {
    let cut = staged("cut", 2);
    let stage = cut.stats.stage(1).expect("the second stage");
    stage.ran(4, 1_500_000_000, 250_000_000);
    stage.ran(2, 0, 250_000_000);
    let meta = MetaCounters { stretches: 1, splits: 2, merges: 3, preemptions: 4, slack_misses: 5, early_exits: 6 };
    cut.stats.set_meta(meta);
    let text = metrics_of(vec![version("whole", 1), cut]).render().expect("renders");
    for line in [
        "paternoster_stage_tasks_total{model=\"cut\",stage=\"0\",version=\"2\"} 0",
        "paternoster_stage_tasks_total{model=\"cut\",stage=\"1\",version=\"2\"} 2",
        "paternoster_stage_rows_total{model=\"cut\",stage=\"1\",version=\"2\"} 6",
        "paternoster_stage_queue_seconds_total{model=\"cut\",stage=\"1\",version=\"2\"} 1.5",
        "paternoster_stage_run_seconds_total{model=\"cut\",stage=\"1\",version=\"2\"} 0.5",
        "paternoster_stage_batch_size_bucket{model=\"cut\",stage=\"1\",version=\"2\",le=\"1\"} 0",
        "paternoster_stage_batch_size_bucket{model=\"cut\",stage=\"1\",version=\"2\",le=\"2\"} 1",
        "paternoster_stage_batch_size_bucket{model=\"cut\",stage=\"1\",version=\"2\",le=\"4\"} 2",
        "paternoster_stage_batch_size_sum{model=\"cut\",stage=\"1\",version=\"2\"} 6",
        "paternoster_batch_stretches_total{model=\"cut\",version=\"2\"} 1",
        "paternoster_batch_splits_total{model=\"cut\",version=\"2\"} 2",
        "paternoster_batch_merges_total{model=\"cut\",version=\"2\"} 3",
        "paternoster_batch_preemptions_total{model=\"cut\",version=\"2\"} 4",
        "paternoster_batch_slack_misses_total{model=\"cut\",version=\"2\"} 5",
        "paternoster_batch_early_exits_total{model=\"cut\",version=\"2\"} 6",
        "paternoster_batch_slack_misses_total{model=\"whole\",version=\"1\"} 0",
    ] {
        assert_has(&text, line);
    }
    let repeated = text.lines().filter(|line| line.contains("model=\"whole\"") && line.contains("stage"));
    assert_eq!(repeated.collect::<Vec<_>>(), Vec::<&str>::new(), "a version of one stage is not shown by stages");
    assert!(!text.contains("paternoster_batch_stretches_total{model=\"whole\""), "one stage cannot be stretched");
}

#[test]
fn tokens_are_shown_for_versions_with_padded_axes() {
    let mut padded = version("padded", 1);
    padded.stats = Arc::new(ModelStats::new(8).with_tokens());
    let metrics = metrics_of(vec![version("plain", 1), padded.clone()]);
    assert_has(&metrics.render().expect("renders"), "paternoster_tokens_total{model=\"padded\",version=\"1\"} 0");
    padded.stats.tokens(TokenCounts { own: 7, padding: 3 });
    padded.stats.tokens(TokenCounts { own: 5, padding: 0 });
    let text = metrics.render().expect("renders");
    assert_has(&text, "paternoster_tokens_total{model=\"padded\",version=\"1\"} 12");
    assert_has(&text, "paternoster_padding_tokens_total{model=\"padded\",version=\"1\"} 3");
    assert!(!text.contains("tokens_total{model=\"plain\""), "it has none:\n{text}");
}

#[test]
fn series_of_an_unloaded_version_go_away() {
    let loaded = Arc::new(Mutex::new(vec![version("stays", 1), version("goes", 1), staged("goes", 2)]));
    let metrics = {
        let loaded = Arc::clone(&loaded);
        Metrics::new(move || loaded.lock().clone(), Arc::default(), Budgets::default()).expect("names are unique")
    };
    let series = |text: &str| {
        let mut count = BTreeMap::new();
        for line in text.lines().filter(|line| line.starts_with("nv_inference_count{")) {
            *count.entry(line.to_owned()).or_insert(0) += 1;
        }
        count.len()
    };
    assert_eq!(series(&metrics.render().expect("renders")), 3);

    loaded.lock().retain(|version| version.name == "stays");
    let text = metrics.render().expect("renders");
    assert_eq!(series(&text), 1);
    assert!(!text.contains("\"goes\""), "a series of the unloaded model is left:\n{text}");
}

#[test]
fn without_a_model_the_machine_and_the_pool_still_report() {
    let pool = Arc::new(PoolStats::default());
    pool.stepped(1_500_000_000);
    pool.rejected(60_000);
    let text = Metrics::new(Vec::new, Arc::clone(&pool), Budgets::default())
        .expect("names are unique")
        .render()
        .expect("renders");
    assert_has(&text, "paternoster_scheduler_steps_total 1");
    assert_has(&text, "paternoster_scheduler_seconds_total 1.5");
    assert_has(&text, "paternoster_rejection_seconds_bucket{le=\"0.0001\"} 1");
    assert_eq!(families(&text, "nv_inference"), Vec::<String>::new());
}

#[test]
fn failed_scans_of_the_repository_are_counted() {
    let stats = Arc::new(RepositoryStats::default());
    stats.failed_scans.fetch_add(2, Ordering::Relaxed);
    let metrics = metrics_of(Vec::new()).with_repository(stats, ResidencyReading::default).expect("names are unique");
    let text = metrics.render().expect("renders");
    assert_has(&text, "paternoster_repository_failed_scans_total 2");
    assert_eq!(families(&text, "paternoster_on_demand"), Vec::<String>::new(), "requests load nothing");
    assert_eq!(families(&text, "paternoster_model"), Vec::<String>::new(), "there is no budget");
}

#[test]
fn loads_on_demand_and_the_memory_of_models_are_shown() {
    let stats = Arc::new(RepositoryStats::default());
    stats.residency.misses.fetch_add(3, Ordering::Relaxed);
    stats.residency.unloaded_for_room.fetch_add(4, Ordering::Relaxed);
    stats.residency.refused_time.fetch_add(5, Ordering::Relaxed);
    let model = |name: &str, measured_bytes| ModelMemory { name: name.to_owned(), estimated_bytes: 6, measured_bytes };
    let reading = ResidencyReading {
        is_on_demand: true,
        memory: Some((7, 8)),
        waiting: 9,
        hits: 10,
        models: vec![model("a", None), model("b", Some(11))],
        start_cache: Some(StartCacheReading { hits: 12, misses: 13 }),
    };
    let metrics = metrics_of(Vec::new()).with_repository(stats, move || reading.clone()).expect("names are unique");
    let text = metrics.render().expect("renders");
    for line in [
        "paternoster_on_demand_hits_total 10",
        "paternoster_on_demand_misses_total 3",
        "paternoster_on_demand_loads_total 0",
        "paternoster_on_demand_waiting_requests 9",
        "paternoster_start_cache_hits_total 12",
        "paternoster_start_cache_misses_total 13",
        "paternoster_on_demand_unloaded_total{reason=\"memory\"} 4",
        "paternoster_on_demand_unloaded_total{reason=\"idle\"} 0",
        "paternoster_on_demand_refused_total{reason=\"timeout\"} 5",
        "paternoster_models_memory_bytes 7",
        "paternoster_models_memory_bytes_limit 8",
        "paternoster_model_memory_estimated_bytes{model=\"a\"} 6",
        "paternoster_model_memory_measured_bytes{model=\"b\"} 11",
    ] {
        assert_has(&text, line);
    }
    assert!(!text.contains("measured_bytes{model=\"a\"}"), "it was not measured");
}

#[test]
fn what_clients_hold_is_shown_with_its_limits_and_refusals() {
    let budgets = Budgets { requests: Budget::of(1), grpc_connections: Budget::of(7), ..Budgets::default() };
    let _held = (budgets.requests.take_one(), budgets.grpc_connections.take_one());
    assert!(budgets.requests.take_one().is_none(), "there is one place");
    let text = Metrics::new(Vec::new, Arc::default(), budgets).expect("names are unique").render().expect("renders");
    for line in [
        "paternoster_pending_requests 1",
        "paternoster_pending_requests_limit 1",
        "paternoster_pending_requests_refused_total 1",
        "paternoster_pending_bytes 0",
        "paternoster_connections{port=\"grpc\"} 1",
        "paternoster_connections{port=\"http\"} 0",
        "paternoster_connections_limit{port=\"grpc\"} 7",
        "paternoster_connections_refused_total{port=\"metrics\"} 0",
    ] {
        assert_has(&text, line);
    }
}

#[test]
fn a_name_with_quotes_is_escaped() {
    let text = metrics_of(vec![version("a\"b\\c", 1)]).render().expect("renders");
    assert_has(&text, "nv_inference_count{model=\"a\\\"b\\\\c\",version=\"1\"} 0");
}

fn shown(latencies: &LatencyMetrics) -> LoadedVersion {
    let version = version("m", 1);
    version.stats.keep_latencies(VersionLatencies::new(latencies, None));
    version.stats.success(1, &TIMINGS);
    version.stats.first_response(150_000_000);
    version
}

#[test]
fn summaries_and_first_responses_are_shown_where_they_are_asked_for() {
    let all = LatencyMetrics { summaries: true, quantiles: vec![0.5], histograms: true, ..LatencyMetrics::default() };
    let text = metrics_of(vec![shown(&all)]).render().expect("renders");
    let asked = |family: &&String| family.contains("summary") || family.contains("first_response");
    let found: Vec<String> = families(&text, "nv_").iter().filter(asked).cloned().collect();
    assert_eq!(
        found,
        [
            "nv_inference_compute_infer_summary_us summary",
            "nv_inference_compute_input_summary_us summary",
            "nv_inference_compute_output_summary_us summary",
            "nv_inference_first_response_histogram_ms histogram",
            "nv_inference_queue_summary_us summary",
            "nv_inference_request_summary_us summary",
        ]
    );
    for line in [
        "nv_inference_request_summary_us_count{model=\"m\",version=\"1\"} 1",
        "nv_inference_request_summary_us_sum{model=\"m\",version=\"1\"} 2000",
        "nv_inference_queue_summary_us{model=\"m\",version=\"1\",quantile=\"0.5\"} 60",
        "nv_inference_compute_input_summary_us_sum{model=\"m\",version=\"1\"} 3",
        "nv_inference_first_response_histogram_ms_bucket{model=\"m\",version=\"1\",le=\"100\"} 0",
        "nv_inference_first_response_histogram_ms_bucket{model=\"m\",version=\"1\",le=\"500\"} 1",
        "nv_inference_first_response_histogram_ms_bucket{model=\"m\",version=\"1\",le=\"+Inf\"} 1",
        "nv_inference_first_response_histogram_ms_sum{model=\"m\",version=\"1\"} 150",
    ] {
        assert_has(&text, line);
    }
    let default = metrics_of(vec![shown(&LatencyMetrics::default())]).render().expect("renders");
    assert!(!default.contains("summary") && !default.contains("first_response"), "{default}");
}

#[test]
fn counters_of_durations_go_where_they_are_not_wanted() {
    let without = LatencyMetrics { counters: false, ..LatencyMetrics::default() };
    let text = metrics_of(vec![shown(&without)]).render().expect("renders");
    assert!(!text.contains("_duration_us"), "{text}");
    assert_has(&text, "nv_inference_count{model=\"m\",version=\"1\"} 1");
}

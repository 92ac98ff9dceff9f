//! Counting requests, executions and responses.

use std::thread;

use super::{super::snapshot::Tally, *};

const REQUEST: RequestTimings = RequestTimings { total_ns: 100, queue_ns: 20, compute: EXECUTION };
const EXECUTION: ExecutionTimings =
    ExecutionTimings { compute_input_ns: 10, compute_infer_ns: 50, compute_output_ns: 5 };

#[test]
fn requests_count_once_rows_count_all_and_executions_by_size() {
    let stats = ModelStats::new(4);
    for rows in [1, 1, 1, 4] {
        stats.execution(rows, &EXECUTION);
        stats.success(rows, &REQUEST);
    }

    let read = stats.snapshot();
    assert_eq!(read.inference_count, 7, "rows of three requests of 1 and one of 4");
    assert_eq!(read.execution_count, 4);
    assert_eq!(read.inference_stats.success, Tally { count: 4, ns: 400 });
    assert_eq!(read.inference_stats.queue, Tally { count: 4, ns: 80 });
    assert_eq!(read.inference_stats.compute_infer, Tally { count: 4, ns: 200 });
    assert_eq!(read.inference_stats.fail, Tally::default());
    assert_eq!(read.inference_stats.cache_hit, Tally::default());
    let sizes: Vec<_> = read.batch_stats.iter().map(|batch| (batch.batch_size, batch.compute_infer)).collect();
    assert_eq!(sizes, [(1, Tally { count: 3, ns: 150 }), (4, Tally { count: 1, ns: 50 })]);
}

#[test]
fn a_hit_is_a_success_that_computed_nothing_and_a_miss_adds_its_time() {
    let stats = ModelStats::new(4);
    stats.execution(2, &EXECUTION);
    stats.answered(2, &REQUEST, Some(4));
    stats.cache_kept(4, 3);
    let missed = stats.snapshot();
    stats.cache_hit(30, 10);

    let read = stats.snapshot();
    assert_eq!((read.inference_count, read.execution_count), (2, 1));
    assert_eq!(missed.inference_stats.success, Tally { count: 1, ns: 107 });
    assert_eq!(read.inference_stats.success, Tally { count: 2, ns: 137 });
    assert_eq!(read.inference_stats.queue, Tally { count: 2, ns: 20 });
    assert_eq!(read.inference_stats.compute_infer, Tally { count: 1, ns: 50 });
    assert_eq!(read.inference_stats.cache_hit, Tally { count: 1, ns: 10 });
    assert_eq!(read.inference_stats.cache_miss, Tally { count: 1, ns: 7 });
}

#[test]
fn one_execution_of_several_requests_counts_once() {
    let stats = ModelStats::new(8);
    stats.execution(3, &EXECUTION);
    for _ in 0..3 {
        stats.success(1, &REQUEST);
    }

    let read = stats.snapshot();
    assert_eq!((read.inference_count, read.execution_count), (3, 1));
    assert_eq!(read.inference_stats.compute_infer.count, 3, "compute counts per request");
    assert_eq!(read.batch_stats[0].compute_infer.count, 1, "batch statistics count per execution");
}

#[test]
fn sizes_that_were_not_announced_are_counted_too_and_stay_sorted() {
    let stats = ModelStats::default();
    for rows in [9, 2, 9, 5] {
        stats.execution(rows, &EXECUTION);
    }
    let sizes: Vec<_> =
        stats.snapshot().batch_stats.iter().map(|batch| (batch.batch_size, batch.compute_input.count)).collect();
    assert_eq!(sizes, [(2, 1), (5, 1), (9, 2)]);
}

#[test]
fn an_expired_request_is_cancelled_and_expired_and_an_invalid_one_no_failure() {
    let stats = ModelStats::default();
    stats.failure(FailureReason::Expired, 7);
    stats.failure(FailureReason::Canceled, 1);
    stats.failure(FailureReason::Rejected, 1);
    stats.failure(FailureReason::Backend, 1);
    stats.failure(FailureReason::Other, 1);
    stats.failure(FailureReason::Invalid, 1);

    let read = stats.reading();
    assert_eq!(read.stats.inference_stats.fail, Tally { count: 5, ns: 11 });
    let counted = FailureCounts { rejected: 1, canceled: 2, backend: 1, other: 1, invalid: 1, expired: 1 };
    assert_eq!(read.failures, counted);
    assert_eq!(read.stats.inference_stats.success.count, 0, "a failed request is not answered");
    assert_eq!(read.request_duration.count(), 0, "histograms hold answered requests");
}

#[test]
fn pending_is_what_was_admitted_and_has_not_left_and_in_flight_what_has_not_ended() {
    let stats = ModelStats::default();
    for counts in [true, true, true, false] {
        stats.admitted(counts);
    }
    stats.left_queue();
    let read = stats.reading();
    assert_eq!((read.pending, read.in_flight), (3, 3), "one belongs to another request");
    stats.success(1, &REQUEST);
    stats.left_queue();
    stats.failure(FailureReason::Rejected, 1);
    stats.cache_hit(30, 10);
    let read = stats.reading();
    assert_eq!((read.pending, read.in_flight), (2, 1), "what the cache answered was never admitted");
    stats.began();
    stats.began();
    stats.refused();
    let read = stats.reading();
    assert_eq!((read.pending, read.in_flight), (2, 2), "a pipeline's request does not wait itself");
}

#[test]
fn last_inference_is_the_wall_clock_of_the_last_execution() {
    let stats = ModelStats::default();
    assert_eq!(stats.snapshot().last_inference, 0, "nothing ran yet");
    let before = unix_ms();
    stats.execution(1, &EXECUTION);
    let last = stats.snapshot().last_inference;
    assert!((before..=unix_ms()).contains(&last), "{last} is not between the clock before and after");
}

#[test]
fn responses_count_by_position_and_deep_ones_at_the_last() {
    let stats = ModelStats::default();
    stats.response(0, &EXECUTION);
    stats.response(5_000_000, &EXECUTION);

    let steps = stats.snapshot().response_stats;
    assert_eq!(steps[0].success, Tally { count: 1, ns: 55 });
    assert_eq!(steps[1].success.count, 0, "no request had a second response");
    assert_eq!(steps.len(), MOST_STEPS, "the number of positions is bounded");
    assert_eq!(steps[MOST_STEPS - 1].success.count, 1);
}

#[test]
fn stages_are_counted_apart_only_where_there_are_several() {
    let whole = ModelStats::new(4);
    assert!(whole.stage(0).is_none());
    assert_eq!(whole.reading().stages, []);

    let cut = ModelStats::with_stages(4, 2);
    cut.stage(1).expect("the second stage").ran(3, 10, 20);
    assert!(cut.stage(2).is_none(), "there are two stages");
    let tasks: Vec<_> = cut.reading().stages.iter().map(|stage| (stage.tasks, stage.rows)).collect();
    assert_eq!(tasks, [(0, 0), (1, 3)]);
}

#[test]
fn every_snapshot_adds_up_while_threads_record() {
    const THREADS: u32 = 4;
    const REQUESTS: u32 = 2_000;
    let stats = ModelStats::new(4);
    thread::scope(|scope| {
        for worker in 1..=THREADS {
            let stats = &stats;
            scope.spawn(move || {
                for _ in 0..REQUESTS {
                    stats.admitted(true);
                    stats.left_queue();
                    stats.execution(worker, &EXECUTION);
                    stats.success(worker, &REQUEST);
                }
            });
        }
        for _ in 0..500 {
            let read = stats.snapshot();
            let requests = read.inference_stats;
            let parts =
                requests.queue.ns + requests.compute_input.ns + requests.compute_infer.ns + requests.compute_output.ns;
            assert!(parts <= requests.success.ns, "queue and compute exceed request time: {requests:?}");
            assert_eq!(requests.success.count, requests.queue.count);
            let executions: u64 = read.batch_stats.iter().map(|batch| batch.compute_infer.count).sum();
            assert_eq!(executions, read.execution_count, "batch statistics and execution count disagree");
        }
    });

    let read = stats.reading();
    let requests = u64::from(THREADS * REQUESTS);
    assert_eq!(read.stats.inference_stats.success.count, requests);
    assert_eq!(read.stats.execution_count, requests);
    assert_eq!(read.stats.inference_count, u64::from((1..=THREADS).sum::<u32>() * REQUESTS));
    assert_eq!(read.pending, 0);
}

#[test]
fn a_snapshot_serialises_as_tritons_http_endpoint_writes_it() {
    let stats = ModelStats::default();
    stats.response(0, &EXECUTION);
    stats.execution(2, &EXECUTION);
    let json = serde_json::to_value(stats.snapshot()).expect("plain data serialises");
    assert_eq!(json["response_stats"]["0"]["success"], serde_json::json!({ "count": 1, "ns": 55 }));
    assert_eq!(json["batch_stats"][0]["batch_size"], 2);
    assert_eq!(json["inference_stats"]["cache_miss"], serde_json::json!({ "count": 0, "ns": 0 }));
}

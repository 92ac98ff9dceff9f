//! The spans of a history, and the rows that they are on.

use super::{super::picture::LANES, *};

#[test]
fn a_batch_that_is_stretched_merged_and_split_is_seen_on_its_requests_rows() {
    let expected = [
        "1: 0..10 request 1 · queued",
        "1: 10..30 stage 0 · batch 0 · 2 rows @ 0",
        "1: 30..70 stage 1 · batch 0 · 2 rows @ 0",
        "1: 70..110 waits behind stage 1",
        "1: 110..150 stage 2 · batch 0 · 4 rows · merge @ 0",
        "1: 150..170 stage 3 · batch 0 · 2 rows · split @ 0",
        "2: 4..10 request 2 · queued",
        "2: 10..30 stage 0 · batch 0 · 2 rows @ 1",
        "2: 30..70 stage 1 · batch 0 · 2 rows @ 1",
        "2: 70..110 waits behind stage 1",
        "2: 110..150 stage 2 · batch 0 · 4 rows · merge @ 1",
        "2: 150..170 stage 3 · batch 0 · 2 rows · split @ 1",
        "3: 33..40 request 3 · queued",
        "3: 40..60 stage 0 · batch 0 · 2 rows · stretch @ 2",
        "3: 60..70 waits behind stage 0",
        "3: 70..110 stage 1 · batch 0 · 2 rows @ 2",
        "3: 110..150 stage 2 · batch 0 · 4 rows · merge @ 2",
        "3: 150..170 waits behind stage 2",
        "3: 170..190 stage 3 · batch 0 · 2 rows · split @ 2",
        "4: 38..40 request 4 · queued",
        "4: 40..60 stage 0 · batch 0 · 2 rows · stretch @ 3",
        "4: 60..70 waits behind stage 0",
        "4: 70..110 stage 1 · batch 0 · 2 rows @ 3",
        "4: 110..150 stage 2 · batch 0 · 4 rows · merge @ 3",
        "4: 150..170 waits behind stage 2",
        "4: 170..190 stage 3 · batch 0 · 2 rows · split @ 3",
    ];
    let picture = figure_8().picture();
    assert_eq!(lines(&picture, LANES + 1), expected);
    assert_eq!(picture.processes[1].name, "vgg · version 1");
    assert_eq!(picture.marks, [], "all requests completed");
}

#[test]
fn the_lanes_show_each_task_once_and_arrows_lead_from_task_to_task() {
    let expected = [
        "1: 10..30 stage 0 · batch 0 · 2 rows @ 0-1",
        "1: 30..70 stage 1 · batch 0 · 2 rows @ 0-1",
        "1: 70..110 stage 1 · batch 0 · 2 rows @ 2-3",
        "1: 110..150 stage 2 · batch 0 · 4 rows · merge @ 0-3",
        "1: 150..170 stage 3 · batch 0 · 2 rows · split @ 0-1",
        "1: 170..190 stage 3 · batch 0 · 2 rows · split @ 2-3",
        "2: 40..60 stage 0 · batch 0 · 2 rows · stretch @ 2-3",
    ];
    let picture = figure_8().picture();
    assert_eq!(lines(&picture, LANES), expected);

    let arrow = |at: u64| at.div_ceil(MS / 10);
    let arrows: Vec<(u64, u64, &str)> =
        picture.arrows.iter().map(|one| (arrow(one.from.1), arrow(one.to.1), one.name.as_str())).collect();
    let expected = [
        (30, 30, "batch 0"),
        (40, 40, "stretch"),
        (60, 70, "batch 0"),
        (70, 110, "merge"),
        (110, 110, "merge"),
        (150, 150, "split"),
        (150, 170, "split"),
    ];
    assert_eq!(arrows, expected);
}

#[test]
fn rows_are_taken_again_lowest_first() {
    let mut script = Script::new();
    for (at, req) in [(0, 1), (1, 2), (2, 3)] {
        script.arrive(at, req, 1);
    }
    let task = script.launch(3, (0, 0, 0), &[one(1, 0), one(2, 1)]);
    script.complete(5, task);
    script.end(5, &[2, 1], RequestEnd::Completed);
    script.arrive(5, 4, 1);
    script.arrive(6, 5, 1);
    script.arrive(7, 6, 1);
    script.end(9, &[3, 4, 5, 6], RequestEnd::Cancelled);

    let picture = script.picture();
    let row_of = |request: u64| {
        let own = picture.spans.iter().find(|span| span.facts.request == Some(request));
        own.map(|span| span.row.row)
    };
    assert_eq!([1, 2, 3, 4, 5, 6].map(row_of), [1, 2, 3, 1, 2, 4].map(Some));
    assert_eq!(picture.marks.len(), 4, "those that were cancelled");
    assert!(picture.marks.iter().all(|mark| mark.name == "cancelled"));
}

#[test]
fn what_still_runs_lasts_to_the_last_record() {
    let mut script = Script::new();
    script.arrive(0, 1, 1);
    script.launch(2, (0, 0, 0), &[one(1, 0)]);
    script.arrive(9, 2, 1);
    script.arrive(12, 3, 1);
    let picture = script.picture();
    let expected =
        ["1: 0..2 request 1 · queued", "1: 2..12 stage 0 · batch 0 · 1 row @ 0 …", "2: 9..12 request 2 · queued …"];
    assert_eq!(lines(&picture, LANES + 1), expected);
    assert_eq!(lines(&picture, LANES), ["1: 2..12 stage 0 · batch 0 · 1 row @ 0 …"]);
}

#[test]
fn a_request_that_is_given_up_while_it_runs_leaves_its_row_and_the_task_goes_on() {
    let mut script = Script::new();
    script.arrive(0, 1, 1);
    let task = script.launch(1, (0, 0, 0), &[one(1, 0)]);
    script.end(4, &[1], RequestEnd::Expired);
    script.arrive(5, 2, 1);
    script.complete(8, task);
    script.end(8, &[2], RequestEnd::Rejected);
    let picture = script.picture();
    let expected =
        ["1: 0..1 request 1 · queued", "1: 1..4 stage 0 · batch 0 · 1 row @ 0", "1: 5..8 request 2 · queued"];
    assert_eq!(lines(&picture, LANES + 1), expected);
    assert_eq!(lines(&picture, LANES), ["1: 1..8 stage 0 · batch 0 · 1 row @ 0"]);
}

#[test]
fn requests_of_a_failed_task_queue_again_and_run_alone() {
    let mut script = Script::new();
    script.arrive(0, 1, 1);
    script.arrive(0, 2, 1);
    let task = script.launch(1, (0, 0, 0), &[one(1, 0), one(2, 1)]);
    script.timeline.completed(3 * MS / 10, task, true);
    let alone = script.launch(4, (1, 0, 0), &[one(1, 0)]);
    script.complete(6, alone);
    script.end(6, &[1], RequestEnd::Completed);
    let picture = script.picture();
    let expected = [
        "1: 0..1 request 1 · queued",
        "1: 1..3 stage 0 · batch 0 · 2 rows @ 0",
        "1: 3..4 request 1 · queued",
        "1: 4..6 stage 0 · batch 1 · 1 row @ 0",
        "2: 0..1 request 2 · queued",
        "2: 1..3 stage 0 · batch 0 · 2 rows @ 1",
        "2: 3..6 request 2 · queued …",
    ];
    assert_eq!(lines(&picture, LANES + 1), expected);
    assert!(picture.spans.iter().any(|span| span.facts.failed), "the failed task is marked");
}

#[test]
fn parts_of_a_request_that_run_at_the_same_time_have_a_row_each() {
    let mut script = Script::new();
    script.arrive(0, 1, 4);
    let part = |start: u32| TaskRows { req: 1, start, count: 2, at: start };
    let whole = script.launch(0, (0, 0, 0), &[part(0), part(2)]);
    script.complete(2, whole);
    let first = script.launch(2, (0, 1, 0), &[part(0)]);
    let second = script.launch(3, (0, 1, 1), &[part(2)]);
    script.complete(6, first);
    script.complete(7, second);
    script.end(7, &[1], RequestEnd::Completed);
    let expected = [
        "1: 0..2 stage 0 · batch 0 · 4 rows @ 0-3",
        "1: 2..6 stage 1 · batch 0 · 2 rows · split @ 0-1",
        "1: 6..7 waits behind stage 1",
        "2: 3..7 stage 1 · batch 0 · 2 rows · split @ 2-3",
    ];
    assert_eq!(lines(&script.picture(), LANES + 1), expected);
}

#[test]
fn work_that_a_lane_was_given_ahead_begins_when_the_work_before_it_has_ended() {
    let mut script = Script::new();
    script.arrive(0, 1, 1);
    let first = script.launch(0, (0, 0, 0), &[one(1, 0)]);
    let ahead = script.launch(1, (0, 1, 1), &[one(1, 0)]);
    script.complete(5, first);
    script.complete(8, ahead);
    script.end(8, &[1], RequestEnd::Completed);
    let expected = ["1: 0..5 stage 0 · batch 0 · 1 row @ 0", "2: 5..8 stage 1 · batch 0 · 1 row @ 0"];
    assert_eq!(lines(&script.picture(), LANES), expected);
}

#[test]
fn requests_whose_arrival_was_dropped_are_drawn_from_the_first_record_on() {
    let timeline = Timeline::on(3);
    let launch = TaskLaunch { task: 0, model: 4, stage: 1, lane: 0, batch: 9, bucket_rows: 8, lengths: &[] };
    timeline.arrived(0, 1, 4, 8);
    timeline.completed(2 * MS / 10, 77, false);
    timeline.launched(4 * MS / 10, &launch, [TaskRows { req: 1, start: 0, count: 8, at: 0 }]);
    let picture = timeline.recording().expect("it is on").picture();
    assert_eq!(picture.dropped, 1, "the arrival");
    assert_eq!(lines(&picture, LANES + 1), ["1: 2..4 waits", "1: 4..4 stage 1 · batch 9 · 8 rows @ 0-7 …"]);
    assert_eq!(picture.processes[1].name, "model 4", "its name is not known");
}

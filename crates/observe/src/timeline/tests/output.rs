//! The trace and the drawing.

use std::{fs, path::Path};

use serde_json::Value;

use super::*;

#[test]
fn the_trace_holds_what_chrome_and_perfetto_look_for() {
    let file: Value = serde_json::from_slice(&json(&figure_8().picture())).expect("valid JSON");
    assert_eq!(file["displayTimeUnit"], "ms");
    assert_eq!(file["otherData"]["dropped_events"], 0);
    let events = file["traceEvents"].as_array().expect("a list");
    let of = |ph: &'static str| events.iter().filter(move |event| event["ph"] == ph);

    let merged = of("X").find(|event| event["tid"] == 4 && event["args"]["stage"] == 2).expect("the merged task");
    assert_eq!(merged["name"], "stage 2 · batch 0 · 4 rows · merge");
    assert_eq!((&merged["ts"], &merged["dur"]), (&11_000.0.into(), &4_000.0.into()), "in microseconds");
    assert_eq!(merged["pid"], 2);
    let expected = serde_json::json!({
        "request": 4, "rows": 1, "places": "3", "stage": 2, "batch": 0, "task": 4, "lane": 0, "task_rows": 4,
        "padded_rows": 4, "changes": ["merge"],
    });
    assert_eq!(merged["args"], expected);

    let names: Vec<(&Value, &Value)> = of("M")
        .filter(|event| event["name"] == "process_name")
        .map(|event| (&event["pid"], &event["args"]["name"]))
        .collect();
    assert_eq!(names, [(&1.into(), &"lanes".into()), (&2.into(), &"vgg · version 1".into())]);
    let starts: Vec<&Value> = of("s").map(|event| &event["id"]).collect();
    let ends: Vec<&Value> = of("f").map(|event| &event["id"]).collect();
    assert_eq!((starts.len(), &starts), (7, &ends), "each arrow has its two ends");
    assert!(of("f").all(|event| event["bp"] == "e"), "an arrow ends at the span around it");
}

#[test]
fn a_trace_is_read_back_as_it_was_written() {
    let mut script = figure_8();
    script.arrive(200, 21, 1);
    script.launch(200, (1, 0, 0), &[one(21, 0)]);
    script.end(205, &[21], RequestEnd::Cancelled);
    let picture = script.picture();
    let read = Picture::read_chrome(&json(&picture)).expect("our own");
    assert_eq!(read, Picture { arrows: Vec::new(), ..picture });
}

#[test]
fn a_file_that_is_no_timeline_is_refused_in_words() {
    let refusal = |json: &str| Picture::read_chrome(json.as_bytes()).expect_err("no timeline").to_string();
    assert!(refusal("[1, 2").starts_with("it is not a timeline in the Chrome trace format: "));
    assert!(refusal("{}").contains("traceEvents"));
    assert!(refusal(r#"{"traceEvents": []}"#).contains("not a timeline of paternoster"));
    let ours = |event: &str| format!(r#"{{"otherData": {{"recorder": "paternoster"}}, "traceEvents": [{event}]}}"#);
    assert!(refusal(&ours(r#"{"ph": "X", "cat": "stage", "args": {"stage": "one"}}"#)).contains("one"));

    let strange =
        ours(r#"{"ph": "X", "cat": "stage", "ts": -5.0, "dur": 1e300}, {"ph": "B"}, {"ph": "X", "cat": "?"}"#);
    let picture = Picture::read_chrome(strange.as_bytes()).expect("strange, but readable");
    assert_eq!(picture.spans.iter().map(|span| (span.from_ns, span.to_ns)).collect::<Vec<_>>(), [(0, u64::MAX)]);
    assert!(picture.to_svg(DrawnPart::default()).is_ok());
}

#[test]
fn the_drawing_shows_every_task_and_every_request() {
    let drawn = figure_8().picture().to_svg(DrawnPart::default()).expect("there is something to draw");
    let bars = |name: &str| drawn.matches(&format!("<title>{name}</title>")).count();
    assert_eq!(bars("stage 2 · batch 0 · 4 rows · merge"), 1, "the task on its lane");
    assert_eq!(bars("request 3 · stage 0 · batch 0 · 2 rows · stretch"), 1);
    assert_eq!(drawn.matches("<title>").count(), 7 + 16, "each task on its lane and on the rows of its requests");
    for label in ["request 4", "lane 1", "stage 3", "queued", "waits", "vgg · version 1", "0 · stretch", "10 ms"] {
        assert!(drawn.contains(&format!(">{label}</text>")), "no label '{label}'");
    }
}

#[test]
fn a_part_of_the_time_can_be_drawn_alone() {
    let picture = figure_8().picture();
    let drawn = picture.to_svg(DrawnPart { from_ns: Some(15 * MS), to_ns: None }).expect("the split is there");
    assert_eq!(drawn.matches("split</title>").count(), 2 + 4);
    assert!(!drawn.contains("merge") && drawn.contains(">16 ms</text>"), "times count from the beginning of the whole");

    let refusal = |from_ns, to_ns| picture.to_svg(DrawnPart { from_ns, to_ns }).expect_err("nothing there");
    assert_eq!(refusal(Some(19 * MS), None), DrawError::Empty { length_ms: 19 });
    assert_eq!(refusal(Some(2 * MS), Some(MS)), DrawError::Empty { length_ms: 19 });
    assert!(Picture::default().to_svg(DrawnPart::default()).is_err(), "nothing was recorded at all");
}

#[test]
fn names_cannot_break_out_of_the_drawing() {
    let script = figure_8();
    script.timeline.model_up(0, "<b>&\"\u{1b}", 1);
    let drawn = script.picture().to_svg(DrawnPart::default()).expect("there is something to draw");
    assert!(drawn.contains(">&lt;b&gt;&amp;&quot;\u{fffd} · version 1</text>"), "{drawn}");
}

/// Run with `UPDATE_DOCS=1` to regenerate it.
#[test]
fn the_drawing_in_the_documentation_is_that_of_the_example() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/timelines/dvabatch-figure-8.svg");
    let drawn = figure_8().picture().to_svg(DrawnPart::default()).expect("there is something to draw");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        fs::write(&path, &drawn).expect("the documentation can be written");
    }
    let shown = fs::read_to_string(&path).unwrap_or_default();
    assert!(shown == drawn, "{} is not up to date: run this test with UPDATE_DOCS=1", path.display());
}

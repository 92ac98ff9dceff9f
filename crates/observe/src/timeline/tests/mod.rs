//! From calls to pictures: a scripted example with its exact spans, and properties of arbitrary calls.

mod any;
mod layout;
mod output;

use std::fmt::Write as _;

use super::{
    picture::{Picture, Span},
    *,
};
use crate::RequestEnd;

const MS: u64 = 1_000_000;

/// A timeline written by hand, in tenths of milliseconds.
struct Script {
    timeline: Timeline,
    tasks: u64,
}

impl Script {
    fn new() -> Self {
        let timeline = Timeline::on(1_000);
        timeline.model_up(0, "vgg", 1);
        Self { timeline, tasks: 0 }
    }

    fn arrive(&self, at: u64, req: u64, rows: u32) {
        self.timeline.arrived(at * MS / 10, req, 0, rows);
    }

    /// Launches stage `stage` of `batch` on a lane. Returns the number of the task.
    fn launch(&mut self, at: u64, (batch, stage, lane): (u64, u16, u16), rows: &[TaskRows]) -> u64 {
        let (task, bucket_rows) = (self.tasks, rows.iter().map(|rows| rows.count).sum());
        self.tasks += 1;
        let launch = TaskLaunch { task, model: 0, stage, lane, batch, bucket_rows, lengths: &[] };
        self.timeline.launched(at * MS / 10, &launch, rows.iter().copied());
        task
    }

    fn complete(&self, at: u64, task: u64) {
        self.timeline.completed(at * MS / 10, task, false);
    }

    fn end(&self, at: u64, reqs: &[u64], how: RequestEnd) {
        reqs.iter().for_each(|&req| self.timeline.ended(at * MS / 10, req, how));
    }

    fn picture(&self) -> Picture {
        self.timeline.recording().expect("it is on").picture()
    }
}

/// Returns the only row of a request.
fn one(req: u64, at: u32) -> TaskRows {
    TaskRows { req, start: 0, count: 1, at }
}

/// The example of DVABatch figure 8: *new* with two queries, *stretch* by two while they are in the second stage,
/// *split* in two after the third.
fn figure_8() -> Script {
    let mut script = Script::new();
    let [a, b, c, d] = [one(11, 0), one(12, 1), one(13, 2), one(14, 3)];
    script.arrive(0, 11, 1);
    script.arrive(4, 12, 1);
    let new = script.launch(10, (0, 0, 0), &[a, b]);
    script.complete(30, new);
    let second = script.launch(30, (0, 1, 0), &[a, b]);
    script.arrive(33, 13, 1);
    script.arrive(38, 14, 1);
    let stretch = script.launch(40, (0, 0, 1), &[c, d]);
    script.complete(60, stretch);
    script.complete(70, second);
    let catch_up = script.launch(70, (0, 1, 0), &[c, d]);
    script.complete(110, catch_up);
    let merged = script.launch(110, (0, 2, 0), &[a, b, c, d]);
    script.complete(150, merged);
    let first_part = script.launch(150, (0, 3, 0), &[a, b]);
    script.complete(170, first_part);
    script.end(170, &[11, 12], RequestEnd::Completed);
    let second_part = script.launch(170, (0, 3, 0), &[c, d]);
    script.complete(190, second_part);
    script.end(190, &[13, 14], RequestEnd::Completed);
    script
}

/// Formats spans as lines: row, time in tenths of milliseconds, name, places.
fn lines(picture: &Picture, process: u32) -> Vec<String> {
    let mut spans: Vec<&Span> = picture.spans.iter().filter(|span| span.row.process == process).collect();
    spans.sort_by_key(|span| (span.row, span.from_ns));
    let tenths = |ns: u64| ns / (MS / 10);
    let line = |span: &&Span| {
        let mut line = format!("{}: {}..{} {}", span.row.row, tenths(span.from_ns), tenths(span.to_ns), span.name());
        if !span.facts.places.is_empty() {
            let _ = write!(line, " @ {}", span.facts.places);
        }
        if span.facts.open {
            line.push_str(" …");
        }
        line
    };
    spans.iter().map(line).collect()
}

fn json(picture: &Picture) -> Vec<u8> {
    let mut json = Vec::new();
    picture.write_chrome(&mut json).expect("a vector takes everything");
    json
}

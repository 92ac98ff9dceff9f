//! Properties that hold for arbitrary recordings.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::{
    super::{
        history::History,
        picture::{Kind, Row},
    },
    *,
};

/// A call of a driver that ignores the order of calls and omits half of them.
#[derive(Clone, Debug)]
enum Call {
    Arrive { req: u64, model: u32, rows: u32 },
    Launch { model: u32, stage: u16, lane: u16, batch: u64, rows: Vec<(u64, u32, u32, u32)> },
    Complete { task: u64, failed: bool },
    End { req: u64, cancelled: bool },
}

fn call() -> impl Strategy<Value = Call> {
    let req = 0..12_u64;
    let rows = prop::collection::vec((req.clone(), 0..4_u32, 1..3_u32, 0..8_u32), 1..5);
    prop_oneof![
        3 => (req.clone(), 0..2_u32, 1..5_u32).prop_map(|(req, model, rows)| Call::Arrive { req, model, rows }),
        4 => (0..2_u32, 0..3_u16, 0..2_u16, 0..4_u64, rows)
            .prop_map(|(model, stage, lane, batch, rows)| Call::Launch { model, stage, lane, batch, rows }),
        3 => (0..20_u64, any::<bool>()).prop_map(|(task, failed)| Call::Complete { task, failed }),
        2 => (req, any::<bool>()).prop_map(|(req, cancelled)| Call::End { req, cancelled }),
    ]
}

/// Makes the calls, with times that mostly increase.
fn record(calls: &[(u64, Call)], most_events: usize) -> Timeline {
    let timeline = Timeline::on(most_events);
    let mut tasks = 0;
    let mut arrived = [false; 12];
    for (position, (jitter, call)) in calls.iter().enumerate() {
        let now_ns = 1_000 * position as u64 + jitter;
        match call.clone() {
            Call::Arrive { req, model, rows } => {
                if !std::mem::replace(&mut arrived[req as usize], true) {
                    timeline.arrived(now_ns, req, model, rows);
                }
            }
            Call::Launch { model, stage, lane, batch, rows } => {
                let launch = TaskLaunch { task: tasks, model, stage, lane, batch, bucket_rows: 8, lengths: &[16] };
                tasks += 1;
                let rows = rows.into_iter().map(|(req, start, count, at)| TaskRows { req, start, count, at });
                timeline.launched(now_ns, &launch, rows);
            }
            Call::Complete { task, failed } => timeline.completed(now_ns, task, failed),
            Call::End { req, cancelled } => {
                let how = if cancelled { RequestEnd::Cancelled } else { RequestEnd::Completed };
                timeline.ended(now_ns, req, how);
            }
        }
    }
    timeline
}

proptest! {
    #[test]
    fn whatever_is_recorded_rows_never_overlap_and_the_trace_is_read_back(
        calls in prop::collection::vec((0..3_000_u64, call()), 0..80),
        most_events in 1..200_usize,
    ) {
        let recording = record(&calls, most_events).recording().expect("it is on");
        prop_assert!(recording.records.len() <= most_events);
        let history = History::of(&recording);
        let picture = recording.picture();

        let mut rows: BTreeMap<Row, Vec<(u64, u64)>> = BTreeMap::new();
        for span in &picture.spans {
            prop_assert!(span.from_ns <= span.to_ns, "{span:?} ends before it begins");
            rows.entry(span.row).or_default().push((span.from_ns, span.to_ns));
        }
        for (row, mut spans) in rows {
            spans.sort_unstable();
            for pair in spans.windows(2) {
                prop_assert!(pair[0].1 <= pair[1].0, "{row:?}: {pair:?} overlap");
            }
            let process = picture.processes.iter().find(|process| process.id == row.process);
            prop_assert!(process.is_some_and(|process| process.rows.contains_key(&row.row)), "{row:?} has no name");
        }
        let tasks = picture.spans.iter().filter(|span| span.kind == Kind::Task).count();
        prop_assert_eq!(tasks, history.tasks.len(), "each task once");

        let read = Picture::read_chrome(&json(&picture)).expect("our own");
        prop_assert_eq!(&read.spans, &picture.spans);
        prop_assert_eq!(&read.processes, &picture.processes);
        let _ = picture.to_svg(DrawnPart::default());
    }
}

//! `lazy` over cells: an encoder (type 0) followed by a decoder (type 1).

use paternoster_model::unfold::Unfolded;

use super::cellular::{core, done, request, said};
use crate::{
    Arrival, CellId, CellKnobs, CellularKnobs, CostPoint, CostTable, Event, Knobs, LaneKnobs, LazyCellKnobs, ModelId,
    Ns, Policy, SegmentKnobs, StageKnobs,
};

/// Durations of a task of the encoder and of the decoder, for any number of rows.
const ENCODES: Ns = 10;
const DECODES: Ns = 20;

fn knobs(max_catch_up_ns: Option<Ns>, reject_late: bool, objective_ns: Option<Ns>) -> Knobs {
    let cell = CellKnobs { max_rows: 4, min_followup: 1, priority: 1, kind: None, buckets: Box::default() };
    let policy = Policy::Cellular(CellularKnobs {
        cells: vec![cell.clone(), cell],
        segments: vec![SegmentKnobs::Steps { cell: CellId(0) }, SegmentKnobs::Steps { cell: CellId(1) }],
        slots: 100,
        lazy: Some(LazyCellKnobs { max_catch_up_ns, reject_late }),
        ..CellularKnobs::default()
    });
    let points = |took_ns| [1, 4].map(|rows| CostPoint { rows, length: 0, took_ns }).to_vec();
    let latencies = Some(CostTable { stages: vec![points(ENCODES), points(DECODES)] });
    Knobs {
        max_batch_rows: 4,
        max_in_flight: 4,
        stages: StageKnobs::chain(2),
        latencies,
        objective_ns,
        policy,
        ..Knobs::default()
    }
}

/// Returns what the core launches, step by step. Two requests arrive while the first is decoded.
fn launched(knobs: Knobs, tasks: u64) -> Vec<String> {
    let mut core = core(knobs, 1, LaneKnobs::default());
    let arrives = |req| Event::Arrived(request(req, vec![Unfolded::Steps(2), Unfolded::Steps(4)]));
    let mut now = 0;
    let mut launched = vec![said(&core.step(now, arrives(0)))];
    for task in 0..tasks {
        if task == 2 {
            core.step(now, arrives(1));
            core.step(now, arrives(2));
        }
        now += if launched.last().is_some_and(|said| said.contains("cell 0")) { ENCODES } else { DECODES };
        let mut actions = core.step(now, done(task));
        actions.retain(|action| !matches!(action, crate::Action::WakeAt(_)));
        core.check().expect("nothing is broken");
        launched.push(said(&actions));
    }
    launched
}

#[test]
fn newcomers_catch_up_while_the_furthest_can_wait_and_then_all_go_on_together() {
    let expected = [
        "#0 cell 0: 0.0",
        "#1 cell 0: 0.1",
        "#2 cell 1: 0.2",
        "#3 cell 0: 1.0 2.0",
        "#4 cell 0: 1.1 2.1",
        "#5 cell 1: 0.3 1.2 2.2",
        "#6 cell 1: 0.4 1.3 2.3",
        "#7 cell 1: 0.5 1.4 2.4",
        "0 Completed; #8 cell 1: 1.5 2.5",
        "1 Completed; 2 Completed",
    ];
    assert_eq!(launched(knobs(Some(1_000), false, None), 9), expected);
    assert_eq!(launched(knobs(None, false, None), 9), expected, "half of 2 · 10 + 4 · 20 is enough for two tasks");
    assert_eq!(launched(knobs(Some(1_000), false, Some(10_000)), 9), expected);
}

#[test]
fn who_is_further_on_waits_for_so_long_in_all_and_no_longer() {
    // A request takes 100 on its own. Of its allowance of 15, a task of newcomers uses 10, and one of its own steps
    // returns 3.
    let said = launched(knobs(Some(15), false, None), 6);
    assert_eq!(said[3..7], ["#3 cell 0: 1.0 2.0", "#4 cell 1: 0.3", "#5 cell 1: 0.4", "#6 cell 0: 1.1 2.1"]);
}

#[test]
fn who_would_miss_its_target_goes_on_at_once() {
    // Without newcomers the first request ends after 2 · 10 + 4 · 20.
    let said = launched(knobs(Some(1_000), false, Some(100)), 6);
    assert_eq!(said[3..6], ["#3 cell 1: 0.3", "#4 cell 1: 0.4", "#5 cell 1: 0.5"]);
    let said = launched(knobs(Some(1_000), false, Some(125)), 6);
    assert_eq!(
        said[3..6],
        ["#3 cell 0: 1.0 2.0", "#4 cell 1: 0.3", "#5 cell 1: 0.4"],
        "it can spare one task, and the fluctuation that is assumed"
    );
}

#[test]
fn a_request_that_cannot_meet_its_target_is_refused_where_such_are() {
    let late = |reject_late| {
        let mut core = core(knobs(None, reject_late, Some(99)), 1, LaneKnobs::default());
        said(&core.step(0, Event::Arrived(request(0, vec![Unfolded::Steps(2), Unfolded::Steps(4)]))))
    };
    assert_eq!(late(true), "0 Rejected(Late)");
    assert_eq!(late(false), "#0 cell 0: 0.0");
}

#[test]
fn a_draining_version_whose_last_request_is_refused_is_gone() {
    let mut core = core(knobs(None, true, Some(99)), 1, LaneKnobs::default());
    core.step(0, Event::ModelUp(ModelId(1), knobs(None, true, Some(99))));
    let of =
        |req, model| Arrival { model: ModelId(model), ..request(req, vec![Unfolded::Steps(1), Unfolded::Steps(1)]) };
    core.step(0, Event::Arrived(of(0, 0)));
    core.step(1, Event::Arrived(of(1, 1)));
    assert_eq!(said(&core.step(2, Event::ModelDraining(ModelId(1)))), "");
    let actions = said(&core.step(90, done(0)));
    assert!(actions.contains("1 Rejected(Late); Drained(ModelId(1))"), "{actions}");
}

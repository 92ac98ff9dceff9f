//! `lazy` over cells: an encoder (type 0) followed by a decoder (type 1).

use paternoster_model::{CellId, unfold::Unfolded};

use super::{
    at,
    cellular::{core, done, request, said},
};
use crate::{
    Action, Arrival, CellKnobs, CellularKnobs, Core, CostPoint, CostTable, Event, Instant, Knobs, LaneKnobs,
    LazyCellKnobs, ModelId, Ns, Policy, SegmentKnobs, StageKnobs,
};

/// Durations of a task of the encoder and of the decoder, for any number of rows.
const ENCODES: Ns = 10;
const DECODES: Ns = 20;

fn knobs(reject_late: bool, objective_ns: Option<Ns>) -> Knobs {
    let cell =
        CellKnobs { max_rows: 4, min_followup: 1, priority: 1, kind: None, buckets: Box::default(), chunks: None };
    let policy = Policy::Cellular(CellularKnobs {
        cells: vec![cell.clone(), cell],
        segments: vec![SegmentKnobs::Steps { cell: CellId(0) }, SegmentKnobs::Steps { cell: CellId(1) }],
        slots: 100,
        lazy: Some(LazyCellKnobs { reject_late }),
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
    launched_beside(2, knobs, tasks)
}

/// Returns what the core launches, step by step. `newcomers` requests arrive while the first is decoded.
fn launched_beside(newcomers: u64, knobs: Knobs, tasks: u64) -> Vec<String> {
    let mut core = core(knobs, 1, LaneKnobs::default());
    let arrives = |req| Event::Arrived(request(req, vec![Unfolded::Steps(2), Unfolded::Steps(4)]));
    let mut now = Instant::ZERO;
    let mut launched = vec![said(&core.step(now, arrives(0)))];
    for task in 0..tasks {
        if task == 2 {
            (1..=newcomers).for_each(|req| {
                core.step(now, arrives(req));
            });
        }
        now += if launched.last().is_some_and(|said| said.contains("cell 0")) { ENCODES } else { DECODES };
        let mut actions = core.step(now, done(task));
        actions.retain(|action| !matches!(action, Action::WakeAt(_)));
        core.check().expect("nothing is broken");
        launched.push(said(&actions));
    }
    launched
}

#[test]
fn newcomers_catch_up_with_those_that_are_further_on_and_then_all_go_on_together() {
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
    assert_eq!(launched(knobs(false, None), 9), expected);
    assert_eq!(launched(knobs(false, Some(10_000)), 9), expected);
}

#[test]
fn who_would_become_late_goes_on_first_unless_that_costs_the_others_too_much() {
    // Without newcomers the first request ends after 2 · 10 + 4 · 20.
    let said = launched_beside(1, knobs(false, Some(100)), 6);
    assert_eq!(said[3..6], ["#3 cell 1: 0.3", "#4 cell 1: 0.4", "#5 cell 1: 0.5"]);
    let said = launched_beside(1, knobs(false, Some(118)), 6);
    assert_eq!(
        said[3..6],
        ["#3 cell 1: 0.3", "#4 cell 0: 1.0", "#5 cell 1: 0.4"],
        "with a step less to go, less fluctuation is assumed, and it can spare one task"
    );
    let said = launched_beside(4, knobs(false, Some(100)), 6);
    assert_eq!(said[3..5], ["#3 cell 0: 1.0 2.0 3.0 4.0", "#4 cell 0: 1.1 2.1 3.1 4.1"], "four wait for one");
}

#[test]
fn who_would_become_late_goes_on_first_while_it_still_waits() {
    // Three requests are decoded together when another one arrives.
    let next = |until_ns: Option<Ns>| {
        let mut core = core(knobs(false, Some(10_000)), 1, LaneKnobs::default());
        let steps = || vec![Unfolded::Steps(2), Unfolded::Steps(4)];
        let (mut now, mut task) = (Instant::ZERO, 0);
        let mut running = said(&core.step(now, Event::Arrived(request(0, steps()))));
        (1..3).for_each(|req| drop(core.step(now, Event::Arrived(request(req, steps())))));
        let mut ends = |core: &mut Core, running: &str| {
            now += if running.contains("cell 0") { ENCODES } else { DECODES };
            let mut actions = core.step(now, done(task));
            actions.retain(|action| !matches!(action, Action::WakeAt(_)));
            task += 1;
            (now, said(&actions))
        };
        let mut at = Instant::ZERO;
        while !running.ends_with("cell 1: 0.2 1.2 2.2") {
            (at, running) = ends(&mut core, &running);
        }
        core.step(at, Event::Arrived(Arrival { deadline: until_ns.map(|ns| at + ns), ..request(3, steps()) }));
        let (_, next) = ends(&mut core, &running);
        next.split_once(' ').expect("a task is launched").1.to_owned()
    };
    let (decodes, encodes) = ("cell 1: 0.3 1.3 2.3", "cell 0: 3.0");
    assert_eq!(next(None), decodes, "it can spare the time of a step");
    assert_eq!(next(Some(130)), encodes, "20 have passed, 100 are needed, and a step of the others takes 20");
    assert_eq!(next(Some(110)), decodes, "it would be late in any case, and takes no other's turn");
}

#[test]
fn a_request_that_cannot_meet_its_target_is_refused_where_such_are() {
    let late = |reject_late| {
        let mut core = core(knobs(reject_late, Some(99)), 1, LaneKnobs::default());
        said(&core.step(Instant::ZERO, Event::Arrived(request(0, vec![Unfolded::Steps(2), Unfolded::Steps(4)]))))
    };
    assert_eq!(late(true), "0 Rejected(Late)");
    assert_eq!(late(false), "#0 cell 0: 0.0");
}

#[test]
fn a_draining_version_whose_last_request_is_refused_is_gone() {
    let mut core = core(knobs(true, Some(99)), 1, LaneKnobs::default());
    core.step(Instant::ZERO, Event::ModelUp(ModelId(1), Box::new(knobs(true, Some(99)))));
    let of =
        |req, model| Arrival { model: ModelId(model), ..request(req, vec![Unfolded::Steps(1), Unfolded::Steps(1)]) };
    core.step(Instant::ZERO, Event::Arrived(of(0, 0)));
    core.step(at(1), Event::Arrived(of(1, 1)));
    assert_eq!(said(&core.step(at(2), Event::ModelDraining(ModelId(1)))), "");
    let actions = said(&core.step(at(90), done(0)));
    assert!(actions.contains("1 Rejected(Late); Drained(ModelId(1))"), "{actions}");
}

#[test]
fn a_model_with_an_urgent_request_goes_before_another_at_every_step() {
    let beside = |objective_ns| {
        let mut core = core(knobs(false, Some(10_000)), 1, LaneKnobs::default());
        core.step(Instant::ZERO, Event::ModelUp(ModelId(1), Box::new(knobs(false, Some(objective_ns)))));
        let of = |req, model| Arrival {
            model: ModelId(model),
            ..request(req, vec![Unfolded::Steps(1), Unfolded::Steps(2)])
        };
        let mut now = Instant::ZERO;
        let mut launched = vec![said(&core.step(now, Event::Arrived(of(0, 0))))];
        (1..4).for_each(|req| drop(core.step(now, Event::Arrived(of(req, 0)))));
        core.step(now, Event::Arrived(of(9, 1)));
        for task in 0..4 {
            now += if launched.last().is_some_and(|said| said.contains("cell 0")) { ENCODES } else { DECODES };
            let mut actions = core.step(now, done(task));
            actions.retain(|action| !matches!(action, Action::WakeAt(_)));
            launched.push(said(&actions));
        }
        launched
    };
    let urgent = ["#1 cell 0: 9.0", "#2 cell 1: 9.1", "#3 cell 1: 9.2", "9 Completed; #4 cell 0: 1.0 2.0 3.0"];
    assert_eq!(beside(70)[1..], urgent);
    assert_ne!(beside(10_000)[1..], urgent, "otherwise they take turns");
}

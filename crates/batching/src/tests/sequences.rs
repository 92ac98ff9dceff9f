//! Requests of sequences through the core: one after the other, in exclusive slots, until an end that always comes.

use paternoster_model::{CellId, CorrelationId, InSequence, unfold::Unfolded};

use super::{
    at,
    cellular::{core, done, request, said},
};
use crate::{
    Action, Arrival, CellKnobs, CellularKnobs, Core, End, Event, Instant, Knobs, LaneId, LaneKnobs, ModelId, Ns,
    Policy, QueueKnobs, QueueingKnobs, ReqId, SegmentKnobs, SequenceKnobs, TaskId, TimeoutAction, WindowKnobs,
};

const IDLE: Ns = 100;

fn knobs(max_sequences: u32, max_rows: u32) -> Knobs {
    let policy = Policy::Cellular(CellularKnobs {
        cells: vec![CellKnobs {
            max_rows,
            min_followup: 1,
            priority: 1,
            kind: None,
            buckets: Box::default(),
            chunks: None,
        }],
        segments: vec![SegmentKnobs::Steps { cell: CellId(0) }],
        slots: 100,
        sequences: Some(SequenceKnobs { max_sequences, max_idle_ns: IDLE }),
        ..CellularKnobs::default()
    });
    Knobs { max_in_flight: 64, policy, ..Knobs::default() }
}

/// A request of one step; `flags` contains '<' if it starts its sequence, and '>' if it ends it.
fn of(req: u64, sequence: u64, flags: &str) -> Event<'static> {
    let id = CorrelationId::Number(sequence);
    let sequence = InSequence { id, starts: flags.contains('<'), ends: flags.contains('>') };
    Event::Arrived(Arrival { sequence: Some(sequence), ..request(req, vec![Unfolded::Steps(1)]) })
}

/// Creates a core with one lane. The returned function returns its actions on an event, without wakes.
fn talk(knobs: Knobs) -> impl FnMut(Ns, Event<'_>) -> String {
    let mut core: Core = core(knobs, 1, LaneKnobs::default());
    move |now, event| {
        let mut actions = core.step(at(now), event);
        actions.retain(|action| !matches!(action, Action::WakeAt(_)));
        core.check().expect("nothing is broken");
        let said = said(&actions).replace("SequenceOver { model: ModelId(0), sequence: SequenceNo(", "over(");
        let said = said.replace("Joined { req: ReqId(", "join(").replace("), sequence: SequenceNo(", ", ");
        said.replace(") }", ")")
    }
}

#[test]
fn requests_of_a_sequence_run_one_after_the_other_and_those_of_others_beside_them() {
    let mut step = talk(knobs(4, 4));
    assert_eq!(step(0, of(0, 7, "<")), "join(0, 0); #0 cell 0: 0.0");
    assert_eq!(step(0, of(1, 7, "")), "join(1, 0)");
    assert_eq!(step(0, of(2, 8, "<>")), "join(2, 1)");
    assert_eq!(step(0, of(3, 7, ">")), "join(3, 0)");
    assert_eq!(step(1, done(0)), "0 Completed; #1 cell 0: 2.0 1.0");
    assert_eq!(step(2, done(1)), "2 Completed; over(1); 1 Completed; #2 cell 0: 3.0");
    assert_eq!(step(3, done(2)), "3 Completed; over(0)");
}

#[test]
fn a_sequence_is_started_before_anything_else_and_again_behind_its_end() {
    let mut step = talk(knobs(4, 4));
    assert_eq!(step(0, of(0, 7, "")), "0 Rejected(NotStarted)");
    assert_eq!(step(0, of(1, 7, "<>")), "join(1, 0); #0 cell 0: 1.0");
    assert_eq!(step(0, of(2, 7, "")), "2 Rejected(NotStarted)", "the last request has come, though it runs");
    assert_eq!(step(1, done(0)), "1 Completed; over(0)");
    assert_eq!(step(1, of(3, 7, ">")), "3 Rejected(NotStarted)");
    assert_eq!(step(1, of(4, 7, "<")), "join(4, 1); #1 cell 0: 4.0");
}

#[test]
fn sequences_wait_for_a_slot_in_the_order_in_which_they_began() {
    let mut step = talk(knobs(1, 4));
    assert_eq!(step(0, of(0, 1, "<")), "join(0, 0); #0 cell 0: 0.0");
    assert_eq!(step(0, of(1, 2, "<>")), "join(1, 1)");
    assert_eq!(step(0, of(2, 3, "<>")), "join(2, 2)");
    assert_eq!(step(1, done(0)), "0 Completed", "its slot is its own while it is open");
    assert_eq!(step(2, of(3, 1, ">")), "join(3, 0); #1 cell 0: 3.0");
    assert_eq!(step(3, done(1)), "3 Completed; over(0); #2 cell 0: 1.0");
    assert_eq!(step(4, done(2)), "1 Completed; over(1); #3 cell 0: 2.0");
    assert_eq!(step(5, done(3)), "2 Completed; over(2)");
}

#[test]
fn an_idle_sequence_is_over_in_time_and_not_before() {
    let mut step = talk(knobs(1, 4));
    assert_eq!(step(0, of(0, 1, "<")), "join(0, 0); #0 cell 0: 0.0");
    assert_eq!(step(IDLE * 5, Event::Wake), "", "it has a request");
    assert_eq!(step(500, done(0)), "0 Completed");
    assert_eq!(step(599, of(1, 1, "")), "join(1, 0); #1 cell 0: 1.0");
    assert_eq!(step(700, done(1)), "1 Completed");
    assert_eq!(step(710, of(2, 2, "<>")), "join(2, 1)");
    assert_eq!(step(799, Event::Wake), "");
    assert_eq!(step(800, Event::Wake), "over(0); #2 cell 0: 2.0");
    assert_eq!(step(800, of(3, 1, "")), "3 Rejected(NotStarted)");
}

#[test]
fn a_start_ends_an_open_sequence_of_its_id_behind_what_that_has_to_do() {
    let mut step = talk(knobs(1, 4));
    assert_eq!(step(0, of(0, 1, "<")), "join(0, 0); #0 cell 0: 0.0");
    assert_eq!(step(0, of(1, 1, "")), "join(1, 0)");
    assert_eq!(step(0, of(2, 1, "<>")), "join(2, 1)");
    assert_eq!(step(1, done(0)), "0 Completed; #1 cell 0: 1.0");
    assert_eq!(step(2, done(1)), "1 Completed; over(0); #2 cell 0: 2.0");
    assert_eq!(step(3, done(2)), "2 Completed; over(1)");
    assert_eq!(step(4, of(3, 1, "<")), "join(3, 2); #3 cell 0: 3.0");
    assert_eq!(step(5, done(3)), "3 Completed");
    assert_eq!(step(6, of(4, 1, "<")), "join(4, 3); over(2); #4 cell 0: 4.0", "an idle one ends at once");
}

#[test]
fn a_sequence_whose_first_request_does_not_complete_was_never_begun() {
    let mut step = talk(knobs(1, 4));
    assert_eq!(step(0, of(0, 1, "<")), "join(0, 0); #0 cell 0: 0.0");
    assert_eq!(step(0, of(1, 1, "")), "join(1, 0)");
    assert_eq!(step(0, of(2, 1, ">")), "join(2, 0)");
    assert_eq!(step(0, of(3, 2, "<>")), "join(3, 1)");
    let refused = "1 Rejected(NotStarted); 2 Rejected(NotStarted)";
    let failed = step(1, Event::Failed { task: TaskId(0) });
    assert_eq!(failed, format!("0 Failed; over(0); {refused}; #1 cell 0: 3.0"));
    assert_eq!(step(3, Event::Failed { task: TaskId(1) }), "3 Failed; over(1)");
}

#[test]
fn a_cancelled_request_cancels_those_behind_it_and_closes_its_sequence() {
    let mut step = talk(knobs(1, 4));
    step(0, of(0, 1, "<"));
    assert_eq!(step(1, done(0)), "0 Completed");
    for req in 1..5 {
        step(2, of(req, 1, ""));
    }
    assert_eq!(step(2, of(5, 2, "<>")), "join(5, 1)");
    assert_eq!(step(3, Event::Cancelled(ReqId(3))), "3 Cancelled; 4 Cancelled", "those before it still run");
    assert_eq!(step(3, of(6, 1, "")), "6 Rejected(NotStarted)", "it would lack the steps");
    assert_eq!(step(4, done(1)), "1 Completed; #2 cell 0: 2.0");
    assert_eq!(step(5, done(2)), "2 Completed; over(0); #3 cell 0: 5.0");
    assert_eq!(step(6, done(3)), "5 Completed; over(1)");
}

#[test]
fn a_request_cancelled_while_it_runs_cancels_those_behind_it() {
    for first in [true, false] {
        let mut step = talk(knobs(1, 4));
        let mut task = 0;
        if !first {
            step(0, of(9, 1, "<"));
            step(0, done(0));
            task = 1;
        }
        step(1, of(0, 1, if first { "<" } else { "" }));
        step(1, of(1, 1, ""));
        step(1, of(2, 1, ">"));
        let ends = step(2, Event::Cancelled(ReqId(0)));
        assert_eq!(ends, "0 Cancelled; over(0); 1 Cancelled; 2 Cancelled", "its step left no state");
        assert_eq!(step(3, done(task)), "");
    }
}

#[test]
fn a_cancellation_in_the_backlog_cancels_the_whole_sequence() {
    for cancelled in [1, 2] {
        let mut step = talk(knobs(1, 4));
        step(0, of(0, 1, "<"));
        step(0, of(1, 2, "<"));
        step(0, of(2, 2, ""));
        step(0, of(3, 2, ""));
        step(0, of(4, 3, "<>"));
        let others: Vec<_> = [1, 2, 3].into_iter().filter(|req| *req != cancelled).collect();
        let expected = format!("{cancelled} Cancelled; over(1); {} Cancelled; {} Cancelled", others[0], others[1]);
        assert_eq!(step(1, Event::Cancelled(ReqId(cancelled))), expected);
        assert_eq!(step(1, of(5, 2, "")), "5 Rejected(NotStarted)");
        assert_eq!(step(2, of(6, 1, ">")), "join(6, 0)", "the sequence with the slot goes on");
        step(3, done(0));
        assert_eq!(step(4, done(1)), "6 Completed; over(0); #2 cell 0: 4.0");
    }
}

#[test]
fn a_deadline_cancels_the_requests_behind_it() {
    let expiring = |event: Event<'static>, ns| match event {
        Event::Arrived(arrival) => Event::Arrived(Arrival { deadline: Some(at(ns)), ..arrival }),
        other => other,
    };
    let mut step = talk(knobs(1, 4));
    step(0, of(0, 1, "<"));
    step(0, expiring(of(1, 1, ""), 10));
    step(0, of(2, 1, ""));
    assert_eq!(step(10, Event::Wake), "1 Expired; 2 Cancelled");
    assert_eq!(step(11, done(0)), "0 Completed; over(0)");
}

#[test]
fn a_later_request_that_fails_leaves_its_sequence_as_it_was() {
    let mut step = talk(knobs(1, 4));
    step(0, of(0, 1, "<"));
    assert_eq!(step(1, done(0)), "0 Completed");
    assert_eq!(step(2, of(1, 1, "")), "join(1, 0); #1 cell 0: 1.0");
    assert_eq!(step(2, of(3, 1, "")), "join(3, 0)");
    assert_eq!(step(4, Event::Failed { task: TaskId(1) }), "1 Failed; #2 cell 0: 3.0");
    assert_eq!(step(5, of(4, 1, ">")), "join(4, 0)");
    assert_eq!(step(5, Event::Cancelled(ReqId(4))), "4 Cancelled");
    assert_eq!(step(6, done(2)), "3 Completed; over(0)", "its last request was given up, and it ends all the same");
}

#[test]
fn requests_wait_for_a_fuller_batch_for_as_long_as_the_window_says() {
    let windowed = |preferred_batch_sizes: &[u32]| {
        let mut knobs = knobs(8, 4);
        if let Policy::Cellular(cellular) = &mut knobs.policy {
            let preferred_batch_sizes = preferred_batch_sizes.to_vec();
            cellular.window = Some(WindowKnobs { preferred_batch_sizes, max_queue_delay_ns: 50 });
        }
        knobs
    };
    let mut step = talk(windowed(&[2]));
    assert_eq!(step(0, of(0, 1, "<")), "join(0, 0)");
    assert_eq!(step(49, Event::Wake), "");
    assert_eq!(step(50, Event::Wake), "#0 cell 0: 0.0", "its delay is over");
    assert_eq!(step(51, of(1, 2, "<>")), "join(1, 1)");
    assert_eq!(step(52, of(2, 3, "<>")), "join(2, 2)", "the lane runs");
    assert_eq!(step(53, of(3, 4, "<>")), "join(3, 3)");
    assert_eq!(step(54, done(0)), "0 Completed; #1 cell 0: 1.0 2.0", "the preferred size");
    assert_eq!(step(55, done(1)), "1 Completed; over(1); 2 Completed; over(2)");
    assert_eq!(step(56, of(4, 1, ">")), "join(4, 0); #2 cell 0: 3.0 4.0");
    let mut step = talk(windowed(&[]));
    for req in 0..3 {
        assert_eq!(step(0, of(req, req + 1, "<>")), format!("join({req}, {req})"), "the largest batch is 4");
    }
    assert_eq!(step(1, of(3, 4, "<>")), "join(3, 3); #0 cell 0: 0.0 1.0 2.0 3.0");
}

#[test]
fn a_hold_counts_requests_of_sequences_with_a_slot_and_those_of_the_backlog_apart() {
    let queueing = QueueingKnobs { hold_until_waiting: 2, hold_until_backlog: 1, ..QueueingKnobs::default() };
    let mut step = talk(Knobs { queueing, ..knobs(1, 4) });
    assert_eq!(step(0, of(0, 1, "<")), "join(0, 0)");
    assert_eq!(step(0, of(1, 2, "<>")), "join(1, 1)", "it has no slot");
    assert_eq!(step(0, of(2, 3, "<>")), "join(2, 2)");
    assert_eq!(step(0, of(3, 1, ">")), "join(3, 0); #0 cell 0: 0.0");
    let queueing = QueueingKnobs { hold_until_waiting: 1, hold_until_backlog: 2, ..QueueingKnobs::default() };
    let mut step = talk(Knobs { queueing, ..knobs(1, 4) });
    assert_eq!(step(0, of(0, 1, "<>")), "join(0, 0)");
    assert_eq!(step(0, of(1, 2, "<>")), "join(1, 1)");
    assert_eq!(step(0, of(2, 3, "<>")), "join(2, 2); #0 cell 0: 0.0");
}

#[test]
fn queue_limits_and_timeouts_hold_for_requests_behind_others() {
    let queue = QueueKnobs { max_queue_size: 2, allow_timeout_override: true, ..QueueKnobs::default() };
    let queueing = |timeout_action| QueueingKnobs {
        default_queue: QueueKnobs { timeout_action, ..queue },
        ..QueueingKnobs::default()
    };
    let within = |event: Event<'static>, ns| match event {
        Event::Arrived(arrival) => Event::Arrived(Arrival { queue_deadline: Some(at(ns)), ..arrival }),
        other => other,
    };
    let mut step = talk(Knobs { queueing: queueing(TimeoutAction::Reject), ..knobs(2, 1) });
    assert_eq!(step(0, of(0, 1, "<")), "join(0, 0); #0 cell 0: 0.0");
    assert_eq!(step(0, within(of(1, 1, ""), 10)), "join(1, 0)");
    assert_eq!(step(0, of(2, 1, "")), "join(2, 0)");
    assert_eq!(step(0, of(3, 3, "<")), "3 Rejected(QueueFull)", "a sequence that is refused begins nothing");
    assert_eq!(step(0, of(4, 3, "")), "4 Rejected(NotStarted)");
    assert_eq!(step(10, Event::Wake), "1 Rejected(QueueTimeout); 2 Rejected(QueueTimeout)", "no step is left out");
    assert_eq!(step(11, done(0)), "0 Completed; over(0)");
    let mut step = talk(Knobs { queueing: queueing(TimeoutAction::Delay), ..knobs(2, 1) });
    step(0, of(0, 1, "<"));
    assert_eq!(step(0, within(of(1, 1, ""), 10)), "join(1, 0)");
    assert_eq!(step(0, of(2, 2, "<")), "join(2, 1)");
    assert_eq!(step(10, Event::Wake), "");
    assert_eq!(step(11, done(0)), "0 Completed; #1 cell 0: 2.0", "who is delayed goes behind the others");
    assert_eq!(step(12, done(1)), "2 Completed; #2 cell 0: 1.0");
}

#[test]
fn a_version_goes_with_its_idle_sequences_and_wakes_nobody_for_them() {
    let mut core = core(knobs(1, 1), 1, LaneKnobs::default());
    core.step(Instant::ZERO, of(0, 1, "<"));
    core.step(at(1), done(0));
    let gone = core.step(at(2), Event::ModelDraining(ModelId(0)));
    assert_eq!(gone.to_vec(), [Action::Drained(ModelId(0))]);
    assert!(core.step(at(IDLE * 9), Event::Wake).is_empty());
    core.step(at(IDLE * 9), Event::LaneUp(LaneId(1), LaneKnobs::default()));
    let unknown = core.step(at(IDLE * 9), of(1, 1, ""));
    assert_eq!(unknown.to_vec(), [Action::Finish { req: ReqId(1), end: End::Failed }]);
}

#[test]
fn a_version_with_sequences_takes_no_request_without_one_and_no_other_takes_one() {
    let mut step = talk(knobs(1, 1));
    assert_eq!(step(0, Event::Arrived(request(0, vec![Unfolded::Steps(1)]))), "0 Failed");
    let mut plain = knobs(1, 1);
    if let Policy::Cellular(cellular) = &mut plain.policy {
        cellular.sequences = None;
    }
    assert_eq!(talk(plain)(0, of(0, 1, "<")), "0 Failed");
}

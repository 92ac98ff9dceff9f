//! Cancellations, deadlines, draining, and late events.

use super::{
    at,
    pool::{DynamicBatching, Pool, arrival, serial, window},
    script::play,
};
use crate::{Core, End, Event, Instant, LaneId, LaneKnobs, ModelId, TaskId};

fn pool() -> Pool {
    Pool::new(1, [window(4, DynamicBatching::default())])
}

#[test]
fn a_cancelled_request_leaves_the_queue() {
    let mut pool = pool();
    play(
        &mut pool,
        &[
            (0, "a", "#0 runs a"),
            (1, "b", ""),
            (1, "c", ""),
            (2, "cancel b", "b cancelled"),
            (3, "#0 done", "a completed; #1 runs c"),
        ],
    );
}

#[test]
fn a_cancelled_request_in_a_task_ends_at_once_and_its_rows_count_for_nothing() {
    let mut pool = pool();
    play(
        &mut pool,
        &[
            (0, "a", "#0 runs a"),
            (1, "b rows=2", ""),
            (1, "c", ""),
            (2, "#0 done", "a completed; #1 runs b[0..2] c"),
            (3, "cancel b", "b cancelled"),
            (4, "#1 failed+ on on+", "response 0 of c; c completed"),
        ],
    );
}

#[test]
fn a_deadline_ends_a_request_in_the_queue() {
    let mut pool = pool();
    play(
        &mut pool,
        &[
            (0, "a", "#0 runs a"),
            (1, "b deadline=30", "wake at 30"),
            (30, "wake", "b expired"),
            (31, "#0 done", "a completed"),
        ],
    );
}

#[test]
fn what_is_needed_after_a_request_does_not_end_it_early() {
    let mut pool = pool();
    play(
        &mut pool,
        &[
            (0, "a", "#0 runs a"),
            (1, "b deadline=30 after=40", "wake at 30"),
            (29, "wake", "wake at 30"),
            (30, "wake", "b expired"),
            (31, "#0 done", "a completed"),
        ],
    );
}

#[test]
fn a_deadline_ends_a_running_request() {
    let mut pool = pool();
    play(&mut pool, &[(0, "a deadline=30", "#0 runs a; wake at 30"), (30, "wake", "a expired"), (31, "#0 done", "")]);
}

#[test]
fn a_result_at_the_instant_of_the_deadline_is_too_late() {
    let mut pool = pool();
    play(&mut pool, &[(0, "a deadline=30", "#0 runs a; wake at 30"), (30, "#0 done", "a expired"), (30, "wake", "")]);
}

#[test]
fn a_request_past_its_deadline_does_not_begin() {
    let mut pool = pool();
    play(&mut pool, &[(30, "a deadline=30", "a expired"), (31, "b deadline=30", "b expired")]);
}

#[test]
fn events_for_what_has_ended_change_nothing() {
    let mut pool = pool();
    play(
        &mut pool,
        &[
            (0, "a", "#0 runs a"),
            (1, "#0 done", "a completed"),
            (2, "#0 done", ""),
            (2, "#0 fails", ""),
            (2, "#7 done", ""),
            (2, "cancel a", ""),
            (2, "cancel z", ""),
            (2, "drain 9", ""),
            (2, "wake", ""),
        ],
    );
}

#[test]
fn a_version_is_drained_once_its_last_request_and_task_are_gone() {
    let mut pool = Pool::new(1, [window(4, DynamicBatching::default()), serial()]);
    play(
        &mut pool,
        &[
            (0, "a", "#0 runs a"),
            (1, "b", ""),
            (2, "drain 0", ""),
            (3, "c", ""),
            (4, "cancel b", "b cancelled"),
            (5, "#0 done", "a completed; #1 runs c"),
            (6, "cancel c", "c cancelled"),
            (7, "#1 done", "model 0 drained"),
            (8, "drain 1", "model 1 drained"),
            (8, "drain 1", ""),
        ],
    );
    assert!(pool.core.counters().is_empty(), "drained versions are forgotten");
}

#[test]
fn a_batch_of_which_nothing_is_left_keeps_no_version() {
    let mut pool = Pool::new(1, [serial(), serial()]);
    play(
        &mut pool,
        &[
            (0, "a", "#0 runs a"),
            (1, "b model=1", ""),
            (2, "#0 again", "#1 runs b"),
            (3, "drain 0", ""),
            (4, "cancel a", "a cancelled; model 0 drained"),
            (5, "#1 done", "b completed"),
        ],
    );
}

#[test]
fn a_request_for_a_version_that_is_not_up_fails() {
    let mut pool = pool();
    play(&mut pool, &[(0, "a model=3", "a failed"), (1, "drain 0", "model 0 drained"), (2, "b", "b failed")]);
}

#[test]
fn a_version_that_comes_up_again_starts_anew() {
    let mut pool = pool();
    play(&mut pool, &[(0, "a", "#0 runs a"), (1, "#0 done", "a completed"), (2, "drain 0", "model 0 drained")]);
    pool.model_up(ModelId(0), serial());
    play(&mut pool, &[(3, "b", "#1 runs b"), (4, "#1 done", "b completed")]);
    assert_eq!(pool.core.counters()[0].1.completed, 1);
}

#[test]
fn what_is_announced_twice_is_there_once() {
    let mut pool = pool();
    pool.model_up(ModelId(0), serial());
    pool.core.step(Instant::ZERO, Event::LaneUp(LaneId(0), LaneKnobs::default()));
    play(&mut pool, &[(0, "a", "#0 runs a"), (1, "b", ""), (1, "c", ""), (2, "#0 done", "a completed; #1 runs b c")]);
}

#[test]
fn requests_wait_for_the_first_lane() {
    let mut pool = Pool::new(0, [serial()]);
    play(&mut pool, &[(0, "a", ""), (1, "b", "")]);
    let actions = pool.core.step(at(2), Event::LaneUp(LaneId(5), LaneKnobs::default()));
    assert_eq!(actions.len(), 1, "one lane takes one of two requests: {actions:?}");
}

#[test]
fn a_late_driver_sees_each_request_end_for_what_came_first() {
    let mut core = Core::new();
    core.step(Instant::ZERO, Event::ModelUp(ModelId(0), Box::new(serial())));
    core.step(Instant::ZERO, Event::LaneUp(LaneId(0), LaneKnobs::default()));
    let mut first = arrival(0);
    first.deadline = Some(at(10));
    core.step(Instant::ZERO, Event::Arrived(first));
    let mut second = arrival(1);
    second.deadline = Some(at(5));
    core.step(Instant::ZERO, Event::Arrived(second));
    let actions = core.step(at(100), Event::Completed { task: TaskId(0), rows: &[] });
    let ends: Vec<_> = actions.iter().map(|action| format!("{action:?}")).collect();
    let expired = |req| format!("Finish {{ req: ReqId({req}), end: {:?} }}", End::Expired);
    assert_eq!(ends, [expired(1), expired(0)]);
}

//! Requests that produce responses faster than their clients consume them.

use super::{
    pool::{DynamicBatching, Pool, serial, window},
    script::play,
};
use crate::ModelId;

#[test]
fn a_request_that_pauses_makes_nothing_until_it_is_resumed_and_others_have_its_lane() {
    let mut pool = Pool::new(1, [serial()]);
    play(
        &mut pool,
        &[
            (0, "a rows=2", "#0 runs a[0..2]"),
            (1, "b", ""),
            (2, "#0 pause+ pause+", "response 0 of a; #1 runs b"),
            (3, "#1 done", "b completed"),
            (4, "c", "#2 runs c"),
            (5, "resume a", ""),
            (6, "#2 done", "c completed; #3 runs a[0..2]"),
            (7, "#3 done+ done+", "response 1 of a; a completed"),
        ],
    );
}

#[test]
fn rows_of_a_batch_pause_apart_from_the_others() {
    let mut pool = Pool::new(2, [window(8, DynamicBatching::default())]);
    play(
        &mut pool,
        &[
            (0, "x", "#0 runs x"),
            (0, "y", "#1 runs y on lane 1"),
            (1, "a", ""),
            (1, "b", ""),
            (2, "#0 done", "x completed; #2 runs a b"),
            (3, "#2 pause+ again+", "response 0 of a; response 0 of b; #3 runs b"),
            (4, "#1 done", "y completed"),
            (5, "resume a", "#4 runs a on lane 1"),
            (6, "#3 done", "b completed"),
            (7, "#4 done", "a completed"),
        ],
    );
}

#[test]
fn resuming_what_does_not_pause_changes_nothing() {
    let mut pool = Pool::new(1, [serial()]);
    play(
        &mut pool,
        &[
            (0, "resume a", ""),
            (0, "a", "#0 runs a"),
            (1, "resume a", ""),
            (2, "#0 pause+", "response 0 of a"),
            (3, "resume a", "#1 runs a"),
            (4, "resume a", ""),
            (5, "#1 done", "a completed"),
        ],
    );
}

#[test]
fn a_paused_request_ends_by_its_deadline_and_when_it_is_given_up() {
    let mut pool = Pool::new(1, [serial()]);
    play(
        &mut pool,
        &[
            (0, "a deadline=50", "#0 runs a; wake at 50"),
            (1, "b", ""),
            (2, "#0 pause+", "response 0 of a; #1 runs b"),
            (3, "#1 pause+", "response 0 of b"),
            (4, "cancel b", "b cancelled"),
            (5, "resume b", ""),
            (50, "wake", "a expired"),
            (51, "resume a", ""),
            (52, "c", "#2 runs c"),
            (53, "#2 done", "c completed"),
        ],
    );
}

#[test]
fn a_row_that_fails_ends_its_request_whose_other_rows_pause() {
    let mut pool = Pool::new(1, [serial()]);
    play(
        &mut pool,
        &[
            (0, "a rows=2", "#0 runs a[0..2]"),
            (1, "#0 pause+ failed", "response 0 of a; a failed"),
            (2, "resume a", ""),
            (3, "b", "#1 runs b"),
            (4, "#1 done", "b completed"),
        ],
    );
}

#[test]
fn a_version_goes_once_its_paused_request_has_ended() {
    let mut pool = Pool::new(1, [serial()]);
    play(
        &mut pool,
        &[
            (0, "a", "#0 runs a"),
            (1, "#0 pause+", "response 0 of a"),
            (2, "drain 0", ""),
            (3, "cancel a", "a cancelled; model 0 drained"),
        ],
    );
    assert!(pool.drained.contains(&ModelId(0)));
}

#[test]
fn responses_of_a_paused_request_keep_the_order_of_requests() {
    let batching = DynamicBatching { preserve_ordering: true, ..DynamicBatching::default() };
    let mut pool = Pool::new(2, [window(8, batching)]);
    play(
        &mut pool,
        &[
            (0, "a", "#0 runs a"),
            (0, "b", "#1 runs b on lane 1"),
            (1, "#1 pause+", ""),
            (2, "#0 done", "a completed; response 0 of b"),
            (3, "resume b", "#2 runs b"),
            (4, "#2 done", "b completed"),
        ],
    );
}

//! Failed tasks, failed rows, and rows that run their stage again.

use super::{
    pool::{DynamicBatching, Pool, window},
    script::play,
};

fn pool() -> Pool {
    Pool::new(1, [window(4, DynamicBatching::default())])
}

#[test]
fn a_failed_task_of_one_request_fails_it() {
    let mut pool = pool();
    play(&mut pool, &[(0, "a rows=3", "#0 runs a[0..3]"), (1, "#0 fails", "a failed")]);
}

#[test]
fn requests_of_a_failed_task_run_once_more_alone_in_order_ahead_of_the_queue() {
    let mut pool = pool();
    play(
        &mut pool,
        &[
            (0, "a", "#0 runs a"),
            (1, "b", ""),
            (1, "c rows=2", ""),
            (1, "d", ""),
            (1, "e", ""),
            (2, "#0 done", "a completed; #1 runs b c[0..2] d"),
            (3, "#1 fails", "#2 runs b"),
            (4, "#2 done", "b completed; #3 runs c[0..2]"),
            (5, "#3 fails", "c failed; #4 runs d"),
            (6, "#4 done", "d completed; #5 runs e"),
        ],
    );
    let counters = pool.core.counters()[0].1;
    assert_eq!((counters.tasks_failed, counters.solo_retries, counters.failed), (2, 3, 1));
}

#[test]
fn a_request_left_alone_by_cancellations_is_still_given_its_second_run() {
    let mut pool = pool();
    play(
        &mut pool,
        &[
            (0, "a", "#0 runs a"),
            (1, "b", ""),
            (1, "c", ""),
            (2, "#0 done", "a completed; #1 runs b c"),
            (3, "cancel b", "b cancelled"),
            (4, "#1 fails", "#2 runs c"),
            (5, "#2 fails", "c failed"),
        ],
    );
}

#[test]
fn a_request_cancelled_before_its_second_run_is_passed_over() {
    let mut pool = pool();
    play(
        &mut pool,
        &[
            (0, "a", "#0 runs a"),
            (1, "b", ""),
            (1, "c", ""),
            (1, "d", ""),
            (2, "#0 done", "a completed; #1 runs b c d"),
            (3, "#1 fails", "#2 runs b"),
            (4, "cancel c", "c cancelled"),
            (5, "#2 done", "b completed; #3 runs d"),
        ],
    );
}

#[test]
fn a_row_that_failed_alone_fails_its_request_only() {
    let mut pool = pool();
    play(
        &mut pool,
        &[
            (0, "a", "#0 runs a"),
            (1, "b rows=2", ""),
            (1, "c", ""),
            (2, "#0 done", "a completed; #1 runs b[0..2] c"),
            (3, "#1 on failed on", "b failed; c completed"),
        ],
    );
}

#[test]
fn rows_without_an_outcome_and_rows_sent_astray_have_failed() {
    let mut pool = pool();
    play(
        &mut pool,
        &[
            (0, "a", "#0 runs a"),
            (1, "b", ""),
            (1, "c", ""),
            (1, "d", ""),
            (2, "#0 done", "a completed; #1 runs b c d"),
            (3, "#1 astray done", "b failed; c completed; d failed"),
        ],
    );
}

#[test]
fn rows_that_run_their_stage_again_stay_together_and_leave_one_by_one() {
    let mut pool = pool();
    play(
        &mut pool,
        &[
            (0, "a", "#0 runs a"),
            (1, "b", ""),
            (1, "c", ""),
            (1, "d", ""),
            (2, "#0 done", "a completed; #1 runs b c d"),
            (3, "e", ""),
            (
                4,
                "#1 again+ done+ again+",
                "response 0 of b; response 0 of c; c completed; response 0 of d; #2 runs b d",
            ),
            (5, "cancel d", "d cancelled"),
            (6, "#2 again+ again+", "response 1 of b; #3 runs b"),
            (7, "#3 done+", "response 2 of b; b completed; #4 runs e"),
        ],
    );
}

#[test]
fn a_request_whose_rows_leave_at_different_times_ends_with_the_last() {
    let mut pool = pool();
    play(
        &mut pool,
        &[
            (0, "a rows=4", "#0 runs a[0..4]"),
            (1, "#0 again done again again", "#1 runs a a[2..4]"),
            (2, "#1 again+ again+ done+", "response 0 of a; #2 runs a a[2..3]"),
            (3, "#2 done done", "a completed"),
        ],
    );
}

#[test]
fn a_failed_task_of_a_loop_retries_only_the_rows_that_were_in_it() {
    let mut pool = pool();
    play(
        &mut pool,
        &[
            (0, "a", "#0 runs a"),
            (1, "b rows=2", ""),
            (1, "c", ""),
            (2, "#0 done", "a completed; #1 runs b[0..2] c"),
            (3, "#1 done again again", "#2 runs b[1..2] c"),
            (4, "#2 fails", "#3 runs b[1..2]"),
            (5, "#3 again", "#4 runs c"),
            (6, "#4 done", "c completed; #5 runs b[1..2]"),
            (7, "#5 done", "b completed"),
        ],
    );
}

#[test]
fn a_failing_row_takes_the_looping_rows_of_its_request_along() {
    let mut pool = pool();
    play(&mut pool, &[(0, "a rows=2", "#0 runs a[0..2]"), (1, "#0 again failed", "a failed"), (2, "b", "#1 runs b")]);
}

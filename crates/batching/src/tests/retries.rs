//! Failed tasks, failed rows, and rows that run their stage again.

use super::{
    pool::{DynamicBatching, Pool, arrival, window},
    script::play,
};
use crate::ReqId;

fn pool() -> Pool {
    Pool::new(1, [window(4, DynamicBatching::default())])
}

#[test]
fn a_failed_task_of_one_request_fails_it() {
    let mut pool = pool();
    play(&mut pool, &[(0, "a rows=3", "#0 runs a[0..3]"), (1, "#0 fails", "a failed")]);
}

#[test]
fn requests_of_a_failed_task_run_again_in_halves_which_nobody_joins_until_those_are_found_that_fail_alone() {
    let mut pool = pool();
    play(
        &mut pool,
        &[
            (0, "a", "#0 runs a"),
            (1, "b", ""),
            (1, "c", ""),
            (1, "d", ""),
            (1, "e", ""),
            (1, "f", ""),
            (2, "#0 done", "a completed; #1 runs b c d e"),
            (3, "#1 fails", "#2 runs b c"),
            (4, "#2 done", "b completed; c completed; #3 runs d e"),
            (5, "#3 fails", "#4 runs d"),
            (6, "#4 fails", "d failed; #5 runs e"),
            (7, "#5 done", "e completed; #6 runs f"),
        ],
    );
    let counters = pool.core.counters()[0].1;
    assert_eq!((counters.tasks_failed, counters.retries, counters.failed), (3, 4, 1));
}

#[test]
fn a_request_of_several_rows_is_in_one_half() {
    let mut pool = pool();
    play(
        &mut pool,
        &[
            (0, "a", "#0 runs a"),
            (1, "b rows=3", ""),
            (1, "c", ""),
            (2, "#0 done", "a completed; #1 runs b[0..3] c"),
            (3, "#1 fails", "#2 runs b[0..3]"),
            (4, "#2 fails", "b failed; #3 runs c"),
            (5, "#3 done", "c completed"),
        ],
    );
}

#[test]
fn halves_keep_the_level_of_their_requests_and_their_turn() {
    let levels = DynamicBatching { priority_levels: 2, default_priority_level: 2, ..DynamicBatching::default() };
    let mut pool = Pool::new(1, [window(2, levels)]);
    play(
        &mut pool,
        &[
            (0, "a", "#0 runs a"),
            (1, "b", ""),
            (1, "c", ""),
            (2, "#0 done", "a completed; #1 runs b c"),
            (3, "d", ""),
            (3, "e priority=1", ""),
            (4, "#1 fails", "#2 runs e d"),
            (5, "f priority=1", ""),
            (5, "g", ""),
            (5, "h", ""),
            (6, "#2 done", "e completed; d completed; #3 runs f g"),
            (7, "#3 done", "f completed; g completed; #4 runs b"),
            (8, "#4 done", "b completed; #5 runs c"),
            (9, "#5 fails", "c failed; #6 runs h"),
        ],
    );
}

#[test]
fn one_bad_request_of_64_costs_twelve_further_tasks() {
    for bad in 0..64 {
        let mut pool = Pool::new(1, [window(64, DynamicBatching::default())]);
        pool.arrive(arrival(100));
        (0..64).for_each(|req| drop(pool.arrive(arrival(req))));
        let mut tasks = 0;
        while let Some(task) = pool.running().first() {
            tasks += 1;
            if task.rows.iter().any(|row| row.req == ReqId(bad)) {
                pool.fail(task.id)
            } else {
                pool.complete(task.id, &[])
            };
        }
        let counters = pool.core.counters()[0].1;
        assert_eq!((counters.completed, counters.failed), (64, 1), "only {bad} is bad");
        assert_eq!(tasks, 2 + 2 * 6, "one for the request before, one that fails, and two for each halving");
    }
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
            (3, "#1 fails", "#2 runs b c"),
            (4, "cancel c", "c cancelled"),
            (4, "cancel d", "d cancelled"),
            (5, "#2 fails", "#3 runs b"),
            (6, "#3 done", "b completed"),
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

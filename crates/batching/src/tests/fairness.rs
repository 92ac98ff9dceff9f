//! The arbiter: groups share the device's time.

use super::{
    pool::{Pool, serial},
    script::play,
};

#[test]
fn groups_take_turns_and_one_that_had_the_device_waits_for_those_that_had_not() {
    let mut pool = Pool::new(1, [serial(), serial(), serial()]);
    play(
        &mut pool,
        &[
            (0, "a", "#0 runs a"),
            (1, "b", ""),
            (2, "c", ""),
            (3, "d model=2", ""),
            (4, "e model=1", ""),
            (5, "#0 done", "a completed; #1 runs d"),
            (6, "#1 done", "d completed; #2 runs e"),
            (7, "#2 done", "e completed; #3 runs b"),
            (8, "#3 done", "b completed; #4 runs c"),
        ],
    );
}

#[test]
fn one_group_does_not_hold_all_lanes_while_another_waits() {
    let mut pool = Pool::new(2, [serial(), serial()]);
    play(
        &mut pool,
        &[
            (0, "a", "#0 runs a"),
            (0, "b", "#1 runs b on lane 1"),
            (1, "c", ""),
            (1, "d", ""),
            (2, "e model=1", ""),
            (2, "f model=1", ""),
            (3, "#0 done", "a completed; #2 runs e"),
            (4, "#2 done", "e completed; #3 runs f"),
            (5, "#1 done", "b completed; #4 runs c on lane 1"),
        ],
    );
}

#[test]
fn one_group_may_hold_all_lanes_while_no_other_waits() {
    let mut pool = Pool::new(2, [serial(), serial()]);
    play(
        &mut pool,
        &[
            (0, "a", "#0 runs a"),
            (0, "b", "#1 runs b on lane 1"),
            (1, "c", ""),
            (2, "#1 done", "b completed; #2 runs c on lane 1"),
        ],
    );
}

//! `serial`: one request at a time.

use super::{
    pool::{Pool, serial},
    script::play,
};
use crate::Knobs;

#[test]
fn one_request_runs_at_a_time_in_order_of_arrival() {
    let mut pool = Pool::new(1, [serial()]);
    play(
        &mut pool,
        &[
            (0, "a rows=2", "#0 runs a[0..2]"),
            (1, "b", ""),
            (2, "c", ""),
            (5, "#0 done", "a completed; #1 runs b"),
            (9, "#1 done", "b completed; #2 runs c"),
            (12, "#2 done", "c completed"),
        ],
    );
}

#[test]
fn priorities_and_queue_timeouts_mean_nothing_without_a_dynamic_batcher() {
    let mut pool = Pool::new(1, [serial()]);
    play(
        &mut pool,
        &[
            (0, "a", "#0 runs a"),
            (1, "b timeout=2", ""),
            (3, "c priority=1 key=4", ""),
            (5, "#0 done", "a completed; #1 runs b"),
            (9, "#1 done", "b completed; #2 runs c"),
        ],
    );
}

#[test]
fn each_lane_runs_one_request() {
    let mut pool = Pool::new(3, [serial()]);
    play(
        &mut pool,
        &[
            (0, "a", "#0 runs a"),
            (0, "b", "#1 runs b on lane 1"),
            (0, "c", "#2 runs c on lane 2"),
            (0, "d", ""),
            (4, "#1 done", "b completed; #3 runs d on lane 1"),
        ],
    );
}

#[test]
fn max_in_flight_caps_the_lanes_that_a_model_takes() {
    let mut pool = Pool::new(3, [Knobs { max_in_flight: 2, ..serial() }]);
    play(
        &mut pool,
        &[
            (0, "a", "#0 runs a"),
            (0, "b", "#1 runs b on lane 1"),
            (0, "c", ""),
            (4, "#0 done", "a completed; #2 runs c"),
        ],
    );
}

//! `hold_until_waiting`: nothing runs until this many requests wait, so that tests of queues can fill them first.

use super::{
    pool::{DynamicBatching, Pool, window},
    script::play,
};
use crate::{Knobs, ModelId, QueueKnobs, QueueingKnobs};

fn held(until: u32, batching: DynamicBatching) -> Knobs {
    let knobs = window(8, batching);
    Knobs { queueing: QueueingKnobs { hold_until_waiting: until, ..knobs.queueing }, ..knobs }
}

#[test]
fn nothing_runs_before_so_many_requests_wait_and_then_all_do_as_they_come() {
    let mut pool = Pool::new(1, [held(3, DynamicBatching::default())]);
    play(
        &mut pool,
        &[
            (0, "a rows=4", ""),
            (1, "b", ""),
            (2, "c", "#0 runs a[0..4] b c"),
            (3, "#0 done", "a completed; b completed; c completed"),
            (4, "d", "#1 runs d"),
        ],
    );
}

#[test]
fn requests_that_wait_still_end_by_their_limits_and_by_their_clients() {
    let default_queue = QueueKnobs { max_queue_size: 2, ..QueueKnobs::default() };
    let mut pool = Pool::new(1, [held(3, DynamicBatching { default_queue, ..DynamicBatching::default() })]);
    play(
        &mut pool,
        &[
            (0, "a deadline=10", "wake at 10"),
            (1, "b", ""),
            (2, "c", "c rejected: queue full"),
            (10, "wake", "a expired"),
            (11, "cancel b", "b cancelled"),
        ],
    );
}

#[test]
fn another_model_runs_meanwhile_and_one_that_drains_is_held_no_longer() {
    let mut pool = Pool::new(1, [held(3, DynamicBatching::default()), window(8, DynamicBatching::default())]);
    play(&mut pool, &[(0, "a", ""), (1, "b model=1", "#0 runs b"), (2, "#0 done", "b completed")]);
    play(&mut pool, &[(3, "drain 0", "#1 runs a")]);
    play(&mut pool, &[(4, "#1 done", "a completed; model 0 drained")]);
    assert!(pool.drained.contains(&ModelId(0)));
}

//! Priority levels and queue policies.

use super::{
    pool::{DynamicBatching, Pool, window},
    script::play,
};
use crate::{QueueKnobs, TimeoutAction};

fn pool(knobs: DynamicBatching) -> Pool {
    Pool::new(1, [window(2, knobs)])
}

fn queue(default_queue: QueueKnobs) -> DynamicBatching {
    DynamicBatching { default_queue, ..DynamicBatching::default() }
}

const REJECT_AFTER_50: QueueKnobs = QueueKnobs {
    timeout_action: TimeoutAction::Reject,
    default_timeout_ns: 50,
    allow_timeout_override: false,
    max_queue_size: 0,
};

#[test]
fn higher_levels_board_first() {
    let mut pool =
        pool(DynamicBatching { priority_levels: 3, default_priority_level: 2, ..DynamicBatching::default() });
    play(
        &mut pool,
        &[
            (0, "a", "#0 runs a"),
            (1, "b priority=3", ""),
            (2, "c", ""),
            (3, "d priority=1", ""),
            (4, "e priority=2", ""),
            (9, "#0 done", "a completed; #1 runs d c"),
            (10, "#1 done", "d completed; c completed; #2 runs e b"),
        ],
    );
}

#[test]
fn there_may_be_as_many_levels_as_a_number_can_say() {
    let levels = DynamicBatching { priority_levels: u64::MAX, default_priority_level: 1 << 32, ..Default::default() };
    play(
        &mut pool(levels),
        &[
            (0, "a", "#0 runs a"),
            (1, "b priority=18446744073709551615", ""),
            (2, "c", ""),
            (3, "d priority=4294967297", ""),
            (9, "#0 done", "a completed; #1 runs c d"),
            (10, "#1 done", "c completed; d completed; #2 runs b"),
        ],
    );
}

#[test]
fn a_priority_out_of_range_means_the_default_level() {
    let mut pool =
        pool(DynamicBatching { priority_levels: 2, default_priority_level: 1, ..DynamicBatching::default() });
    play(
        &mut pool,
        &[
            (0, "a", "#0 runs a"),
            (1, "b priority=2", ""),
            (2, "c priority=9", ""),
            (3, "d priority=0", ""),
            (9, "#0 done", "a completed; #1 runs c d"),
        ],
    );
}

#[test]
fn a_higher_level_of_another_key_goes_first() {
    let mut pool =
        pool(DynamicBatching { priority_levels: 2, default_priority_level: 2, ..DynamicBatching::default() });
    play(
        &mut pool,
        &[
            (0, "a", "#0 runs a"),
            (1, "b key=1", ""),
            (2, "c key=2", ""),
            (3, "d key=2 priority=1", ""),
            (9, "#0 done", "a completed; #1 runs d c"),
        ],
    );
}

#[test]
fn a_full_queue_rejects_and_counts_requests_not_rows() {
    let mut pool = pool(queue(QueueKnobs { max_queue_size: 2, ..QueueKnobs::default() }));
    play(
        &mut pool,
        &[
            (0, "a", "#0 runs a"),
            (1, "b rows=2", ""),
            (1, "c rows=2", ""),
            (1, "d", "d rejected: queue full"),
            (2, "#0 done", "a completed; #1 runs b[0..2]"),
            (3, "e", ""),
            (3, "f", "f rejected: queue full"),
            (4, "cancel e", "e cancelled"),
            (5, "g", ""),
        ],
    );
    let counters = pool.core.counters()[0].1;
    assert_eq!((counters.pending_requests, counters.pending_rows, counters.live_requests), (2, 3, 3));
    assert_eq!((counters.queue_full, counters.cancelled, counters.completed), (2, 1, 1));
}

#[test]
fn each_level_has_a_queue_of_its_own() {
    let mut pool = pool(DynamicBatching {
        priority_levels: 2,
        default_priority_level: 2,
        level_queues: vec![(1, QueueKnobs { max_queue_size: 1, ..QueueKnobs::default() })],
        ..queue(QueueKnobs { max_queue_size: 2, ..QueueKnobs::default() })
    });
    play(
        &mut pool,
        &[
            (0, "a", "#0 runs a"),
            (1, "b priority=1", ""),
            (1, "c priority=1", "c rejected: queue full"),
            (1, "d", ""),
            (1, "e", ""),
            (1, "f", "f rejected: queue full"),
        ],
    );
}

#[test]
fn under_reject_a_request_is_turned_away_when_its_timeout_passes() {
    let mut pool = pool(queue(REJECT_AFTER_50));
    play(
        &mut pool,
        &[
            (0, "a", "#0 runs a"),
            (10, "b", "wake at 60"),
            (20, "c", ""),
            (60, "wake", "b rejected: queue timeout; wake at 70"),
            (65, "#0 done", "a completed; #1 runs c"),
            (70, "wake", ""),
        ],
    );
}

#[test]
fn the_timeout_ends_at_the_launch() {
    let mut pool = pool(queue(REJECT_AFTER_50));
    play(&mut pool, &[(0, "a", "#0 runs a"), (90, "#0 done", "a completed")]);
}

#[test]
fn an_override_shortens_the_default_timeout_and_never_lengthens_it() {
    let mut pool = pool(queue(QueueKnobs { allow_timeout_override: true, ..REJECT_AFTER_50 }));
    play(
        &mut pool,
        &[
            (0, "a", "#0 runs a"),
            (10, "b timeout=20", "wake at 20"),
            (10, "c timeout=90", ""),
            (20, "wake", "b rejected: queue timeout; wake at 60"),
            (60, "wake", "c rejected: queue timeout"),
        ],
    );
}

#[test]
fn an_override_counts_where_there_is_no_default_timeout() {
    let mut pool = pool(queue(QueueKnobs { allow_timeout_override: true, ..QueueKnobs::default() }));
    play(
        &mut pool,
        &[
            (0, "a", "#0 runs a"),
            (10, "b timeout=20", "wake at 20"),
            (10, "c", ""),
            (20, "wake", "b rejected: queue timeout"),
        ],
    );
}

#[test]
fn an_override_means_nothing_where_it_is_not_allowed() {
    let mut pool = pool(queue(REJECT_AFTER_50));
    play(
        &mut pool,
        &[(0, "a", "#0 runs a"), (10, "b timeout=20", "wake at 60"), (60, "wake", "b rejected: queue timeout")],
    );
}

#[test]
fn under_delay_a_request_goes_behind_the_others_of_its_level_when_its_timeout_passes() {
    let mut pool = pool(DynamicBatching {
        priority_levels: 2,
        default_priority_level: 1,
        ..queue(QueueKnobs { timeout_action: TimeoutAction::Delay, ..REJECT_AFTER_50 })
    });
    play(
        &mut pool,
        &[
            (0, "a", "#0 runs a"),
            (10, "b", "wake at 60"),
            (20, "c", ""),
            (25, "d priority=2", ""),
            (30, "e", ""),
            (60, "wake", "wake at 70"),
            (65, "#0 done", "a completed; #1 runs c e"),
            (68, "#1 done", "c completed; e completed; #2 runs b d"),
            (70, "wake", ""),
        ],
    );
    assert_eq!(pool.core.counters()[0].1.delayed, 1);
}

#[test]
fn a_delayed_request_is_never_rejected_and_goes_on_counting_for_the_queue_size() {
    let delay = QueueKnobs { timeout_action: TimeoutAction::Delay, max_queue_size: 1, ..REJECT_AFTER_50 };
    let mut pool = pool(queue(delay));
    play(
        &mut pool,
        &[
            (0, "a", "#0 runs a"),
            (10, "b", "wake at 60"),
            (60, "wake", ""),
            (900, "c", "c rejected: queue full"),
            (901, "#0 done", "a completed; #1 runs b"),
        ],
    );
}

#[test]
fn a_timeout_in_the_past_takes_effect_at_once() {
    let reject = QueueKnobs { allow_timeout_override: true, ..QueueKnobs::default() };
    let mut pool = pool(queue(reject));
    play(&mut pool, &[(10, "a timeout=10", "a rejected: queue timeout")]);
    let mut pool = self::pool(queue(QueueKnobs { timeout_action: TimeoutAction::Delay, ..reject }));
    play(&mut pool, &[(10, "a timeout=10", "#0 runs a")]);
}

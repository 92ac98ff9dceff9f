//! `preserve_ordering`: responses leave in the order of arrival.

use super::{
    pool::{DynamicBatching, Pool, window},
    script::play,
};
use crate::QueueKnobs;

fn pool(lanes: u16, default_queue: QueueKnobs) -> Pool {
    Pool::new(
        lanes,
        [window(1, DynamicBatching { preserve_ordering: true, default_queue, ..DynamicBatching::default() })],
    )
}

#[test]
fn a_reply_waits_for_the_replies_before_it() {
    let mut pool = pool(2, QueueKnobs::default());
    play(
        &mut pool,
        &[
            (0, "a", "#0 runs a"),
            (0, "b", "#1 runs b on lane 1"),
            (0, "c", ""),
            (1, "#1 done", "#2 runs c on lane 1"),
            (2, "#2 fails", ""),
            (3, "#0 done", "a completed; b completed; c failed"),
        ],
    );
}

#[test]
fn a_rejection_waits_its_turn_too() {
    let mut pool = pool(1, QueueKnobs { max_queue_size: 1, ..QueueKnobs::default() });
    play(
        &mut pool,
        &[
            (0, "a", "#0 runs a"),
            (1, "b", ""),
            (2, "c", ""),
            (3, "#0 done", "a completed; #1 runs b"),
            (4, "#1 done", "b completed; c rejected: queue full"),
        ],
    );
}

#[test]
fn cancelled_and_expired_requests_wait_for_none_and_let_the_next_pass() {
    let mut pool = pool(2, QueueKnobs::default());
    play(
        &mut pool,
        &[
            (0, "a deadline=50", "#0 runs a; wake at 50"),
            (0, "b", "#1 runs b on lane 1"),
            (0, "c", ""),
            (0, "d", ""),
            (1, "#1 done", "#2 runs c on lane 1"),
            (2, "cancel d", "d cancelled"),
            (50, "wake", "a expired; b completed"),
            (60, "#2 done", "c completed"),
        ],
    );
}

#[test]
fn a_held_reply_may_still_expire_or_be_cancelled() {
    let mut pool = pool(3, QueueKnobs::default());
    play(
        &mut pool,
        &[
            (0, "a", "#0 runs a"),
            (0, "b deadline=50", "#1 runs b on lane 1; wake at 50"),
            (0, "c", "#2 runs c on lane 2"),
            (1, "#1 done", ""),
            (2, "#2 done", ""),
            (3, "cancel c", "c cancelled"),
            (50, "wake", "b expired"),
            (60, "#0 done", "a completed"),
        ],
    );
}

#[test]
fn responses_of_a_decoupled_request_wait_their_turn() {
    let mut pool = pool(2, QueueKnobs::default());
    play(
        &mut pool,
        &[
            (0, "a", "#0 runs a"),
            (0, "b", "#1 runs b on lane 1"),
            (1, "#1 again+", "#2 runs b on lane 1"),
            (2, "#2 again+", "#3 runs b on lane 1"),
            (3, "#0 done+", "response 0 of a; a completed; response 0 of b; response 1 of b"),
            (4, "#3 done+", "response 2 of b; b completed"),
        ],
    );
}

#[test]
fn a_version_with_held_replies_is_not_drained() {
    let mut pool = pool(2, QueueKnobs::default());
    play(
        &mut pool,
        &[
            (0, "a", "#0 runs a"),
            (0, "b", "#1 runs b on lane 1"),
            (1, "drain 0", ""),
            (2, "#1 done", ""),
            (3, "#0 done", "a completed; b completed; model 0 drained"),
        ],
    );
}

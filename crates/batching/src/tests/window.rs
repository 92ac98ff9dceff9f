//! `window`: each batching knob of Triton's dynamic batcher.

use super::{
    pool::{DynamicBatching, Pool, serial, window},
    script::play,
};
use crate::Knobs;

fn pool(max_batch_rows: u32, knobs: DynamicBatching) -> Pool {
    Pool::new(1, [window(max_batch_rows, knobs)])
}

fn delayed(max_queue_delay_ns: u64) -> DynamicBatching {
    DynamicBatching { max_queue_delay_ns, ..DynamicBatching::default() }
}

#[test]
fn without_a_delay_a_batch_goes_at_once_and_grows_only_while_no_lane_takes_it() {
    let mut pool = pool(4, DynamicBatching::default());
    play(
        &mut pool,
        &[
            (0, "a", "#0 runs a"),
            (1, "b", ""),
            (2, "c rows=2", ""),
            (3, "d", ""),
            (4, "e", ""),
            (9, "#0 done", "a completed; #1 runs b c[0..2] d"),
            (12, "#1 done", "b completed; c completed; d completed; #2 runs e"),
        ],
    );
}

#[test]
fn a_request_that_does_not_fit_is_not_parted_and_none_overtakes_it() {
    let mut pool = pool(4, DynamicBatching::default());
    play(
        &mut pool,
        &[
            (0, "a", "#0 runs a"),
            (1, "b rows=3", ""),
            (1, "c rows=2", ""),
            (1, "d", ""),
            (5, "#0 done", "a completed; #1 runs b[0..3]"),
            (6, "#1 done", "b completed; #2 runs c[0..2] d"),
        ],
    );
}

#[test]
fn a_batch_waits_for_mates_until_its_oldest_request_has_waited_the_queue_delay() {
    let mut pool = pool(4, delayed(100));
    play(
        &mut pool,
        &[
            (10, "a", "wake at 110"),
            (60, "b", ""),
            (110, "wake", "#0 runs a b"),
            (120, "c", ""),
            (130, "#0 done", "a completed; b completed; wake at 220"),
            (220, "wake", "#1 runs c"),
        ],
    );
}

#[test]
fn a_full_batch_does_not_wait() {
    let mut pool = pool(4, delayed(100));
    play(
        &mut pool,
        &[
            (0, "a rows=3", "wake at 100"),
            (1, "b", "#0 runs a[0..3] b"),
            (100, "wake", ""),
            (101, "#0 done", "a completed; b completed"),
        ],
    );
}

#[test]
fn a_batch_that_the_next_request_would_overfill_does_not_wait() {
    let mut pool = pool(4, delayed(100));
    play(
        &mut pool,
        &[
            (0, "a rows=3", "wake at 100"),
            (1, "b rows=2", "#0 runs a[0..3]"),
            (50, "#0 done", "a completed"),
            (100, "wake", "wake at 101"),
            (101, "wake", "#1 runs b[0..2]"),
        ],
    );
}

#[test]
fn the_delay_goes_on_while_no_lane_is_idle() {
    let mut pool = pool(4, delayed(100));
    play(
        &mut pool,
        &[
            (0, "a rows=4", "#0 runs a[0..4]"),
            (10, "b", ""),
            (90, "c", ""),
            (120, "#0 done", "a completed; #1 runs b c"),
        ],
    );
}

#[test]
fn a_batch_of_a_preferred_size_does_not_wait() {
    let mut pool = pool(8, DynamicBatching { preferred_batch_sizes: vec![2, 4], ..delayed(100) });
    play(
        &mut pool,
        &[
            (0, "a", "wake at 100"),
            (1, "b", "#0 runs a b"),
            (2, "c", ""),
            (3, "d", ""),
            (4, "e", ""),
            (5, "f", ""),
            (6, "g", ""),
            (9, "#0 done", "a completed; b completed; #1 runs c d e f"),
            (20, "#1 done", "c completed; d completed; e completed; f completed"),
            (100, "wake", "wake at 106"),
            (106, "wake", "#2 runs g"),
        ],
    );
}

#[test]
fn past_its_delay_a_batch_goes_with_all_it_has_preferred_or_not() {
    let mut pool = pool(8, DynamicBatching { preferred_batch_sizes: vec![4], ..delayed(100) });
    play(
        &mut pool,
        &[
            (0, "a rows=4", "#0 runs a[0..4]"),
            (10, "b rows=4", ""),
            (20, "c rows=2", ""),
            (110, "#0 done", "a completed; #1 runs b[0..4] c[0..2]"),
        ],
    );
}

#[test]
fn preferred_sizes_that_requests_step_over_cut_before_the_largest() {
    let mut pool = pool(8, DynamicBatching { preferred_batch_sizes: vec![4], ..delayed(100) });
    play(
        &mut pool,
        &[(0, "a rows=3", "wake at 100"), (1, "b rows=3", "#0 runs a[0..3]"), (2, "#0 done", "a completed")],
    );
}

#[test]
fn with_delay_0_a_preferred_size_cuts_what_has_gathered() {
    let mut pool = pool(8, DynamicBatching { preferred_batch_sizes: vec![2, 4], ..DynamicBatching::default() });
    play(
        &mut pool,
        &[
            (0, "a", "#0 runs a"),
            (1, "b rows=3", ""),
            (1, "c", ""),
            (1, "d", ""),
            (5, "#0 done", "a completed; #1 runs b[0..3] c"),
            (6, "#1 done", "b completed; c completed; #2 runs d"),
        ],
    );
}

#[test]
fn a_batch_goes_when_a_request_comes_that_cannot_join_it() {
    let mut pool = pool(4, delayed(1_000));
    play(
        &mut pool,
        &[
            (0, "a key=1", "wake at 1000"),
            (10, "b key=1", ""),
            (20, "c key=2", "#0 runs a b"),
            (30, "#0 done", "a completed; b completed"),
            (40, "d key=2", ""),
            (50, "e key=1", "#1 runs c d"),
            (60, "#1 done", "c completed; d completed"),
            (1000, "wake", "wake at 1050"),
            (1050, "wake", "#2 runs e"),
        ],
    );
}

#[test]
fn two_clients_that_wait_for_their_answers_do_not_wait_for_the_delay() {
    let mut pool = pool(4, delayed(1_000));
    play(
        &mut pool,
        &[
            (0, "a key=1", "wake at 1000"),
            (1, "b key=2", "#0 runs a"),
            (5, "#0 done", "a completed"),
            (6, "c key=1", "#1 runs b"),
            (11, "#1 done", "b completed"),
            (12, "d key=2", "#2 runs c"),
            (17, "#2 done", "c completed"),
            (18, "e key=1", "#3 runs d"),
        ],
    );
}

#[test]
fn a_request_that_later_mates_of_others_overtook_does_not_wait_for_the_delay() {
    let mut pool = pool(4, delayed(1_000));
    play(
        &mut pool,
        &[
            (0, "a rows=4", "#0 runs a[0..4]"),
            (1, "b key=1", ""),
            (2, "c key=2", ""),
            (3, "d key=1", ""),
            (9, "#0 done", "a completed; #1 runs b d"),
            (10, "#1 done", "b completed; d completed; #2 runs c"),
            (11, "e key=1", ""),
            (12, "f key=2", ""),
            (13, "#2 done", "c completed; #3 runs e"),
            (14, "#3 done", "e completed; wake at 1012"),
            (1012, "wake", "#4 runs f"),
        ],
    );
}

#[test]
fn the_batch_with_the_first_request_goes_before_one_that_is_full() {
    let mut pool = pool(2, delayed(100));
    play(
        &mut pool,
        &[
            (0, "a rows=2", "#0 runs a[0..2]"),
            (1, "b key=1", ""),
            (2, "c key=2 rows=2", ""),
            (9, "#0 done", "a completed; #1 runs b"),
            (10, "#1 done", "b completed; #2 runs c[0..2]"),
        ],
    );
}

#[test]
fn of_several_ready_batches_the_one_with_the_first_request_goes() {
    let mut pool = pool(2, DynamicBatching::default());
    play(
        &mut pool,
        &[
            (0, "a", "#0 runs a"),
            (1, "b key=2", ""),
            (2, "c key=1", ""),
            (2, "d key=1", ""),
            (3, "e key=2", ""),
            (9, "#0 done", "a completed; #1 runs b e"),
            (10, "#1 done", "b completed; e completed; #2 runs c d"),
        ],
    );
    let counters = pool.core.counters()[0].1;
    assert_eq!(counters.batches_formed, 3);
    assert_eq!(counters.batches_parted_by_key, 0, "full batches miss nobody");
}

#[test]
fn a_batch_short_because_others_have_other_keys_is_counted() {
    let mut pool = pool(4, DynamicBatching::default());
    play(
        &mut pool,
        &[
            (0, "a", "#0 runs a"),
            (1, "b key=2", ""),
            (2, "c key=1", ""),
            (9, "#0 done", "a completed; #1 runs b"),
            (10, "#1 done", "b completed; #2 runs c"),
        ],
    );
    assert_eq!(pool.core.counters()[0].1.batches_parted_by_key, 1);
}

#[test]
fn lengths_share_a_batch_when_they_round_up_to_the_same_bucket() {
    let mut pool = pool(8, DynamicBatching { bucket_width: 16, ..DynamicBatching::default() });
    play(
        &mut pool,
        &[
            (0, "a len=3", "#0 runs a padded to 3"),
            (1, "b len=5", ""),
            (2, "c len=17", ""),
            (3, "d len=16", ""),
            (4, "e len=20", ""),
            (9, "#0 done", "a completed; #1 runs b d padded to 16"),
            (10, "#1 done", "b completed; d completed; #2 runs c e padded to 20"),
        ],
    );
}

#[test]
fn with_bucket_width_0_any_lengths_share_a_batch_padded_to_the_longest() {
    let mut pool = pool(8, DynamicBatching::default());
    play(
        &mut pool,
        &[
            (0, "a len=3", "#0 runs a padded to 3"),
            (1, "b len=5", ""),
            (2, "c len=170", ""),
            (9, "#0 done", "a completed; #1 runs b c padded to 170"),
        ],
    );
}

#[test]
fn without_a_batch_axis_each_request_goes_alone_and_at_once() {
    let knobs = Knobs { mergeable: false, ..window(1, delayed(100)) };
    let mut pool = Pool::new(1, [knobs]);
    play(
        &mut pool,
        &[
            (0, "a", "#0 runs a"),
            (1, "b key=1", ""),
            (2, "c", ""),
            (9, "#0 done", "a completed; #1 runs b"),
            (10, "#1 done", "b completed; #2 runs c"),
        ],
    );
}

#[test]
fn a_request_larger_than_the_largest_batch_or_without_rows_fails() {
    let mut pool = pool(4, DynamicBatching::default());
    play(&mut pool, &[(0, "a rows=5", "a failed"), (0, "b rows=0", "b failed")]);
    let mut pool = Pool::new(1, [serial()]);
    play(&mut pool, &[(0, "a rows=9", "a failed")]);
}

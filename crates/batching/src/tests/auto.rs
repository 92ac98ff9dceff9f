//! `auto`: sizes that the known times make best, sizes that are tried, requests that join, and targets.

use paternoster_model::CellId;

use super::timeline::{Timeline, UNIT, rows_of, staged};
use crate::{AutoKnobs, Knobs, Ns, Policy, ReqId, Task};

fn auto() -> Policy {
    Policy::Auto(AutoKnobs::default())
}

/// Rows of the tasks of one stage.
fn sizes(server: &Timeline) -> Vec<u32> {
    server.launches.iter().map(|(_, task)| rows_of(task)).collect()
}

/// Eight rows take hardly longer than one, and each further eight four times as long.
fn bends(rows: u32) -> Ns {
    if rows <= 8 { 10 * UNIT } else { 40 * UNIT * Ns::from(rows.div_ceil(8) - 1) + 10 * UNIT }
}

fn takes(task: &Task) -> Ns {
    bends(rows_of(task))
}

#[test]
fn a_batch_is_as_large_as_its_device_likes_it() {
    let table = [1, 8, 16, 32].map(|rows| (rows, bends(rows)));
    let mut server = Timeline::new([staged(auto(), 1, 32, &table)], takes);
    (0..32).for_each(|req| server.arrives(0, req));
    server.lane_up(0, 0);
    server.run_out();
    assert_eq!(sizes(&server), [8; 4]);
}

#[test]
fn of_more_rows_than_a_search_looks_at_the_first_parts_are_as_of_few() {
    let table = [1, 8, 16, 32, 4_096].map(|rows| (rows, bends(rows)));
    let mut server = Timeline::new([staged(auto(), 1, 4_096, &table)], takes);
    (0..3_000).for_each(|req| server.arrives(0, req));
    server.lane_up(0, 0);
    server.run_out();
    assert_eq!(sizes(&server), [8; 375]);
}

#[test]
fn without_a_profile_each_size_is_tried_and_the_best_is_kept() {
    let knobs = Knobs { latencies: None, ..staged(auto(), 1, 32, &[]) };
    let mut server = Timeline::new([knobs], takes);
    server.lane_up(0, 0);
    // As many wait at any time as the largest batch holds.
    (0..4_000).for_each(|req| server.arrives(0, req));
    server.run_out();
    let sizes = sizes(&server);
    let (tried, kept) = sizes.split_at(30);
    let runs = |size: u32| tried.iter().filter(|&&rows| rows == size).count();
    assert_eq!([32, 16, 8, 4, 2, 1].map(|size| runs(size).min(4)), [4; 6], "{tried:?}");
    let eights = kept.iter().filter(|&&rows| rows == 8).count();
    assert!(eights * 10 >= kept.len() * 9, "{eights} of {} batches are of 8", kept.len());
}

#[test]
fn a_newcomer_joins_where_the_mean_gains() {
    // A batch takes as long for two as for one, in each of four stages.
    let table = [(1, 10 * UNIT), (4, 10 * UNIT)];
    let mut server = Timeline::new([staged(auto(), 4, 4, &table)], |_| 10 * UNIT);
    server.lane_up(0, 0);
    server.arrives(0, 0);
    server.arrives(5 * UNIT, 1);
    server.run_out();
    let stages: Vec<(CellId, u32)> = server.launches.iter().map(|(_, task)| (task.cell, rows_of(task))).collect();
    let stage = CellId;
    assert_eq!(stages, [(stage(0), 1), (stage(0), 1), (stage(1), 2), (stage(2), 2), (stage(3), 2)]);
}

#[test]
fn with_an_objective_a_late_request_waits_behind_the_others() {
    let policy = Policy::Auto(AutoKnobs { by_target: true });
    let knobs = Knobs { objective_ns: Some(17 * UNIT), ..staged(policy, 1, 1, &[(1, 10 * UNIT)]) };
    let mut server = Timeline::new([knobs], |_| 10 * UNIT);
    server.arrives(0, 0);
    server.arrives(7 * UNIT, 1);
    server.lane_up(8 * UNIT, 0);
    server.run_out();
    let ended = server.ended_at();
    assert!(ended[&ReqId(1)].0 < ended[&ReqId(0)].0, "{ended:?}");
}

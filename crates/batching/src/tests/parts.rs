//! The part sizes in which a batch runs best: DVABatch's policy II (section 7.2, figure 13).

use paternoster_model::CellId;
use proptest::prelude::*;

use super::{
    cost::{costs, lengths},
    same_each_time,
};
use crate::{Ns, cost::Costs};

const ONLY: CellId = CellId(0);
const THRESHOLD: f64 = 0.98;

fn best_split(costs: &Costs, rows: u32) -> Option<Vec<u32>> {
    costs.best_split(ONLY, rows, &lengths(&[]), THRESHOLD).map(|parts| parts.to_vec())
}

fn halves(costs: &Costs, rows: u32) -> Option<Vec<u32>> {
    costs.halves(ONLY, rows, &lengths(&[])).map(|parts| parts.to_vec())
}

#[test]
fn figure_13_64_rows_are_split_in_two_where_two_halves_take_no_longer() {
    let even = costs(&[&[(1, 20), (32, 100), (64, 200)]]);
    assert_eq!(halves(&even, 64), Some(vec![32, 32]));
    assert_eq!(best_split(&even, 64), Some(vec![32, 32]));
    let batching_pays = costs(&[&[(1, 20), (32, 100), (64, 190)]]);
    assert_eq!(halves(&batching_pays, 64), None);
    assert_eq!(best_split(&batching_pays, 64), None);
}

#[test]
fn only_what_remains_decides() {
    let costs = costs(&[&[(1, 10), (32, 12), (64, 14)], &[(1, 20), (32, 100), (64, 200)]]);
    assert_eq!(best_split(&costs, 64), None);
    let parts = costs.best_split(CellId(1), 64, &lengths(&[]), THRESHOLD);
    assert_eq!(parts.as_deref(), Some(&[32, 32][..]));
}

#[test]
fn the_threshold_says_how_much_longer_the_parts_may_take_together() {
    let costs = costs(&[&[(1, 20), (32, 100), (64, 197)]]);
    let split = |threshold| costs.best_split(ONLY, 64, &lengths(&[]), threshold).is_some();
    assert_eq!([split(1.0), split(0.98)], [false, true]);
}

#[test]
fn halves_are_halved_again_and_the_larger_goes_first() {
    assert_eq!(halves(&costs(&[&[(1, 100)]]), 5), Some(vec![1, 1, 1, 1, 1]));
    assert_eq!(halves(&costs(&[&[(1, 60), (3, 100), (4, 130), (7, 400)]]), 7), Some(vec![4, 3]));
    assert_eq!(halves(&costs(&[&[(1, 100)]]), 1), None);
}

#[test]
fn a_cut_that_is_no_half_is_found() {
    let costs = costs(&[&[(1, 60), (31, 100), (32, 104), (48, 110), (64, 200)]]);
    assert_eq!(halves(&costs, 64), None);
    assert_eq!(best_split(&costs, 64), Some(vec![48, 16]));
}

#[test]
fn rows_that_batching_does_not_speed_up_are_split_into_no_more_than_eight_even_parts() {
    assert_eq!(best_split(&costs(&[&[(1, 100)]]), 64), Some(vec![8; 8]));
    assert_eq!(best_split(&costs(&[&[(1, 100)]]), 4), Some(vec![1; 4]));
}

#[test]
fn a_faster_way_to_run_some_rows_is_kept_beside_one_that_completes_them_earlier() {
    // The parts with the earliest mean completion take too long together; these are the best that do not.
    let split = |times: &[Ns]| best_split(&profile(times), times.len() as u32);
    assert_eq!(split(&[19, 36, 53, 72]), Some(vec![2, 2]));
    assert_eq!(split(&[14, 26, 37, 48, 66]), Some(vec![2, 2, 1]));
    assert_eq!(split(&[25, 41, 85, 85, 85, 121]), Some(vec![2, 2, 2]));
}

#[test]
fn parts_that_take_little_longer_but_complete_later_are_not_taken() {
    let costs = costs(&[&[(1, 2), (2, 100), (99, 100), (100, 100)]]);
    assert_eq!(best_split(&costs, 100), None);
}

#[test]
fn before_the_first_stage_rows_run_one_by_one_where_that_is_fastest_however_many_wait() {
    let costs = costs(&[&[(1, 30), (2, 78), (4, 154), (8, 312), (32, 1248)]]);
    for rows in [2, 9, 16, 25, 32] {
        let parts = costs.best_parts(ONLY, rows, &lengths(&[]), 100.0, 1.0).expect("it is parted");
        assert!(parts.iter().all(|&part| part == 1), "{rows} rows in {parts:?}");
    }
}

#[test]
fn a_batch_of_one_row_or_of_unknown_time_stays_whole() {
    assert_eq!(best_split(&costs(&[&[(1, 100)]]), 1), None);
    assert_eq!(best_split(&Costs::new(&[&[]], 64, None), 8), None);
    assert_eq!(halves(&Costs::new(&[&[]], 64, None), 8), None);
}

/// Returns the sum over rows of their completion times, and the time until all are complete, by definition.
fn completion(times: &[Ns], parts: &[u32]) -> (Ns, Ns) {
    parts.iter().fold((0, 0), |(row_ns, ns), &part| {
        let done = ns + times[part as usize - 1];
        (row_ns + Ns::from(part) * done, done)
    })
}

fn compositions(rows: u32) -> Vec<Vec<u32>> {
    if rows == 0 {
        return vec![Vec::new()];
    }
    let starting_with = |first: u32| {
        compositions(rows - first).into_iter().map(move |rest| std::iter::once(first).chain(rest).collect())
    };
    (1..=rows).flat_map(starting_with).collect()
}

fn rising(most: usize) -> impl Strategy<Value = Vec<Ns>> {
    let step = prop_oneof![3 => 0..20_u64, 1 => 20..200_u64];
    (1..50_u64, proptest::collection::vec(step, most - 1)).prop_map(|(first, steps)| {
        let rest = steps.into_iter().scan(first, |ns, step| {
            *ns += step;
            Some(*ns)
        });
        std::iter::once(first).chain(rest).collect()
    })
}

fn profile(times: &[Ns]) -> Costs {
    let points: Vec<(u32, Ns)> = (1..).zip(times.iter().copied()).collect();
    costs(&[&points])
}

proptest! {
    #![proptest_config(same_each_time(256))]

    #[test]
    fn of_small_batches_no_split_completes_earlier_nor_as_early_in_fewer_parts(times in rising(8)) {
        let rows = times.len() as u32;
        let whole = times[times.len() - 1];
        let measure = |parts: &Vec<u32>| (completion(&times, parts).0, parts.len());
        let is_allowed = |parts: &Vec<u32>| whole as f64 >= THRESHOLD * completion(&times, parts).1 as f64;
        let best = compositions(rows).into_iter().filter(is_allowed).map(|parts| measure(&parts)).min();
        let found = best_split(&profile(&times), rows).unwrap_or(vec![rows]);
        prop_assert_eq!(Some(measure(&found)), best, "{:?}", found);
    }

    #[test]
    fn of_small_batches_no_parts_delay_less_all_who_wait(times in rising(8), behind in 0..40_u32) {
        let rows = times.len() as u32;
        let delay = |parts: &[u32]| {
            let (row_ns, ns) = completion(&times, parts);
            row_ns + Ns::from(behind) * ns
        };
        let least = compositions(rows).iter().map(|parts| delay(parts)).min();
        let found = profile(&times).best_parts(ONLY, rows, &lengths(&[]), f64::from(behind), 1.0);
        prop_assert_eq!(Some(delay(found.as_deref().unwrap_or(&[rows]))), least, "{:?}", found);
    }

    #[test]
    fn a_split_has_all_rows_is_acceptable_and_completes_earlier_than_the_whole(
        times in rising(100),
        rows in 2..=100_u32,
    ) {
        let whole = times[rows as usize - 1];
        if let Some(parts) = best_split(&profile(&times), rows) {
            let (row_ns, ns) = completion(&times, &parts);
            prop_assert_eq!(parts.iter().sum::<u32>(), rows);
            prop_assert!(parts.len() > 1);
            prop_assert!(whole as f64 >= THRESHOLD * ns as f64 * (1.0 - 1e-6));
            prop_assert!(row_ns < Ns::from(rows) * whole);
        }
    }

    #[test]
    fn what_two_halves_would_do_the_search_does_at_least_as_well(times in rising(64)) {
        let costs = profile(&times);
        if times[63] >= 2 * times[31] {
            let found = best_split(&costs, 64).unwrap_or_default();
            prop_assert!(!found.is_empty());
            prop_assert!(completion(&times, &found).0 <= completion(&times, &[32, 32]).0, "{found:?}");
        }
    }
}

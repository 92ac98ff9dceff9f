//! Predicted latencies: profiled tables, learning online, sums over stages.

use paternoster_model::CellId;
use proptest::prelude::*;

use super::same_each_time;
use crate::{
    CostPoint, CostTable, Ns, ShapeClass,
    cost::{Costs, Quantile},
};

const ONLY: CellId = CellId(0);

pub(super) fn lengths(lengths: &[u32]) -> ShapeClass {
    ShapeClass(lengths.iter().copied().collect())
}

/// Creates the costs of stages given as (rows, nanoseconds), for a model without lengths.
pub(super) fn costs(stages: &[&[(u32, Ns)]]) -> Costs {
    let point = |&(rows, took_ns): &(u32, Ns)| CostPoint { rows, length: 0, took_ns };
    let table = CostTable { stages: stages.iter().map(|points| points.iter().map(point).collect()).collect() };
    Costs::new(&vec![&[][..]; stages.len()], 64, Some(&table))
}

fn unknown() -> Costs {
    Costs::new(&[&[]], 64, None)
}

fn mean(costs: &Costs, rows: u32) -> Option<Ns> {
    costs.predict(ONLY, rows, &lengths(&[]), Quantile::Mean)
}

fn learn(costs: &mut Costs, rows: u32, took_ns: Ns) {
    costs.learn(ONLY, rows, rows, &lengths(&[]), took_ns);
}

fn within(value: Option<Ns>, expected: f64, share: f64) -> bool {
    value.is_some_and(|value| (value as f64 - expected).abs() <= share * expected)
}

/// Returns reproducible pseudo-random numbers in 0..1.
fn noise() -> impl Iterator<Item = f64> {
    std::iter::successors(Some(42_u64), |seed| {
        Some(seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407))
    })
    .map(|seed| (seed >> 11) as f64 / (1_u64 << 53) as f64)
}

#[test]
fn a_stage_of_which_nothing_is_known_has_no_prediction() {
    assert_eq!(mean(&unknown(), 1), None);
    assert_eq!(mean(&costs(&[&[]]), 1), None);
}

#[test]
fn a_stage_that_does_not_exist_is_not_learned_and_has_no_prediction() {
    let mut costs = unknown();
    costs.learn(CellId(1), 1, 1, &lengths(&[]), 10);
    assert_eq!(costs.predict(CellId(1), 1, &lengths(&[]), Quantile::Mean), None);
    assert_eq!(mean(&costs, 1), None);
}

#[test]
fn after_one_run_of_one_row_n_rows_are_predicted_to_take_n_times_as_long() {
    let mut costs = unknown();
    learn(&mut costs, 1, 100);
    assert_eq!([1, 2, 7, 64].map(|rows| mean(&costs, rows)), [Some(100), Some(200), Some(700), Some(6_400)]);
}

#[test]
fn fewer_rows_than_were_ever_run_are_predicted_to_take_as_long_as_the_fewest() {
    let mut costs = unknown();
    learn(&mut costs, 8, 100);
    assert_eq!([1, 4, 8].map(|rows| mean(&costs, rows)), [Some(100); 3]);
}

#[test]
fn profiled_times_are_predicted_exactly_and_times_between_them_lie_on_lines() {
    let costs = costs(&[&[(64, 400), (1, 100), (2, 110), (48, 340)]]);
    assert_eq!([1, 2, 48, 64].map(|rows| mean(&costs, rows)), [Some(100), Some(110), Some(340), Some(400)]);
    assert_eq!(mean(&costs, 25), Some(225));
    assert_eq!(mean(&costs, 56), Some(370));
    assert_eq!(mean(&costs, 128), Some(800));
}

#[test]
fn a_profiled_time_that_is_shorter_than_that_of_fewer_rows_is_raised_to_it() {
    let costs = costs(&[&[(1, 100), (2, 90), (4, 95), (8, 200)]]);
    assert_eq!([1, 2, 3, 4, 8].map(|rows| mean(&costs, rows)), [100, 100, 100, 100, 200].map(Some));
}

#[test]
fn a_profiled_point_of_no_rows_is_passed_over() {
    assert_eq!(mean(&costs(&[&[(0, 5)]]), 1), None);
}

#[test]
fn a_length_is_the_product_of_the_padded_lengths_that_are_there() {
    let points =
        [(1, 0, 100), (1, 64, 200), (1, 256, 800)].map(|(rows, length, took_ns)| CostPoint { rows, length, took_ns });
    let costs = Costs::new(&[&[]], 64, Some(&CostTable { stages: vec![points.to_vec()] }));
    let time = |class: &[u32]| costs.predict(ONLY, 1, &lengths(class), Quantile::Mean);
    assert_eq!([time(&[]), time(&[0]), time(&[1])], [Some(100); 3]);
    assert_eq!([time(&[64]), time(&[8, 8]), time(&[0, 64])], [Some(200); 3]);
    assert_eq!([time(&[160]), time(&[512])], [Some(500), Some(1_600)]);
    assert!(time(&[u32::MAX, u32::MAX, u32::MAX]).is_some());
}

/// What a row adds is told by its length, and the batches that run at present: whether these are of other lengths does
/// not matter.
#[test]
fn a_row_adds_what_the_profile_says_of_recent_batches_whatever_their_lengths() {
    let time = |rows: u32, length: u64| match length {
        64 => 1_000 + 10 * Ns::from(rows) + 20 * Ns::from(rows.saturating_sub(8)),
        _ => 3_000 + 300 * Ns::from(rows),
    };
    let sizes = [1, 8, 64].into_iter().flat_map(|rows| [64, 256].map(|length| (rows, length)));
    let points = sizes.map(|(rows, length)| CostPoint { rows, length, took_ns: time(rows, length) });
    let mut costs = Costs::new(&[&[]], 64, Some(&CostTable { stages: vec![points.collect()] }));
    let short = lengths(&[64]);
    for (rows, row_ns, fixed_ns) in [(4, 10.0, 1_000.0), (32, 30.0, 840.0), (64, 30.0, 840.0), (5, 10.0, 1_000.0)] {
        for _ in 0..2_000 {
            costs.learn(ONLY, rows, rows, &lengths(&[256]), time(rows, 256));
        }
        let found = [costs.added_ns(3, &short), costs.share_ns(3, &short)].map(|ns| ns.expect("it is known"));
        let expected = [3.0 * row_ns, 3.0 * row_ns + fixed_ns * 3.0 / f64::from(rows)];
        let is_near = found.iter().zip(expected).all(|(found, expected)| (found / expected - 1.0).abs() < 0.01);
        assert!(is_near, "batches of {rows}: {found:?}, expected {expected:?}");
    }
}

#[test]
fn a_longer_class_of_which_one_row_is_known_borrows_nothing_from_a_shorter_one() {
    let mut costs = unknown();
    for rows in [1, 8] {
        costs.learn(ONLY, rows, rows, &lengths(&[64]), 100);
    }
    costs.learn(ONLY, 1, 1, &lengths(&[128]), 150);
    assert_eq!(costs.predict(ONLY, 8, &lengths(&[128]), Quantile::Mean), Some(1_200));
    assert_eq!(costs.predict(ONLY, 8, &lengths(&[64]), Quantile::Mean), Some(100));
}

#[test]
fn what_is_only_guessed_stays_below_what_is_known_of_more_rows_and_greater_length() {
    let mut costs = unknown();
    costs.learn(ONLY, 1, 1, &lengths(&[64]), 100);
    costs.learn(ONLY, 8, 8, &lengths(&[128]), 300);
    assert_eq!(costs.predict(ONLY, 8, &lengths(&[64]), Quantile::Mean), Some(300));
}

#[test]
fn a_drift_is_followed_within_20_runs() {
    for factor in [0.1, 0.3, 0.7, 1.5, 3.0, 10.0] {
        let mut costs = costs(&[&[(1, 1_000), (4, 2_000), (16, 5_000)]]);
        for _ in 0..20 {
            learn(&mut costs, 4, (2_000.0 * factor) as Ns);
        }
        assert!(within(mean(&costs, 4), 2_000.0 * factor, 0.05), "drift by {factor}: {:?}", mean(&costs, 4));
    }
}

#[test]
fn sizes_that_have_not_run_since_they_were_profiled_drift_with_the_others() {
    let mut costs = costs(&[&[(1, 1_000), (4, 3_200), (8, 6_000)]]);
    (0..60).for_each(|_| learn(&mut costs, 1, 1_500));
    for (rows, expected) in [(1, 1_500.0), (4, 4_800.0), (8, 9_000.0)] {
        assert!(within(mean(&costs, rows), expected, 0.01), "{rows} rows: {:?}", mean(&costs, rows));
    }
    // An entry of its own makes it independent of the others.
    learn(&mut costs, 4, 6_400);
    (0..60).for_each(|_| learn(&mut costs, 1, 1_000));
    assert!(within(mean(&costs, 4), 5_000.0, 0.01), "{:?}", mean(&costs, 4));
    assert!(
        within(mean(&costs, 8), 6_000.0 * (1.0 + 5.0 / 3.2 / 8.0) / (1.0 + 1.0 / 8.0), 0.05),
        "{:?}",
        mean(&costs, 8)
    );
}

#[test]
fn one_descheduled_run_moves_a_prediction_by_an_eighth_at_most() {
    let mut costs = unknown();
    for _ in 0..10 {
        learn(&mut costs, 4, 2_000);
    }
    let p99 = |costs: &Costs| costs.predict(ONLY, 4, &lengths(&[]), Quantile::P99);
    let before = p99(&costs);
    learn(&mut costs, 4, 1_000_000);
    assert_eq!(mean(&costs, 4), Some(2_250));
    assert!(p99(&costs) < before.map(|ns| ns * 2), "{before:?} became {:?}", p99(&costs));
}

#[test]
fn odd_runs_among_others_do_not_count_as_a_drift() {
    let mut costs = unknown();
    for run in 0..200 {
        learn(&mut costs, 4, if run % 10 == 9 { 50_000 } else { 2_000 });
        assert!(within(mean(&costs, 4), 2_000.0, 0.2), "{:?} after run {run}", mean(&costs, 4));
    }
}

#[test]
fn three_surprises_in_a_row_on_one_side_are_no_drift() {
    let mut costs = costs(&[&[(1, 1_000)]]);
    for took_ns in [90_000, 90_000, 90_000, 100, 90_000, 90_000, 90_000] {
        learn(&mut costs, 1, took_ns);
    }
    assert!(mean(&costs, 1) < Some(2_000), "{:?}", mean(&costs, 1));
}

#[test]
fn the_average_starts_anew_from_the_mildest_of_four_surprises() {
    let mut costs = costs(&[&[(1, 1_000)]]);
    for took_ns in [90_000, 5_000, 40_000, 6_000] {
        learn(&mut costs, 1, took_ns);
    }
    assert_eq!(mean(&costs, 1), Some(5_000));
}

#[test]
fn about_99_of_100_runs_are_shorter_than_the_p99_prediction() {
    let mut costs = unknown();
    let (mut above, mut noise) = (0, noise());
    for run in 0..4_000 {
        let bell: f64 = noise.by_ref().take(12).sum::<f64>() - 6.0;
        let took_ns = (100_000.0 * (1.0 + 0.1 * bell)) as Ns;
        if run >= 1_000 && costs.predict(ONLY, 2, &lengths(&[]), Quantile::P99) < Some(took_ns) {
            above += 1;
        }
        learn(&mut costs, 2, took_ns);
    }
    assert!((1..=45).contains(&above), "{above} of 3,000 runs were longer");
    assert!(within(mean(&costs, 2), 100_000.0, 0.15));
}

#[test]
fn rows_that_share_a_bucket_are_predicted_along_the_line_through_them() {
    let mut costs = unknown();
    for rows in [1, 2, 4, 16].into_iter().chain([5, 8].into_iter().cycle().take(60)) {
        learn(&mut costs, rows, 1_000 + 100 * Ns::from(rows));
    }
    for rows in [5, 6, 8] {
        assert!(within(mean(&costs, rows), 1_000.0 + 100.0 * f64::from(rows), 0.03), "{:?}", mean(&costs, rows));
    }
}

#[test]
fn runs_of_sizes_between_profiled_ones_correct_the_nearest() {
    let mut costs = costs(&[&[(4, 400), (8, 800), (16, 1_600)]]);
    learn(&mut costs, 4, 400);
    learn(&mut costs, 16, 1_600);
    for _ in 0..30 {
        learn(&mut costs, 7, 1_050);
    }
    assert!(within(mean(&costs, 7), 1_050.0, 0.02), "{:?}", mean(&costs, 7));
    assert_eq!([mean(&costs, 4), mean(&costs, 16)], [Some(400), Some(1_600)]);
}

#[test]
fn the_largest_batch_is_not_averaged_with_those_that_are_nearly_as_large() {
    let mut costs = unknown();
    for rows in [1, 40, 50, 64].into_iter().cycle().take(80) {
        learn(&mut costs, rows, 10_000 + 100 * Ns::from(rows));
    }
    assert_eq!([mean(&costs, 64), mean(&costs, 1)], [Some(16_400), Some(10_100)]);
}

#[test]
fn a_bucket_follows_the_rows_that_are_run() {
    let mut costs = unknown();
    for (rows, took_ns, runs) in [(5, 1_000, 1), (9, 1_600, 8), (8, 1_100, 40)] {
        (0..runs).for_each(|_| learn(&mut costs, rows, took_ns));
    }
    assert!(within(mean(&costs, 8), 1_100.0, 0.02), "{:?}", mean(&costs, 8));
}

#[test]
fn a_slow_first_run_is_forgotten_as_soon_as_a_larger_one_is_faster() {
    let mut costs = unknown();
    learn(&mut costs, 1, 100_000);
    learn(&mut costs, 2, 1_100);
    assert_eq!([1, 2].map(|rows| mean(&costs, rows)), [Some(1_100); 2]);
    learn(&mut costs, 1, 1_000);
    assert_eq!([1, 2].map(|rows| mean(&costs, rows)), [Some(1_050), Some(1_100)]);
}

#[test]
fn the_fewest_rows_that_carry_a_rate_are_those_of_a_full_search() {
    let costs = costs(&[&[(1, 100), (4, 160), (16, 900), (32, 1_000)]]);
    let none = lengths(&[]);
    for per_second in 1..80 {
        let rate = f64::from(per_second) / 1_000.0;
        let carries = |rows: &u32| costs.run_ns(*rows, &none).is_some_and(|ns| f64::from(*rows) >= rate * ns);
        assert_eq!(costs.fewest_rows(rate, 32, &none), (1..=32).find(carries), "{rate}");
    }
    assert_eq!(costs.fewest_rows(0.0, 32, &none), Some(1));
    assert_eq!(unknown().fewest_rows(0.01, 32, &none), None);
}

#[test]
fn a_size_is_tried_until_its_slow_first_run_is_forgotten() {
    let mut costs = unknown();
    let to_try = |costs: &Costs| costs.size_to_try(4, &lengths(&[]));
    learn(&mut costs, 4, 20_000);
    (0..3).for_each(|_| learn(&mut costs, 4, 1_000));
    assert_eq!(to_try(&costs), Some(4));
    learn(&mut costs, 4, 1_000);
    assert_eq!((mean(&costs, 4), to_try(&costs)), (Some(1_000), Some(2)));
    (0..4).for_each(|_| learn(&mut costs, 2, 900));
    assert_eq!(to_try(&costs), Some(1));
    (0..4).for_each(|_| learn(&mut costs, 1, 800));
    assert_eq!(to_try(&costs), None);
    assert_eq!(costs.size_to_try(4, &lengths(&[16])), Some(4), "there are too many lengths");
}

#[test]
fn a_single_run_does_not_contradict_what_many_runs_have_shown() {
    let mut costs = unknown();
    for _ in 0..8 {
        learn(&mut costs, 2, 1_000);
        learn(&mut costs, 8, 2_000);
    }
    learn(&mut costs, 4, 90_000);
    assert_eq!([2, 4, 8].map(|rows| mean(&costs, rows)), [1_000, 2_000, 2_000].map(Some));
    learn(&mut costs, 1, 50_000);
    assert_eq!([1, 2, 8].map(|rows| mean(&costs, rows)), [1_000, 1_000, 2_000].map(Some));
}

#[test]
fn what_remains_is_the_sum_of_the_stages_that_are_left() {
    let costs = costs(&[&[(1, 10), (4, 20)], &[(1, 100), (4, 200)], &[(1, 1_000), (4, 2_000)]]);
    let class = lengths(&[]);
    let remaining = |from, rows| costs.remaining(CellId(from), rows, &class, Quantile::Mean);
    assert_eq!([remaining(0, 1), remaining(1, 4), remaining(2, 4)], [Some(1_110), Some(2_200), Some(2_000)]);
    assert_eq!(remaining(3, 1), Some(0));
    assert_eq!(costs.whole(4, &class, Quantile::Mean), Some(2_220));
    assert_eq!(costs.between(CellId(0), CellId(2), 4, &class, Quantile::Mean), Some(220));
    assert_eq!(costs.between(CellId(2), CellId(2), 4, &class, Quantile::Mean), Some(0));
    assert_eq!(costs.throughput(4, &class), Some(4.0 / 2_220.0));
    assert_eq!(costs.whole(4, &class, Quantile::P99), Some(2_553), "15 % is assumed before anything is learned");
}

#[test]
fn what_remains_is_unknown_when_a_stage_that_is_left_is() {
    let costs = costs(&[&[(1, 10)], &[], &[(1, 10)]]);
    let class = lengths(&[]);
    assert_eq!(costs.whole(1, &class, Quantile::Mean), None);
    assert_eq!(costs.remaining(CellId(2), 1, &class, Quantile::Mean), Some(10));
    assert_eq!(costs.throughput(1, &class), None);
    assert_eq!(costs.regression(&class), None);
}

#[test]
fn regression_finds_the_line_through_the_known_sizes() {
    let two_stages: &[&[(u32, Ns)]] = &[&[(1, 110), (2, 120), (16, 260)], &[(1, 205), (16, 280)]];
    let (a, c) = costs(two_stages).regression(&lengths(&[])).unwrap_or_default();
    assert!((a - 300.0).abs() < 1e-6 && (c - 15.0).abs() < 1e-6, "{a} + {c}·B");

    let (a, c) = costs(&[&[(1, 110), (2, 120), (8, 180), (64, 740)]]).regression(&lengths(&[])).unwrap_or_default();
    assert!((a - 100.0).abs() < 1e-6 && (c - 10.0).abs() < 1e-6, "{a} + {c}·B");

    assert_eq!(costs(&[&[(4, 80)]]).regression(&lengths(&[])), Some((0.0, 20.0)));
    assert_eq!(unknown().regression(&lengths(&[])), None);
}

#[test]
fn regression_takes_the_middle_of_what_is_on_no_line() {
    let (a, c) = costs(&[&[(1, 100), (2, 400), (3, 400)]]).regression(&lengths(&[])).unwrap_or_default();
    assert!((a - 0.0).abs() < 1e-6 && (c - 150.0).abs() < 1e-6, "{a} + {c}·B");
}

#[derive(Clone, Copy, Debug)]
struct Run {
    rows: u32,
    length: u32,
    took_ns: Ns,
}

fn run() -> impl Strategy<Value = Run> {
    let took_ns = prop_oneof![4 => 1..5_000_u64, 1 => 1..5_000_000_u64];
    (1..=64_u32, 1..=80_u32, took_ns).prop_map(|(rows, length, took_ns)| Run { rows, length, took_ns })
}

proptest! {
    #![proptest_config(same_each_time(128))]

    #[test]
    fn predictions_never_fall_as_rows_or_length_grow(
        given in proptest::collection::vec(run(), 0..8),
        learned in proptest::collection::vec(run(), 1..40),
    ) {
        let point = |run: &Run| CostPoint { rows: run.rows, length: u64::from(run.length), took_ns: run.took_ns };
        let mut costs = Costs::new(&[&[]], 64, Some(&CostTable { stages: vec![given.iter().map(point).collect()] }));
        for run in learned {
            costs.learn(ONLY, run.rows, run.rows, &lengths(&[run.length]), run.took_ns);
        }
        for quantile in [Quantile::Mean, Quantile::P99] {
            let time = |rows, length| costs.predict(ONLY, rows, &lengths(&[length]), quantile);
            for rows in 1..=70 {
                for length in (1..=90).step_by(3) {
                    let here = time(rows, length);
                    prop_assert!(here.is_some());
                    prop_assert!(time(rows + 1, length) >= here, "rows {rows} + 1, length {length}");
                    prop_assert!(time(rows, length + 3) >= here, "rows {rows}, length {length} + 3");
                }
            }
        }
    }

    #[test]
    fn a_monotone_profile_is_predicted_exactly(steps in proptest::collection::vec((1..9_u32, 0..500_u64), 1..12)) {
        let rising = steps.iter().scan((0, 1), |(rows, took_ns), step| {
            *rows += step.0;
            *took_ns += step.1;
            Some((*rows, *took_ns))
        });
        let points: Vec<(u32, Ns)> = rising.collect();
        let costs = costs(&[&points]);
        for (rows, took_ns) in points {
            prop_assert_eq!(mean(&costs, rows), Some(took_ns));
        }
    }
}

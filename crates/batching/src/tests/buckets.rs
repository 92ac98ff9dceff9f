//! Buckets: in which of them a task runs, and the times that policies see.

use paternoster_model::{CellId, unfold::Unfolded};
use proptest::prelude::*;
use smallvec::SmallVec;

use super::{
    cellular::{self, cell, request},
    cost::lengths,
    pool::{arrival, window},
    same_each_time,
};
use crate::{
    Action, Actions, Arrival, CellKind, CellKnobs, Core, CostPoint, CostTable, Event, Instant, Knobs, LaneKnobs,
    ModelId, Ns, SegmentKnobs, StageKnobs, TaskId,
    cost::{Costs, Quantile},
};

const ONLY: CellId = CellId(0);
const BUCKETS: [u32; 3] = [2, 4, 8];

/// Creates the costs of a stage with buckets, of which these (rows, nanoseconds) were profiled.
fn costs(buckets: &[u32], points: &[(u32, Ns)]) -> Costs {
    Costs::new(&[buckets], 64, Some(&table(points)))
}

fn table(points: &[(u32, Ns)]) -> CostTable {
    let point = |&(rows, took_ns): &(u32, Ns)| CostPoint { rows, length: 0, took_ns };
    CostTable { stages: vec![points.iter().map(point).collect()] }
}

fn buckets_of<const N: usize>(costs: &Costs, rows: [u32; N]) -> [u32; N] {
    rows.map(|rows| costs.bucket(ONLY, rows, &lengths(&[])))
}

fn times_of<const N: usize>(costs: &Costs, rows: [u32; N]) -> [Ns; N] {
    rows.map(|rows| costs.predict(ONLY, rows, &lengths(&[]), Quantile::Mean).expect("it has run"))
}

/// Returns the rows of each launched task, and its bucket.
fn launched(actions: &Actions) -> Vec<(u32, u32)> {
    let task = |action: &Action| match action {
        Action::Launch(task) => Some((task.row_count(), task.bucket.rows)),
        _ => None,
    };
    actions.iter().filter_map(task).collect()
}

#[test]
fn without_buckets_any_size_is_executed_as_it_is() {
    let costs = costs(&[], &[(1, 10), (4, 20)]);
    assert_eq!(buckets_of(&costs, [1, 3, 65]), [1, 3, 65]);
}

#[test]
fn rows_run_in_the_smallest_bucket_that_holds_them_where_times_are_unknown_or_equal() {
    let unknown = Costs::new(&[&BUCKETS], 64, None);
    let flat = costs(&BUCKETS, &[(8, 100)]);
    for costs in [unknown, flat] {
        assert_eq!(buckets_of(&costs, [1, 2, 3, 4, 5, 8]), [2, 2, 4, 4, 8, 8]);
    }
}

#[test]
fn rows_run_in_a_larger_bucket_that_takes_less() {
    let costs = costs(&[1, 2, 4, 8], &[(1, 40), (2, 90), (4, 60), (8, 80)]);
    assert_eq!(buckets_of(&costs, [1, 2, 3, 5]), [1, 4, 4, 8]);
    assert_eq!(times_of(&costs, [1, 2, 3, 5]), [40, 60, 60, 80]);
}

#[test]
fn times_are_a_staircase_in_which_a_row_more_than_a_bucket_holds_costs_the_next() {
    let costs = costs(&BUCKETS, &[(2, 30), (4, 50), (8, 90)]);
    assert_eq!(times_of(&costs, [1, 2, 3, 4, 5, 8]), [30, 30, 50, 50, 90, 90]);
    assert_eq!(times_of(&costs, [16]), [180], "as two full ones, which no task is");
    let whole = |rows| costs.whole(rows, &lengths(&[]), Quantile::Mean);
    assert_eq!((whole(4), whole(5)), (Some(50), Some(90)));
}

#[test]
fn what_a_run_takes_is_learned_of_its_bucket() {
    let mut costs = costs(&BUCKETS, &[(2, 30), (4, 50), (8, 90)]);
    for _ in 0..64 {
        costs.learn(ONLY, 1, 4, &lengths(&[]), 20);
        costs.learn(ONLY, 5, 8, &lengths(&[]), 90);
    }
    assert_eq!(times_of(&costs, [3, 4, 5]), [20, 20, 90], "though there was one row in it");
    assert_eq!(buckets_of(&costs, [1, 2, 5]), [4, 4, 8]);
}

#[test]
fn padding_rows_take_no_share_of_the_time_of_a_batch() {
    let mut costs = Costs::new(&[&BUCKETS], 64, None);
    costs.learn(ONLY, 3, 4, &lengths(&[]), 60);
    assert_eq!(costs.lately_per_row(), Some(20.0));
}

#[test]
fn policy_ii_cuts_at_buckets() {
    let split = |costs: &Costs, rows| costs.best_split(ONLY, rows, &lengths(&[]), 0.98).map(SmallVec::into_vec);
    let costs = costs(&[1, 32, 64], &[(1, 10), (32, 60), (64, 200)]);
    assert_eq!(split(&costs, 64), Some(vec![32, 32]));
    assert_eq!(split(&costs, 33), Some(vec![32, 1]), "the bucket of 64 takes longer than both");
    assert_eq!(split(&costs, 32), None);
    let best = costs.best_throughput(63, &lengths(&[])).expect("it has run");
    assert!((best - 32.0 / 60.0).abs() < 1e-9, "{best} rows a nanosecond");
}

#[test]
fn the_line_of_adaptive_batching_goes_through_the_buckets() {
    let costs = costs(&BUCKETS, &[(2, 30), (4, 50), (8, 90)]);
    let (a, c) = costs.regression(&lengths(&[])).expect("it has run");
    assert!((a - 10.0).abs() < 1e-6 && (c - 10.0).abs() < 1e-6, "{a} + {c} a row");
}

/// A window without delay over one stage.
fn staged(max_batch_rows: u32, buckets: &[u32], points: &[(u32, Ns)]) -> Knobs {
    let stages = vec![StageKnobs { buckets: buckets.into(), ..StageKnobs::default() }];
    Knobs { stages, latencies: Some(table(points)), ..window(max_batch_rows, Default::default()) }
}

fn rows(req: u64, rows: u32) -> Event<'static> {
    Event::Arrived(Arrival { rows, ..arrival(req) })
}

fn done(task: u64) -> Event<'static> {
    Event::Completed { task: TaskId(task), rows: &[] }
}

#[test]
fn a_batch_never_exceeds_the_largest_bucket_of_any_stage() {
    let mut knobs = staged(64, &[2, 4], &[]);
    knobs.stages = StageKnobs::chain(2);
    knobs.stages[0].buckets = [8].into();
    knobs.stages[1].buckets = [2, 4].into();
    let mut core = cellular::core(knobs, 1, LaneKnobs::default());
    assert_eq!(launched(&core.step(Instant::ZERO, rows(0, 1))), [(1, 8)]);
    for req in 1..7 {
        core.step(Instant::ZERO, rows(req, 1));
    }
    assert_eq!(launched(&core.step(Instant::ZERO, done(0))), [(1, 2)], "its second stage");
    assert_eq!(launched(&core.step(Instant::ZERO, done(1))), [(4, 8)]);
    assert_eq!(launched(&core.step(Instant::ZERO, done(2))), [(4, 4)]);
    let refused = core.step(Instant::ZERO, rows(9, 5));
    assert!(matches!(refused[..], [Action::Finish { .. }]), "{refused:?}: no stage runs 5 rows");
}

#[test]
fn a_version_learns_what_its_buckets_take_whatever_its_policy() {
    let mut core = cellular::core(staged(8, &BUCKETS, &[]), 1, LaneKnobs::default());
    let mut now = Instant::ZERO;
    let mut runs = |count: u32, takes_ns: Ns, task: u64| {
        let launch = core.step(now, rows(task, count));
        now += takes_ns;
        core.step(now, done(task));
        launched(&launch)[0]
    };
    assert_eq!((runs(4, 1_000, 0), runs(8, 200, 1)), ((4, 4), (8, 8)));
    assert_eq!(runs(3, 200, 2), (3, 8), "the bucket of 4 takes longer than that of 8");
}

#[test]
fn cells_run_in_buckets_and_never_exceed_the_largest() {
    let cells = [CellKnobs { buckets: [1, 3].into(), ..cell(64, 1) }];
    let knobs = cellular::cellular(&cells, &[SegmentKnobs::Steps { cell: ONLY }], 9);
    let mut core = cellular::core(knobs, 1, LaneKnobs::default());
    let mut arrives = |req| launched(&core.step(Instant::ZERO, Event::Arrived(request(req, vec![Unfolded::Steps(1)]))));
    assert_eq!(arrives(0), [(1, 1)]);
    (1..6).for_each(|req| assert_eq!(arrives(req), []));
    assert_eq!(launched(&core.step(Instant::ZERO, done(0))), [(3, 3)]);
    assert_eq!(launched(&core.step(Instant::ZERO, done(1))), [(2, 3)]);
}

#[test]
fn rows_that_others_bring_count_for_the_bucket() {
    let version = |max_rows, buckets: &[u32]| {
        let cells = [CellKnobs { kind: Some(CellKind(7)), buckets: buckets.into(), ..cell(max_rows, 1) }];
        cellular::cellular(&cells, &[SegmentKnobs::Steps { cell: ONLY }], 9)
    };
    let mut core: Core = cellular::core(version(8, &BUCKETS), 1, LaneKnobs::default());
    core.step(Instant::ZERO, Event::ModelUp(ModelId(1), Box::new(version(8, &[1, 5]))));
    let mut arrives = |req, model| {
        let arrival = Arrival { model: ModelId(model), ..request(req, vec![Unfolded::Steps(2)]) };
        launched(&core.step(Instant::ZERO, Event::Arrived(arrival)))
    };
    assert_eq!(arrives(0, 0), [(1, 2)]);
    (1..9).for_each(|req| assert_eq!(arrives(req, 1), []));
    assert_eq!(
        launched(&core.step(Instant::ZERO, done(0))),
        [(5, 8)],
        "no more rows than version 1 runs, in a bucket of version 0"
    );
}

proptest! {
    #![proptest_config(same_each_time(128))]

    #[test]
    fn the_bucket_holds_the_rows_no_other_that_does_takes_less_and_times_never_fall(
        given in proptest::collection::vec((1..65_u32, 1..1_000_u64), 0..6),
        learned in proptest::collection::vec((0..5_usize, 1..40_u32, 1..1_000_u64), 1..40),
    ) {
        const ALL: [u32; 5] = [1, 5, 16, 40, 64];
        let mut costs = costs(&ALL, &given);
        let class = |length| lengths(&[length]);
        for (at, length, took_ns) in learned {
            costs.learn(ONLY, 1, ALL[at], &class(length), took_ns);
        }
        for length in [1, 7, 30] {
            let time = |rows| costs.predict(ONLY, rows, &class(length), Quantile::Mean).unwrap_or_default();
            // A bucket's own time is visible as that of its largest size.
            for rows in 1..=64 {
                let bucket = costs.bucket(ONLY, rows, &class(length));
                prop_assert!(bucket >= rows && ALL.contains(&bucket));
                prop_assert_eq!(time(rows), time(bucket), "{} rows run in {}", rows, bucket);
                prop_assert!(time(rows + 1) >= time(rows), "{} rows", rows);
                let longer = costs.predict(ONLY, rows, &class(length + 3), Quantile::Mean);
                prop_assert!(longer >= Some(time(rows)), "{} rows of length {}", rows, length);
            }
        }
    }
}

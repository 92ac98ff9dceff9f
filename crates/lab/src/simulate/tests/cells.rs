//! Models of cells, compared with results worked out by hand.

use std::sync::Arc;

use paternoster_batching::{CellularKnobs, ChunkKnobs};
use paternoster_model::CellId;

use super::*;
use crate::{
    simulate::cells::{any_steps, cell_knobs},
    workload::{Trees, tree},
};

/// Creates cells of at most four rows with these durations for any number of rows.
fn graph(times: &[Ns], segments: &[SimulatedSegment]) -> ModelTable {
    let points =
        |&took_ns: &Ns| vec![CostPoint { rows: 1, length: 1, took_ns }, CostPoint { rows: 4, length: 1, took_ns }];
    let cells = (1..).zip(times).map(|(priority, _)| cell_knobs(4, priority)).collect();
    ModelTable {
        max_batch_rows: 4,
        latencies: CostTable { stages: times.iter().map(points).collect() },
        cells: Some(CellGraph { cells, segments: segments.to_vec(), boundary_ns: 0 }),
        ..model(&[])
    }
}

fn lstm() -> ModelTable {
    graph(&[100], &[SimulatedSegment::Chain(CellId(0))])
}

fn seq2seq() -> ModelTable {
    graph(&[10, 100], &[SimulatedSegment::Chain(CellId(0)), SimulatedSegment::Decode(CellId(1))])
}

fn tree_lstm() -> ModelTable {
    graph(&[10, 100], &[SimulatedSegment::Tree { leaf: CellId(0), inner: CellId(1) }])
}

fn cellular(table: ModelTable) -> Setup {
    let cells = table.cells.as_ref().expect("it has cells");
    let (cells, segments) = (cells.cells.clone(), cells.segment_knobs());
    let policy = Policy::Cellular(CellularKnobs { cells, segments, slots: 1000, ..CellularKnobs::default() });
    under(table, policy)
}

fn under(table: ModelTable, policy: Policy) -> Setup {
    let mut setup = setup(table, policy);
    let served = &mut setup.models[0];
    served.knobs.latencies = Some(served.table.task_latencies(&served.knobs.policy));
    // The baseline pads whatever waits.
    served.knobs.queueing.bucket_width = Some(0);
    setup
}

fn sentences<const N: usize>(requests: [(Ns, u32); N]) -> impl Iterator<Item = Offered> {
    requests.into_iter().map(|(at, length)| offered(at, length))
}

fn total_ns(setup: &Setup, requests: impl IntoIterator<Item = Offered>) -> Ns {
    let figures = run(setup, 1, requests).all();
    assert_eq!(figures.completed, figures.offered);
    sum_ns(&figures)
}

#[test]
fn requests_join_and_leave_at_every_step_or_wait_for_the_longest_of_their_batch() {
    // BatchMaker's figure 5, after a request of one step, so that the first four requests share their first task.
    let requests = || sentences([(0, 1), (50, 2), (50, 3), (50, 3), (50, 5), (250, 5), (350, 7), (350, 3), (550, 1)]);
    let ends: [Ns; 9] = [100, 300, 400, 400, 600, 800, 1100, 700, 700];
    let arrived: Ns = requests().map(|offered| offered.at.as_ns()).sum();
    assert_eq!(total_ns(&cellular(lstm()), requests()), ends.iter().sum::<Ns>() - arrived);
    assert_eq!(total_ns(&under(lstm(), window()), requests()), 100 + 4 * 600 + 4 * 1300 - arrived);
}

#[test]
fn a_lone_request_runs_its_steps_in_one_task_where_the_cell_runs_several() {
    let with = |chunks: Option<ChunkKnobs>, change: fn(&mut ModelTable)| {
        let mut table = lstm();
        let graph = table.cells.as_mut().expect("it has cells");
        graph.boundary_ns = 10;
        graph.cells[0].chunks = chunks;
        change(&mut table);
        total_ns(&cellular(table), sentences([(0, 5)]))
    };
    assert_eq!(with(None, |_| {}), 5 * (100 + 10));
    assert_eq!(with(Some(any_steps(true)), |_| {}), 5 * 100 + 10);
    let measured = |table: &mut ModelTable| {
        table.latencies.stages[0].push(CostPoint { rows: 1, length: 9, took_ns: 500 });
    };
    assert_eq!(with(Some(any_steps(true)), measured), 100 + (500 - 100) / 2 + 10, "the table has numbers of steps");
}

#[test]
fn a_padded_batch_is_of_one_bucket() {
    let mut setup = under(lstm(), window());
    setup.models[0].knobs.queueing.bucket_width = Some(2);
    let requests = sentences([(0, 1), (10, 2), (20, 3), (30, 4), (40, 4)]);
    // The buckets are 1 to 2 and 3 to 4.
    assert_eq!(total_ns(&setup, requests), 100 + (300 - 10) + (700 - 20) + (700 - 30) + (700 - 40));
}

#[test]
fn an_output_ends_by_itself_and_a_padded_one_with_the_longest_of_its_batch() {
    let requests =
        || [(0, 1, 1), (50, 2, 3), (50, 2, 1)].map(|(at, length, decoded)| Offered { decoded, ..offered(at, length) });
    assert_eq!(total_ns(&cellular(seq2seq()), requests()), 110 + (430 - 50) + (230 - 50));
    assert_eq!(total_ns(&under(seq2seq(), window()), requests()), 110 + 2 * (430 - 50));
    let endless = Offered { length: 2, decoded: 1000, ..Offered::default() };
    assert_eq!(total_ns(&cellular(seq2seq()), [endless]), 2 * 10 + 52 * 100, "50 steps more than the input has");
}

#[test]
fn a_tree_runs_from_its_leaves_to_its_root() {
    let offered =
        |leaves: u32| Offered { tree: Some(Arc::new(tree(leaves, |leaves| leaves / 2))), ..Offered::default() };
    let of = |leaves| total_ns(&cellular(tree_lstm()), [offered(leaves)]);
    assert_eq!([1, 2, 4].map(of), [10, 10 + 100, 10 + 2 * 100]);
    assert_eq!(of(8), 2 * 10 + 3 * 100, "eight leaves are two tasks, the four nodes above them one");
}

#[test]
fn a_lane_that_takes_work_ahead_lets_newcomers_wait_for_it() {
    let requests = || sentences([(0, 9), (10, 1)]);
    let mut setup = cellular(lstm());
    assert_eq!(total_ns(&setup, requests()), 900 + (200 - 10));
    setup.ahead = LaneKnobs { horizon_ns: 10_000, depth: 3 };
    assert_eq!(total_ns(&setup, requests()), 900 + (400 - 10), "three tasks were launched before it came");
    setup.ahead = LaneKnobs { horizon_ns: 150, depth: 3 };
    assert_eq!(total_ns(&setup, requests()), 900 + (300 - 10), "two tasks were");
}

#[test]
fn each_task_costs_a_boundary_whether_it_is_a_cell_or_a_graph() {
    let dearer = |setup: fn(ModelTable) -> Setup| total_ns(&setup(lstm().with_boundary(7)), sentences([(0, 3)]));
    assert_eq!(dearer(cellular), 3 * 107);
    assert_eq!(dearer(|table| under(table, window())), 307);
}

#[test]
fn policies_know_the_times_of_their_tasks() {
    let known = |table: &ModelTable, policy: &Policy| {
        let table = table.with_boundary(7).task_latencies(policy);
        let ns = |points: &Vec<CostPoint>| points.iter().map(|point| (point.length, point.took_ns)).collect::<Vec<_>>();
        table.stages.iter().map(ns).collect::<Vec<_>>()
    };
    let graphs = known(&seq2seq(), &window());
    assert_eq!(graphs, [vec![(1, 117), (1, 117), (4096, 4096 * 110 + 7), (4096, 4096 * 110 + 7)]]);
    let policy = cellular(seq2seq()).models[0].knobs.policy.clone();
    assert_eq!(known(&seq2seq(), &policy), [vec![(1, 17); 2], vec![(1, 107); 2]]);
    assert_eq!(
        lstm().sliced(1).expect_err("cells are no stages").to_string(),
        "the model 'm' runs cells, which are no stages: leave the number of stages out"
    );
}

#[test]
fn every_tree_that_comes_in_ends_and_runs_are_fixed_by_their_seeds() {
    let mut setup = cellular(tree_lstm());
    setup.devices = 2;
    setup.lanes = 2;
    setup.ahead = LaneKnobs { horizon_ns: 300, depth: 3 };
    let trees = Trees::named("trees").expect("it has a name");
    let load = |rate| SimulatedLoad {
        arrivals: Arrivals::Poisson { rate },
        models: vec![(1.0, RequestInputs::Tree(trees.clone()))],
        traced: None,
        backlog: 0,
    };
    let figures = |seed, rate| run(&setup, 1, load(rate).requests(seed, 600)).all();
    let (one, two) = (figures(1, 1e6), figures(2, 1e6));
    assert_eq!((one.completed, one.refused), (600, 0));
    assert_eq!(sum_ns(&one), sum_ns(&figures(1, 1e6)));
    assert_ne!(sum_ns(&one), sum_ns(&two));
    assert!(figures(1, 20e6).mean_batch() > one.mean_batch(), "nodes of more trees share tasks under a higher load");
}

//! Chains whose tasks run several steps of each row, on one lane in virtual time: how many steps tasks run, and what
//! that makes of the mean latency.

use std::collections::BTreeMap;

use paternoster_model::{CellId, unfold::Unfolded};
use rand_chacha::{ChaCha8Rng, rand_core::SeedableRng};
use rand_distr::{Distribution, Exp, LogNormal};

use super::{
    at,
    cellular::{cell, cellular, core, paper, request},
    driver::{Driver, Due, drives},
};
use crate::{
    Action, CellKnobs, CellularKnobs, ChunkKnobs, CostPoint, CostTable, End, Event, Instant, Knobs, LaneKnobs,
    LazyCellKnobs, Ns, Policy, ReqId, SegmentKnobs, Task,
};

/// Of a task, of each of its steps, and of each row of a step, as an LSTM on a CPU.
const FIXED_NS: Ns = 60_000;
const STEP_NS: Ns = 20_000;
const ROW_NS: Ns = 5_000;
const ROWS: u32 = 32;

const CHUNKS: ChunkKnobs = ChunkKnobs { is_padded: true, most_row_steps: u32::MAX, powers_up_to: None };
const ANY: Option<ChunkKnobs> = Some(CHUNKS);

fn run_ns(rows: u32, steps: u32) -> Ns {
    FIXED_NS + Ns::from(steps) * (STEP_NS + Ns::from(rows) * ROW_NS)
}

/// A chain whose times are known.
fn knobs(chunks: Option<ChunkKnobs>, change: impl FnOnce(&mut CellularKnobs)) -> Knobs {
    let cells = [CellKnobs { chunks, ..cell(ROWS, 1) }];
    let mut knobs = cellular(&cells, &[SegmentKnobs::Steps { cell: CellId(0) }], 1_000);
    if let Policy::Cellular(cellular) = &mut knobs.policy {
        change(cellular);
    }
    let sizes =
        [(1, 1), (ROWS, 1), (1, 40), (4, 8)].iter().copied().filter(|(_, steps)| chunks.is_some() || *steps == 1);
    let points = sizes.map(|(rows, steps)| CostPoint { rows, length: u64::from(steps), took_ns: run_ns(rows, steps) });
    Knobs { max_in_flight: 1, latencies: Some(CostTable { stages: vec![points.collect()] }), ..knobs }
}

struct World {
    driver: Driver,
    sent: BTreeMap<ReqId, Instant>,
    /// Rows and steps of each task.
    tasks: Vec<(u32, Vec<u32>)>,
    latencies: Vec<(End, Ns)>,
    /// How many of the first tasks of several steps take three times as long.
    cold: u64,
}

drives!(World);

impl World {
    fn new(knobs: Knobs) -> Self {
        let driver = Driver { core: core(knobs, 1, LaneKnobs::default()), ..Driver::default() };
        Self { driver, sent: BTreeMap::new(), tasks: Vec::new(), latencies: Vec::new(), cold: 0 }
    }

    fn step(&mut self, event: Event<'_>) {
        for action in self.driver.act(event) {
            match action {
                Action::Launch(task) => {
                    let steps: Vec<u32> = task.rows.iter().map(|row| row.count).collect();
                    let longest = steps.iter().copied().max().unwrap_or(1);
                    assert_eq!(task.row_count(), steps.len() as u32);
                    self.tasks.push((longest, steps));
                }
                Action::Finish { req, end } => self.latencies.push((end, self.driver.now.since(self.sent[&req]))),
                Action::WakeAt(_) => {}
                other => panic!("nothing else happens: {other:?}"),
            }
        }
    }

    fn arrive(&mut self, req: u64, steps: u32) {
        self.sent.insert(ReqId(req), self.driver.now);
        self.step(Event::Arrived(request(req, vec![Unfolded::Steps(steps)])));
    }

    /// Lets the tasks end that do by then.
    fn pass(&mut self, until: Ns) {
        let cold = self.cold;
        let takes_ns = |task: &Task| {
            let longest = task.rows.iter().map(|row| row.count).max().unwrap_or(1);
            run_ns(task.row_count(), longest) * if longest > 1 && task.id.0 < cold { 3 } else { 1 }
        };
        while let Some(due) = self.driver.next(at(until), takes_ns) {
            match due {
                Due::End(task) => self.step(Event::Completed { task: task.id, rows: &[] }),
                Due::Wake => self.step(Event::Wake),
            }
        }
    }

    fn longest(&self) -> Vec<u32> {
        self.tasks.iter().map(|(longest, _)| *longest).collect()
    }
}

/// The tasks of these requests, which arrive together.
fn tasks(knobs: Knobs, steps: &[u32]) -> Vec<(u32, Vec<u32>)> {
    let mut world = World::new(knobs);
    // While the lane is taken.
    world.arrive(0, 1);
    for (req, &steps) in (1..).zip(steps) {
        world.arrive(req, steps);
    }
    world.pass(Ns::MAX / 2);
    assert!(world.latencies.len() == steps.len() + 1 && world.latencies.iter().all(|(end, _)| *end == End::Completed));
    world.tasks.split_off(1)
}

#[test]
fn a_lone_request_runs_all_its_steps_in_one_task() {
    let mut world = World::new(knobs(ANY, |_| {}));
    world.arrive(0, 22);
    world.pass(Ns::MAX / 2);
    assert_eq!(world.tasks, [(22, vec![22])]);
}

#[test]
fn before_any_time_is_known_a_task_runs_single_steps() {
    let mut world = World::new(Knobs { latencies: None, ..knobs(ANY, |_| {}) });
    world.arrive(0, 22);
    world.pass(Ns::MAX / 2);
    assert_eq!(world.longest(), [1, 21]);
}

#[test]
fn slow_first_runs_do_not_make_tasks_short() {
    for cold in [4, 8, 12, 20, 28] {
        let mut world = World::new(Knobs { latencies: None, ..knobs(ANY, |_| {}) });
        world.cold = cold;
        for req in 0..60 {
            world.arrive(req, [7, 30, 200, 30][req as usize % 4]);
            world.pass(world.now.as_ns() + 1_000_000_000);
        }
        assert_eq!(world.latencies.len(), 60);
        assert!(world.tasks.len() < 120, "{cold} slow tasks: {:?}", world.longest());
    }
}

#[test]
fn rows_take_as_many_steps_as_they_have_left() {
    assert_eq!(tasks(knobs(ANY, |_| {}), &[9, 10, 10]), [(10, vec![9, 10, 10])]);
    assert_eq!(tasks(knobs(ANY, |_| {}), &[2, 20]), [(2, vec![2, 2]), (18, vec![18])], "the short one leaves early");
}

#[test]
fn a_cell_that_is_not_told_the_steps_of_each_row_runs_equally_many() {
    let equal = Some(ChunkKnobs { is_padded: false, ..CHUNKS });
    assert_eq!(tasks(knobs(equal, |_| {}), &[9, 10, 10]), [(9, vec![9, 9, 9]), (1, vec![1, 1])]);
}

#[test]
fn the_steps_of_a_task_are_bounded_by_memory_and_by_the_knob_and_are_single_in_the_paper() {
    let few = Some(ChunkKnobs { most_row_steps: 12, ..CHUNKS });
    assert_eq!(tasks(knobs(few, |_| {}), &[9, 9]), [(6, vec![6, 6]), (3, vec![3, 3])]);
    let short = |cellular: &mut CellularKnobs| cellular.max_chunk_ns = Some(run_ns(2, 4));
    let longest = |tasks: Vec<(u32, Vec<u32>)>| tasks.iter().map(|(longest, _)| *longest).collect::<Vec<u32>>();
    assert_eq!(longest(tasks(knobs(ANY, short), &[9, 9])), [4, 4, 1]);
    let none = |cellular: &mut CellularKnobs| cellular.max_chunk_ns = Some(1);
    assert_eq!(longest(tasks(knobs(ANY, none), &[3, 3])), [1, 1, 1], "a step always runs");
    assert_eq!(longest(tasks(paper(knobs(ANY, |_| {})), &[3, 3])), [1, 1, 1]);
}

#[test]
fn a_device_that_is_prepared_for_powers_of_two_runs_no_other_numbers_of_steps() {
    let powers = |most| knobs(Some(ChunkKnobs { powers_up_to: Some(most), ..CHUNKS }), |_| {});
    let longest =
        |knobs: Knobs, steps: &[u32]| tasks(knobs, steps).into_iter().map(|(longest, _)| longest).collect::<Vec<u32>>();
    assert_eq!(longest(powers(8), &[22]), [8, 8, 4, 2]);
    assert_eq!(longest(powers(16), &[22]), [16, 4, 2]);
    assert_eq!(longest(powers(1), &[3]), [1, 1, 1]);
    assert_eq!(tasks(powers(8), &[7, 8]), [(8, vec![7, 8])], "rows with fewer steps ride along");
}

#[test]
fn under_lazy_a_task_leaves_those_who_may_come_their_slack() {
    let lazy = |cellular: &mut CellularKnobs| cellular.lazy = Some(LazyCellKnobs::default());
    let longest_within = |objective_ns| {
        let mut world = World::new(Knobs { objective_ns: Some(objective_ns), ..knobs(ANY, lazy) });
        world.arrive(0, 100);
        world.pass(Ns::MAX / 2);
        world.longest()[0]
    };
    let alone_ns = run_ns(1, 100);
    assert_eq!(longest_within(3 * alone_ns), 100);
    let half = longest_within(alone_ns + run_ns(1, 50));
    assert!((48..=50).contains(&half), "{half}");
}

#[test]
fn a_request_that_is_cancelled_in_a_task_leaves_with_it_and_the_others_go_on() {
    let mut world = World::new(knobs(ANY, |_| {}));
    for req in 0..3 {
        world.arrive(req, 30);
    }
    world.pass(run_ns(1, 30));
    assert_eq!(world.tasks[1], (30, vec![30, 30]));
    world.step(Event::Cancelled(ReqId(1)));
    world.pass(Ns::MAX / 2);
    let ends: Vec<End> = world.latencies.iter().map(|(end, _)| *end).collect();
    assert_eq!(ends, [End::Completed, End::Cancelled, End::Completed]);
}

#[test]
fn a_failed_task_runs_again_in_halves_of_the_same_steps() {
    let mut world = World::new(knobs(ANY, |_| {}));
    world.arrive(0, 1);
    (1..4).for_each(|req| world.arrive(req, 8));
    world.pass(run_ns(1, 1));
    let task = world.running[0].1.id;
    world.step(Event::Failed { task });
    world.pass(Ns::MAX / 2);
    assert_eq!(world.tasks[1..], [(8, vec![8, 8, 8]), (8, vec![8, 8]), (8, vec![8])]);
    assert!(world.latencies.iter().all(|(end, _)| *end == End::Completed));
}

/// Returns the mean latency of requests of random lengths at random times, `load` of what full batches of single steps
/// could run.
fn mean_ns(knobs: Knobs, load: f64) -> f64 {
    const COUNTED: u64 = 3_000;
    let lengths = LogNormal::new(3.0, 0.5).expect("a deviation").sample_iter(ChaCha8Rng::seed_from_u64(1));
    let lengths = lengths.map(|length: f64| length.round().clamp(1.0, 80.0) as u32);
    let rate = load * f64::from(ROWS) / (run_ns(ROWS, 1) as f64 * 22.7);
    let gaps = Exp::new(rate).expect("it is positive").sample_iter(ChaCha8Rng::seed_from_u64(2));
    let (mut world, mut at) = (World::new(knobs), 0.0);
    for ((req, length), gap) in (0..COUNTED).zip(lengths).zip(gaps) {
        at += gap;
        world.pass(at as Ns);
        world.arrive(req, length);
    }
    world.pass(Ns::MAX / 2);
    assert_eq!(world.latencies.len() as u64, COUNTED);
    world.latencies.iter().map(|(_, ns)| *ns as f64).sum::<f64>() / COUNTED as f64
}

#[test]
#[ignore = "a sweep: make nightly"]
fn the_mean_latency_is_below_that_of_single_steps_at_every_load() {
    for load in [0.02, 0.1, 0.3, 0.6, 0.9] {
        let chunks = mean_ns(knobs(ANY, |_| {}), load);
        let steps = mean_ns(knobs(None, |_| {}), load);
        let fixed = [2, 4, 8].map(|most| {
            let most_ns = run_ns(ROWS / 2, most);
            mean_ns(knobs(ANY, |cellular| cellular.max_chunk_ns = Some(most_ns)), load)
        });
        println!("{load}: {:.3} ms beside {:.3} of single steps; bounded {fixed:?}", chunks / 1e6, steps / 1e6);
        assert!(chunks < steps, "at {load}: {chunks} beside {steps}");
    }
}

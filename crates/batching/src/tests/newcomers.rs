//! A lone newcomer among decoders of many thousands of steps, in virtual time: how long it waits for its first cell.

use paternoster_model::unfold::Unfolded;

use super::cellular::{cell, cellular, core, request};
use crate::{
    Action, Actions, CellId, Core, CostPoint, CostTable, Event, Knobs, LaneKnobs, Ns, SegmentKnobs, StageKnobs, Task,
};

const US: Ns = 1_000;
const ROWS: u32 = 64;

/// A stage, and a chain whose tasks take less.
#[derive(Clone, Copy)]
struct Model {
    stage_us: fn(Ns) -> Ns,
}

const DEAR: Model = Model { stage_us: |rows| 20_000 + 10 * rows };
const CHEAP: Model = Model { stage_us: |rows| 1_000 + 10 * rows };

impl Model {
    fn took_ns(self, cell: CellId, rows: u32) -> Ns {
        let rows = Ns::from(rows);
        US * if cell == CellId(0) { (self.stage_us)(rows) } else { 100 + rows }
    }

    fn knobs(self) -> Knobs {
        let segments = [SegmentKnobs::Stage { cell: CellId(0) }, SegmentKnobs::Steps { cell: CellId(1) }];
        let points =
            |cell| [1, ROWS].map(|rows| CostPoint { rows, length: 0, took_ns: self.took_ns(cell, rows) }).into();
        Knobs {
            max_in_flight: 1,
            stages: StageKnobs::chain(2),
            latencies: Some(CostTable { stages: vec![points(CellId(0)), points(CellId(1))] }),
            ..cellular(&[cell(ROWS, 1), cell(ROWS, 1)], &segments, 1_000)
        }
    }
}

struct World {
    core: Core,
    model: Model,
    now: Ns,
    running: Option<Task>,
}

impl World {
    fn step(&mut self, event: Event<'_>) {
        let launched = |actions: Actions| {
            actions.into_iter().find_map(|action| match action {
                Action::Launch(task) => Some(task),
                _ => None,
            })
        };
        self.running = launched(self.core.step(self.now, event)).or(self.running.take());
    }

    /// Lets the running task end, and returns it.
    fn run(&mut self) -> Task {
        let task = self.running.take().expect("a task is running");
        self.now += self.model.took_ns(task.cell, task.rows.len() as u32);
        self.step(Event::Completed { task: task.id, rows: &[] });
        task
    }
}

/// Returns how long a newcomer waits beside this number of decoders, as a multiple of a round: one task of its stage
/// and one of theirs.
fn rounds_waited(model: Model, decoders: u32) -> f64 {
    let mut world = World { core: core(model.knobs(), 1, LaneKnobs::default()), model, now: 0, running: None };
    for req in 0..u64::from(decoders) {
        world.step(Event::Arrived(request(req, vec![Unfolded::Steps(1), Unfolded::Steps(20_000)])));
    }
    let mut boarded = 0;
    while boarded < decoders {
        let task = world.run();
        boarded += if task.cell == CellId(0) { task.rows.len() as u32 } else { 0 };
    }
    for _ in 0..100 {
        assert_eq!(world.run().cell, CellId(1), "nothing else is ready");
    }
    let (arrived, newcomer) = (world.now, u64::from(decoders));
    world.step(Event::Arrived(request(newcomer, vec![Unfolded::Steps(1), Unfolded::Steps(20)])));
    while world.running.as_ref().is_some_and(|task| task.cell == CellId(1)) {
        world.run();
    }
    let first = world.running.as_ref().expect("nothing has ended");
    assert_eq!(first.rows.iter().map(|row| row.req.0).collect::<Vec<_>>(), [newcomer]);
    let round_ns = model.took_ns(CellId(0), 1) + model.took_ns(CellId(1), decoders.min(ROWS));
    (world.now - arrived) as f64 / round_ns as f64
}

#[test]
fn a_lone_newcomer_waits_for_twenty_rounds_at_most_and_not_for_all_steps_of_the_others() {
    for model in [DEAR, CHEAP] {
        let steps_ns = 20_000 * model.took_ns(CellId(1), 60);
        let round_ns = model.took_ns(CellId(0), 1) + model.took_ns(CellId(1), 60);
        let waited = rounds_waited(model, 60);
        // Beside the rounds, it waits for the task that runs when it arrives, and for the one that exceeds the bound.
        assert!((10.0..22.0).contains(&waited), "it waits for {waited} of {} rounds", steps_ns / round_ns);
    }
}

#[test]
fn more_decoders_than_a_batch_has_rows_do_not_keep_a_newcomer_out() {
    for model in [DEAR, CHEAP] {
        let waited = rounds_waited(model, 200);
        assert!((10.0..22.0).contains(&waited), "it waits for {waited} rounds");
    }
}

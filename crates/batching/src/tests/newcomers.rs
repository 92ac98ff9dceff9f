//! Newcomers among decoders of many thousands of steps, in virtual time: how long they wait for their first cell, and
//! what that takes from the decoders.

use std::collections::BTreeMap;

use paternoster_model::{CellId, unfold::Unfolded};

use super::{
    cellular::{cell, cellular, request},
    driver::{Driver, Due, drives},
};
use crate::{Action, CostPoint, CostTable, Event, Instant, Knobs, Ns, ReqId, SegmentKnobs, StageKnobs, Task};

const US: Ns = 1_000;
const MS: Ns = 1_000_000;
const ROWS: u32 = 64;

/// Steps of a decoder, and of a newcomer after its stage.
const STEPS: u32 = 10_000;
const FEW: u32 = 20;

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
    driver: Driver,
    model: Model,
    decoders: u64,
    decoded: u64,
    /// Newcomers that wait, and when they came.
    sent: BTreeMap<ReqId, Instant>,
    waits_ns: Vec<Ns>,
}

drives!(World);

impl World {
    /// Creates a world in which decoders have run for a while.
    fn with(model: Model, decoders: u64) -> Self {
        let driver = Driver::long(model.knobs(), 1);
        let mut world = Self { driver, model, decoders, decoded: 0, sent: BTreeMap::new(), waits_ns: Vec::new() };
        (0..decoders).for_each(|req| world.arrive(req, STEPS));
        let mut boarded = 0;
        while boarded < decoders as usize {
            let task = world.end();
            boarded += if task.cell == CellId(0) { task.rows.len() } else { 0 };
        }
        for _ in 0..100 {
            assert_eq!(world.end().cell, CellId(1), "nothing else is ready");
        }
        world
    }

    fn step(&mut self, event: Event<'_>) {
        for action in self.driver.act(event) {
            match action {
                Action::Launch(task) if task.cell == CellId(0) => {
                    let sent = task.rows.iter().filter_map(|row| self.sent.remove(&row.req));
                    self.waits_ns.extend(sent.map(|sent| self.driver.now.since(sent)));
                }
                Action::Finish { req, .. } => self.decoded += u64::from(req.0 < self.decoders),
                _ => {}
            }
        }
    }

    fn arrive(&mut self, req: u64, steps: u32) {
        self.step(Event::Arrived(request(req, vec![Unfolded::Steps(1), Unfolded::Steps(steps)])));
    }

    /// Lets the running task end if it does by then, and returns it.
    fn end_by(&mut self, until: Instant) -> Option<Task> {
        let Due::End(task) = self.driver.next(until, |task| self.model.took_ns(task.cell, task.row_count()))? else {
            panic!("nothing waits for a time")
        };
        self.step(Event::Completed { task: task.id, rows: &[] });
        Some(task)
    }

    /// Lets the running task end, and returns it.
    fn end(&mut self) -> Task {
        self.end_by(Instant::NEVER).expect("a task is running")
    }

    /// Lets newcomers arrive in the middle of tasks until the decoders have ended, one after each of these times.
    fn beside(&mut self, gaps_ns: impl IntoIterator<Item = Ns>) {
        let mut newcomers = gaps_ns.into_iter().scan(self.now, |at, gap_ns| {
            *at += gap_ns;
            Some(*at)
        });
        let (mut next, mut req) = (newcomers.next(), self.decoders);
        while self.decoded < self.decoders {
            let Some(at) = next else {
                self.end();
                continue;
            };
            // A task that ends when one comes ends first.
            if self.end_by(at).is_none() {
                self.sent.insert(ReqId(req), at);
                self.arrive(req, FEW);
                (next, req) = (newcomers.next(), req + 1);
            }
        }
    }
}

/// The bound on the wait of a lone newcomer whose stage takes 20 ms.
const MOST_NS: Ns = 50 * MS;

#[test]
fn a_lone_newcomer_waits_for_two_rounds_and_the_others_keep_almost_all_of_the_device() {
    for model in [DEAR, CHEAP] {
        // More decoders than a batch has rows do not keep it out either; what they used of the credit to board is back.
        for (decoders, after_ns) in [(60, 0), (60, 1_000 * MS), (200, 3_000 * MS)] {
            let mut alone = World::with(model, decoders);
            alone.beside([]);
            let mut world = World::with(model, decoders);
            world.beside([after_ns + MS / 2]);
            let (wait_ns, kept) = (world.waits_ns[0], alone.now.as_ns() as f64 / world.now.as_ns() as f64);
            let bound_ns = MOST_NS.min(3 * (model.took_ns(CellId(0), 1) + model.took_ns(CellId(1), ROWS)));
            assert!(wait_ns <= bound_ns, "it waits for {wait_ns} ns beside {decoders}");
            assert!(kept >= 0.98, "{decoders} decoders keep {kept}");
        }
    }
}

#[test]
fn newcomers_that_keep_coming_wait_for_twenty_rounds_at_most_and_take_a_twentieth_of_the_device() {
    // They are too few for their stage to gain more than the decoders.
    for (model, gap_ns) in [(DEAR, 100 * MS), (CHEAP, 15 * MS)] {
        let mut alone = World::with(model, 60);
        alone.beside([]);
        let mut world = World::with(model, 60);
        world.beside(std::iter::repeat(gap_ns));
        let round_ns = model.took_ns(CellId(0), 1) + model.took_ns(CellId(1), 60);
        let longest = world.waits_ns.iter().max().map_or(0.0, |ns| *ns as f64) / round_ns as f64;
        let kept = alone.now.as_ns() as f64 / world.now.as_ns() as f64;
        assert!((10.0..22.0).contains(&longest), "they wait for up to {longest} rounds");
        assert!((0.93..0.97).contains(&kept), "the decoders keep {kept}");
    }
}

//! What the batching core costs a task and a row, with 10, 1,000 and 100,000 requests in flight.
//!
//! One measured turn completes the running task, which ends its requests and launches the next batch, and lets as many
//! requests arrive as ended: so the number in flight stays the same. The figure for a task is the turn of a batch of
//! one row; the figure for a row is what each further row of a batch adds: its request's whole life. `deadlines` gives
//! every request one, `keys` spreads the requests over 16 keys that share no batch, `lengths` groups requests of 64
//! lengths by Policy I and looks for parts by Policy II. `shapes` and `shapes_lazy` are the worst that clients can do
//! to a model with an objective beside another one: no two requests may share a batch, and at each turn somebody asks
//! who must start first. Under `stages` each batch runs 16 stages, so that a turn is a boundary mostly, and what a
//! further row adds is what it costs to let it go on. Under `cells` requests are chains of 22 nodes on average: a turn
//! is a task of nodes, of which one in 22 is its request's last.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use paternoster_batching::{
    Action, Actions, Arrival, CellKind, CellKnobs, CellularKnobs, Core, CostPoint, CostTable, DiversityKnobs, Event,
    InputDiversity, Instant, Knobs, LaneId, LaneKnobs, LazyKnobs, ModelId, OperatorDiversity, Policy, ReqId,
    RequestKey, SegmentKnobs, StageKnobs, TaskId, WindowKnobs,
};
use paternoster_model::{CellId, unfold::Unfolded};

const MODEL: ModelId = ModelId(0);
/// The model beside it, where there is one, and how many of its requests are in flight.
const OTHER: ModelId = ModelId(1);
const OTHERS: u64 = 10;

/// What is measured.
#[derive(Clone, Copy)]
struct Kind {
    name: &'static str,
    deadlines: bool,
    /// Keys that requests are spread over.
    keys: u64,
    /// Different lengths of requests; 0: they have none.
    lengths: u64,
    stages: u16,
    /// Requests unfold into nodes, so many at most; 0: they do not.
    nodes: u64,
    /// Both models have objectives, and there is another.
    beside_another: bool,
    lazy: bool,
}

const PLAIN: Kind = Kind {
    name: "plain",
    deadlines: false,
    keys: 1,
    lengths: 0,
    stages: 1,
    nodes: 0,
    beside_another: false,
    lazy: false,
};
const SHAPES: Kind = Kind { name: "shapes", keys: u64::MAX, beside_another: true, ..PLAIN };
const KINDS: [Kind; 8] = [
    PLAIN,
    Kind { name: "deadlines", deadlines: true, ..PLAIN },
    Kind { name: "keys", keys: 16, ..PLAIN },
    Kind { name: "lengths", lengths: 64, ..PLAIN },
    Kind { name: "stages", stages: 16, ..PLAIN },
    Kind { name: "cells", nodes: 43, ..PLAIN },
    SHAPES,
    Kind { name: "shapes_lazy", lazy: true, stages: 4, ..SHAPES },
];

impl Kind {
    fn policy(self, batch_rows: u32) -> Policy {
        if self.nodes > 0 {
            let cells = vec![CellKnobs {
                max_rows: batch_rows,
                min_followup: 1,
                priority: 1,
                kind: Some(CellKind(0)),
                buckets: Box::default(),
                chunks: None,
            }];
            let segments = vec![SegmentKnobs::Steps { cell: CellId(0) }];
            let slots = 1_000_000;
            return Policy::Cellular(CellularKnobs { cells, segments, slots, ..CellularKnobs::default() });
        }
        if self.lazy {
            return Policy::Lazy(LazyKnobs::default());
        }
        match self.lengths {
            0 => Policy::Window(WindowKnobs::default()),
            _ => Policy::Diversity(DiversityKnobs {
                input: Some(InputDiversity::default()),
                operator: Some(OperatorDiversity::default()),
                load: None,
            }),
        }
    }
}

/// A batch takes a constant, and a time for each row and element.
fn latencies(stages: u16) -> CostTable {
    let point = |rows: u32, length: u64| CostPoint { rows, length, took_ns: 400 + 2 * u64::from(rows) * length };
    let points =
        [1, 2, 4, 8, 16, 32, 64].into_iter().flat_map(|rows| [8, 16, 32, 64].map(|length| point(rows, length)));
    CostTable { stages: vec![points.collect(); usize::from(stages)] }
}

/// Numbers that follow one another as if by chance.
fn scatter(number: u64) -> u64 {
    number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32
}

/// A core with one lane that always has work.
struct Load {
    core: Core,
    now: Instant,
    next_req: u64,
    running: Option<(TaskId, ModelId)>,
    kind: Kind,
}

impl Load {
    fn new(in_flight: u64, batch_rows: u32, kind: Kind) -> Self {
        let knobs = Knobs {
            max_batch_rows: batch_rows,
            stages: StageKnobs::chain(kind.stages),
            policy: kind.policy(batch_rows),
            latencies: (kind.lengths > 0 || kind.beside_another).then(|| latencies(kind.stages)),
            objective_ns: kind.beside_another.then_some(1_000_000_000_000),
            ..Knobs::default()
        };
        let other = Knobs { stages: StageKnobs::chain(1), policy: Policy::Serial, ..knobs.clone() };
        let mut load = Self { core: Core::new(), now: Instant::ZERO, next_req: 0, running: None, kind };
        load.core.step(Instant::ZERO, Event::ModelUp(MODEL, Box::new(knobs)));
        load.core.step(Instant::ZERO, Event::LaneUp(LaneId(0), LaneKnobs::default()));
        if kind.beside_another {
            load.core.step(Instant::ZERO, Event::ModelUp(OTHER, Box::new(other)));
            (0..OTHERS).for_each(|_| load.arrive(OTHER));
        }
        for _ in 0..in_flight {
            load.arrive(MODEL);
        }
        load
    }

    /// The first batches were taken while the load was built up: it runs until turns are alike.
    fn settled(in_flight: u64, batch_rows: u32, kind: Kind) -> Self {
        let mut load = Self::new(in_flight, batch_rows, kind);
        let turns = u64::from(kind.stages).max(kind.nodes / 2);
        for _ in 0..2 * in_flight * turns / u64::from(batch_rows) {
            load.turn();
        }
        load
    }

    fn length(&self) -> u32 {
        (1 + scatter(self.next_req) % self.kind.lengths) as u32
    }

    fn nodes(&self) -> u32 {
        (1 + scatter(self.next_req) % self.kind.nodes) as u32
    }

    fn arrive(&mut self, model: ModelId) {
        self.now += 100;
        let key = match self.kind.keys {
            1 => RequestKey::default(),
            keys => RequestKey([(self.next_req % keys) as i64].into_iter().collect()),
        };
        let arrival = Arrival {
            lengths: (0..self.kind.lengths.min(1)).map(|_| self.length()).collect(),
            key,
            deadline: self.kind.deadlines.then_some(self.now + 1_000_000_000_000),
            graph: (0..self.kind.nodes.min(1)).map(|_| Unfolded::Steps(self.nodes())).collect(),
            ..Arrival::new(ReqId(self.next_req), model, 1)
        };
        self.next_req += 1;
        let actions = self.core.step(self.now, Event::Arrived(arrival));
        self.note(&actions);
    }

    fn note(&mut self, actions: &Actions) {
        for action in actions {
            if let Action::Launch(task) = action {
                self.running = Some((task.id, task.model));
            }
        }
    }

    /// Completes the running task and makes up for the requests that ended.
    fn turn(&mut self) -> usize {
        let Some((task, model)) = self.running.take() else { return 0 };
        self.now += 950 + scatter(task.0) % 100;
        let actions = self.core.step(self.now, Event::Completed { task, rows: &[] });
        self.note(&actions);
        let ended = actions.iter().filter(|action| matches!(action, Action::Finish { .. })).count();
        black_box(actions);
        for _ in 0..ended {
            self.arrive(model);
        }
        ended
    }
}

fn batching(criterion: &mut Criterion) {
    for kind in KINDS {
        let mut group = criterion.benchmark_group(format!("batching/{}", kind.name));
        for in_flight in
            [10, 1_000, 10_000, 100_000].into_iter().filter(|&count| count != 10_000 || kind.beside_another)
        {
            for batch_rows in [1, 8, 64].into_iter().filter(|&rows| u64::from(rows) < in_flight) {
                group.throughput(Throughput::Elements(u64::from(batch_rows)));
                let id = BenchmarkId::new(format!("{batch_rows} rows"), in_flight);
                let mut load = None;
                group.bench_function(id, |bencher| {
                    let load = load.get_or_insert_with(|| Load::settled(in_flight, batch_rows, kind));
                    bencher.iter(|| load.turn());
                });
            }
        }
        group.finish();
    }
}

criterion_group!(benches, batching);
criterion_main!(benches);

//! The parameters of a run: models of cells, lanes, requests.

use std::{collections::VecDeque, sync::Arc};

use paternoster_batching::{
    CellKind, CellKnobs, CellularKnobs, ChunkKnobs, Instant, Knobs, LaneKnobs, LazyCellKnobs, Policy, QueueKnobs,
    QueueingKnobs, SegmentKnobs, SequenceKnobs, StageKnobs, TimeoutAction, WindowKnobs,
};
use paternoster_model::{
    CellId, CorrelationId, InSequence,
    unfold::{Topology, Unfolded},
};
use paternoster_testing::rng::{Rng, mix};

use super::buckets;

/// A model, its lanes and its requests.
pub(super) struct World {
    pub models: Vec<Knobs>,
    pub lanes: Vec<LaneKnobs>,
    pub requests: Vec<Asked>,
    /// How many of a thousand tasks fail, whatever their nodes.
    pub failing: u64,
    /// How many of a thousand tasks lose their lane when they begin.
    pub losing_lanes: u64,
}

/// A request.
#[derive(Clone, Debug)]
pub(super) struct Asked {
    pub at: Instant,
    pub model: usize,
    pub graph: Vec<Unfolded>,
    /// For each segment of steps, how many steps it really has: for loops fewer than the maximum.
    pub steps: Vec<u32>,
    pub cancelled_after: Option<u64>,
    pub expires_after: Option<u64>,
    pub boards_within: Option<u64>,
    pub sequence: Option<InSequence>,
    /// The node that fails every task that it is in, if any.
    pub bad: Option<u32>,
}

impl Asked {
    /// Gives segments whose tasks run several steps all their steps, as no outcome can end them within a task.
    fn runs_to_its_end(&mut self, knobs: &Knobs) {
        let Policy::Cellular(cellular) = &knobs.policy else { return };
        for (segment, unfolded) in self.graph.iter().enumerate() {
            if self.cell(self.first(segment), cellular).1.chunks.is_some() {
                self.steps[segment] = unfolded.nodes();
            }
        }
    }

    /// Returns the number of a segment's first node.
    pub(super) fn first(&self, segment: usize) -> u32 {
        self.graph[..segment].iter().map(Unfolded::nodes).sum()
    }

    /// Returns a node's segment, and its place there.
    pub(super) fn place(&self, number: u32) -> (usize, u32) {
        let segment = (0..self.graph.len()).rfind(|&segment| self.first(segment) <= number).unwrap_or(0);
        (segment, number - self.first(segment))
    }

    /// Returns whether a node reads another's output, directly or through other nodes of its type.
    pub(super) fn depends(&self, node: u32, on: u32) -> bool {
        let ((segment, node), (other, on)) = (self.place(node), self.place(on));
        match &self.graph[segment] {
            _ if segment != other => false,
            Unfolded::Steps(_) => node > on,
            Unfolded::Tree(topology) => {
                let mut reads = topology.children_of(node).to_vec();
                while let Some(child) = reads.pop() {
                    if child == on {
                        return true;
                    }
                    reads.extend_from_slice(topology.children_of(child));
                }
                false
            }
        }
    }

    /// Returns the cell of the node with this number, and its knobs.
    pub(super) fn cell<'a>(&self, number: u32, cellular: &'a CellularKnobs) -> (CellId, &'a CellKnobs) {
        let (segment, node) = self.place(number);
        let cell =
            match (&cellular.segments[segment], &self.graph[segment]) {
                (SegmentKnobs::Tree { leaf, inner }, Unfolded::Tree(topology)) => {
                    if topology.children_of(node).is_empty() { leaf } else { inner }
                }
                (
                    SegmentKnobs::Stage { cell }
                    | SegmentKnobs::Steps { cell }
                    | SegmentKnobs::Decode { cell, .. }
                    | SegmentKnobs::Tree { leaf: cell, .. },
                    _,
                ) => cell,
            };
        (*cell, &cellular.cells[usize::from(cell.0)])
    }
}

/// Returns the value of a node, computed from what it reads.
pub(super) fn value(segment: usize, node: u32, reads: &[u64]) -> u64 {
    reads.iter().fold(mix(segment as u64 * 1_000_003 + u64::from(node)), |value, read| mix(value ^ read.rotate_left(7)))
}

/// Returns the value of a request that runs alone, starting from its sequence's state.
pub(super) fn alone(req: u64, sequence: u64, asked: &Asked) -> u64 {
    let mut state = mix(req) ^ sequence;
    for (segment, unfolded) in asked.graph.iter().enumerate() {
        match unfolded {
            Unfolded::Steps(_) => {
                for step in 0..asked.steps[segment] {
                    state = value(segment, step, &[state]);
                }
            }
            Unfolded::Tree(topology) => state = root(topology, segment, state),
        }
    }
    state
}

/// Returns the value of the last root of a tree whose leaves read `input`.
fn root(topology: &Topology, segment: usize, input: u64) -> u64 {
    let nodes = topology.nodes();
    let mut values: Vec<Option<u64>> = vec![None; nodes as usize];
    let mut open: VecDeque<u32> = (0..nodes).collect();
    while let Some(node) = open.pop_front() {
        let children = topology.children_of(node);
        let reads: Option<Vec<u64>> = children.iter().map(|&child| values[child as usize]).collect();
        match reads {
            None => open.push_back(node),
            Some(reads) if reads.is_empty() => values[node as usize] = Some(value(segment, node, &[input])),
            Some(reads) => values[node as usize] = Some(value(segment, node, &reads)),
        }
    }
    values[last_root(topology) as usize].unwrap_or_default()
}

pub(super) fn last_root(topology: &Topology) -> u32 {
    (0..topology.nodes()).rev().find(|&node| topology.is_root(node)).unwrap_or(0)
}

impl World {
    pub(super) fn draw(rng: &mut Rng) -> Self {
        let models: Vec<Knobs> = (0..rng.within(1, 3)).map(|_| model(rng)).collect();
        let ahead = rng.coin();
        let lane = |rng: &mut Rng| {
            if ahead {
                LaneKnobs { horizon_ns: rng.within(100, 3_000), depth: rng.within(2, 5) as u16 }
            } else {
                LaneKnobs::default()
            }
        };
        let lanes = (0..rng.within(1, 3)).map(|_| lane(rng)).collect();
        let mean_gap = rng.within(20, 600);
        let mut at = Instant::ZERO;
        let requests = (0..rng.within(20, 80)).map(|_| {
            at += rng.exponential(mean_gap);
            let model = rng.below(models.len() as u64) as usize;
            asked(rng, at, model, &models[model])
        });
        let requests = requests.collect();
        let losing_lanes = if rng.permille(200) { 5 } else { 0 };
        let failing = if rng.coin() { 15 } else { 0 };
        let mut models = models;
        models.iter_mut().for_each(|model| give_buckets(rng, model));
        models.iter_mut().for_each(|model| give_chunks(rng, model));
        let mut requests: Vec<Asked> = requests;
        requests.iter_mut().for_each(|asked| asked.runs_to_its_end(&models[asked.model]));
        Self { requests, models, lanes, failing, losing_lanes }
    }
}

/// Gives buckets to some cells of a third of the models.
fn give_buckets(rng: &mut Rng, model: &mut Knobs) {
    let is_chosen = rng.below(3) == 0;
    let Policy::Cellular(cellular) = &mut model.policy else { return };
    for cell in cellular.cells.iter_mut().filter(|_| is_chosen) {
        if rng.permille(800) {
            cell.buckets = buckets::draw(rng, 1, cell.max_rows);
        }
    }
}

/// Lets tasks of some chains of half of the models run several steps of each row.
fn give_chunks(rng: &mut Rng, model: &mut Knobs) {
    let is_chosen = rng.coin();
    let Policy::Cellular(cellular) = &mut model.policy else { return };
    for number in (0..cellular.cells.len() as u16).filter(|_| is_chosen) {
        let own = |segment: &SegmentKnobs| *segment == SegmentKnobs::Steps { cell: CellId(number) };
        if !cellular.segments.iter().any(own) || rng.permille(200) {
            continue;
        }
        let (is_padded, most_row_steps) = (rng.permille(700), 10 * rng.within(0, 3) as u32);
        let powers_up_to = rng.permille(300).then(|| 1 << rng.below(4));
        let cell = &mut cellular.cells[usize::from(number)];
        cell.chunks = Some(ChunkKnobs { is_padded, most_row_steps, powers_up_to });
        // Cells of one kind run alike.
        let of_kind = if is_padded { 200 } else { 100 } + u128::from(most_row_steps);
        let of_kind = of_kind + 1_000 * u128::from(powers_up_to.unwrap_or(0_u32));
        cell.kind = cell.kind.map(|kind| CellKind(kind.0 + of_kind));
    }
    cellular.max_chunk_ns = rng.permille(300).then(|| rng.within(1, 500));
}

fn model(rng: &mut Rng) -> Knobs {
    let mut cells = Vec::new();
    let mut cell = |rng: &mut Rng| {
        let max_rows = rng.within(1, 6) as u32;
        let min_followup = rng.within(0, u64::from(max_rows)) as u32;
        let kind = rng.permille(400).then(|| CellKind(u128::from(rng.below(2))));
        let priority = rng.within(1, 3) as u32;
        cells.push(CellKnobs { max_rows, min_followup, priority, kind, buckets: Box::default(), chunks: None });
        CellId(cells.len() as u16 - 1)
    };
    let mut segments = Vec::new();
    for _ in 0..rng.within(1, 3) {
        segments.push(match rng.below(10) {
            0 | 1 => SegmentKnobs::Tree { leaf: cell(rng), inner: cell(rng) },
            2 => SegmentKnobs::Stage { cell: cell(rng) },
            _ => SegmentKnobs::Steps { cell: cell(rng) },
        });
    }
    // The same node type in two segments.
    if let (Some(SegmentKnobs::Steps { cell }), true) = (segments.first().cloned(), rng.permille(200)) {
        segments.push(SegmentKnobs::Steps { cell });
    }
    let stages = StageKnobs::chain(cells.len() as u16);
    let slots = rng.within(6, 60) as u32;
    let sequences = rng
        .permille(400)
        .then(|| SequenceKnobs { max_sequences: rng.within(1, 5) as u32, max_idle_ns: rng.within(200, 20_000) });
    let lazy = rng.permille(300).then(|| LazyCellKnobs { reject_late: rng.permille(300) });
    let paper = lazy.is_none() && rng.permille(300);
    let (max_tasks, frontier) = (rng.within(1, 5) as u16, rng.coin());
    let merge_requests = rng.permille(200).then(|| rng.within(1, 8) as u32);
    // Without a draw, so that the worlds of all other models stay as they are.
    let window = sequences.filter(|_| slots.is_multiple_of(3)).map(|_| WindowKnobs {
        preferred_batch_sizes: if slots.is_multiple_of(2) { vec![slots % 6 + 1] } else { Vec::new() },
        max_queue_delay_ns: u64::from(slots) * 40,
    });
    let cellular = CellularKnobs {
        cells,
        segments,
        slots,
        paper,
        max_tasks,
        frontier,
        merge_requests,
        sequences,
        window,
        lazy,
        max_chunk_ns: None,
    };
    let policy = Policy::Cellular(cellular);
    let objective_ns = rng.permille(300).then_some(20_000);
    let default_queue = QueueKnobs {
        timeout_action: if rng.coin() { TimeoutAction::Reject } else { TimeoutAction::Delay },
        default_timeout_ns: 0,
        allow_timeout_override: true,
        max_queue_size: if rng.permille(200) { rng.within(3, 20) as u32 } else { 0 },
    };
    let queueing = QueueingKnobs { default_queue, ..QueueingKnobs::default() };
    Knobs { queueing, stages, policy, max_in_flight: rng.within(1, 8) as u32, objective_ns, ..Knobs::default() }
}

fn asked(rng: &mut Rng, at: Instant, model: usize, knobs: &Knobs) -> Asked {
    let Policy::Cellular(cellular) = &knobs.policy else { panic!("all models are of cells") };
    let mut steps = Vec::new();
    let graph = cellular.segments.iter().map(|segment| match segment {
        SegmentKnobs::Tree { .. } => {
            steps.push(0);
            Unfolded::Tree(Arc::new(graph_of(rng)))
        }
        SegmentKnobs::Stage { .. } => {
            steps.push(1);
            Unfolded::Steps(1)
        }
        SegmentKnobs::Steps { .. } | SegmentKnobs::Decode { .. } => {
            let most = rng.within(1, 9) as u32;
            steps.push(if rng.permille(400) { rng.within(1, u64::from(most)) as u32 } else { most });
            Unfolded::Steps(most)
        }
    });
    let graph: Vec<Unfolded> = graph.collect();
    let cancelled_after = rng.permille(150).then(|| rng.exponential(2_000));
    let expires_after = rng.permille(100).then(|| 1 + rng.exponential(4_000));
    let boards_within = rng.permille(100).then(|| rng.exponential(2_000));
    let sequence = cellular.sequences.is_some().then(|| in_sequence(rng));
    let nodes = graph.iter().map(Unfolded::nodes).sum::<u32>();
    let bad = rng.permille(30).then(|| rng.below(u64::from(nodes)) as u32);
    Asked { at, model, graph, steps, cancelled_after, expires_after, boards_within, sequence, bad }
}

/// Draws one of a few ids, so that sequences have several requests, and some start again before they end.
fn in_sequence(rng: &mut Rng) -> InSequence {
    let number = rng.within(1, 8);
    let id = if number < 6 { CorrelationId::Number(number) } else { CorrelationId::Text(number.to_string().into()) };
    InSequence { id, starts: rng.permille(300), ends: rng.permille(150) }
}

/// Returns a graph whose children have lower numbers than their parents or, in half of the cases, higher ones. Some
/// children have several parents.
fn graph_of(rng: &mut Rng) -> Topology {
    let nodes = rng.within(1, 12);
    let turned = rng.coin();
    let place = |node: u64| if turned { nodes - 1 - node } else { node } as u32;
    let mut children = vec![Default::default(); nodes as usize];
    for node in 1..nodes {
        if rng.permille(600) {
            let count = rng.within(1, 2);
            children[place(node) as usize] = (0..count).map(|_| place(rng.below(node))).collect();
        }
    }
    Topology::new(children)
}

//! A scenario: models, lanes and load, all drawn from one seed.

use paternoster_batching::{
    AdaptiveKnobs, Arrival, CostPoint, CostTable, DiversityKnobs, InputDiversity, Instant, Knobs, LaneKnobs, LazyKnobs,
    LoadDiversity, ModelId, OperatorDiversity, PartOrder, Policy, PolicyKind, Predictor, QueueKnobs, QueueingKnobs,
    ReqId, RequestKey, StageKnobs, TimeoutAction, WindowKnobs,
};

use super::{buckets, rng::Rng};

/// Number of requests of a full run.
pub(crate) const REQUESTS: u64 = 200;

/// Maximum rows of a request.
const MOST_ROWS: u32 = 4;

/// One model, and how long its stages really take.
#[derive(Clone, Debug)]
pub(crate) struct Model {
    pub knobs: Knobs,
    /// Rows may skip from the first of these stages' boundary to the second stage.
    pub skip: Option<(u16, u16)>,
    /// For each stage, the time of a launch and of each row.
    pub costs: Vec<(u64, u64)>,
}

/// The parameters of a run.
#[derive(Clone, Debug)]
pub(crate) struct Scenario {
    pub seed: u64,
    pub models: Vec<Model>,
    pub lanes: u16,
    pub lane_knobs: LaneKnobs,
    /// Sorted by time.
    pub arrivals: Vec<(Instant, Arrival)>,
    /// How many of a thousand tasks fail, whatever their rows.
    pub faults: u64,
    /// How many of a thousand rows fail every task that they are in at one of their stages.
    pub bad_rows: u64,
    /// How many of a thousand moments lose a lane.
    pub lane_losses: u64,
    /// Minimum percentage of cancelled requests.
    pub cancels: u64,
}

impl Scenario {
    pub(crate) fn random(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let rng = &mut rng;
        let crowded = rng.permille(200);
        let count = if crowded { 1 } else { [1, 1, 2, 3][rng.below(4) as usize] };
        let models: Vec<Model> = (0..count).map(|_| if crowded { jammed(rng) } else { model(rng) }).collect();
        let lane_knobs = if rng.coin() {
            LaneKnobs { horizon_ns: rng.within(1, 400), depth: rng.within(2, 4) as u16 }
        } else {
            LaneKnobs::default()
        };
        let lanes = if crowded { 4 } else { rng.within(1, 4) as u16 };
        let arrivals = arrivals(rng, &models, u64::from(lanes));
        let lane_losses = if rng.coin() { rng.within(1, 15) } else { 0 };
        let (faults, cancels) = (rng.within(15, 60), rng.within(11, 25));
        let bad_rows = [0, 10, 40][(seed % 3) as usize];
        let mut models = models;
        // The times of a jam are chosen by hand, without padding.
        models.iter_mut().filter(|_| !crowded).for_each(|model| give_buckets(rng, model));
        Self { seed, models, lanes, lane_knobs, arrivals, faults, bad_rows, lane_losses, cancels }
    }
}

fn model(rng: &mut Rng) -> Model {
    let count = rng.within(3, 6) as u16;
    let mut stages = StageKnobs::chain(count);
    if rng.permille(400) {
        stages.iter_mut().for_each(|stage| stage.decides = rng.permille(600));
    }
    // No stage after a skip reads the boundaries that it passes over.
    let from = rng.below(u64::from(count) - 2) as u16;
    let skip = (stages[usize::from(from)].decides && rng.permille(700)).then_some((from, from + 2));
    if let Some((from, to)) = skip {
        stages[usize::from(to)].reads = [from].into_iter().collect();
    }
    for stage in 2..count {
        let boundary = rng.below(u64::from(stage) - 1) as u16;
        let skipped = skip.is_some_and(|(from, to)| stage >= to && (from + 1..to).contains(&boundary));
        let reads = &mut stages[usize::from(stage)].reads;
        if rng.permille(250) && !skipped && !reads.contains(&boundary) {
            reads.insert(0, boundary);
            reads.sort_unstable();
        }
    }
    let costs: Vec<(u64, u64)> = (0..count).map(|_| (rng.within(5, 100), rng.within(1, 60))).collect();
    let max_batch_rows = rng.within(2, 12) as u32;
    let whole: u64 = costs.iter().map(|(launch, row)| launch + row * u64::from(max_batch_rows)).sum();
    let latencies = rng.coin().then(|| table(rng, &costs, max_batch_rows));
    let policy = policy(rng, whole);
    let knobs = Knobs {
        max_batch_rows,
        mergeable: rng.permille(980),
        parts_requests: false,
        max_in_flight: rng.within(1, 8) as u32,
        stages,
        buffer_pairs: rng.within(1, 3) as u16,
        objective_ns: rng.permille(700).then(|| rng.within(whole / 2, whole * 5)),
        latencies,
        weight: rng.within(1, 3) as u32,
        rate_limiter: Default::default(),
        queueing: queueing(rng, whole),
        policy,
        stays: false,
    };
    Model { knobs, skip, costs }
}

/// Gives buckets to some stages of a third of the models.
fn give_buckets(rng: &mut Rng, model: &mut Model) {
    let is_chosen = rng.below(3) == 0;
    for stage in model.knobs.stages.iter_mut().filter(|_| is_chosen) {
        if rng.permille(800) {
            stage.buckets = buckets::draw(rng, MOST_ROWS, model.knobs.max_batch_rows);
        }
    }
}

/// Returns a model whose later stages are slower, so that batches jam before them while newcomers may still join.
fn jammed(rng: &mut Rng) -> Model {
    let mut model = model(rng);
    let load = LoadDiversity { paper: true, ..LoadDiversity::default() };
    let Model { knobs, costs, .. } = &mut model;
    costs.iter_mut().zip(1..).for_each(|((launch, row), stage)| (*launch, *row) = (20 * stage * stage, 5 * stage));
    knobs.policy = Policy::Diversity(DiversityKnobs { load: Some(load), ..DiversityKnobs::default() });
    knobs.stages.iter_mut().for_each(|stage| stage.decides &= rng.coin());
    knobs.buffer_pairs = rng.within(1, 3) as u16;
    knobs.max_in_flight = 8;
    knobs.latencies = None;
    knobs.objective_ns = None;
    model
}

fn table(rng: &mut Rng, costs: &[(u64, u64)], max_rows: u32) -> CostTable {
    let stages = costs.iter().map(|&(launch, row)| {
        // Sometimes larger batches are so slow that splitting them is better.
        let bend = if rng.permille(400) { rng.within(1, 4) } else { 0 };
        let point = |rows: u32| {
            let took_ns = launch + row * u64::from(rows) + bend * u64::from(rows) * u64::from(rows) * row / 2;
            CostPoint { rows, length: 1, took_ns }
        };
        (1..=max_rows).map(point).collect()
    });
    CostTable { stages: stages.collect() }
}

fn queueing(rng: &mut Rng, whole: u64) -> QueueingKnobs {
    let timeout_action = if rng.coin() { TimeoutAction::Reject } else { TimeoutAction::Delay };
    let default_queue = QueueKnobs {
        timeout_action,
        default_timeout_ns: if rng.permille(150) { rng.within(whole, whole * 4) } else { 0 },
        allow_timeout_override: rng.coin(),
        max_queue_size: if rng.permille(100) { rng.within(5, 40) as u32 } else { 0 },
    };
    QueueingKnobs {
        preserve_ordering: rng.permille(150),
        priority_levels: rng.below(4),
        default_priority_level: 2,
        default_queue,
        level_queues: Vec::new(),
        bucket_width: rng.permille(700).then(|| if rng.permille(200) { rng.within(4, 16) as u32 } else { 0 }),
        hold_until_waiting: 0,
        hold_until_backlog: 0,
    }
}

fn policy(rng: &mut Rng, whole: u64) -> Policy {
    match rng.below(12) {
        0 => Policy::Serial,
        1 => Policy::Window(WindowKnobs { max_queue_delay_ns: rng.below(whole), preferred_batch_sizes: vec![2, 4] }),
        2 => Policy::Adaptive(AdaptiveKnobs {
            paper: rng.permille(300),
            average_ns: whole * 2,
            max_queue_delay_ns: whole,
            ..AdaptiveKnobs::default()
        }),
        3..6 => Policy::Lazy(LazyKnobs {
            predictor: [Predictor::Paper, Predictor::Table, Predictor::Oracle][rng.below(3) as usize],
            max_depth: rng.within(2, 5) as u32,
            max_catch_up_ns: rng.coin().then(|| rng.within(1, whole * 2)),
            reject_late: rng.permille(200),
        }),
        6 => {
            let policies: Vec<Policy> = PolicyKind::over_batches().collect();
            policies[rng.below(policies.len() as u64) as usize].clone()
        }
        _ => Policy::Diversity(diversity(rng, whole)),
    }
}

fn diversity(rng: &mut Rng, whole: u64) -> DiversityKnobs {
    let order = if rng.coin() { PartOrder::DepthFirst } else { PartOrder::Pipelined };
    let thresholds = [0.3, 0.6, 0.98];
    let operator = OperatorDiversity { threshold: thresholds[rng.below(3) as usize], order, paper: rng.permille(200) };
    let load = LoadDiversity {
        max_age_ns: rng.permille(700).then(|| rng.within(1, whole * 2)),
        max_stage: rng.permille(300).then(|| rng.within(1, 4) as u16),
        paper: rng.permille(200),
    };
    let input = InputDiversity {
        bounds: if rng.coin() { vec![4, 12] } else { Vec::new() },
        max_groups: rng.below(4) as u32,
        window_ns: rng.coin().then(|| rng.below(whole)),
        paper: rng.permille(200),
    };
    DiversityKnobs {
        input: rng.permille(250).then_some(input),
        operator: rng.permille(400).then_some(operator),
        load: rng.permille(800).then_some(load),
    }
}

fn arrivals(rng: &mut Rng, models: &[Model], lanes: u64) -> Vec<(Instant, Arrival)> {
    // Poisson arrivals at a fraction of one lane's throughput with half-filled batches, or bursts.
    let one_batch = |model: &Model| -> u64 {
        let rows = u64::from(model.knobs.max_batch_rows).div_ceil(2);
        model.costs.iter().map(|(launch, row)| launch + row * rows).sum()
    };
    let batch: u64 = models.iter().map(one_batch).sum::<u64>() / models.len() as u64;
    let batch_rows = models.iter().map(|model| u64::from(model.knobs.max_batch_rows)).min().unwrap_or(1).div_ceil(2);
    let mean_gap = (batch * 100 / batch_rows / rng.within(20, 130) / lanes).max(1);
    let bursts = rng.permille(400);
    let deadlines = if rng.permille(400) { rng.within(10, 200) } else { 0 };
    let mut now = Instant::ZERO;
    (0..REQUESTS)
        .map(|req| {
            let in_burst = bursts && !rng.permille(120);
            now += if in_burst { rng.below(3) } else { rng.exponential(if bursts { mean_gap * 6 } else { mean_gap }) };
            let model = rng.below(models.len() as u64);
            let most = models[model as usize].knobs.max_batch_rows;
            let rows = if rng.permille(700) { 1 } else { rng.within(1, u64::from(most.min(MOST_ROWS))) as u32 };
            let odd = rng.permille(3);
            let arrival = Arrival {
                lengths: [rng.within(1, 20) as u32].into_iter().collect(),
                key: RequestKey([i64::from(rng.permille(50))].into_iter().collect()),
                priority: rng.below(4),
                queue_deadline: rng.permille(deadlines).then(|| now + rng.exponential(batch * 2)),
                deadline: rng.permille(deadlines).then(|| now + rng.exponential(batch * 4)),
                needed_after_ns: if rng.permille(300) { rng.exponential(batch * 2) } else { 0 },
                ..Arrival::new(ReqId(req), ModelId(model as u32), if odd { most + 1 } else { rows })
            };
            (now, arrival)
        })
        .collect()
}

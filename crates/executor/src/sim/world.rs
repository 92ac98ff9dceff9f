//! The random contents of a run: devices, models of stages and of cells, and requests; all from one seed.

use std::{sync::Arc, time::Duration};

use paternoster_batching::{
    CellularKnobs, Instant, Knobs, Ns, Policy, PolicyKind, RateLimiterKnobs, RequestKey, ResourceAmount, ResourceDemand,
};
use paternoster_engine::{Program, Repeat};
use paternoster_model::{
    BoundaryDim, BoundaryTensor, DataType, Dims, Exit, ExitTo, InputSource, InputTensor, ModelSpec, Sink, StagePlan,
    StageSpec, SymbolId, TensorSpec,
    unfold::{
        CellInputSource as CellSource, CellSpec, Emit, EmitRange, Emitted, Expression, NodeType, Nodes, Segment, Start,
        Tensor, Unfolding,
    },
};
use smallvec::{SmallVec, smallvec};

use super::{
    rng::Rng,
    scenario::{self, Scenario},
    values::{START, bytes},
};
use crate::{CellPrograms, InferRequest, StagePrograms, stages::Programs};

/// Value that ends a loop; hashes are larger.
const LAST: i64 = 1;

/// Maximum number of steps of a chain or a loop.
pub(super) const MOST_STEPS: u32 = 12;

/// A run.
pub(super) struct World {
    /// Models of stages, and the requests for them.
    pub(super) scenario: Scenario,
    /// The model of cells, numbered after those.
    pub(super) cells: CellModel,
    /// Knobs of the decoupled model, numbered last. It answers as often as a request asks for.
    pub(super) decoupled: Knobs,
    /// Number of models that are served, from the first on.
    pub(super) models: usize,
    pub(super) shards: usize,
    /// Ordered by time.
    pub(super) requests: Vec<Request>,
    /// Times at which devices are lost.
    pub(super) losses: Vec<(Instant, usize)>,
    /// Maximum time that outputs stay on a device.
    pub(super) most_take_ns: u64,
    /// How many of a thousand tasks lose their outputs.
    pub(super) output_losses: u64,
    /// Rows of memory that each device has for versions.
    pub(super) memory_rows: u64,
    /// Units of resources that are given; `None`: no rate limiter.
    pub(super) units: Option<Vec<ResourceAmount>>,
    /// By model, if there is a rate limiter.
    pub(super) rate_limiters: Vec<RateLimiterKnobs>,
}

/// The kind of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Stages,
    Cells,
    Decoupled,
}

/// How requests for cells unfold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    /// One step per token.
    Chain,
    /// The same, whose tasks run several steps of each row; and whether its program is told how many.
    Chunks(bool),
    /// One step per token at most; a step ends the loop.
    Loop,
    /// Leaves, and inner nodes with two children.
    Tree,
}

/// The model of cells.
pub(super) struct CellModel {
    pub(super) shape: Shape,
    pub(super) knobs: Knobs,
    /// Duration of a launch, and of each row.
    pub(super) costs: (u64, u64),
}

/// A request.
#[derive(Clone, Debug)]
pub(super) struct Request {
    pub(super) at: Instant,
    pub(super) model: usize,
    pub(super) rows: u32,
    pub(super) key: RequestKey,
    pub(super) length: u32,
    pub(super) priority: u64,
    pub(super) queue_deadline: Option<Instant>,
    pub(super) deadline: Option<Instant>,
    pub(super) needed_after_ns: Ns,
    /// For cells: the number of steps or nodes. For a decoupled model: the number of responses.
    pub(super) nodes: u32,
    /// For cells: the node that fails each of its tasks.
    pub(super) bad_node: Option<u32>,
}

impl World {
    pub(super) fn random(seed: u64) -> Self {
        let mut world = Self::unlimited(seed);
        let rng = &mut Rng::new(seed ^ 0x7261_7465);
        if rng.permille(300) {
            let given = ResourceAmount { name: "a".to_owned(), count: rng.within(3, 6) as u32, device: None };
            world.units = Some(if rng.coin() { vec![given] } else { Vec::new() });
            world.rate_limiters = (0..world.models).map(|_| rate_limiter(rng)).collect();
        }
        world
    }

    fn unlimited(seed: u64) -> Self {
        let scenario = Scenario::random(seed);
        let rng = &mut Rng::new(seed ^ 0x706f_6f6c);
        // Batches are stretched and split most where all the load is for stages on one device.
        let is_crowded = rng.permille(400);
        let mut world = Self::of_stages(scenario, rng);
        let Self { scenario, cells, requests, .. } = &mut world;
        if is_crowded {
            return world;
        }
        let shards = rng.within(1, 4) as usize;
        for request in requests.iter_mut() {
            let nodes = match (rng.below(8), cells.shape) {
                (0..4, _) => continue,
                (4..7, Shape::Chain | Shape::Chunks(_) | Shape::Loop) => rng.within(1, u64::from(MOST_STEPS)) as u32,
                (4..7, Shape::Tree) => 2 * rng.within(1, 8) as u32 - 1,
                _ => {
                    (request.model, request.rows) = (scenario.models.len() + 1, 1);
                    request.nodes = rng.within(1, 5) as u32;
                    continue;
                }
            };
            let bad_node = rng.permille(30).then_some(rng.below(u64::from(nodes)) as u32);
            (request.model, request.rows) = (scenario.models.len(), 1);
            (request.nodes, request.bad_node) = (nodes, bad_node);
        }
        // The scenario's load is meant for one device, so it is spread over the devices.
        requests.iter_mut().for_each(|request| {
            let at = Instant::from_ns(request.at.as_ns() / shards as u64);
            let earlier = |instant: Instant| at + instant.since(request.at);
            request.queue_deadline = request.queue_deadline.map(earlier);
            request.deadline = request.deadline.map(earlier);
            request.at = at;
        });
        let over = requests.last().map_or(0, |request| request.at.as_ns());
        let is_lossy = rng.permille(400);
        let losses = (0..shards).map(|shard| (rng.permille(400), (Instant::from_ns(rng.below(over + 1)), shard)));
        let losses = losses.filter(|(is_lost, _)| is_lossy && *is_lost).map(|(_, loss)| loss).collect();
        let memory_rows = if rng.permille(60) { 20 } else { 1 << 20 };
        Self { models: world.scenario.models.len() + 2, shards, losses, memory_rows, ..world }
    }

    /// Returns a run of the scenario's models and requests alone, on one device.
    pub(super) fn of_stages(scenario: Scenario, rng: &mut Rng) -> Self {
        let policies: Vec<Policy> = PolicyKind::over_batches().collect();
        let decoupled = Knobs {
            max_batch_rows: rng.within(1, 8) as u32,
            max_in_flight: rng.within(1, 4) as u32,
            policy: policies[rng.below(policies.len() as u64) as usize].clone(),
            ..Knobs::default()
        };
        let requests = scenario.arrivals.iter().map(|(at, arrival)| Request {
            at: *at,
            model: arrival.model.0 as usize,
            rows: arrival.rows,
            key: arrival.key.clone(),
            length: arrival.lengths.first().copied().unwrap_or(1),
            priority: arrival.priority,
            queue_deadline: arrival.queue_deadline,
            deadline: arrival.deadline,
            needed_after_ns: arrival.needed_after_ns,
            nodes: 0,
            bad_node: None,
        });
        Self {
            models: scenario.models.len(),
            shards: 1,
            requests: requests.collect(),
            losses: Vec::new(),
            most_take_ns: if rng.coin() { rng.within(1, 300) } else { 1 },
            output_losses: 3,
            memory_rows: 1 << 20,
            units: None,
            rate_limiters: Vec::new(),
            cells: CellModel::random(rng),
            decoupled,
            scenario,
        }
    }

    /// Returns a model's specification, programs and knobs.
    pub(super) fn model(&self, model: usize) -> (ModelSpec, StagePrograms, Knobs) {
        match self.kind(model) {
            Kind::Stages => staged(model, &self.scenario.models[model]),
            Kind::Cells => self.cells.programs(model),
            Kind::Decoupled => {
                let spec = ModelSpec {
                    name: format!("decoupled{model}"),
                    version: 1,
                    max_batch_size: self.decoupled.max_batch_rows,
                    inputs: vec![TensorSpec::new("x", DataType::Int64, &[2])],
                    outputs: vec![TensorSpec::new("y", DataType::Int64, &[1])],
                    symbols: vec![],
                    decoupled: true,
                };
                (spec, program().into(), self.decoupled.clone())
            }
        }
    }

    pub(super) fn kind(&self, model: usize) -> Kind {
        match model.checked_sub(self.scenario.models.len()) {
            None => Kind::Stages,
            Some(0) => Kind::Cells,
            Some(_) => Kind::Decoupled,
        }
    }

    /// Returns a request as clients send it. Its values are the numbers of the request and of its rows.
    pub(super) fn infer_request(&self, number: u64, at: impl Fn(Instant) -> std::time::Instant) -> InferRequest {
        let request = &self.requests[number as usize];
        let tensor = |shape: &[i64], data| InputTensor { shape: Dims::from_slice(shape), data };
        let rows = i64::from(request.rows);
        let values = bytes((0..u64::from(request.rows)).flat_map(|row| [number, row]));
        let kind = self.kind(request.model);
        let inputs = if kind == Kind::Decoupled {
            vec![Some(tensor(&[rows, 2], values))]
        } else if kind == Kind::Stages {
            let length = i64::from(request.length);
            let padded = vec![0; (rows * length) as usize];
            let key =
                (request.key.0.first() == Some(&1)).then(|| tensor(&[rows, 1], vec![0; request.rows as usize].into()));
            vec![Some(tensor(&[rows, 2], values)), Some(tensor(&[rows, length], padded.into())), key]
        } else {
            let nodes = u64::from(request.nodes);
            let tokens = tensor(&[1, nodes as i64], bytes((0..nodes).map(|node| token(number, node))));
            match self.cells.shape {
                Shape::Tree => {
                    let children = (0..request.nodes).flat_map(|node| children(node, request.nodes));
                    let children = children.map(|child| child.map_or(u64::MAX, u64::from));
                    vec![Some(tokens), Some(tensor(&[1, nodes as i64, 2], bytes(children)))]
                }
                Shape::Chain | Shape::Chunks(_) | Shape::Loop => vec![Some(tokens)],
            }
        };
        InferRequest {
            priority: request.priority,
            queue_timeout: request.queue_deadline.map(|by| Duration::from_nanos(by.since(request.at))),
            deadline: request.deadline.map(at),
            needed_after: Duration::from_nanos(request.needed_after_ns),
            ..InferRequest::new(request.rows, inputs)
        }
    }
}

fn rate_limiter(rng: &mut Rng) -> RateLimiterKnobs {
    let mut resources = Vec::new();
    for (name, is_global) in [("a", false), ("b", true)] {
        let demand = ResourceDemand { name: name.to_owned(), is_global, count: rng.within(1, 3) as u32 };
        resources.extend(rng.permille(600).then_some(demand));
    }
    RateLimiterKnobs { resources, priority: rng.below(4) as u32 }
}

/// Returns the value that a node of a request reads from its inputs.
pub(super) fn token(number: u64, node: u64) -> u64 {
    number << 16 | node
}

/// Returns the children of a node in a complete tree of `nodes` nodes, leaves first.
pub(super) fn children(node: u32, nodes: u32) -> [Option<u32>; 2] {
    let leaves = nodes.div_ceil(2);
    match node.checked_sub(leaves) {
        None => [None, None],
        Some(inner) => [Some(2 * inner), Some(2 * inner + 1)],
    }
}

fn program() -> Arc<dyn Program> {
    Arc::new(Repeat { decoupled: true })
}

/// Creates a model of stages with two INT64 per row, a padded tensor, and an optional one.
fn staged(number: usize, model: &scenario::Model) -> (ModelSpec, StagePrograms, Knobs) {
    let mut padded = TensorSpec::new("l", DataType::Uint8, &[-1]);
    padded.symbols = smallvec![Some(SymbolId(0))];
    let mut key = TensorSpec::new("k", DataType::Uint8, &[1]);
    key.optional = true;
    let spec = ModelSpec {
        name: format!("stages{number}"),
        version: 1,
        max_batch_size: model.knobs.max_batch_rows,
        inputs: vec![TensorSpec::new("x", DataType::Int64, &[2]), padded, key],
        outputs: vec![TensorSpec::new("y", DataType::Int64, &[1])],
        symbols: vec!["length".to_owned()],
        decoupled: false,
    };
    let count = model.knobs.stages.len();
    let tensor = |stage: usize| TensorSpec::new(format!("h{stage}"), DataType::Int64, &[1]);
    let stage = |number: usize| {
        let stage = &model.knobs.stages[number];
        let of = |&boundary: &u16| (tensor(usize::from(boundary)), InputSource::Boundary { boundary, tensor: 0 });
        let mut inputs: Vec<_> = stage.reads.iter().map(of).collect();
        if number == 0 {
            inputs.push((spec.inputs[0].clone(), InputSource::Request(0)));
        }
        let is_last = number + 1 == count;
        let own = if is_last { (spec.outputs[0].clone(), Sink::Reply(0)) } else { (tensor(number), Sink::Boundary(0)) };
        let (mut outputs, mut exits) = (vec![own], Vec::new());
        if stage.decides {
            outputs.push((TensorSpec::new(format!("c{number}"), DataType::Fp32, &[1]), Sink::Exit));
            exits.push(Exit { value: 1, at_least: 0.5, to: ExitTo::Done(vec![Some(0)]) });
        }
        StageSpec { inputs, outputs, exits }
    };
    let left = |stage: usize| BoundaryTensor {
        name: format!("h{stage}"),
        datatype: DataType::Int64,
        dims: Some(SmallVec::from_slice(&[BoundaryDim::Fixed(1)])),
    };
    let boundaries = (0..count - 1).map(|stage| vec![left(stage)]).collect();
    let plan = StagePlan { stages: (0..count).map(stage).collect(), boundaries };
    let programs = StagePrograms::cut(&spec, plan, (0..count).map(|_| program()).collect()).expect("the plan is sound");
    debug_assert!(matches!(programs.0, Programs::Cut(_)));
    (spec, programs, model.knobs.clone())
}

impl CellModel {
    fn random(rng: &mut Rng) -> Self {
        let shapes = [Shape::Chain, Shape::Loop, Shape::Tree, Shape::Chunks(true), Shape::Chunks(false)];
        let shape = shapes[rng.below(5) as usize];
        let cellular = CellularKnobs {
            slots: rng.within(16, 80) as u32,
            max_tasks: rng.within(1, 6) as u16,
            frontier: rng.permille(700),
            max_chunk_ns: rng.coin().then(|| rng.within(50, 2_000)),
            ..CellularKnobs::default()
        };
        let knobs = Knobs {
            max_batch_rows: rng.within(2, 12) as u32,
            max_in_flight: rng.within(1, 8) as u32,
            objective_ns: rng.coin().then(|| rng.within(500, 20_000)),
            weight: rng.within(1, 3) as u32,
            policy: Policy::Cellular(cellular),
            ..Knobs::default()
        };
        Self { shape, knobs, costs: (rng.within(5, 60), rng.within(1, 20)) }
    }

    fn programs(&self, number: usize) -> (ModelSpec, StagePrograms, Knobs) {
        let tensor = |name: &str, dims: &[i64]| TensorSpec::new(name, DataType::Int64, dims);
        let mut inputs = vec![tensor("x", &[-1])];
        if self.shape == Shape::Tree {
            inputs.push(tensor("children", &[-1, 2]));
        }
        let spec = ModelSpec {
            name: format!("cells{number}"),
            version: 1,
            max_batch_size: 1,
            inputs,
            outputs: vec![tensor("y", &[1])],
            symbols: vec![],
            decoupled: false,
        };
        let max_rows = self.knobs.max_batch_rows;
        let cell = |name: &str, inputs: Vec<TensorSpec>, priority| CellSpec {
            name: name.to_owned(),
            inputs,
            outputs: vec![tensor("v", &[1])],
            max_rows,
            min_followup: 1,
            priority,
        };
        let token = CellSource::Step { of: Tensor::Input(0), reversed: false };
        let start = bytes([START]);
        let carried = CellSource::Carried { output: 0, start: Start::Row(start.clone()), is_kept: false };
        let child = |child| CellSource::Child { child, output: 0, none: start.clone() };
        let is_told = self.shape == Shape::Chunks(true);
        let x = if matches!(self.shape, Shape::Chunks(_)) { &[-1][..] } else { &[] };
        let step = || {
            let inputs = [tensor("x", x), tensor("h", &[1])].into_iter().chain(is_told.then(|| tensor("lens", &[])));
            vec![cell("step", inputs.collect(), 1)]
        };
        let inputs = [token.clone(), carried].into_iter().chain(is_told.then_some(CellSource::Steps));
        let steps = smallvec![NodeType { cell: 0, inputs: inputs.collect() }];
        let length = Expression::Length(0);
        let (cells, types, nodes) = match self.shape {
            Shape::Chain => (step(), steps, Nodes::Chain { steps: length, chunks: false }),
            Shape::Chunks(_) => (step(), steps, Nodes::Chain { steps: length, chunks: true }),
            Shape::Loop => {
                (step(), steps, Nodes::Decode { max_steps: length, until: Some((0, LAST)), expected_steps: None })
            }
            Shape::Tree => {
                let leaf = cell("leaf", vec![tensor("x", &[])], 2);
                let inner = cell("inner", vec![tensor("left", &[1]), tensor("right", &[1])], 1);
                let types = smallvec![
                    NodeType { cell: 0, inputs: vec![token] },
                    NodeType { cell: 1, inputs: vec![child(0), child(1)] },
                ];
                (vec![leaf, inner], types, Nodes::Tree { children: 1, max_nodes: 64 })
            }
        };
        let emits = vec![Emit { name: "last".to_owned(), output: 0, which: EmitRange::Last }];
        let segment = Segment { name: "only".to_owned(), types, nodes, emits, streams: false };
        let unfolding = Unfolding {
            segments: vec![segment],
            outputs: vec![Emitted { segment: 0, emit: 0 }],
            cells,
            limits: Vec::new(),
        };
        let programs = unfolding.cells.iter().map(|_| program()).collect();
        let cells = CellPrograms::new(&spec, unfolding, programs).expect("the unfolding is sound");
        let mut knobs = self.knobs.clone();
        if let Policy::Cellular(cellular) = &mut knobs.policy {
            (cellular.cells, cellular.segments) = cells.knobs();
        }
        (spec, cells.into(), knobs)
    }
}

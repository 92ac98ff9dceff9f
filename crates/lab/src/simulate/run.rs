//! The event loop: one core per device, and a clock that jumps from event to event.

use std::{cmp::Reverse, collections::BinaryHeap};

use paternoster_batching::{
    Action, Arrival, Core, End, Event, Instant, LaneId, ModelId, Ns, ReqId,
    router::{Move, Router},
};
use paternoster_model::{Next, RowOutcome};
use rand::RngExt;
use rand_chacha::{ChaCha8Rng, rand_core::SeedableRng};
use smallvec::SmallVec;

use super::{
    cells::{CellGraph, decoded},
    figures::{ModelFigures, Period, SimulatedFigures},
    lanes::Lanes,
    load::Offered,
    setup::{Served, Setup},
    surface::Surface,
};

const NS_PER_S: f64 = 1e9;

/// A scheduled event. Events at the same time are ordered: ends of tasks first, by lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Due {
    /// The task on this lane ends; lanes are numbered over all devices.
    Landing(usize),
    /// A device's core asked to be woken.
    Wake(usize),
    /// A device is lost.
    Loss(usize),
}

/// A request on its way to the core.
struct Coming {
    offered: Offered,
    reaches: Instant,
    back_ns: Ns,
}

/// A request that has arrived.
#[derive(Clone, Debug)]
struct Known {
    /// The request without its tree.
    offered: Offered,
    /// Number of steps of its model's loop that it has run.
    steps_run: u32,
    /// The last node of its output, if it decodes.
    last_node: Option<u32>,
    /// Time that its response takes to reach the client.
    back_ns: Ns,
    /// Start of its first task.
    began: Option<Instant>,
}

struct Device {
    core: Core,
    lanes: Lanes,
    wake: Option<Instant>,
    is_lost: bool,
}

struct Run<'s> {
    setup: &'s Setup,
    /// By model, then by stage.
    surfaces: Vec<Vec<Surface>>,
    devices: Vec<Device>,
    router: Router,
    due: BinaryHeap<Reverse<(Instant, Due)>>,
    requests: Vec<Known>,
    now: Instant,
    last_end: Instant,
    figures: SimulatedFigures,
    random: ChaCha8Rng,
}

/// Runs requests, given in order of time, until the last has ended. The seed determines how task times scatter.
///
/// # Panics
/// In debug builds, if the core breaks one of its invariants.
pub fn run(setup: &Setup, seed: u64, requests: impl IntoIterator<Item = Offered>) -> SimulatedFigures {
    let mut run = Run::new(setup, seed);
    let mut requests = requests.into_iter();
    let mut next = requests.next().map(|offered| run.send(offered, Instant::ZERO));
    loop {
        let due = run.due.peek().map(|Reverse((at, _))| *at);
        match (due, next) {
            (Some(at), coming) if coming.as_ref().is_none_or(|coming| at <= coming.reaches) => {
                next = coming;
                run.happen();
            }
            (_, Some(coming)) => {
                let reaches = coming.reaches;
                run.arrive(coming);
                next = requests.next().map(|offered| run.send(offered, reaches));
            }
            (_, None) => return run.end(),
        }
    }
}

impl<'s> Run<'s> {
    fn new(setup: &'s Setup, seed: u64) -> Self {
        let surfaces =
            |served: &Served| served.table.latencies.stages.iter().map(|points| Surface::new(points)).collect();
        let lanes = usize::from(setup.lanes.max(1));
        let devices: Vec<Device> = (0..setup.devices.max(1)).map(|_| Device::new(setup)).collect();
        let figures = SimulatedFigures {
            models: vec![ModelFigures::default(); setup.models.len()],
            lanes: (devices.len() * lanes) as u64,
            ..SimulatedFigures::default()
        };
        let router = Router::new(devices.iter().map(|_| 0));
        (0..).zip(&devices).for_each(|(number, device): (usize, &Device)| router.publish(number, device.core.load()));
        let losses = setup.lost.iter().map(|&(at, device)| Reverse((at, Due::Loss(usize::from(device)))));
        Self {
            setup,
            surfaces: setup.models.iter().map(surfaces).collect(),
            devices,
            router,
            due: losses.collect(),
            requests: Vec::new(),
            now: Instant::ZERO,
            last_end: Instant::ZERO,
            figures,
            random: ChaCha8Rng::seed_from_u64(seed),
        }
    }

    /// Sends a request. It reaches the core no earlier than the previous one.
    fn send(&mut self, offered: Offered, last_reaches: Instant) -> Coming {
        let front_ns = scattered(&self.setup.front, &mut self.random).unwrap_or(0.0).round() as Ns;
        let reaches = (offered.at + front_ns / 2).max(last_reaches);
        Coming { offered, reaches, back_ns: front_ns.div_ceil(2) }
    }

    fn arrive(&mut self, coming: Coming) {
        let Coming { mut offered, reaches, back_ns } = coming;
        self.now = self.now.max(reaches);
        let req = ReqId(self.requests.len() as u64);
        let served = &self.setup.models[usize::from(offered.model)];
        let is_padded = served.table.is_padded() || served.runs_graphs();
        let lengths = if is_padded { SmallVec::from_slice(&[offered.length]) } else { SmallVec::new() };
        let cells = served.table.cells.as_ref().filter(|_| served.is_cellular());
        let (graph, last_node) = cells.map(|cells| cells.unfold(&mut offered)).unwrap_or_default();
        let (model, at) = (offered.model, offered.at);
        self.requests.push(Known { offered, steps_run: 0, last_node, back_ns, began: None });
        if self.is_counted(req) {
            self.figures.models[usize::from(model)].offered += 1;
        }
        self.count_arrival(req, at);
        let arrival = Arrival { lengths, graph, ..Arrival::new(req, ModelId(u32::from(model)), 1) };
        match self.router.least(0..self.devices.len()) {
            Some(device) => self.step(device, Event::Arrived(arrival)),
            None => self.finish(req, End::Failed),
        }
    }

    fn count_arrival(&mut self, req: ReqId, at: Instant) {
        let since_last = self.requests.iter().rev().nth(1).map_or(0, |last| at.since(last.offered.at));
        if let Some(last) = req.0.checked_sub(1)
            && let Some(period) = self.period_of(ReqId(last))
        {
            period.span_ns += u128::from(since_last);
        }
        if let Some(period) = self.period_of(req) {
            period.offered += 1;
            period.arrived_ns += u128::from(at.as_ns());
        }
    }

    /// Processes the next due event.
    fn happen(&mut self) {
        let Some(Reverse((at, due))) = self.due.pop() else { return };
        match due {
            Due::Landing(lane) => {
                self.now = at;
                self.land(lane);
            }
            Due::Wake(device) if self.devices[device].wake == Some(at) => {
                self.now = at;
                self.devices[device].wake = None;
                self.step(device, Event::Wake);
            }
            Due::Loss(device) => {
                self.now = at;
                self.lose(device);
            }
            // The core has replaced this wake by a later one.
            Due::Wake(_) => {}
        }
    }

    fn land(&mut self, lane: usize) {
        let lanes = usize::from(self.setup.lanes.max(1));
        let (device, lane) = (lane / lanes, lane % lanes);
        let Some(task) = self.devices[device].lanes.end(lane, self.now) else { return };
        if self.devices[device].is_lost {
            return;
        }
        self.begin(device);
        let served = &self.setup.models[task.model.0 as usize];
        let mut outcomes: SmallVec<[RowOutcome; 64]> = SmallVec::new();
        if served.table.steps.is_some_and(|steps| task.cell.0 >= steps.first) {
            for span in &task.rows {
                let known = &mut self.requests[span.req.0 as usize];
                known.steps_run += 1;
                let next = served.next(task.cell, known.steps_run, known.offered.length);
                outcomes.push(RowOutcome { next, emitted: false });
            }
        }
        if served.is_cellular() && served.table.cells.as_ref().is_some_and(CellGraph::decodes) {
            outcomes.extend(task.rows.iter().map(|span| {
                let is_last = self.requests[span.req.0 as usize].last_node == Some(span.start);
                RowOutcome { next: if is_last { Next::Done } else { Next::On }, emitted: false }
            }));
        }
        self.step(device, Event::Completed { task: task.id, rows: &outcomes });
    }

    /// Steps a device, and moves requests to where they wait less.
    fn step(&mut self, device: usize, event: Event<'_>) {
        self.step_alone(device, event);
        // As in the pool: an idle device takes requests that wait elsewhere.
        if let Some(Move { from, to }) = self.router.rebalance(device) {
            let recalled = self.step_alone(from, Event::Recall);
            if !recalled.is_empty() {
                self.step_alone(to, Event::TakenIn(recalled));
            }
        }
    }

    /// Handles the loss of a device: requests that waited there move to another, if there is one.
    fn lose(&mut self, device: usize) {
        self.devices[device].is_lost = true;
        self.router.lose(device);
        let recalled = self.step_alone(device, Event::DeviceLost);
        match self.router.least(0..self.devices.len()) {
            Some(other) => self.step(other, Event::TakenIn(recalled)),
            None => recalled.iter().for_each(|arrival| self.finish(arrival.req, End::Failed)),
        }
    }

    /// Steps a device, and returns the requests that leave it.
    fn step_alone(&mut self, device: usize, event: Event<'_>) -> Vec<Arrival> {
        let mut recalled = Vec::new();
        for action in self.devices[device].core.step(self.now, event) {
            match action {
                Action::Launch(task) => {
                    self.devices[device].lanes.push(*task);
                    self.begin(device);
                }
                Action::Finish { req, end } => self.finish(req, end),
                Action::WakeAt(at) => {
                    let at = at.max(self.now);
                    self.due.push(Reverse((at, Due::Wake(device))));
                    self.devices[device].wake = Some(at);
                }
                Action::Recalled(arrival) => recalled.push(*arrival),
                // In a run no model is decoupled or has sequences, and none is unloaded.
                Action::Emit { .. }
                | Action::Joined { .. }
                | Action::SequenceOver { .. }
                | Action::Drained(_)
                | Action::UnitsFreed { .. } => {}
            }
        }
        self.router.publish(device, self.devices[device].core.load());
        recalled
    }

    /// Starts the tasks of a device that wait for no other.
    fn begin(&mut self, device: usize) {
        while let Some((task, has_rested)) = self.devices[device].lanes.begin(self.now) {
            let model = task.model.0 as usize;
            let served = &self.setup.models[model];
            let to_decode = |req: ReqId| decoded(&self.requests[req.0 as usize].offered);
            let table_ns = served.task_ns(&self.surfaces[model], task, to_decode);
            let lane = device * usize::from(self.setup.lanes.max(1)) + usize::from(task.lane.0);
            let took_ns = match &self.setup.replay {
                Some(replay) => replay.took_ns(lane, self.now.as_ns(), table_ns),
                None => {
                    let late_ns = if has_rested { self.setup.after_idle_ns } else { 0 };
                    table_ns * scattered(&served.table.scatter, &mut self.random).unwrap_or(1.0) + late_ns as f64
                }
            };
            // At least 1, so that virtual time advances.
            let took_ns = (took_ns.round() as Ns).max(1);
            for span in &task.rows {
                self.requests[span.req.0 as usize].began.get_or_insert(self.now);
            }
            self.figures.busy_ns += u128::from(took_ns);
            self.due.push(Reverse((self.now + took_ns, Due::Landing(lane))));
        }
    }

    fn finish(&mut self, req: ReqId, end: End) {
        let known = &self.requests[req.0 as usize];
        let (arrived, model) = (known.offered.at, usize::from(known.offered.model));
        let began = known.began.unwrap_or(self.now);
        let answered = self.now + known.back_ns;
        self.last_end = self.last_end.max(answered);
        self.figures.served += u64::from(end == End::Completed);
        let latency_ns = answered.since(arrived);
        if let (Some(period), End::Completed) = (self.period_of(req), end) {
            period.completed += 1;
            period.latency_ns += u128::from(latency_ns);
        }
        if !self.is_counted(req) {
            return;
        }
        let figures = &mut self.figures.models[model];
        if end != End::Completed {
            figures.refused += 1;
            return;
        }
        figures.completed += 1;
        figures.latencies.record(latency_ns);
        figures.queued.record(began.since(arrived));
        figures.computing.record(answered.since(began));
        let objective_ns = self.setup.models[model].knobs.objective_ns;
        figures.in_time += u64::from(objective_ns.is_none_or(|objective_ns| latency_ns <= objective_ns));
    }

    /// Returns the period in which a request arrived, if periods are requested.
    fn period_of(&mut self, req: ReqId) -> Option<&mut Period> {
        let number = usize::try_from(req.0.checked_div(self.setup.period)?).ok()?;
        if self.figures.periods.len() <= number {
            self.figures.periods.resize(number + 1, Period::default());
        }
        self.figures.periods.get_mut(number)
    }

    fn is_counted(&self, req: ReqId) -> bool {
        req.0 >= self.setup.warm_up
    }

    fn end(mut self) -> SimulatedFigures {
        let first = usize::try_from(self.setup.warm_up).ok().and_then(|first| self.requests.get(first));
        let last_arrival = self.requests.last().map_or(Instant::ZERO, |known| known.offered.at);
        if let Some(first) = first {
            self.figures.span_ns = u128::from(self.last_end.since(first.offered.at));
            self.figures.arriving_ns = u128::from(last_arrival.since(first.offered.at));
        }
        self.figures.run_ns = u128::from(self.last_end.as_ns());
        let lanes = f64::from(self.setup.lanes.max(1));
        let busy_s = self.figures.busy_ns as f64 / NS_PER_S / lanes;
        let all_s = self.last_end.as_ns() as f64 / NS_PER_S * self.devices.len() as f64;
        self.figures.joules = self.setup.idle_watts * all_s + (self.setup.busy_watts - self.setup.idle_watts) * busy_s;
        for device in &self.devices {
            for (model, counters) in device.core.counters() {
                let counted = ModelFigures { counters, ..ModelFigures::default() };
                self.figures.models[model.0 as usize].add(&counted);
            }
        }
        self.figures
    }
}

/// Draws a value from its quantiles, given from the least to the greatest in even steps.
fn scattered(quantiles: &[f64], random: &mut ChaCha8Rng) -> Option<f64> {
    let [first, .., last] = quantiles else { return quantiles.first().copied() };
    let at = random.random::<f64>() * (quantiles.len() - 1) as f64;
    let below = at as usize;
    let (low, high) = (quantiles.get(below).unwrap_or(first), quantiles.get(below + 1).unwrap_or(last));
    Some(low + (high - low) * (at - below as f64))
}

impl Device {
    fn new(setup: &Setup) -> Self {
        let mut core = Core::new();
        for (id, served) in (0..).zip(&setup.models) {
            core.step(Instant::ZERO, Event::ModelUp(ModelId(id), Box::new(served.staged())));
        }
        for lane in 0..setup.lanes.max(1) {
            core.step(Instant::ZERO, Event::LaneUp(LaneId(lane), setup.ahead));
        }
        Self { core, lanes: Lanes::new(setup.lanes.max(1)), wake: None, is_lost: false }
    }
}

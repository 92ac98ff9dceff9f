//! The event loop: one core a device, and a clock that jumps from event to event.

use std::{cmp::Reverse, collections::BinaryHeap};

use rand::RngExt;
use rand_chacha::{ChaCha8Rng, rand_core::SeedableRng};
use smallvec::SmallVec;

use super::{
    figures::{Figures, ModelFigures, Period},
    load::Offered,
    replay::Replay,
    table::{ModelTable, Surface},
};
use crate::batching::{
    Action, Arrival, BatchKey, CellId, Core, End, Event, Knobs, LaneId, LaneKnobs, ModelId, Next, Ns, ReqId,
    RowOutcome, StageKnobs, Task,
};

const NS_PER_S: f64 = 1e9;

/// Devices that serve models.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The models, all on every device.
    pub models: Vec<Served>,
    /// Devices, at least 1; each has a core of its own. A request goes to the one with the fewest in flight, the first of
    /// several.
    pub devices: u16,
    /// Lanes of each device, at least 1. A task takes its time whatever the other lanes do.
    pub lanes: u16,
    /// Power of an idle device.
    pub idle_watts: f64,
    /// Power of a device with work on all its lanes; in between, it grows with the lanes at work.
    pub busy_watts: f64,
    /// What a task takes longer on a lane that had nothing to do: threads wake, and caches are cold.
    pub after_idle_ns: Ns,
    /// What a request spends outside of queue and device, half of it before: front end, threads and the client.
    pub front_ns: Ns,
    /// How slow the lanes are over time, in place of the tables' scatter and `after_idle_ns`.
    pub replay: Option<Replay>,
    /// So many requests at the beginning are not counted.
    pub warm_up: u64,
    /// Requests of each of the periods that are told apart, by number; 0: none are.
    pub period: u64,
}

/// A model and how it is served.
#[derive(Clone, Debug)]
pub struct Served {
    /// How long its stages take.
    pub table: ModelTable,
    /// How its requests are batched. Its stages are those of the table, whatever stands here.
    pub knobs: Knobs,
}

impl Served {
    /// The knobs with the table's stages.
    fn staged(&self) -> Knobs {
        let mut stages = StageKnobs::chain(self.table.latencies.stages.len() as u16);
        if let Some(steps) = self.table.steps {
            stages[usize::from(steps.first)..].iter_mut().for_each(|stage| stage.decides = true);
        }
        Knobs { stages, ..self.knobs.clone() }
    }

    /// Where a request goes that has run so many steps, the last of them this stage.
    fn next(&self, stage: CellId, steps_run: u32, length: u32) -> Next {
        let is_last = usize::from(stage.0) + 1 == self.table.latencies.stages.len();
        match (steps_run >= length, is_last) {
            (true, _) => Next::Done,
            (false, false) => Next::On,
            (false, true) => Next::Skip(stage),
        }
    }
}

/// Something that will happen, by time; of several at once, tasks end first, the first lanes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Due {
    /// The task on this lane of all devices ends.
    Landing(usize),
    /// A device's core asked to be woken.
    Wake(usize),
}

/// A request that has arrived.
#[derive(Clone, Copy, Debug)]
struct Known {
    offered: Offered,
    device: u16,
    /// Steps of its model's loop that it has run.
    steps_run: u32,
}

struct Device {
    core: Core,
    wake: Option<Ns>,
    in_flight: u32,
}

struct Run<'s> {
    setup: &'s Setup,
    /// By model, then by stage.
    surfaces: Vec<Vec<Surface>>,
    devices: Vec<Device>,
    /// By lane of all devices.
    running: Vec<Option<Task>>,
    /// By lane of all devices: when it last had a task, none before the first.
    rested: Vec<Option<Ns>>,
    due: BinaryHeap<Reverse<(Ns, Due)>>,
    requests: Vec<Known>,
    now: Ns,
    last_end: Ns,
    figures: Figures,
    random: ChaCha8Rng,
}

/// Plays requests, which come by time, until the last has ended. The seed decides how tasks scatter.
///
/// # Panics
/// In debug builds, when the core breaks one of its invariants.
pub fn run(setup: &Setup, seed: u64, requests: impl IntoIterator<Item = Offered>) -> Figures {
    let mut run = Run::new(setup, seed);
    let mut requests = requests.into_iter().peekable();
    loop {
        let due = run.due.peek().map(|Reverse((at, _))| *at);
        match (due, requests.peek()) {
            (Some(at), Some(offered)) if at <= run.reaches(offered) => run.happen(),
            (_, Some(&offered)) => {
                requests.next();
                run.arrive(offered);
            }
            (Some(_), None) => run.happen(),
            (None, None) => return run.end(),
        }
    }
}

impl<'s> Run<'s> {
    fn new(setup: &'s Setup, seed: u64) -> Self {
        let surfaces =
            |served: &Served| served.table.latencies.stages.iter().map(|points| Surface::new(points)).collect();
        let lanes = usize::from(setup.lanes.max(1));
        let devices: Vec<Device> = (0..setup.devices.max(1)).map(|_| Device::new(setup)).collect();
        let figures = Figures {
            models: vec![ModelFigures::default(); setup.models.len()],
            lanes: (devices.len() * lanes) as u64,
            ..Figures::default()
        };
        Self {
            setup,
            surfaces: setup.models.iter().map(surfaces).collect(),
            running: vec![None; devices.len() * lanes],
            rested: vec![None; devices.len() * lanes],
            devices,
            due: BinaryHeap::new(),
            requests: Vec::new(),
            now: 0,
            last_end: 0,
            figures,
            random: ChaCha8Rng::seed_from_u64(seed),
        }
    }

    /// When a request comes to the core.
    fn reaches(&self, offered: &Offered) -> Ns {
        offered.at.saturating_add(self.setup.front_ns / 2)
    }

    fn arrive(&mut self, offered: Offered) {
        self.now = self.now.max(self.reaches(&offered));
        let least = (0..).zip(&self.devices).min_by_key(|(_, device)| device.in_flight);
        let device: u16 = least.map_or(0, |(device, _)| device);
        let req = ReqId(self.requests.len() as u64);
        self.requests.push(Known { offered, device, steps_run: 0 });
        if self.is_counted(req) {
            self.figures.models[usize::from(offered.model)].offered += 1;
        }
        self.devices[usize::from(device)].in_flight += 1;
        self.count_arrival(req, offered.at);
        let served = &self.setup.models[usize::from(offered.model)];
        let lengths = if served.table.is_padded() { SmallVec::from_slice(&[offered.length]) } else { SmallVec::new() };
        let arrival = Arrival {
            req,
            model: ModelId(u32::from(offered.model)),
            rows: 1,
            lengths,
            key: BatchKey::default(),
            priority: 0,
            board_by: None,
            expiry: None,
            graph: Box::default(),
            sequence: None,
        };
        self.step(usize::from(device), Event::Arrived(arrival));
    }

    fn count_arrival(&mut self, req: ReqId, at: Ns) {
        let since_last = self.requests.iter().rev().nth(1).map_or(0, |last| at.saturating_sub(last.offered.at));
        if let Some(last) = req.0.checked_sub(1)
            && let Some(period) = self.period_of(ReqId(last))
        {
            period.span_ns += u128::from(since_last);
        }
        if let Some(period) = self.period_of(req) {
            period.offered += 1;
            period.arrived_ns += u128::from(at);
        }
    }

    /// Lets the next thing happen that is due.
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
            // A later word of the core has replaced it.
            Due::Wake(_) => {}
        }
    }

    fn land(&mut self, lane: usize) {
        let Some(task) = self.running[lane].take() else { return };
        self.rested[lane] = Some(self.now);
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
        let device = lane / usize::from(self.setup.lanes.max(1));
        self.step(device, Event::Completed { task: task.id, rows: &outcomes });
    }

    fn step(&mut self, device: usize, event: Event<'_>) {
        for action in self.devices[device].core.step(self.now, event) {
            match action {
                Action::Launch(task) => self.launch(device, task),
                Action::Finish { req, end } => self.finish(req, end),
                Action::WakeAt(at) => {
                    let at = at.max(self.now);
                    self.due.push(Reverse((at, Due::Wake(device))));
                    self.devices[device].wake = Some(at);
                }
                // No model of a run is decoupled or has sequences, and none is unloaded.
                Action::Emit { .. } | Action::Joined { .. } | Action::SequenceOver { .. } | Action::Drained(_) => {}
            }
        }
    }

    fn launch(&mut self, device: usize, task: Task) {
        let surface = &self.surfaces[task.model.0 as usize][usize::from(task.cell.0)];
        let length = task.bucket.class.0.iter().fold(1, |product: u64, &length| product * u64::from(length.max(1)));
        let lane = device * usize::from(self.setup.lanes.max(1)) + usize::from(task.lane.0);
        let table_ns = surface.ns(task.bucket.rows, length);
        let took_ns = match &self.setup.replay {
            Some(replay) => replay.took_ns(lane, self.now, table_ns),
            None => {
                let scatter = &self.setup.models[task.model.0 as usize].table.scatter;
                let late_ns = if self.rested[lane] == Some(self.now) { 0 } else { self.setup.after_idle_ns };
                table_ns * scattered(scatter, &mut self.random) + late_ns as f64
            }
        };
        let took_ns = (took_ns.round() as Ns).max(1);
        self.figures.busy_ns += u128::from(took_ns);
        self.due.push(Reverse((self.now + took_ns, Due::Landing(lane))));
        self.running[lane] = Some(task);
    }

    fn finish(&mut self, req: ReqId, end: End) {
        let known = self.requests[req.0 as usize];
        self.devices[usize::from(known.device)].in_flight -= 1;
        let answered = self.now + self.setup.front_ns.div_ceil(2);
        self.last_end = answered;
        self.figures.served += u64::from(end == End::Completed);
        let latency_ns = answered - known.offered.at;
        if let (Some(period), End::Completed) = (self.period_of(req), end) {
            period.completed += 1;
            period.latency_ns += u128::from(latency_ns);
        }
        if !self.is_counted(req) {
            return;
        }
        let model = usize::from(known.offered.model);
        let figures = &mut self.figures.models[model];
        if end != End::Completed {
            figures.refused += 1;
            return;
        }
        figures.completed += 1;
        figures.latencies.record(latency_ns);
        let objective_ns = self.setup.models[model].knobs.objective_ns;
        figures.in_time += u64::from(objective_ns.is_none_or(|objective_ns| latency_ns <= objective_ns));
    }

    /// The period in which a request arrived, where periods are told apart.
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

    fn end(mut self) -> Figures {
        let first = usize::try_from(self.setup.warm_up).ok().and_then(|first| self.requests.get(first));
        let last_arrival = self.requests.last().map_or(0, |known| known.offered.at);
        if let Some(first) = first {
            self.figures.span_ns = u128::from(self.last_end.saturating_sub(first.offered.at));
            self.figures.arriving_ns = u128::from(last_arrival - first.offered.at);
        }
        self.figures.run_ns = u128::from(self.last_end);
        let lanes = f64::from(self.setup.lanes.max(1));
        let busy_s = self.figures.busy_ns as f64 / NS_PER_S / lanes;
        let all_s = self.last_end as f64 / NS_PER_S * self.devices.len() as f64;
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

/// A part of the table's time by its quantiles.
fn scattered(quantiles: &[f64], random: &mut ChaCha8Rng) -> f64 {
    let [first, .., last] = quantiles else { return quantiles.first().copied().unwrap_or(1.0) };
    let at = random.random::<f64>() * (quantiles.len() - 1) as f64;
    let below = at as usize;
    let (low, high) = (quantiles.get(below).unwrap_or(first), quantiles.get(below + 1).unwrap_or(last));
    low + (high - low) * (at - below as f64)
}

impl Device {
    fn new(setup: &Setup) -> Self {
        let mut core = Core::new();
        for (id, served) in (0..).zip(&setup.models) {
            core.step(0, Event::ModelUp(ModelId(id), served.staged()));
        }
        for lane in 0..setup.lanes.max(1) {
            core.step(0, Event::LaneUp(LaneId(lane), LaneKnobs::default()));
        }
        Self { core, wake: None, in_flight: 0 }
    }
}

//! One run: a pool over simulated devices, driven event by event, with every reply compared with the oracle.

use std::{
    collections::{BTreeMap, BTreeSet},
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll, Waker, ready},
    time::Duration,
};

use parking_lot::Mutex;
use paternoster_batching::Ns;
use paternoster_device::{BufferPool, StreamId};

use super::{
    backend::{Floor, Simulated, advance},
    behaviour::{Behaviour, Planted, RunRecord, number_of},
    oracle,
    rng::Rng,
    values::{ROW_BYTES, value},
    world::World,
};
use crate::{
    BacklogLimits, DeviceKind, InferError, ModelHandle, Pool, PoolOptions, Response, ResponseFuture, ResponseStream,
    backend::{Backend, Reports},
    clock::Clock,
};

/// A run with more events than this counts as endless.
const MOST_EVENTS: u64 = 200_000;

macro_rules! happened {
    ($($name:ident: $says:literal,)+) => {
        /// Counts of the events of one run or of many.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub(super) struct Happened {
            $(pub(super) $name: u64,)+
        }

        impl Happened {
            pub(super) fn add(&mut self, other: &Self) {
                $(self.$name += other.$name;)+
            }

            pub(super) fn rows(&self) -> Vec<(&'static str, u64)> {
                vec![$(($says, self.$name)),+]
            }
        }
    };
}

happened! {
    requests: "requests",
    completed: "completed",
    failed: "failed",
    cancelled: "cancelled",
    rejected: "rejected",
    expired: "expired",
    device_lost: "failed with their device",
    paused: "requests that paused for their clients",
    moved: "requests that moved to another device",
    losses: "devices lost",
    refused_versions: "versions refused for want of memory",
    tasks: "tasks",
    tasks_failed: "tasks that failed",
    failed_by_need: "tasks that failed because what they need did",
    ahead: "tasks launched behind another of their lane",
    waits: "waits for tasks of other lanes",
    outputs_lost: "tasks whose outputs were lost",
    reused: "pairs and slots that went to others",
    padding: "rows of buckets that no row of a task filled",
    completed_before_taken: "tasks completed before outputs of an earlier one were taken",
}

struct Run {
    world: Arc<World>,
    pool: Arc<Pool>,
    reports: Arc<dyn Reports>,
    floors: Vec<Arc<Mutex<Floor>>>,
    lost: Vec<bool>,
    /// By model; `None` for rejected models.
    handles: Vec<Option<Arc<ModelHandle>>>,
    now: Ns,
    clock: Arc<AtomicU64>,
    noted: Arc<Mutex<RunRecord>>,
    /// Requests that waited on a device when it was lost, and may move to others.
    waited: BTreeSet<u64>,
    /// Number of requests sent.
    sent: usize,
    /// Requests without a reply yet.
    open: BTreeMap<u64, Waiting>,
    rng: Rng,
    happened: Happened,
}

/// A waiting client.
enum Waiting {
    ForOne(Pin<Box<ResponseFuture>>),
    /// Waits for responses until the stream ends; keeps those received.
    ForAll(ResponseStream, Vec<u64>),
}

impl Waiting {
    /// Polls for replies. Returns the values of all of them once the request has ended.
    fn hear(&mut self) -> Poll<Result<Vec<u64>, InferError>> {
        let values = |response: &Response| {
            let data = &response.outputs[0].data;
            (0..data.len() / ROW_BYTES).map(|row| value(data, row)).collect::<Vec<u64>>()
        };
        let mut context = Context::from_waker(Waker::noop());
        match self {
            Self::ForOne(future) => future.as_mut().poll(&mut context).map_ok(|response| values(&response)),
            Self::ForAll(stream, heard) => loop {
                match ready!(stream.poll_next(&mut context)) {
                    Some(Ok(response)) => heard.extend(values(&response)),
                    Some(Err(error)) => return Poll::Ready(Err(error)),
                    None => return Poll::Ready(Ok(std::mem::take(heard))),
                }
            },
        }
    }
}

/// Plays the run of a seed, with or without a planted fault.
pub(super) fn play(seed: u64, planted: Option<Planted>) -> Result<Happened, String> {
    let mut run = Run::new(World::random(seed), planted)?;
    let mut events = 0;
    while run.step()? {
        events += 1;
        if events > MOST_EVENTS {
            return Err(format!("the run does not end: {} requests wait", run.open.len()));
        }
    }
    run.end()
}

impl Run {
    fn new(world: World, planted: Option<Planted>) -> Result<Self, String> {
        let world = Arc::new(world);
        let (clock, noted) = (Arc::<AtomicU64>::default(), Arc::<Mutex<RunRecord>>::default());
        noted.lock().ran.resize_with(world.shards, Default::default);
        let devices = (0..world.shards).map(|shard| {
            let behaviour = Behaviour::new(&world, shard, &noted);
            let (device, floor) = Simulated::new(shard, world.lanes, world.lane_knobs, behaviour, planted);
            ((DeviceKind::Cpu, Box::new(device) as Box<dyn Backend>), floor)
        });
        let (backends, floors): (Vec<_>, Vec<_>) = devices.unzip();
        // A stream pauses when two responses are unread.
        let backlog = BacklogLimits { stream_bytes: 2 * ROW_BYTES, ..BacklogLimits::DEFAULT };
        let options = PoolOptions { task_time_limit: Duration::ZERO, backlog, ..PoolOptions::default() };
        let pool = Pool::over(backends, &options, BufferPool::new(0), Clock::set(&clock));
        let mut happened = Happened::default();
        let mut handles = Vec::new();
        for model in 0..world.models() {
            let (spec, programs, knobs) = world.model(model);
            let used: Vec<u64> = floors.iter().map(|floor| floor.lock().used_rows()).collect();
            handles.push(match pool.bring_up(spec, knobs, programs) {
                Ok(handle) => Some(Arc::new(handle)),
                Err(refusal) => {
                    happened.refused_versions += 1;
                    let left: Vec<u64> = floors.iter().map(|floor| floor.lock().used_rows()).collect();
                    if used != left || !refusal.contains("cannot hold model") {
                        return Err(format!("what was refused keeps memory: {used:?}, {left:?}: {refusal}"));
                    }
                    None
                }
            });
        }
        Ok(Self {
            reports: Arc::<Pool>::clone(&pool),
            lost: vec![false; world.shards],
            rng: Rng::new(!world.scenario.seed),
            world,
            pool,
            floors,
            handles,
            now: 0,
            clock,
            noted,
            waited: BTreeSet::new(),
            sent: 0,
            open: BTreeMap::new(),
            happened,
        })
    }

    /// Processes the next event; returns false if there is none.
    fn step(&mut self) -> Result<bool, String> {
        let Some(next) = self.next() else {
            // Late clients may let requests go on by reading now.
            self.hear(false)?;
            return Ok(self.next().is_some());
        };
        self.now = self.now.max(next);
        self.clock.store(self.now, Ordering::Relaxed);
        self.floors.iter().for_each(|floor| floor.lock().keep_up(self.now));
        self.happen()?;
        self.disturb();
        for floor in &self.floors {
            if let Some(broken) = floor.lock().broken.take() {
                return Err(broken);
            }
        }
        if self.pool.has_failed() {
            return Err("the scheduler panicked".to_owned());
        }
        // Clients that leave responses unread for a while make their requests pause.
        let are_late = self.rng.permille(200);
        self.hear(are_late)?;
        Ok(true)
    }

    fn next(&self) -> Option<Ns> {
        let arrival = self.world.requests.get(self.sent).map(|request| request.at);
        let loss = self.losses().map(|(at, _)| at).min();
        let devices = (0..self.floors.len()).filter(|&shard| !self.lost[shard]);
        let device = devices.filter_map(|shard| self.floors[shard].lock().next_ns()).min();
        let alarm = (0..self.floors.len()).filter_map(|shard| self.alarm(shard)).min();
        [arrival, loss, device, alarm].into_iter().flatten().min()
    }

    fn losses(&self) -> impl Iterator<Item = (Ns, usize)> + '_ {
        self.world.losses.iter().copied().filter(|&(_, shard)| !self.lost[shard])
    }

    fn alarm(&self, shard: usize) -> Option<Ns> {
        self.pool.shards[shard].timer.due().map(|at| self.pool.clock.ns_at(at))
    }

    /// Processes one of the events that are due.
    fn happen(&mut self) -> Result<(), String> {
        let now = self.now;
        for shard in 0..self.floors.len() {
            if !self.lost[shard] && advance(&self.floors[shard], &self.reports, shard, now)? {
                return Ok(());
            }
        }
        let loss = self.losses().find(|&(at, _)| at <= now);
        if let Some((_, shard)) = loss {
            self.lost[shard] = true;
            self.happened.losses += 1;
            let state = self.pool.shards[shard].state.lock();
            for (record, waits) in state.all() {
                let number = number_of(self.world.kind(record.handle.id.0 as usize), &record.payload);
                if waits && record.handle.homes.len() > 1 {
                    self.waited.insert(number)
                } else {
                    self.waited.remove(&number)
                };
            }
            drop(state);
            self.pool.lose_device(shard);
            return Ok(());
        }
        if self.world.requests.get(self.sent).is_some_and(|request| request.at <= now) {
            self.send();
            return Ok(());
        }
        for shard in 0..self.floors.len() {
            if self.alarm(shard).is_some_and(|at| at <= now) {
                self.pool.shards[shard].timer.take();
                self.pool.ring(&self.pool.shards[shard]);
                return Ok(());
            }
        }
        Ok(())
    }

    fn send(&mut self) {
        let number = self.sent as u64;
        self.sent += 1;
        let Some(handle) = &self.handles[self.world.requests[number as usize].model] else { return };
        self.happened.requests += 1;
        let request = self.world.infer_request(number, |at| self.pool.clock.instant_of(at));
        let waiting = if handle.spec().decoupled {
            Waiting::ForAll(handle.submit_stream(request, &self.pool.backlog().stream()), Vec::new())
        } else {
            Waiting::ForOne(Box::pin(handle.submit(request)))
        };
        self.open.insert(number, waiting);
    }

    /// Cancels requests and slows down lanes.
    fn disturb(&mut self) {
        let owed = self.happened.cancelled * 100 < self.happened.requests * self.world.cancels;
        if owed && self.rng.permille(300) && !self.open.is_empty() {
            let at = self.rng.below(self.open.len() as u64) as usize;
            let number = self.open.keys().nth(at).copied();
            if let Some(future) = number.and_then(|number| self.open.remove(&number)) {
                self.happened.cancelled += 1;
                drop(future);
            }
        }
        if self.rng.permille(5) {
            let shard = self.rng.below(self.floors.len() as u64) as usize;
            let lane = self.rng.below(u64::from(self.world.lanes)) as u16;
            let factor = self.rng.within(1, 5) as u32;
            self.floors[shard].lock().sim.slow(StreamId(lane), factor).expect("the lane exists");
        }
    }

    /// Takes the available replies; skips streams if their clients are late.
    fn hear(&mut self, are_late: bool) -> Result<(), String> {
        let mut heard = Vec::new();
        for (&number, waiting) in &mut self.open {
            if are_late && matches!(waiting, Waiting::ForAll(..)) {
                continue;
            }
            if let Poll::Ready(answer) = waiting.hear() {
                heard.push((number, answer));
            }
        }
        for (number, answer) in heard {
            self.open.remove(&number);
            let model = self.world.requests[number as usize].model;
            let in_order =
                self.world.scenario.models.get(model).is_some_and(|own| own.knobs.queueing.preserve_ordering);
            let is_before = |other: &u64| *other < number && self.world.requests[*other as usize].model == model;
            let is_exempt = matches!(answer, Err(InferError::Expired | InferError::DeviceLost));
            if in_order && !is_exempt && self.open.keys().any(is_before) {
                return Err(format!(
                    "request {number} of model {model} is answered {answer:?} at {} before one that came before it",
                    self.now
                ));
            }
            self.judge(number, answer)?;
        }
        Ok(())
    }

    fn judge(&mut self, number: u64, answer: Result<Vec<u64>, InferError>) -> Result<(), String> {
        let request = &self.world.requests[number as usize];
        let noted = self.noted.lock();
        let ran = noted.ran.iter().any(|ran| ran.contains(&number));
        let (counted, is_right) = match &answer {
            Ok(found) => (&mut self.happened.completed, Some(found) == oracle::reply(&self.world, number).as_ref()),
            Err(InferError::Engine(_)) => {
                let model = self.world.scenario.models.get(request.model);
                let is_too_large = model.is_some_and(|model| request.rows > model.knobs.max_batch_rows);
                let fails = oracle::reply(&self.world, number).is_none();
                let may_fail = noted.failed_alone.contains(&number) || noted.outputs_lost.contains(&number);
                (&mut self.happened.failed, is_too_large || fails || may_fail)
            }
            Err(InferError::QueueFull | InferError::QueueTimeout | InferError::Late | InferError::NoMemory) => {
                (&mut self.happened.rejected, !ran)
            }
            Err(InferError::Expired) => {
                (&mut self.happened.expired, request.deadline.is_some_and(|deadline| deadline <= self.now))
            }
            Err(InferError::DeviceLost) => {
                // Requests that waited there moved to other devices, if there were any.
                let may_be = self.lost.contains(&true) && !self.waited.contains(&number);
                (&mut self.happened.device_lost, may_be || self.lost.iter().all(|lost| *lost))
            }
            Err(_) => return Err(format!("request {number} is answered {answer:?}")),
        };
        *counted += 1;
        if !is_right {
            let right = oracle::reply(&self.world, number);
            return Err(format!(
                "request {number} of model {} may not be answered {answer:?} at {}: expected {right:?}, ran: {ran}",
                request.model, self.now
            ));
        }
        Ok(())
    }

    /// Checks the end of the run: nothing is left, and devices hold nothing after the versions are unloaded.
    fn end(mut self) -> Result<Happened, String> {
        if !self.open.is_empty() {
            let waiting: Vec<&u64> = self.open.keys().collect();
            return Err(format!("deadlock: requests {waiting:?} wait for nothing"));
        }
        let in_flight = self.pool.in_flight();
        if in_flight > 0 {
            return Err(format!("{in_flight} requests are left"));
        }
        for (shard, floor) in self.floors.iter().enumerate() {
            if !self.lost[shard] && !floor.lock().is_idle() {
                return Err(format!("device {shard} is not idle"));
            }
        }
        self.handles.clear();
        for (shard, floor) in self.floors.iter().enumerate() {
            let floor = floor.lock();
            if let Some(broken) = &floor.broken
                && !self.lost[shard]
            {
                return Err(broken.clone());
            }
            if !self.lost[shard] && floor.used_rows() > 0 {
                return Err(format!("{} rows of device {shard} are reserved without a request", floor.used_rows()));
            }
            let counts = floor.counts;
            let own = &mut self.happened;
            own.tasks += counts.tasks;
            own.ahead += counts.ahead;
            own.waits += counts.waits;
            own.tasks_failed += counts.failed;
            own.outputs_lost += counts.outputs_lost;
            own.failed_by_need += counts.failed_by_need;
            own.reused += counts.reused;
            own.padding += counts.padding;
            own.completed_before_taken += counts.completed_before_taken;
        }
        let stats = self.pool.stats().snapshot();
        (self.happened.moved, self.happened.paused) = (stats.moved, stats.replies_paused);
        Ok(self.happened)
    }
}

//! One run: a pool over simulated devices, driven event by event, with every response compared with the oracle.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use paternoster_batching::{Event, Instant, LaneId};
use paternoster_device::{BufferPool, StreamId};

use super::{
    backend::{Floor, Simulated},
    behaviour::{Behaviour, Faults, RunRecord, number_of},
    client::Waiting,
    counts::Counts,
    events::{advance, complete, take, tell_early},
    planted::Planted,
    rng::Rng,
    values::ROW_BYTES,
    world::World,
};
use crate::{
    BacklogLimits, DeviceKind, ModelHandle, Pool, PoolOptions,
    backend::{Backend, Reports},
    clock::Clock,
    job::Finished,
};

/// A run with more events than this counts as endless.
const MOST_EVENTS: u64 = 200_000;

pub(super) struct Run {
    pub(super) world: Arc<World>,
    pub(super) pool: Arc<Pool>,
    pub(super) reports: Arc<dyn Reports>,
    pub(super) floors: Vec<Arc<Mutex<Floor>>>,
    pub(super) lost: Vec<bool>,
    /// Lanes that are lost, by device, and when they return.
    pub(super) lanes_lost: Vec<(Instant, usize, u16)>,
    /// By model; `None` for rejected models.
    pub(super) handles: Vec<Option<Arc<ModelHandle>>>,
    pub(super) now: Instant,
    pub(super) clock: Arc<AtomicU64>,
    pub(super) noted: Arc<Mutex<RunRecord>>,
    /// Requests that waited on a device when it was lost, and may move to others.
    pub(super) waited: BTreeSet<u64>,
    /// Number of requests sent.
    pub(super) sent: usize,
    /// Requests without a response yet.
    pub(super) open: BTreeMap<u64, Waiting>,
    pub(super) rng: Rng,
    pub(super) counts: Counts,
    /// How often batches were split, by device and model.
    pub(super) splits: BTreeMap<(usize, u32), u64>,
    pub(super) planted: Option<Planted>,
}

/// Plays the run of a seed, with or without a planted fault.
pub(super) fn play(seed: u64, planted: Option<Planted>) -> Result<Counts, String> {
    let world = Arc::new(World::random(seed));
    let permille = world.scenario.faults;
    let mut run = Run::new(&world, planted, || Box::new(move |rng| rng.permille(permille)))?;
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
    pub(super) fn new(
        world: &Arc<World>,
        planted: Option<Planted>,
        mut faults: impl FnMut() -> Faults,
    ) -> Result<Self, String> {
        let world = Arc::clone(world);
        let (clock, noted) = (Arc::<AtomicU64>::default(), Arc::<Mutex<RunRecord>>::default());
        let devices = (0..world.shards).map(|shard| {
            let behaviour = Behaviour::new(&world, shard, &noted, faults());
            let (device, floor) =
                Simulated::new(shard, world.scenario.lanes, world.scenario.lane_knobs, behaviour, planted);
            ((DeviceKind::Cpu, Box::new(device) as Box<dyn Backend>), floor)
        });
        let (backends, floors): (Vec<_>, Vec<_>) = devices.unzip();
        // A stream pauses when two responses are unread.
        let backlog = BacklogLimits { stream_bytes: 2 * ROW_BYTES, ..BacklogLimits::DEFAULT };
        let rate_limiter = world.units.clone();
        // About as long as a task: some are cut.
        let last_lane_limit = Duration::from_nanos(if world.scenario.seed.is_multiple_of(3) { 200 } else { 0 });
        let options = PoolOptions {
            task_time_limit: Duration::ZERO,
            backlog,
            last_lane_limit,
            rate_limiter,
            ..PoolOptions::default()
        };
        let pool = Pool::over(backends, &options, BufferPool::new(0), Clock::set(&clock));
        let mut counts = Counts::default();
        let mut handles = Vec::new();
        for model in 0..world.models {
            let (spec, programs, mut knobs) = world.model(model);
            knobs.rate_limiter = world.rate_limiters.get(model).cloned().unwrap_or_default();
            let used: Vec<u64> = floors.iter().map(|floor| floor.lock().used_rows()).collect();
            handles.push(match pool.bring_up(spec, knobs, programs) {
                Ok(handle) => Some(Arc::new(handle)),
                Err(refusal) => {
                    counts.refused_versions += 1;
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
            lanes_lost: Vec::new(),
            rng: Rng::new(!world.scenario.seed),
            world,
            pool,
            floors,
            handles,
            now: Instant::ZERO,
            clock,
            noted,
            waited: BTreeSet::new(),
            sent: 0,
            open: BTreeMap::new(),
            counts,
            splits: BTreeMap::new(),
            planted,
        })
    }

    /// Processes the next event; returns false if there is none.
    fn step(&mut self) -> Result<bool, String> {
        let Some(next) = self.next() else {
            // Late clients may let requests go on by reading now.
            self.hear(false)?;
            return Ok(self.next().is_some());
        };
        self.pass_to(next);
        self.happen()?;
        self.disturb()?;
        for (shard, here) in self.pool.shards.iter().enumerate() {
            if !self.lost[shard] {
                here.state.lock().core().check()?;
            }
        }
        self.check_units()?;
        // Clients that leave responses unread for a while make their requests pause.
        let are_late = self.rng.permille(200);
        self.look(are_late)?;
        Ok(true)
    }

    /// Checks that the tasks on devices need no more units than there are.
    fn check_units(&self) -> Result<(), String> {
        let Some(limiter) = self.pool.limiter.as_ref().filter(|_| self.planted.is_none()) else { return Ok(()) };
        limiter.check()?;
        let on_devices = (0..self.floors.len()).filter(|&shard| !self.lost[shard]);
        let models: Vec<usize> = on_devices.flat_map(|shard| self.floors[shard].lock().models_in_flight()).collect();
        for resource in limiter.resources() {
            let demands = models.iter().flat_map(|&model| &self.world.rate_limiters[model].resources);
            let needed: u32 = demands.filter(|demand| demand.name == resource.name).map(|demand| demand.count).sum();
            if needed > resource.in_use || resource.in_use > resource.units() {
                return Err(format!("tasks run with {needed} units of {resource:?}"));
            }
        }
        Ok(())
    }

    /// Advances time.
    pub(super) fn pass_to(&mut self, now: Instant) {
        self.now = self.now.max(now);
        self.clock.store(self.now.as_ns(), Ordering::Relaxed);
        self.floors.iter().for_each(|floor| floor.lock().keep_up(self.now));
    }

    /// Looks at what an event has done.
    pub(super) fn look(&mut self, are_late: bool) -> Result<(), String> {
        for floor in &self.floors {
            if let Some(broken) = floor.lock().broken.take() {
                return Err(broken);
            }
        }
        if self.pool.has_failed() {
            return Err("the scheduler panicked".to_owned());
        }
        self.track();
        self.hear(are_late)
    }

    /// Tells the tracker what was launched.
    fn track(&mut self) {
        let noted = &mut *self.noted.lock();
        for launch in noted.launched.drain(..) {
            let (shard, model, _) = launch.batch;
            let counters = self.pool.shards[shard].state.lock().core().counters();
            let splits = counters.iter().find(|(id, _)| id.0 == model).map_or(0, |(_, counters)| counters.splits);
            let before = self.splits.insert((shard, model), splits).unwrap_or_default();
            noted.tracker.launched(&launch, splits > before, &mut self.counts);
        }
    }

    fn next(&self) -> Option<Instant> {
        let arrival = self.world.requests.get(self.sent).map(|request| request.at);
        let loss = self.losses().map(|(at, _)| at).min();
        let devices = (0..self.floors.len()).filter(|&shard| !self.lost[shard]);
        let device = devices.filter_map(|shard| self.floors[shard].lock().next()).min();
        let alarm = (0..self.floors.len()).filter_map(|shard| self.alarm(shard)).min();
        let lane = self.lanes_lost.iter().map(|&(at, ..)| at).min();
        [arrival, loss, device, alarm, lane].into_iter().flatten().min()
    }

    fn losses(&self) -> impl Iterator<Item = (Instant, usize)> + '_ {
        self.world.losses.iter().copied().filter(|&(_, shard)| !self.lost[shard])
    }

    pub(super) fn alarm(&self, shard: usize) -> Option<Instant> {
        self.pool.shards[shard].timer.due().map(|at| self.pool.clock.pool_time(at))
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
            self.counts.devices_lost += 1;
            let state = self.pool.shards[shard].state.lock();
            for (_, record) in &state.requests {
                let number = number_of(self.world.kind(record.handle.id.0 as usize), &record.payload);
                if state.core().waits(record.req) && record.handle.homes.len() > 1 {
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
        if let Some(alarm) = (0..self.floors.len()).find(|&shard| self.alarm(shard).is_some_and(|at| at <= now)) {
            self.ring(alarm);
        } else if let Some(back) = self.lanes_lost.iter().position(|&(at, ..)| at <= now) {
            let (_, shard, lane) = self.lanes_lost.swap_remove(back);
            self.pool.drive(&self.pool.shards[shard], |state, now, after| state.lane_up(now, LaneId(lane), after));
        }
        Ok(())
    }

    /// Reports the end of the oldest task of a lane, and takes its outputs.
    pub(super) fn end_of(&mut self, lane: u16) -> Result<(), String> {
        let floor = &self.floors[0];
        let completion = floor.lock().sim.poll(StreamId(lane)).map_err(|error| error.to_string())?;
        complete(floor, &self.reports, 0, completion.ok_or("a task that has ended is not told of")?)?;
        take(floor, &self.reports, 0, self.now)?;
        Ok(())
    }

    /// Rings the alarm of a device.
    pub(super) fn ring(&self, shard: usize) {
        self.pool.shards[shard].timer.take();
        self.pool.ring(&self.pool.shards[shard]);
    }

    /// Loses a lane with its tasks, which return at once.
    fn lose_lane(&mut self, shard: usize, lane: u16) -> Result<(), String> {
        let lost = self.floors[shard].lock().give_up(LaneId(lane))?;
        let here = &self.pool.shards[shard];
        self.pool.drive(here, |state, now, after| state.step(now, Event::LaneLost(LaneId(lane)), after));
        for job in lost {
            let reason = Finished::Failed("its lane is lost".to_owned());
            Arc::clone(&self.reports).completed(shard, None, &job, reason);
        }
        self.lanes_lost.push((self.now + self.rng.exponential(2_000), shard, lane));
        Ok(())
    }

    pub(super) fn send(&mut self) {
        let number = self.sent as u64;
        self.sent += 1;
        let Some(handle) = &self.handles[self.world.requests[number as usize].model] else { return };
        self.counts.requests += 1;
        let request = self.world.infer_request(number, |at| self.pool.clock.std_time(at));
        let waiting = if handle.spec().decoupled {
            Waiting::ForAll(handle.submit_stream(request.counted_in(&self.pool.backlog().stream())), Vec::new())
        } else {
            Waiting::ForOne(Box::pin(handle.submit(request)))
        };
        self.open.insert(number, waiting);
    }

    /// Cancels a request, unless it has ended.
    pub(super) fn cancel(&mut self, number: u64) {
        let Some(client) = self.open.remove(&number) else { return };
        drop(client);
        let noted = &mut *self.noted.lock();
        self.counts.cancelled += 1;
        self.counts.cancelled_aboard += u64::from(noted.ran.contains_key(&number));
        noted.ended.insert(number);
        noted.tracker.ended(number, true, &mut self.counts);
    }

    /// Cancels requests, loses lanes and slows them down.
    fn disturb(&mut self) -> Result<(), String> {
        let shard = self.rng.below(self.floors.len() as u64) as usize;
        if self.planted == Some(Planted::EarlyCompletion) && self.rng.permille(200) && !self.lost[shard] {
            tell_early(&self.floors[shard], &self.reports, shard);
        }
        let owed = self.counts.cancelled * 100 < self.counts.requests * self.world.scenario.cancels;
        if owed && self.rng.permille(300) && !self.open.is_empty() {
            self.track();
            let newcomers = self.noted.lock().tracker.newcomers().map(<[u64]>::to_vec);
            let any = *self.open.keys().nth(self.rng.below(self.open.len() as u64) as usize).ok_or("none is open")?;
            let these = newcomers.filter(|_| self.rng.coin()).unwrap_or_else(|| vec![any]);
            these.into_iter().for_each(|number| self.cancel(number));
        }
        let lane = self.rng.below(u64::from(self.world.scenario.lanes)) as u16;
        let is_up = !self.lost[shard] && !self.lanes_lost.iter().any(|&(_, own, other)| (own, other) == (shard, lane));
        if is_up && self.rng.permille(self.world.scenario.lane_losses) {
            self.lose_lane(shard, lane)?;
        }
        if self.rng.permille(5) {
            let factor = self.rng.within(1, 5) as u32;
            self.counts.slow_lanes += u64::from(factor > 1);
            self.floors[shard].lock().sim.slow(StreamId(lane), factor).map_err(|error| error.to_string())?;
        }
        Ok(())
    }
}

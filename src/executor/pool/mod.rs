//! The pool: shards, each a device with its own core and lock, and the router that chooses among them.

mod drive;
mod shard;
mod submit;

use std::{
    collections::BTreeMap,
    fmt, io,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use tokio::sync::watch;
use tracing::warn;

use self::shard::Shard;
use super::{
    Backlog, BacklogLimits, CardsOptions, DeviceKind, ModelHandle, Placement, Site, StagePrograms,
    admit::Longest,
    backend::{Backend, Order},
    clock::{Clock, duration_ns},
    host::Host,
    indices::IndexChecks,
    loaded::Loaded,
    state::{Numbers, Responsiveness, State},
};
use crate::{
    batching::{Knobs, ModelId, Ns, Policy},
    device::BufferPool,
    model::ModelSpec,
    observe::{ModelStats, PoolStats, timeline::Timeline},
    router::Router,
};

/// How a pool is set up.
#[derive(Clone, Debug)]
pub struct PoolOptions {
    /// Lanes of the CPU, over all its shards, shared by all models; at least 1.
    pub cpu_lanes: u16,
    /// Parts that the CPU is cut into, each a device of its own with its share of the lanes; at least 1, at most
    /// [`Self::cpu_lanes`].
    pub cpu_shards: u16,
    /// Unused batch memory kept for later, in bytes.
    pub retain_bytes: usize,
    /// Most bytes that all outputs of one batch may take; a batch that would take more fails.
    pub max_output_bytes: usize,
    /// A task that runs longer than this is told to stop; its requests run again in halves, and one that was alone
    /// fails. Zero: never. For versions that do not say it themselves.
    pub task_time_limit: Duration,
    /// A task that runs on for this long after it was told to stop is left to itself: its lane gets a new thread, as
    /// long as no more tasks are left so than its device has lanes. Other lanes are lost until their tasks end.
    pub stop_grace: Duration,
    /// Records requests and tasks, if it is on.
    pub timeline: Arc<Timeline>,
    /// Bounds on replies that wait for their clients.
    pub backlog: BacklogLimits,
    /// CUDA cards, each a device of its own, beside the CPU.
    pub cards: CardsOptions,
}

impl Default for PoolOptions {
    fn default() -> Self {
        Self {
            cpu_lanes: 2,
            cpu_shards: 1,
            retain_bytes: 64 << 20,
            max_output_bytes: 4 << 30,
            task_time_limit: Duration::from_secs(60),
            stop_grace: Duration::from_secs(5),
            timeline: Arc::default(),
            backlog: BacklogLimits::default(),
            cards: CardsOptions::default(),
        }
    }
}

/// The executor pool of one process.
pub struct Pool {
    pub(super) shards: Box<[Shard]>,
    /// By shard.
    kinds: Box<[DeviceKind]>,
    router: Router,
    /// Host memory, which all parts of the CPU have in common.
    buffers: Arc<BufferPool>,
    stats: Arc<PoolStats>,
    backlog: Arc<Backlog>,
    timeline: Arc<Timeline>,
    task_time_limit: Duration,
    pub(super) responsiveness: watch::Sender<Responsiveness>,
    pub(super) clock: Clock,
    next_model: AtomicU32,
    /// No request is taken any more.
    pub(super) stopped: AtomicBool,
}

impl Pool {
    /// Starts the lanes and the timers of a pool: first the cards, then the CPU.
    ///
    /// # Errors
    /// When a thread cannot be started or a card not be opened.
    pub fn start(options: &PoolOptions) -> io::Result<Arc<Self>> {
        let lanes = options.cpu_lanes.max(1);
        let count = options.cpu_shards.clamp(1, lanes);
        let buffers = BufferPool::with_output_limit(options.retain_bytes, options.max_output_bytes);
        let mut backends = options.cards.open(buffers.max_output_bytes())?;
        let cards = backends.len();
        for shard in 0..count {
            let own = lanes / count + u16::from(shard < lanes % count);
            let host = Host::start(cards + usize::from(shard), own, &buffers)?;
            backends.push((DeviceKind::Cpu, Box::new(host)));
        }
        let pool = Self::over(backends, options, buffers, Clock::start());
        for shard in 0..pool.shards.len() {
            Shard::keep_time(&pool, shard)?;
        }
        Ok(pool)
    }

    /// A pool on these devices, without threads that keep time.
    pub(super) fn over(
        backends: Vec<(DeviceKind, Box<dyn Backend>)>,
        options: &PoolOptions,
        buffers: Arc<BufferPool>,
        clock: Clock,
    ) -> Arc<Self> {
        let count = backends.len();
        let (kinds, backends): (Vec<DeviceKind>, Vec<Box<dyn Backend>>) = backends.into_iter().unzip();
        let router = Router::new(kinds.iter().map(|kind| u16::from(*kind != DeviceKind::Cpu)));
        let mut first_lane = 0;
        let shards = backends.into_iter().enumerate().map(|(shard, backend)| {
            let numbers = Numbers { shard, shards: count, first_lane };
            first_lane += backend.lanes();
            let lanes = (backend.lanes(), backend.lane_knobs());
            let state = State::new(numbers, lanes, duration_ns(options.stop_grace), Arc::clone(&options.timeline));
            router.publish(shard, state.load());
            Shard::new(shard, backend, state)
        });
        let shards = shards.collect();
        let stats = Arc::default();
        Arc::new(Self {
            shards,
            kinds: kinds.into(),
            router,
            buffers,
            backlog: Backlog::new(options.backlog, &stats),
            stats,
            timeline: Arc::clone(&options.timeline),
            task_time_limit: options.task_time_limit,
            responsiveness: watch::Sender::default(),
            clock,
            next_model: AtomicU32::new(0),
            stopped: AtomicBool::new(false),
        })
    }

    /// Brings a compiled version up: from here on requests may be submitted to the handle. The stages of `knobs` are
    /// those of the programs, whatever it says.
    ///
    /// # Errors
    /// When a device has not enough of what the version needs; says of what.
    pub fn bring_up(
        self: &Arc<Self>,
        spec: ModelSpec,
        knobs: Knobs,
        programs: impl Into<StagePrograms>,
    ) -> Result<ModelHandle, String> {
        self.bring_up_on(spec, knobs, programs, None, &Placement::Auto)
    }

    /// As [`Self::bring_up`], on the devices that `placement` names, and with a time limit of its own for the version's
    /// tasks, if there is one ([`PoolOptions::task_time_limit`]). What is left to the pool goes to the CPU if the cards
    /// cannot hold it.
    ///
    /// # Errors
    /// As [`Self::bring_up`]; and when there is no such device, or it does not run the programs.
    pub fn bring_up_on(
        self: &Arc<Self>,
        spec: ModelSpec,
        mut knobs: Knobs,
        programs: impl Into<StagePrograms>,
        task_time_limit: Option<Duration>,
        placement: &Placement,
    ) -> Result<ModelHandle, String> {
        let task_time_limit = task_time_limit.unwrap_or(self.task_time_limit);
        let programs = programs.into();
        knobs.stages = programs.knobs();
        let spec = Arc::new(spec);
        let stats = Arc::new(ModelStats::with_stages(knobs.max_batch_rows, programs.count()));
        let loaded = Loaded::new(Arc::clone(&spec), Arc::clone(&stats), programs, task_time_limit);
        let (hangs, limit_ns) = (Arc::clone(&loaded.hangs), loaded.limit_ns);
        let cells = loaded.programs.cells().cloned();
        let indices = IndexChecks::new(&loaded.programs);
        let has_sequences = matches!(&knobs.policy, Policy::Cellular(cellular) if cellular.sequences.is_some());
        let id = ModelId(self.next_model.fetch_add(1, Ordering::Relaxed));
        let among = placement.devices(&self.kinds, &spec, &loaded.programs)?;
        let (homes, own_knobs) = match self.settle_in(id, &loaded, &knobs, among) {
            Err(fault) if *placement == Placement::Auto && self.has_cards() => {
                warn!(model = spec.name, reason = %fault, "the model runs on the CPU");
                let among = Placement::On(vec![Site::Cpu]).devices(&self.kinds, &spec, &loaded.programs)?;
                self.settle_in(id, &loaded, &knobs, among)?
            }
            settled => settled?,
        };
        let is_on_cards = homes.iter().any(|&device| self.kinds[device] != DeviceKind::Cpu);
        let longest = if is_on_cards { Longest::on_cards(&loaded.programs) } else { Longest::default() };
        self.timeline.model_up(id.0, &spec.name, spec.version);
        for (&home, knobs) in homes.iter().zip(own_knobs) {
            let loaded = Arc::clone(&loaded);
            self.drive(&self.shards[home], |state, now, after| state.bring_up(now, id, loaded, knobs, after));
        }
        Ok(ModelHandle {
            pool: Arc::clone(self),
            id,
            homes,
            spec,
            stats,
            hangs,
            limit_ns,
            cells,
            indices,
            longest,
            has_sequences,
        })
    }

    /// Chooses among devices, and reserves what a version needs on each that it lives on; these, and the knobs that it
    /// has there.
    ///
    /// # Errors
    /// As [`Self::load`].
    fn settle_in(
        self: &Arc<Self>,
        id: ModelId,
        loaded: &Loaded,
        knobs: &Knobs,
        among: Vec<usize>,
    ) -> Result<(Box<[usize]>, Vec<Knobs>), String> {
        let homes = homes_of(id, knobs, among);
        let stands_in = |&home: &usize| self.router.group_of(home).any(|device| !homes.contains(&device));
        let knobs = Knobs { stays: homes.iter().any(stands_in), ..knobs.clone() };
        let own_knobs = self.load(id, loaded, &homes, &knobs)?;
        Ok((homes, own_knobs))
    }

    /// Reserves what a version needs on each of its devices; the knobs that it has there.
    ///
    /// # Errors
    /// When a device has not enough. Nothing is reserved then.
    fn load(
        self: &Arc<Self>,
        id: ModelId,
        loaded: &Loaded,
        homes: &[usize],
        knobs: &Knobs,
    ) -> Result<Vec<Knobs>, String> {
        let mut own_knobs = Vec::with_capacity(homes.len());
        for &home in homes {
            let mut knobs = knobs.clone();
            if let Err(fault) = self.shards[home].backend.load(id, loaded, &mut knobs) {
                for &home in &homes[..own_knobs.len()] {
                    let shard = &self.shards[home];
                    shard.queue(&mut vec![Order::Unload(id)]);
                    shard.issue(self);
                }
                return Err(format!("device {home} cannot hold model '{}': {fault}", loaded.spec.name));
            }
            own_knobs.push(knobs);
        }
        Ok(own_knobs)
    }

    /// Whether CUDA cards are among its devices.
    pub fn has_cards(&self) -> bool {
        self.kinds.iter().any(|kind| *kind != DeviceKind::Cpu)
    }

    /// Its cards: their numbers among those of the driver.
    pub fn cards(&self) -> impl Iterator<Item = u16> + '_ {
        self.kinds.iter().filter_map(|kind| match kind {
            DeviceKind::Cpu => None,
            DeviceKind::Card(number) => Some(*number),
        })
    }

    /// Tasks that may run at the same time.
    pub fn lanes(&self) -> u16 {
        self.shards.iter().map(Shard::lanes).sum()
    }

    /// Whether versions and lanes respond.
    pub fn responsiveness(&self) -> watch::Receiver<Responsiveness> {
        self.responsiveness.subscribe()
    }

    /// Counters of the scheduler.
    pub fn stats(&self) -> &Arc<PoolStats> {
        &self.stats
    }

    /// Takes what the scheduler counts over into the statistics of all versions, which are read after it.
    pub fn count_meta_operations(&self) {
        let mut counted = BTreeMap::new();
        for shard in &self.shards {
            let own = shard.state.lock().meta_counters();
            for (model, stats, meta) in own {
                counted.entry(model).or_insert_with(|| (stats, Vec::new())).1.push(meta);
            }
        }
        for (stats, metas) in counted.into_values() {
            stats.set_meta(metas.into_iter().sum());
        }
    }

    /// Replies that wait for their clients.
    pub fn backlog(&self) -> &Arc<Backlog> {
        &self.backlog
    }

    /// Batch memory.
    pub fn buffers(&self) -> &Arc<BufferPool> {
        &self.buffers
    }

    /// Requests that have not ended, but for those that are on their way from a device to another.
    pub fn in_flight(&self) -> usize {
        self.shards.iter().map(|shard| shard.state.lock().in_flight()).sum()
    }

    /// Ends what still runs: no request is taken any more, those in flight are answered that the server shuts down,
    /// and running programs are told to stop. Whether all threads ended within `patience`.
    pub fn stop(&self, patience: Duration) -> bool {
        let deadline = Instant::now() + patience;
        // Their channels close, which is the answer.
        drop(self.take_remains());
        // Each is stopped, whether or not the one before has ended.
        let have_ended: Vec<bool> = self.shards.iter().map(|shard| shard.stop(deadline)).collect();
        have_ended.into_iter().all(|has_ended| has_ended)
    }

    fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }

    pub(super) fn now(&self) -> Ns {
        self.clock.now()
    }
}

/// The shards that a version lives on: all these, or one where its requests must stay together; those in turn.
fn homes_of(id: ModelId, knobs: &Knobs, among: Vec<usize>) -> Box<[usize]> {
    if knobs.is_bound() { Box::new([among[id.0 as usize % among.len()]]) } else { among.into() }
}

impl fmt::Debug for Pool {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Pool").field("lanes", &self.lanes()).finish_non_exhaustive()
    }
}

#[cfg(test)]
impl Pool {
    /// Lets the core of the first device panic in the midst of its next step.
    pub(crate) fn fail_next_step(&self) {
        self.shards[0].state.lock().fail_next_step();
    }

    /// Lets the core of the first device panic now.
    pub(crate) fn fail_now(self: &Arc<Self>) {
        self.fail_next_step();
        self.ring(&self.shards[0]);
    }
}

#[cfg(test)]
mod tests;

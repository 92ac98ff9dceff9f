//! The pool: shards, each a device with its own core and lock, and the router that chooses among them. The repository
//! loads versions into it, and front ends submit requests through a [`ModelHandle`].

mod drive;
mod limiter;
mod settling;
mod shard;
mod submit;

use std::{
    collections::BTreeMap,
    fmt, io,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::{self, Duration},
};

use paternoster_batching::{
    Core, Instant, Knobs, ModelId, Policy, RateLimiter, RateLimiterKnobs, ResourceAmount, router::Router,
};
use paternoster_device::BufferPool;
use paternoster_model::{ModelSpec, TensorSpec};
use paternoster_observe::{
    ModelStats, ObservedVersion, PoolStats,
    budget::{Budget, Budgets},
    timeline::Timeline,
    trace::Parts,
};
use tokio::sync::watch;
use tracing::warn;

pub use self::settling::{BringUp, OnShortage};
use self::{limiter::rate_limiter, settling::Unsettled, shard::Shard};
use super::{
    Backlog, BacklogLimits, CardPorts, CardsOptions, DeviceKind, ModelHandle, Placement, Site, StagePrograms,
    backend::Backend,
    cells::StateBudget,
    clock::{Clock, duration_ns},
    cuda::placed_ports,
    host::Host,
    indices::IndexChecks,
    length_limits::LengthLimits,
    state::{Numbers, Responsiveness, State},
    version::ServedVersion,
};

/// Settings of a pool.
#[derive(Clone, Debug)]
pub struct PoolOptions {
    /// Number of CPU lanes over all its shards, shared by all models; at least 1.
    pub cpu_lanes: u16,
    /// Number of parts that the CPU is divided into, each a device with its share of the lanes; from 1 to
    /// [`Self::cpu_lanes`].
    pub cpu_shards: u16,
    /// Unused batch memory that is kept for reuse, in bytes.
    pub retain_bytes: usize,
    /// Maximum bytes of all outputs of one batch. A batch that would need more fails.
    pub max_output_bytes: usize,
    /// Maximum bytes of host memory that sequences keep between their requests. A request whose state has no room
    /// fails, and its sequence with it.
    pub max_sequence_state_bytes: usize,
    /// Bytes of pending requests. Those of versions that unfold into cells board with the memory for their state, which
    /// is at most half of them.
    pub pending_bytes: Arc<Budget>,
    /// Time limit of a task. A task that exceeds it is asked to stop; its requests run again in halves, and a request
    /// that ran alone fails. Zero: no limit. A version can set its own limit.
    pub task_time_limit: Duration,
    /// A task that still runs after this time, counted from the stop signal, is abandoned and its lane gets a new
    /// thread. A device abandons at most as many tasks at a time as it has lanes; further lanes are unavailable until
    /// their tasks end.
    pub stop_grace: Duration,
    /// Records requests and tasks, if enabled.
    pub timeline: Arc<Timeline>,
    /// Limits on responses that wait for their clients.
    pub backlog: BacklogLimits,
    /// CUDA cards, each a separate device in addition to the CPU.
    pub cards: CardsOptions,
    /// Limit on the predicted time of a task on the last lane of a device, while other models were used there in the
    /// last minute. Zero: no limit.
    pub last_lane_limit: Duration,
    /// Units of the rate limiter's resources; `None`: there is no rate limiter, and settings for it have no effect.
    pub rate_limiter: Option<Vec<ResourceAmount>>,
}

impl Default for PoolOptions {
    fn default() -> Self {
        Self {
            cpu_lanes: 2,
            cpu_shards: 1,
            retain_bytes: 64 << 20,
            max_output_bytes: 4 << 30,
            max_sequence_state_bytes: 4 << 30,
            pending_bytes: Budgets::default().bytes,
            task_time_limit: Duration::from_secs(60),
            stop_grace: Duration::from_secs(5),
            timeline: Arc::default(),
            backlog: BacklogLimits::default(),
            cards: CardsOptions::default(),
            last_lane_limit: Duration::from_millis(50),
            rate_limiter: None,
        }
    }
}

/// The executor pool of one process.
pub struct Pool {
    pub(super) shards: Box<[Shard]>,
    /// Kind of each shard's device.
    kinds: Box<[DeviceKind]>,
    router: Router,
    /// Host memory, shared by all parts of the CPU.
    buffers: Arc<BufferPool>,
    stats: Arc<PoolStats>,
    backlog: Arc<Backlog>,
    timeline: Arc<Timeline>,
    task_time_limit: Duration,
    sequence_state: Arc<Budget>,
    state_budget: Arc<StateBudget>,
    /// Maximum bytes of each card's memory.
    card_memory_bytes: Option<usize>,
    pub(super) limiter: Option<Arc<RateLimiter>>,
    /// Whether it was logged that there is no rate limiter.
    lacks_limiter: AtomicBool,
    pub(super) responsiveness: watch::Sender<Responsiveness>,
    pub(super) clock: Clock,
    next_model: AtomicU32,
    /// Set once no further request is taken.
    pub(super) stopped: AtomicBool,
}

impl Pool {
    /// Starts the lanes and timers of a pool: first the cards, then the CPU.
    ///
    /// # Errors
    /// If a thread cannot be started, or a card cannot be opened.
    pub fn start(options: &PoolOptions) -> io::Result<Arc<Self>> {
        let lanes = options.cpu_lanes.max(1);
        let count = options.cpu_shards.clamp(1, lanes);
        let buffers = BufferPool::with_output_limit(options.retain_bytes, options.max_output_bytes);
        let mut backends = options.cards.open(buffers.max_output_bytes())?;
        let cards = backends.len();
        for shard in 0..count {
            let shard_lanes = lanes / count + u16::from(shard < lanes % count);
            let host = Host::start(cards + usize::from(shard), shard_lanes, &buffers)?;
            backends.push((DeviceKind::Cpu, Box::new(host)));
        }
        let pool = Self::over(backends, options, buffers, Clock::start());
        for shard in 0..pool.shards.len() {
            Shard::keep_time(&pool, shard)?;
        }
        Ok(pool)
    }

    /// Creates a pool on these devices, without timer threads.
    pub(super) fn over(
        backends: Vec<(DeviceKind, Box<dyn Backend>)>,
        options: &PoolOptions,
        buffers: Arc<BufferPool>,
        clock: Clock,
    ) -> Arc<Self> {
        let count = backends.len();
        let (kinds, backends): (Vec<DeviceKind>, Vec<Box<dyn Backend>>) = backends.into_iter().unzip();
        let router = Router::new(kinds.iter().map(|kind| u16::from(*kind != DeviceKind::Cpu)));
        let limiter = options.rate_limiter.as_ref().map(|amounts| Arc::new(rate_limiter(amounts, &kinds)));
        let last_lane_ns = Some(options.last_lane_limit).filter(|limit| !limit.is_zero()).map(duration_ns);
        let mut first_lane = 0;
        let shards = backends.into_iter().enumerate().map(|(shard, backend)| {
            let numbers = Numbers { shard, shards: count, first_lane };
            first_lane += backend.lanes();
            let lanes = (backend.lanes(), backend.lane_knobs());
            let core = limiter.as_ref().map_or_else(Core::new, |limiter| Core::limited(Arc::clone(limiter), shard));
            let core = core.with_last_lane_limit(last_lane_ns);
            let (grace_ns, timeline) = (duration_ns(options.stop_grace), Arc::clone(&options.timeline));
            let state = State::new(core, numbers, lanes, grace_ns, timeline);
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
            sequence_state: Budget::of(options.max_sequence_state_bytes),
            state_budget: StateBudget::new(&options.pending_bytes),
            card_memory_bytes: options.cards.memory_bytes,
            limiter,
            lacks_limiter: AtomicBool::new(false),
            responsiveness: watch::Sender::default(),
            clock,
            next_model: AtomicU32::new(0),
            stopped: AtomicBool::new(false),
        })
    }

    /// Puts a compiled version into service. From then on requests may be submitted to the handle. The stages in
    /// `knobs` are replaced by those of the programs.
    ///
    /// # Errors
    /// If a device lacks a resource that the version needs; the text names it.
    pub fn bring_up(
        self: &Arc<Self>,
        spec: ModelSpec,
        knobs: Knobs,
        programs: impl Into<StagePrograms>,
    ) -> Result<ModelHandle, String> {
        self.bring_up_on(spec, knobs, programs, &BringUp::default())
    }

    /// As [`Self::bring_up`], on the devices that `options` name. With automatic placement the version goes to the CPU
    /// if the cards cannot hold it.
    ///
    /// # Errors
    /// Those of [`Self::bring_up`]; also if there is no such device, or if it cannot run the programs.
    pub fn bring_up_on(
        self: &Arc<Self>,
        spec: ModelSpec,
        mut knobs: Knobs,
        programs: impl Into<StagePrograms>,
        options: &BringUp<'_>,
    ) -> Result<ModelHandle, String> {
        let BringUp { placement, task_time_limit, on_shortage } = options;
        let task_time_limit = task_time_limit.unwrap_or(self.task_time_limit);
        let programs = programs.into();
        knobs.stages = programs.knobs();
        knobs.parts_requests = has_equal_rows(&spec);
        let spec = Arc::new(spec);
        if self.limiter.is_none() && std::mem::take(&mut knobs.rate_limiter) != RateLimiterKnobs::default() {
            self.warn_of_missing_limiter(&spec.name);
        }
        let stats = ModelStats::with_stages(knobs.max_batch_rows, programs.count());
        let stats = Arc::new(if spec.symbols.is_empty() { stats } else { stats.with_tokens() });
        let loaded =
            ServedVersion::new(Arc::clone(&spec), Arc::clone(&stats), programs, task_time_limit, &self.sequence_state);
        let indices = IndexChecks::new(&loaded.programs);
        let has_sequences = matches!(&knobs.policy, Policy::Cellular(cellular) if cellular.sequences.is_some());
        let policy = knobs.policy.name();
        let id = ModelId(self.next_model.fetch_add(1, Ordering::Relaxed));
        let among = placement.devices(&self.kinds, &spec, &loaded.programs)?;
        let (homes, home_knobs) = match self.settle_in(id, &loaded, &knobs, among) {
            Ok(settled) => settled,
            Err(Unsettled { reason, lacking }) => {
                let ends = lacking.zip(*on_shortage).is_some_and(|((card, shortage), told)| told(card, shortage));
                if ends || *placement != Placement::Auto || !self.has_cards() {
                    return Err(reason);
                }
                // The cards lack memory or kernels for this version. With automatic placement the CPU is a valid
                // fallback.
                warn!(model = spec.name, reason, "the model runs on the CPU");
                let among = Placement::On(vec![Site::Cpu]).devices(&self.kinds, &spec, &loaded.programs)?;
                self.settle_in(id, &loaded, &knobs, among).map_err(|fault| fault.reason)?
            }
        };
        let is_on_cards = homes.iter().any(|&device| self.kinds[device] != DeviceKind::Cpu);
        let longest = if is_on_cards { LengthLimits::on_cards(&loaded.programs) } else { LengthLimits::default() };
        let card_ports = self.card_ports(&spec, &loaded.programs, &homes, &indices);
        let observed = ObservedVersion {
            model: id.0,
            stats,
            pool: Arc::clone(&self.stats),
            timeline: Arc::clone(&self.timeline),
            epoch: self.clock.std_time(Instant::ZERO),
            parts: parts_of(&loaded.programs),
        };
        // Before the shards, so that the timeline knows the model of every task.
        self.timeline.model_up(id.0, &spec.name, spec.version);
        for (&home, knobs) in homes.iter().zip(home_knobs) {
            let loaded = Arc::clone(&loaded);
            self.drive(&self.shards[home], |state, now, after| state.bring_up(now, id, loaded, knobs, after));
        }
        Ok(ModelHandle {
            pool: Arc::clone(self),
            id,
            homes,
            loaded,
            observed,
            indices,
            longest,
            has_sequences,
            policy,
            card_ports,
        })
    }

    /// Returns the tensors of a version's requests that may stay in the memory of the version's cards.
    fn card_ports(
        &self,
        spec: &ModelSpec,
        programs: &StagePrograms,
        homes: &[usize],
        indices: &IndexChecks,
    ) -> CardPorts {
        let cards = homes.iter().filter_map(|&home| self.kinds[home].card()).collect::<Box<[u16]>>();
        if cards.is_empty() {
            return CardPorts::default();
        }
        let (mut inputs, outputs) = placed_ports(spec, programs);
        inputs.iter_mut().enumerate().for_each(|(input, stays)| *stays &= !indices.reads(input));
        CardPorts { cards, inputs, outputs }
    }

    /// Returns the time limit of a task of a version without one of its own. Zero: no limit.
    pub fn task_time_limit(&self) -> Duration {
        self.task_time_limit
    }

    /// Whether the pool has CUDA cards.
    pub fn has_cards(&self) -> bool {
        self.kinds.iter().any(|kind| *kind != DeviceKind::Cpu)
    }

    /// Returns its cards by their numbers in the driver.
    pub fn cards(&self) -> impl Iterator<Item = u16> + '_ {
        self.kinds.iter().filter_map(|kind| kind.card())
    }

    /// Returns the maximum bytes of each card's memory; `None`: as much as there is.
    pub fn card_memory_bytes(&self) -> Option<usize> {
        self.card_memory_bytes
    }

    /// Returns how many tasks may run at the same time.
    pub fn lanes(&self) -> u16 {
        self.shards.iter().map(Shard::lanes).sum()
    }

    /// Returns how many tasks may run at the same time on these devices.
    pub(super) fn lanes_of(&self, devices: &[usize]) -> u16 {
        devices.iter().map(|&device| self.shards[device].lanes()).sum()
    }

    /// Returns a channel that reports whether versions and lanes respond.
    pub fn responsiveness(&self) -> watch::Receiver<Responsiveness> {
        self.responsiveness.subscribe()
    }

    /// Returns the counters of the scheduler.
    pub fn stats(&self) -> &Arc<PoolStats> {
        &self.stats
    }

    /// Copies the scheduler's counters into the statistics of all versions. Call this before reading them.
    pub fn count_meta_operations(&self) {
        let mut counted = BTreeMap::new();
        for shard in &self.shards {
            let counters = shard.state.lock().meta_counters();
            for (model, stats, meta) in counters {
                counted.entry(model).or_insert_with(|| (stats, Vec::new())).1.push(meta);
            }
        }
        for (stats, metas) in counted.into_values() {
            stats.set_meta(metas.into_iter().sum());
        }
    }

    /// Returns the backlog of responses that wait for their clients.
    pub fn backlog(&self) -> &Arc<Backlog> {
        &self.backlog
    }

    /// Returns the pool of batch memory.
    pub fn buffers(&self) -> &Arc<BufferPool> {
        &self.buffers
    }

    /// Returns the number of requests that have not ended, without those that are moving between devices.
    pub fn in_flight(&self) -> usize {
        self.shards.iter().map(|shard| shard.state.lock().in_flight()).sum()
    }

    /// Stops the pool: no further request is taken, requests in flight are answered that the server is shutting down,
    /// and running programs are asked to stop. Returns whether all threads ended within `patience`.
    pub fn stop(&self, patience: Duration) -> bool {
        let deadline = time::Instant::now() + patience;
        // Dropping the records closes their channels, which answers the requests.
        drop(self.take_remains());
        // Stop every shard, even if a previous one has not ended in time.
        let have_ended: Vec<bool> = self.shards.iter().map(|shard| shard.stop(deadline)).collect();
        have_ended.into_iter().all(|has_ended| has_ended)
    }

    fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }

    pub(super) fn now(&self) -> Instant {
        self.clock.now()
    }
}

/// Whether the outputs of a request's rows have equal shapes whichever rows run together, so that they can be joined.
fn has_equal_rows(spec: &ModelSpec) -> bool {
    let follows = |output: &TensorSpec| {
        let mut axes = output.dims.iter().enumerate();
        axes.all(|(axis, dim)| *dim >= 0 || output.padded_lengths(&[]).any(|(padded, _)| padded == axis))
    };
    spec.has_batch_axis() && !spec.decoupled && spec.outputs.iter().all(follows)
}

/// Returns the names of the parts that tasks of a version run.
fn parts_of(programs: &StagePrograms) -> Parts {
    match programs.cells() {
        Some(cells) => Parts::Cells(cells.unfolding().cells.iter().map(|cell| cell.name.clone()).collect()),
        None if programs.count() > 1 => Parts::Stages,
        None => Parts::Whole,
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Pool").field("lanes", &self.lanes()).finish_non_exhaustive()
    }
}

#[cfg(any(test, feature = "testing"))]
impl Pool {
    /// Makes the core of the first device panic in its next step.
    pub(crate) fn fail_next_step(&self) {
        self.shards[0].state.lock().fail_next_step();
    }

    /// Makes the core of the first device panic now.
    pub fn fail_now(self: &Arc<Self>) {
        self.fail_next_step();
        self.ring(&self.shards[0]);
    }
}

#[cfg(test)]
mod tests;

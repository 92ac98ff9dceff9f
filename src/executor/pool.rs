//! The pool: the core and its records behind one lock, the device that runs tasks, and the thread that keeps time.

mod lane_work;

use std::{
    fmt, io,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use crossbeam_channel::{Receiver, RecvTimeoutError};
use parking_lot::Mutex;
use tokio::sync::watch;
use tracing::error;

use self::lane_work::LaneWork;
use super::{
    Backlog, BacklogLimits, InferError, InferRequest, ModelHandle, StagePrograms,
    cells::unfold,
    dispatch::{Tickets, issue},
    indices::IndexChecks,
    lane::{Finished, Job},
    loaded::Loaded,
    record::Sink,
    state::{After, Asked, Due, Replacement, Responsiveness, State},
    timer::Timer,
};
use crate::{
    batching::{End, Event, Knobs, ModelId, Ns, Policy, ReqId},
    device::{BufferPool, Device, DeviceError, Operation, StreamId, cpu::Cpu},
    model::{ModelSpec, unfold::Unfolded},
    observe::{ModelStats, PoolStats, timeline::Timeline},
};

/// How a pool is set up.
#[derive(Clone, Debug)]
pub struct PoolOptions {
    /// Lanes of the CPU device, shared by all models; at least 1.
    pub cpu_lanes: u16,
    /// Unused batch memory kept for later, in bytes.
    pub retain_bytes: usize,
    /// Most bytes that all outputs of one batch may take; a batch that would take more fails.
    pub max_output_bytes: usize,
    /// A task that runs longer than this is told to stop; its requests run again in halves, and one that was alone
    /// fails. Zero: never. For versions that do not say it themselves.
    pub task_time_limit: Duration,
    /// A task that runs on for this long after it was told to stop is left to itself: its lane gets a new thread, as
    /// long as no more than [`Self::cpu_lanes`] tasks are left so. Other lanes are lost until their tasks end.
    pub stop_grace: Duration,
    /// Records requests and tasks, if it is on.
    pub timeline: Arc<Timeline>,
    /// Bounds on replies that wait for their clients.
    pub backlog: BacklogLimits,
}

impl Default for PoolOptions {
    fn default() -> Self {
        Self {
            cpu_lanes: 2,
            retain_bytes: 64 << 20,
            max_output_bytes: 4 << 30,
            task_time_limit: Duration::from_secs(60),
            stop_grace: Duration::from_secs(5),
            timeline: Arc::default(),
            backlog: BacklogLimits::default(),
        }
    }
}

/// Names a version that a pool could not bring up, since it has failed: no request for it is admitted.
const NEVER_UP: ModelId = ModelId(u32::MAX);

/// The executor pool of one process.
pub struct Pool {
    pub(super) state: Mutex<State>,
    /// A stream for each lane.
    cpu: Cpu<LaneWork>,
    tickets: Mutex<Tickets>,
    pub(super) timer: Timer,
    buffers: Arc<BufferPool>,
    stats: Arc<PoolStats>,
    backlog: Arc<Backlog>,
    task_time_limit: Duration,
    pub(super) responsiveness: watch::Sender<Responsiveness>,
    epoch: Instant,
    /// Disconnected once the timer's thread has ended.
    timer_ended: Receiver<()>,
}

impl Pool {
    /// Starts the lanes and the timer.
    ///
    /// # Errors
    /// When a thread cannot be started.
    pub fn start(options: &PoolOptions) -> io::Result<Arc<Self>> {
        let count = options.cpu_lanes.max(1);
        let (alive, timer_ended) = crossbeam_channel::bounded::<()>(0);
        let buffers = BufferPool::with_output_limit(options.retain_bytes, options.max_output_bytes);
        let stats = Arc::default();
        let pool = Arc::new(Self {
            state: Mutex::new(State::new(count, duration_ns(options.stop_grace), Arc::clone(&options.timeline))),
            cpu: Cpu::start(count, Arc::clone(&buffers))?,
            tickets: Mutex::default(),
            timer: Timer::default(),
            buffers,
            backlog: Backlog::new(options.backlog, &stats),
            stats,
            task_time_limit: options.task_time_limit,
            responsiveness: watch::Sender::default(),
            epoch: Instant::now(),
            timer_ended,
        });
        let ringing = Arc::clone(&pool);
        thread::Builder::new().name("batch-timer".to_owned()).spawn(move || {
            ringing.timer.run(|| ringing.ring());
            drop(alive);
        })?;
        Ok(pool)
    }

    /// Brings a compiled version up: from here on requests may be submitted to the handle. The stages of `knobs` are
    /// those of the programs, whatever it says.
    pub fn bring_up(
        self: &Arc<Self>,
        spec: ModelSpec,
        knobs: Knobs,
        programs: impl Into<StagePrograms>,
    ) -> ModelHandle {
        self.bring_up_within(spec, knobs, programs, None)
    }

    /// As [`Self::bring_up`], with a time limit of its own for the version's tasks, if there is one
    /// ([`PoolOptions::task_time_limit`]).
    pub fn bring_up_within(
        self: &Arc<Self>,
        spec: ModelSpec,
        mut knobs: Knobs,
        programs: impl Into<StagePrograms>,
        task_time_limit: Option<Duration>,
    ) -> ModelHandle {
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
        let id = self.drive(|state, now, after| state.bring_up(now, loaded, knobs, after)).unwrap_or(NEVER_UP);
        ModelHandle { pool: Arc::clone(self), id, spec, stats, hangs, limit_ns, cells, indices, has_sequences }
    }

    /// Tasks that may run at the same time.
    pub fn lanes(&self) -> u16 {
        self.cpu.streams()
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
        let counted = self.state.lock().meta_counters();
        for (stats, meta) in counted {
            stats.set_meta(meta);
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

    /// Requests that have not ended.
    pub fn in_flight(&self) -> usize {
        self.state.lock().in_flight()
    }

    /// Ends what still runs: no request is taken any more, those in flight are answered that the server shuts down,
    /// and running programs are told to stop. Whether all threads ended within `patience`.
    pub fn stop(&self, patience: Duration) -> bool {
        let (records, models) = self.state.lock().stop();
        // Their channels close, which is the answer.
        drop((records, models));
        self.timer.stop();
        let began = Instant::now();
        let lanes_ended = self.cpu.clone().stop(patience);
        let left = patience.saturating_sub(began.elapsed());
        lanes_ended && self.timer_ended.recv_timeout(left) == Err(RecvTimeoutError::Disconnected)
    }

    pub(super) fn submit(
        self: &Arc<Self>,
        handle: &Arc<ModelHandle>,
        mut request: InferRequest,
        backlog: Option<Arc<Backlog>>,
        sink: Sink,
    ) -> Option<ReqId> {
        if !handle.has_sequences {
            request.sequence = None;
        }
        let graph = match graph_of(handle, &request) {
            Ok(graph) => graph,
            Err(fault) => {
                sink.refuse(InferError::Invalid(fault));
                return None;
            }
        };
        let timeout = request.queue_timeout.filter(|timeout| !timeout.is_zero());
        let expiry = request.deadline.map(|deadline| self.ns_at(deadline));
        handle.stats().admitted();
        let ((admitted, alone), mut after) = self.change(|state, now, after| {
            let board_by = timeout.map(|timeout| now.saturating_add(duration_ns(timeout)));
            let admitted =
                state.submit(now, handle, Asked { request, graph, backlog }, Due { board_by, expiry }, sink, after);
            (admitted, state.in_flight() == 1)
        })?;
        let req = match admitted {
            Ok(req) => req,
            Err(sink) => {
                handle.stats().left_queue();
                sink.refuse(self.refusal());
                return None;
            }
        };
        let here = after.launches.pop_if(|job| alone && job.model.short_runs.is_short(|| job.size()));
        self.guarded(|| self.settle(after))?;
        if let Some(job) = here {
            // In place of the lane, which is idle and stays so: two hand-overs would take longer than the run. It has
            // run when the launch returns, so nothing can wait for it.
            let stream = StreamId(job.task.lane.0);
            check(self.cpu.launch_here(stream, &[], LaneWork::new(self, job)));
        }
        Some(req)
    }

    /// The client has taken the responses of a request that paused.
    pub(super) fn resume(self: &Arc<Self>, req: ReqId) {
        self.drive(|state, now, after| state.client_has_read(now, req, after));
    }

    pub(super) fn cancel(self: &Arc<Self>, req: ReqId) {
        self.event(Event::Cancelled(req));
    }

    pub(super) fn retire(self: &Arc<Self>, model: ModelId) {
        self.event(Event::ModelDraining(model));
    }

    /// The alarm went off, for the core, for the watch or for requests that were delayed: each sets its next.
    fn ring(self: &Arc<Self>) {
        self.drive(|state, now, after| {
            state.step(now, Event::Wake, after);
            state.look_at_lanes(now, after);
            state.end_delays(now, after);
        });
    }

    fn event(self: &Arc<Self>, event: Event<'_>) {
        self.drive(|state, now, after| state.step(now, event, after));
    }

    /// Lets `change` drive the core under the lock, then does what it left to do. `None` where that panics, which ends
    /// the pool.
    fn drive<R>(self: &Arc<Self>, change: impl FnOnce(&mut State, Ns, &mut After) -> R) -> Option<R> {
        let (result, after) = self.change(change)?;
        self.guarded(|| self.settle(after))?;
        Some(result)
    }

    fn change<R>(&self, change: impl FnOnce(&mut State, Ns, &mut After) -> R) -> Option<(R, After)> {
        let mut after = After::default();
        let mut state = self.state.lock();
        let started = self.now();
        let result = catch_unwind(AssertUnwindSafe(|| change(&mut state, started, &mut after)));
        // Before another thread sees what is half done.
        let result = result.map_err(|panic| (panic, state.stop()));
        drop(state);
        self.stats.stepped(self.now() - started);
        match result {
            Ok(result) => Some((result, after)),
            Err((panic, remains)) => {
                self.fail(&*panic, remains, after);
                None
            }
        }
    }

    /// Launches, sets the alarm, answers and drops.
    fn settle(self: &Arc<Self>, after: After) {
        self.issue(after.launches);
        if let Some(at) = [after.wake_at, after.watch_at, after.resume_at].into_iter().flatten().min() {
            self.timer.set(self.epoch + Duration::from_nanos(at));
        }
        let now = self.now();
        for incident in &after.incidents {
            incident.report(now);
        }
        if after.lanes_changed || !after.incidents.is_empty() {
            self.publish_lanes(after.incidents.len() as u64);
        }
        for (record, end) in after.ended {
            if matches!(end, End::Rejected(_)) {
                self.stats.rejected(now.saturating_sub(record.arrived));
            }
            record.finish(end, now);
        }
        drop(after.dropped);
        drop(after.freed);
        drop(after.forgotten);
        for replacement in after.replacements {
            self.replace(replacement);
        }
    }

    /// Publishes the lanes' counts, and that so many changes may have changed readiness.
    fn publish_lanes(&self, changes: u64) {
        self.responsiveness.send_if_modified(|known| {
            // Under the channel's lock, so that what is published last is the latest.
            let counts = self.state.lock().lane_counts();
            known.changes += changes;
            known.stuck_lanes = counts.stuck;
            self.stats.set_lanes(counts);
            changes > 0
        });
    }

    /// Gives a lane a new thread, so that it goes on without its task.
    fn replace(self: &Arc<Self>, replacement: Replacement) {
        let lane = replacement.lane;
        self.tickets.lock().landed(replacement.flight.task);
        match self.cpu.replace_thread(StreamId(lane.0)) {
            Ok(()) => _ = self.drive(|state, now, after| state.lane_up(now, lane, after)),
            Err(error) => {
                error!(lane = lane.0, "cannot start a thread: {error}");
                self.drive(|state, now, after| state.lane_not_replaced(now, replacement, after));
            }
        }
    }

    /// Gives tasks to their lanes. CPU lanes have no horizon, so no task waits for another, and what several threads
    /// issue at the same time may come in any order.
    fn issue(self: &Arc<Self>, jobs: Vec<Job>) {
        if jobs.is_empty() {
            return;
        }
        let mut cpu = self.cpu.clone();
        for job in jobs {
            let order = (&job.task).into();
            let work = LaneWork::new(self, job);
            check(issue(&mut cpu, &mut self.tickets.lock(), &order, &[], work));
        }
    }

    /// A task begins on the calling thread; now.
    pub(super) fn task_begins(&self) -> Ns {
        self.stats.task_started();
        self.now()
    }

    /// A task has ended on the calling thread. What comes of it is settled before the lane's stream goes on, so the
    /// lane finds its next task, if there is one already, without a hand-over.
    pub(super) fn landed(self: &Arc<Self>, began: Option<Ns>, job: &Job, finished: Finished) {
        if began.is_some() {
            self.stats.task_ended();
        }
        self.tickets.lock().landed(job.task.id);
        self.drive(|state, now, after| state.finish(began.unwrap_or(now), now, job, finished, after));
    }

    pub(super) fn now(&self) -> Ns {
        duration_ns(self.epoch.elapsed())
    }

    fn ns_at(&self, instant: Instant) -> Ns {
        duration_ns(instant.saturating_duration_since(self.epoch))
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Pool").field("lanes", &self.cpu.streams()).finish_non_exhaustive()
    }
}

/// What a request unfolds into.
///
/// # Errors
/// When its sender is at fault.
fn graph_of(handle: &ModelHandle, request: &InferRequest) -> Result<Box<[Unfolded]>, String> {
    if handle.has_sequences && request.sequence.is_none() {
        let model = &handle.spec.name;
        return Err(format!(
            "inference request to model '{model}' must specify a non-zero or non-empty correlation ID"
        ));
    }
    let graph = match &handle.cells {
        None => Box::default(),
        Some(cells) => unfold(cells, &handle.spec, request.rows, &request.inputs, request.sequence.as_ref())
            .map_err(|fault| fault.to_string())?,
    };
    handle.indices.check(&handle.spec, &request.inputs, &graph)?;
    Ok(graph)
}

#[cfg(test)]
impl Pool {
    /// Lets the core panic in the midst of its next step.
    pub(crate) fn fail_next_step(&self) {
        self.state.lock().fail_next_step();
    }

    /// Lets the core panic now.
    pub(crate) fn fail_now(self: &Arc<Self>) {
        self.fail_next_step();
        self.event(Event::Wake);
    }
}

/// A stopped pool has answered all requests; nothing else is ever refused, since lanes are the device's own streams.
fn check(issued: Result<Operation, DeviceError>) {
    if let Err(refusal) = issued
        && refusal != DeviceError::Stopped
    {
        error!("the device refused a task: {refusal}");
    }
}

fn duration_ns(duration: Duration) -> Ns {
    Ns::try_from(duration.as_nanos()).unwrap_or(Ns::MAX)
}

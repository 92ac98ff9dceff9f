//! The pool: the core and its records behind one lock, the device that runs tasks, and the thread that keeps time.

use std::{
    fmt, io,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use crossbeam_channel::{Receiver, RecvTimeoutError};
use parking_lot::Mutex;
use tokio::sync::watch;
use tracing::error;

use super::{
    InferError, InferRequest, InputTensor, ModelHandle, StagePrograms,
    admit::Admission,
    boundary::{BoundaryRows, Places},
    cells::{run_alone, unfold},
    dispatch::{Tickets, issue},
    gather::Part,
    lane::{Finished, Job, run_parts},
    lane_work::LaneWork,
    loaded::Loaded,
    record::Sink,
    stage_task::StageTask,
    stages::Programs,
    state::{After, Asked, Due, State},
    timer::Timer,
};
use crate::{
    batching::{End, Event, Knobs, ModelId, Ns, Policy, ReqId, ShapeClass},
    device::{BufferPool, Device, DeviceError, Operation, StreamId, cpu::Cpu},
    model::{ModelSpec, unfold::Unfolded},
    observe::{FailureReason, ModelStats, PoolStats, timeline::Timeline},
};

/// How a pool is set up.
#[derive(Clone, Debug)]
pub struct PoolOptions {
    /// Lanes of the CPU device, shared by all models; at least 1.
    pub cpu_lanes: u16,
    /// Unused batch memory kept for later, in bytes.
    pub retain_bytes: usize,
    /// A task that runs longer than this is taken to hang: it is reported, its requests fail, its program is told to stop,
    /// and its model is not ready until it has come back. Zero: never.
    pub hang_after: Duration,
    /// Records requests and tasks, if it is on.
    pub timeline: Arc<Timeline>,
}

impl Default for PoolOptions {
    fn default() -> Self {
        Self { cpu_lanes: 2, retain_bytes: 64 << 20, hang_after: Duration::from_secs(60), timeline: Arc::default() }
    }
}

/// The executor pool of one process.
pub struct Pool {
    state: Mutex<State>,
    /// A stream for each lane.
    cpu: Cpu<LaneWork>,
    tickets: Mutex<Tickets>,
    timer: Timer,
    buffers: Arc<BufferPool>,
    stats: Arc<PoolStats>,
    hang_after: Duration,
    /// Counts how often a version became responsive or ceased to be.
    responsiveness: watch::Sender<u64>,
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
        let hang_after_ns = (!options.hang_after.is_zero()).then(|| duration_ns(options.hang_after));
        let (alive, timer_ended) = crossbeam_channel::bounded::<()>(0);
        let buffers = BufferPool::new(options.retain_bytes);
        let pool = Arc::new(Self {
            state: Mutex::new(State::new(count, hang_after_ns, Arc::clone(&options.timeline))),
            cpu: Cpu::start(count, Arc::clone(&buffers))?,
            tickets: Mutex::default(),
            timer: Timer::default(),
            buffers,
            stats: Arc::default(),
            hang_after: options.hang_after,
            responsiveness: watch::Sender::new(0),
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
        mut knobs: Knobs,
        programs: impl Into<StagePrograms>,
    ) -> ModelHandle {
        let programs = programs.into();
        knobs.stages = programs.knobs();
        let spec = Arc::new(spec);
        let stats = Arc::new(ModelStats::with_stages(knobs.max_batch_rows, programs.count()));
        let loaded = Loaded::new(Arc::clone(&spec), Arc::clone(&stats), programs, self.hang_after);
        let hangs = Arc::clone(&loaded.hangs);
        let cells = loaded.programs.cells().cloned();
        let has_sequences = matches!(&knobs.policy, Policy::Cellular(cellular) if cellular.sequences.is_some());
        let id = self.drive(|state, now, after| state.bring_up(now, loaded, knobs, after));
        ModelHandle { pool: Arc::clone(self), id, spec, stats, hangs, cells, has_sequences }
    }

    /// Tasks that may run at the same time.
    pub fn lanes(&self) -> u16 {
        self.cpu.streams()
    }

    /// Runs a version's programs once on the calling thread, apart from the lanes and from every statistic: before the
    /// version comes up, so that its first request does not pay for what the first run sets up. Stages run one after
    /// another, exits or not. Gives how long each stage took, as it would on a lane: inputs gathered, run, outputs taken apart.
    ///
    /// # Errors
    /// When a program fails or its outputs are not what the specification or the plan promises.
    pub fn warm_up(
        &self,
        spec: &ModelSpec,
        programs: &StagePrograms,
        rows: u32,
        inputs: &[Option<InputTensor>],
    ) -> Result<Vec<Ns>, String> {
        let (lengths, _) = Admission::new(spec).measure(inputs);
        let class = ShapeClass(lengths.clone());
        let (parts, lengths) = ([Part { inputs, rows, start: 0, count: rows }], [&lengths]);
        let stages = match &programs.0 {
            Programs::Whole(program) => {
                let steps = vec![0; rows as usize];
                let ran = run_parts(spec, &**program, &class, &parts, &lengths, &steps, &self.buffers)?;
                return Ok(vec![ran.took_ns()]);
            }
            Programs::Cells(cells) => {
                let graph = unfold(cells, spec, rows, inputs, None).map_err(|fault| fault.to_string())?;
                return run_alone(spec, cells, graph, inputs, &self.buffers).map(|(_, took_ns)| took_ns);
            }
            Programs::Cut(stages) => stages,
        };
        let places = Places::new([(0, rows)].into_iter());
        let boundaries = stages.boundaries.iter().map(|tensors| BoundaryRows::new(rows, tensors.len()));
        let kept: Vec<(u16, Arc<BoundaryRows>)> = (0..).zip(boundaries).collect();
        let mut took_ns = Vec::with_capacity(stages.stages.len());
        for number in 0..stages.stages.len() {
            let task = StageTask {
                spec,
                stages,
                number,
                class: &class,
                parts: &parts,
                lengths: &lengths,
                places: &places,
                reads: &kept,
                writes: kept.get(number).map(|(_, rows)| rows),
                buffers: &self.buffers,
            };
            took_ns.push(task.run()?.took_ns());
        }
        Ok(took_ns)
    }

    /// A counter that grows whenever a version ceases to be [responsive](ModelHandle::is_responsive), and when it is so
    /// again.
    pub fn responsiveness(&self) -> watch::Receiver<u64> {
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
        drop(records);
        for model in models {
            model.loaded.programs.terminate();
        }
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
        sink: Sink,
    ) -> Option<ReqId> {
        if !handle.has_sequences {
            request.sequence = None;
        }
        let graph = match graph_of(handle, &request) {
            Ok(graph) => graph,
            Err(fault) => {
                handle.stats().failure(FailureReason::Other, 0);
                sink.refuse(InferError::Invalid(fault));
                return None;
            }
        };
        let timeout = request.queue_timeout.filter(|timeout| !timeout.is_zero());
        let expiry = request.deadline.map(|deadline| self.ns_at(deadline));
        handle.stats().admitted();
        let ((req, alone), mut after) = self.change(|state, now, after| {
            let board_by = timeout.map(|timeout| now.saturating_add(duration_ns(timeout)));
            let req = state.submit(now, handle, Asked { request, graph }, Due { board_by, expiry }, sink, after);
            (req, state.in_flight() == 1)
        });
        if req.is_none() {
            handle.stats().left_queue();
        }
        let here = after.launches.pop_if(|job| alone && job.model.brevity.is_short());
        self.settle(after);
        if let Some(job) = here {
            // In place of the lane, which is idle and stays so: two hand-overs would take longer than the run. It has run
            // when the launch returns, so nothing can wait for it.
            let stream = StreamId(job.task.lane.0);
            check(self.cpu.launch_here(stream, &[], LaneWork::new(self, job)));
        }
        req
    }

    pub(super) fn cancel(self: &Arc<Self>, req: ReqId) {
        self.event(Event::Cancelled(req));
    }

    pub(super) fn retire(self: &Arc<Self>, model: ModelId) {
        self.event(Event::ModelDraining(model));
    }

    /// The alarm went off, for the core or for the watch: each sets its next.
    fn ring(self: &Arc<Self>) {
        self.drive(|state, now, after| {
            state.step(now, Event::Wake, after);
            state.look_for_hangs(now, after);
        });
    }

    fn event(self: &Arc<Self>, event: Event<'_>) {
        self.drive(|state, now, after| state.step(now, event, after));
    }

    /// Lets `change` drive the core under the lock, then does what it left to do.
    fn drive<R>(self: &Arc<Self>, change: impl FnOnce(&mut State, Ns, &mut After) -> R) -> R {
        let (result, after) = self.change(change);
        self.settle(after);
        result
    }

    fn change<R>(&self, change: impl FnOnce(&mut State, Ns, &mut After) -> R) -> (R, After) {
        let mut after = After::default();
        let mut state = self.state.lock();
        let started = self.now();
        let result = change(&mut state, started, &mut after);
        drop(state);
        self.stats.stepped(self.now() - started);
        (result, after)
    }

    /// Launches, sets the alarm, answers and drops.
    fn settle(self: &Arc<Self>, after: After) {
        self.issue(after.launches);
        if let Some(at) = after.wake_at.into_iter().chain(after.watch_at).min() {
            self.timer.set(self.epoch + Duration::from_nanos(at));
        }
        let now = self.now();
        for hang in &after.hangs {
            hang.report(now);
            self.responsiveness.send_modify(|changes| *changes += 1);
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
    }

    /// Gives tasks to their lanes. CPU lanes have no horizon, so no task waits for another, and what several threads issue
    /// at the same time may come in any order.
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

    /// A task has ended on the calling thread. What comes of it is settled before the lane's stream goes on, so the lane
    /// finds its next task, if there is one already, without a hand-over.
    pub(super) fn landed(self: &Arc<Self>, began: Option<Ns>, job: &Job, finished: Finished) {
        if began.is_some() {
            self.stats.task_ended();
        }
        self.tickets.lock().landed(job.task.id);
        self.drive(|state, now, after| state.finish(began.unwrap_or(now), now, job, finished, after));
    }

    fn now(&self) -> Ns {
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
    let Some(cells) = &handle.cells else { return Ok(Box::default()) };
    unfold(cells, &handle.spec, request.rows, &request.inputs, request.sequence.as_ref())
        .map_err(|fault| fault.to_string())
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

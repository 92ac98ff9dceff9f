//! The pool: the core and its records behind one lock, and the threads that run tasks and keep time.

use std::{
    fmt, io,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use crossbeam_channel::Receiver;
use parking_lot::Mutex;

use super::{
    InferRequest, InputTensor, ModelHandle,
    admit::Admission,
    gather::Part,
    lane::{Job, run_parts},
    loaded::Loaded,
    mailbox::Mailbox,
    record::Sink,
    state::{After, Due, State},
    timer::Timer,
};
use crate::{
    batching::{End, Event, Knobs, LaneId, ModelId, Ns, ReqId, ShapeClass},
    device::BufferPool,
    engine::Program,
    model::ModelSpec,
    observe::{ModelStats, PoolStats},
};

/// How a pool is set up.
#[derive(Clone, Debug)]
pub struct PoolOptions {
    /// Lanes of the CPU device, shared by all models; at least 1.
    pub cpu_lanes: u16,
    /// Unused batch memory kept for later, in bytes.
    pub retain_bytes: usize,
}

impl Default for PoolOptions {
    fn default() -> Self {
        Self { cpu_lanes: 2, retain_bytes: 64 << 20 }
    }
}

/// The executor pool of one process.
pub struct Pool {
    state: Mutex<State>,
    /// By lane.
    mailboxes: Vec<Mailbox>,
    timer: Timer,
    buffers: Arc<BufferPool>,
    stats: Arc<PoolStats>,
    epoch: Instant,
    /// Disconnected once the last thread has ended.
    ended: Receiver<()>,
}

impl Pool {
    /// Starts the lanes and the timer.
    ///
    /// # Errors
    /// When a thread cannot be started.
    pub fn start(options: &PoolOptions) -> io::Result<Arc<Self>> {
        let count = options.cpu_lanes.max(1);
        let (alive, ended) = crossbeam_channel::bounded::<()>(0);
        let pool = Arc::new(Self {
            state: Mutex::new(State::new(count)),
            mailboxes: (0..count).map(|_| Mailbox::default()).collect(),
            timer: Timer::default(),
            buffers: BufferPool::new(options.retain_bytes),
            stats: Arc::default(),
            epoch: Instant::now(),
            ended,
        });
        for lane in (0..count).map(LaneId) {
            let (pool, alive) = (Arc::clone(&pool), alive.clone());
            thread::Builder::new().name(format!("cpu-lane-{}", lane.0)).spawn(move || {
                pool.serve_lane(lane);
                drop(alive);
            })?;
        }
        let ringing = Arc::clone(&pool);
        thread::Builder::new().name("batch-timer".to_owned()).spawn(move || {
            ringing.timer.run(|| ringing.event(Event::Wake));
            drop(alive);
        })?;
        Ok(pool)
    }

    /// Brings a compiled version up: from here on requests may be submitted to the handle.
    pub fn bring_up(self: &Arc<Self>, spec: ModelSpec, knobs: Knobs, program: Arc<dyn Program>) -> ModelHandle {
        let spec = Arc::new(spec);
        let stats = Arc::new(ModelStats::new(knobs.max_batch_rows));
        let loaded = Loaded::new(Arc::clone(&spec), Arc::clone(&stats), program);
        let id = self.drive(|state, now, after| state.bring_up(now, loaded, knobs, after));
        ModelHandle { pool: Arc::clone(self), id, spec, stats }
    }

    /// Runs a program once on the calling thread, apart from the lanes and from every statistic: before a version comes
    /// up, so that its first request does not pay for what the first run sets up.
    ///
    /// # Errors
    /// When the program fails or its outputs are not what the specification promises.
    pub fn warm_up(
        &self,
        spec: &ModelSpec,
        program: &dyn Program,
        rows: u32,
        inputs: &[Option<InputTensor>],
    ) -> Result<(), String> {
        let (lengths, _) = Admission::new(spec).measure(inputs);
        let class = ShapeClass(lengths.clone());
        let part = Part { inputs, rows, start: 0, count: rows };
        let steps = vec![0; rows as usize];
        run_parts(spec, program, &class, &[part], &[&lengths], &steps, &self.buffers).map(drop)
    }

    /// Counters of the scheduler.
    pub fn stats(&self) -> &Arc<PoolStats> {
        &self.stats
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
            model.program.terminate();
        }
        self.mailboxes.iter().for_each(Mailbox::stop);
        self.timer.stop();
        self.ended.recv_timeout(patience) == Err(crossbeam_channel::RecvTimeoutError::Disconnected)
    }

    pub(super) fn submit(&self, handle: &Arc<ModelHandle>, request: InferRequest, sink: Sink) -> Option<ReqId> {
        let timeout = request.queue_timeout.filter(|timeout| !timeout.is_zero());
        let expiry = request.deadline.map(|deadline| self.ns_at(deadline));
        handle.stats().admitted();
        let ((req, alone), mut after) = self.change(|state, now, after| {
            let board_by = timeout.map(|timeout| now.saturating_add(duration_ns(timeout)));
            let req = state.submit(now, handle, request, Due { board_by, expiry }, sink, after);
            (req, state.in_flight() == 1)
        });
        if req.is_none() {
            handle.stats().left_queue();
        }
        let here = after.launches.pop_if(|(_, job)| alone && job.model.brevity.is_short());
        self.settle(after, None);
        if let Some((lane, job)) = here {
            // In place of the lane, which is idle and stays so: two hand-overs would take longer than the run.
            if let Some(next) = self.run(lane, &job) {
                self.mailboxes[usize::from(lane.0)].put(next);
            }
        }
        req
    }

    pub(super) fn cancel(&self, req: ReqId) {
        self.event(Event::Cancelled(req));
    }

    pub(super) fn retire(&self, model: ModelId) {
        self.event(Event::ModelDraining(model));
    }

    fn event(&self, event: Event<'_>) {
        self.drive(|state, now, after| state.step(now, event, after));
    }

    /// Lets `change` drive the core under the lock, then does what it left to do.
    fn drive<R>(&self, change: impl FnOnce(&mut State, Ns, &mut After) -> R) -> R {
        let (result, after) = self.change(change);
        let none = self.settle(after, None);
        debug_assert!(none.is_none(), "only a lane keeps a task for itself");
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

    /// Launches on other lanes, sets the alarm, answers and drops; gives back the task that `own` lane runs next.
    fn settle(&self, after: After, own: Option<LaneId>) -> Option<Job> {
        let mut next = None;
        for (lane, job) in after.launches {
            if Some(lane) == own {
                next = Some(job);
            } else {
                self.mailboxes[usize::from(lane.0)].put(job);
            }
        }
        if let Some(at) = after.wake_at {
            self.timer.set(self.epoch + Duration::from_nanos(at));
        }
        let now = self.now();
        for (record, end) in after.ended {
            if matches!(end, End::Rejected(_)) {
                self.stats.rejected(now.saturating_sub(record.arrived));
            }
            record.finish(end, now);
        }
        drop(after.dropped);
        next
    }

    fn serve_lane(&self, lane: LaneId) {
        while let Some(job) = self.mailboxes[usize::from(lane.0)].take() {
            let mut next = Some(job);
            while let Some(job) = next {
                next = self.run(lane, &job);
            }
        }
    }

    /// Runs a task and settles what comes of it; the lane's next task, if there is one already.
    fn run(&self, lane: LaneId, job: &Job) -> Option<Job> {
        self.stats.task_started();
        let started = self.now();
        let finished = job.run(&self.buffers);
        self.stats.task_ended();
        let ((), after) = self.change(|state, now, after| state.finish(started, now, job, finished, after));
        self.settle(after, Some(lane))
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
        formatter.debug_struct("Pool").field("lanes", &self.mailboxes.len()).finish_non_exhaustive()
    }
}

fn duration_ns(duration: Duration) -> Ns {
    Ns::try_from(duration.as_nanos()).unwrap_or(Ns::MAX)
}

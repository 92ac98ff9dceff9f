//! A shard: one device of the pool with its own core, lock, lanes and timer. Nothing here is shared with another.

use std::{
    collections::VecDeque,
    io,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use crossbeam_channel::{Receiver, RecvTimeoutError};
use parking_lot::Mutex;
use tracing::error;

use super::{Pool, lane_work::LaneWork};
use crate::{
    batching::TaskId,
    device::{BufferPool, Device, DeviceError, Operation, StreamId, cpu::Cpu},
    executor::{
        dispatch::{Tickets, issue},
        lane::Job,
        state::State,
        timer::Timer,
    },
};

/// One device of a pool.
pub(in crate::executor) struct Shard {
    /// Its number among those of the pool.
    pub(super) number: usize,
    pub(in crate::executor) state: Mutex<State>,
    /// A stream for each lane.
    cpu: Cpu<LaneWork>,
    /// Tasks in the order in which the core launched them: filled under the lock of `state`, emptied under that of
    /// `tickets`.
    launched: Mutex<VecDeque<Job>>,
    tickets: Mutex<Tickets>,
    pub(in crate::executor) timer: Timer,
    /// Disconnected once the timer's thread has ended.
    timer_ended: Mutex<Option<Receiver<()>>>,
}

impl Shard {
    /// Starts the lanes.
    ///
    /// # Errors
    /// When a thread cannot be started.
    pub(super) fn start(number: usize, lanes: u16, state: State, buffers: &Arc<BufferPool>) -> io::Result<Self> {
        Ok(Self {
            number,
            state: Mutex::new(state),
            cpu: Cpu::start(lanes, Arc::clone(buffers))?,
            launched: Mutex::default(),
            tickets: Mutex::default(),
            timer: Timer::default(),
            timer_ended: Mutex::default(),
        })
    }

    /// Starts the thread that keeps time, which calls `ring` at each alarm.
    ///
    /// # Errors
    /// When it cannot be started.
    pub(super) fn keep_time(pool: &Arc<Pool>, number: usize) -> io::Result<()> {
        let (alive, ended) = crossbeam_channel::bounded::<()>(0);
        *pool.shards[number].timer_ended.lock() = Some(ended);
        let pool = Arc::clone(pool);
        thread::Builder::new().name(format!("batch-timer-{number}")).spawn(move || {
            let shard = &pool.shards[number];
            shard.timer.run(|| pool.ring(shard));
            drop(alive);
        })?;
        Ok(())
    }

    pub(super) fn lanes(&self) -> u16 {
        self.cpu.streams()
    }

    /// Puts tasks behind those that were launched before. To be called under the lock of `state`.
    pub(super) fn queue(&self, launches: &mut Vec<Job>) {
        if !launches.is_empty() {
            self.launched.lock().extend(launches.drain(..));
        }
    }

    /// Gives tasks to their lanes, in the order in which the core launched them. Whoever comes first issues for all.
    pub(super) fn issue(&self, pool: &Arc<Pool>) {
        let mut cpu = self.cpu.clone();
        let mut tickets = self.tickets.lock();
        while let Some(job) = self.next_launched() {
            let order = (&job.task).into();
            let work = LaneWork::new(pool, self.number, job);
            check(issue(&mut cpu, &mut tickets, &order, &[], work));
        }
    }

    fn next_launched(&self) -> Option<Job> {
        self.launched.lock().pop_front()
    }

    /// Runs a task on the calling thread in place of its lane, which is idle and stays so: two hand-overs would take
    /// longer than the run. It has run when this returns, so nothing can wait for it.
    pub(super) fn run_here(&self, pool: &Arc<Pool>, job: Job) {
        let stream = StreamId(job.task.lane.0);
        check(self.cpu.launch_here(stream, &[], LaneWork::new(pool, self.number, job)));
    }

    /// A task is on its lane no more.
    pub(super) fn landed(&self, task: TaskId) {
        self.tickets.lock().landed(task);
    }

    /// Gives a lane a new thread.
    ///
    /// # Errors
    /// When it cannot be started.
    pub(super) fn replace_thread(&self, stream: StreamId) -> io::Result<()> {
        self.cpu.replace_thread(stream)
    }

    /// Ends the lanes and the timer. Whether all threads ended by then.
    pub(super) fn stop(&self, deadline: Instant) -> bool {
        self.timer.stop();
        let left = || deadline.saturating_duration_since(Instant::now());
        let lanes_ended = self.cpu.clone().stop(left());
        let timer_ended = self.timer_ended.lock().clone();
        lanes_ended && timer_ended.is_none_or(|ended| has_ended(&ended, left()))
    }
}

fn has_ended(alive: &Receiver<()>, patience: Duration) -> bool {
    alive.recv_timeout(patience) == Err(RecvTimeoutError::Disconnected)
}

/// A stopped device has answered all requests; nothing else is ever refused, since lanes are the device's own streams.
fn check(issued: Result<Operation, DeviceError>) {
    if let Err(refusal) = issued
        && refusal != DeviceError::Stopped
    {
        error!("the device refused a task: {refusal}");
    }
}

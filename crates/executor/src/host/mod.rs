//! The CPU backend: a lane is a thread that gathers a task's rows, runs its program and splits its outputs.
//!
//! The rows that batches keep between stages are in host memory (`boundary`), allocated by the first write and freed
//! when the version has no requests (`pairs`). If a task is alone and its program is known to run briefly, it runs on
//! the submitting thread (`short_runs`).

mod boundary;
pub(super) mod cell_task;
mod node_rows;
mod output_bytes;
mod pairs;
mod run;
mod stage_task;
pub(super) mod trial;
pub(super) mod warm_up;
mod whole_task;
mod work;

use std::{io, sync::Arc, time::Instant};

use parking_lot::Mutex;
use paternoster_batching::{Knobs, LaneId, ModelId, TaskId};
use paternoster_device::{BufferPool, Device, DeviceError, Operation, StreamId, cpu::Cpu};
use tracing::error;

use self::{
    pairs::Pairs,
    work::{HostTask, LaneWork},
};
use super::{
    backend::{Backend, CannotHold, Order, Reports},
    dispatch::{Tickets, issue},
    job::Job,
    version::ServedVersion,
};

/// The CPU, or a part of it, as the device of one shard.
pub(super) struct Host {
    shard: usize,
    /// One stream per lane.
    cpu: Cpu<LaneWork>,
    /// Host memory, shared by all parts of the CPU.
    buffers: Arc<BufferPool>,
    tickets: Arc<Mutex<Tickets>>,
    /// Locked while orders are carried out.
    pairs: Mutex<Pairs>,
}

impl Host {
    /// Starts the lanes.
    ///
    /// # Errors
    /// If a thread cannot be started.
    pub(super) fn start(shard: usize, lanes: u16, buffers: &Arc<BufferPool>) -> io::Result<Self> {
        let cpu = Cpu::start(lanes, Arc::clone(buffers))?;
        let (buffers, tickets, pairs) = (Arc::clone(buffers), Arc::default(), Mutex::default());
        Ok(Self { shard, cpu, buffers, tickets, pairs })
    }

    fn work(&self, pool: &Arc<dyn Reports>, task: HostTask) -> LaneWork {
        LaneWork {
            pool: Arc::clone(pool),
            shard: self.shard,
            buffers: Arc::clone(&self.buffers),
            tickets: Arc::clone(&self.tickets),
            task,
            began: None,
            ran: None,
        }
    }
}

impl Backend for Host {
    fn lanes(&self) -> u16 {
        self.cpu.streams()
    }

    fn load(&self, model: ModelId, version: &ServedVersion, knobs: &mut Knobs) -> Result<(), CannotHold> {
        self.pairs.lock().load(model, &version.programs, knobs.max_batch_rows);
        Ok(())
    }

    fn issue(&self, pool: &Arc<dyn Reports>, next: &mut dyn FnMut() -> Option<Order>) {
        let mut cpu = self.cpu.clone();
        let mut pairs = self.pairs.lock();
        while let Some(order) = next() {
            match order {
                Order::Run(job) => {
                    let order = (&job.task).into();
                    let work = self.work(pool, pairs.lend(job));
                    check(issue(&mut cpu, &mut self.tickets.lock(), &order, &[], work));
                }
                Order::Rest(model) => pairs.rest(model),
                // The pool has the state of sequences.
                Order::SequenceOver(..) => {}
                Order::Unload(model) => pairs.unload(model),
            }
        }
    }

    fn runs_here(&self, job: &Job) -> bool {
        job.model.short_runs.is_short(|| job.size())
    }

    fn run_here(&self, pool: &Arc<dyn Reports>, job: Job) {
        let stream = StreamId(job.task.lane.0);
        let task = HostTask { job, reads: Default::default(), writes: None };
        check(self.cpu.launch_here(stream, &[], self.work(pool, task)));
    }

    /// Gives the lane a new thread. The old thread ends with its task.
    fn leave_behind(&self, lane: LaneId, task: TaskId) -> io::Result<()> {
        self.tickets.lock().landed(task);
        self.cpu.replace_thread(StreamId(lane.0))
    }

    fn stop(&self, deadline: Instant) -> bool {
        self.cpu.clone().stop(deadline.saturating_duration_since(Instant::now()))
    }
}

/// Logs an unexpected refusal. A stopped device has answered all requests, and nothing else is ever refused, since
/// lanes are the device's own streams.
fn check(issued: Result<Operation, DeviceError>) {
    if let Err(refusal) = issued
        && refusal != DeviceError::Stopped
    {
        error!(%refusal, "the device refused a task");
    }
}

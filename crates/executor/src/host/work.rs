//! A task as a lane's stream runs it.

use std::sync::Arc;

use parking_lot::Mutex;
use paternoster_batching::Instant;
use paternoster_device::{
    BufferPool, WorkFailure,
    cpu::{HostWork, Operand},
};
use smallvec::SmallVec;

use super::boundary::BoundaryRows;
use crate::{
    backend::Reports,
    dispatch::Tickets,
    job::TaskOutput,
    job::{Finished, Job},
};

/// A task with the memory of its batch.
pub(super) struct HostTask {
    pub(super) job: Job,
    /// The rows at the boundaries that the task reads.
    pub(super) reads: SmallVec<[(u16, Arc<BoundaryRows>); 1]>,
    /// The rows that the task writes.
    pub(super) writes: Option<Arc<BoundaryRows>>,
}

/// Runs a task and reports its result to the pool on the same thread. The result is processed before the lane's stream
/// goes on, so the lane finds its next task, if there is one, without a thread switch.
pub(super) struct LaneWork {
    pub(super) pool: Arc<dyn Reports>,
    pub(super) shard: usize,
    pub(super) buffers: Arc<BufferPool>,
    pub(super) tickets: Arc<Mutex<Tickets>>,
    pub(super) task: HostTask,
    pub(super) began: Option<Instant>,
    pub(super) ran: Option<TaskOutput>,
}

impl HostWork for LaneWork {
    /// Has no operands: boundaries belong to the task, and `boundary` checks them for conflicts.
    fn run(&mut self, _: &mut [Operand]) -> Result<(), String> {
        self.began = Some(self.pool.begins());
        self.ran = Some(self.task.run(&self.buffers)?);
        Ok(())
    }

    fn done(self, outcome: Result<(), WorkFailure>) {
        let Self { pool, shard, tickets, task: HostTask { job, .. }, began, ran, .. } = self;
        tickets.lock().landed(job.task.id);
        let finished = match (outcome, ran) {
            (Ok(()), Some(ran)) => Finished::Completed(ran),
            // The pool was stopped and has answered the requests.
            (Err(WorkFailure::Stopped) | Ok(()), _) => return,
            (Err(failure), _) => Finished::Failed(job.failed(failure)),
        };
        pool.completed(shard, began, &job, finished);
    }
}

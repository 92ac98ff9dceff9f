//! A task as its lane's stream runs it.

use std::sync::Arc;

use parking_lot::Mutex;
use smallvec::SmallVec;

use super::boundary::BoundaryRows;
use crate::{
    batching::Ns,
    device::{
        BufferPool, WorkFailure,
        cpu::{HostWork, Operand},
    },
    executor::{
        backend::Reports,
        dispatch::Tickets,
        job::{Finished, Job},
        ran::Ran,
    },
};

/// A task with the memory of its batch.
pub(super) struct HostTask {
    pub(super) job: Job,
    /// What the task's batch keeps at the boundaries that the task reads.
    pub(super) reads: SmallVec<[(u16, Arc<BoundaryRows>); 1]>,
    /// Where it keeps what the task writes.
    pub(super) writes: Option<Arc<BoundaryRows>>,
}

/// Runs a task, then tells the pool what came of it, on the same thread. That is settled before the lane's stream goes
/// on, so the lane finds its next task, if there is one already, without a hand-over.
pub(super) struct LaneWork {
    pub(super) pool: Arc<dyn Reports>,
    pub(super) shard: usize,
    pub(super) buffers: Arc<BufferPool>,
    pub(super) tickets: Arc<Mutex<Tickets>>,
    pub(super) task: HostTask,
    pub(super) began: Option<Ns>,
    pub(super) ran: Option<Ran>,
}

impl HostWork for LaneWork {
    /// Boundaries are the task's own, which look for conflicts themselves (`boundary`): no operands.
    fn run(&mut self, _: &mut [Operand]) -> Result<(), String> {
        self.began = Some(self.pool.begins());
        self.ran = Some(self.task.run(&self.buffers)?);
        Ok(())
    }

    fn done(self, outcome: Result<(), WorkFailure>) {
        let Self { pool, shard, tickets, task: HostTask { job, .. }, began, ran, .. } = self;
        tickets.lock().landed(job.task.id);
        let finished = match (outcome, ran) {
            (Ok(()), Some(ran)) => Finished::Ran(ran),
            // The pool was stopped, which has answered the requests.
            (Err(WorkFailure::Stopped) | Ok(()), _) => return,
            (Err(failure), _) => Finished::Failed(job.failed(failure)),
        };
        pool.completed(shard, began, &job, finished);
    }
}

//! A task as its lane's stream runs it.

use std::sync::Arc;

use super::Pool;
use crate::{
    batching::Ns,
    device::{
        WorkFailure,
        cpu::{HostWork, Operand},
    },
    executor::{
        lane::{Finished, Job},
        ran::Ran,
    },
};

/// Runs a task, then drives the core with what came of it, on the same thread.
pub(super) struct LaneWork {
    pool: Arc<Pool>,
    shard: usize,
    job: Job,
    began: Option<Ns>,
    ran: Option<Ran>,
}

impl LaneWork {
    pub(super) fn new(pool: &Arc<Pool>, shard: usize, job: Job) -> Self {
        Self { pool: Arc::clone(pool), shard, job, began: None, ran: None }
    }
}

impl HostWork for LaneWork {
    /// Boundaries are the job's own, which look for conflicts themselves (`boundary`): no operands.
    fn run(&mut self, _: &mut [Operand]) -> Result<(), String> {
        self.began = Some(self.pool.task_begins());
        self.ran = Some(self.job.run(self.pool.buffers())?);
        Ok(())
    }

    fn done(self, outcome: Result<(), WorkFailure>) {
        let Self { pool, shard, job, began, ran } = self;
        pool.guarded(|| {
            let finished = match (outcome, ran) {
                (Ok(()), Some(ran)) => Finished::Ran(ran),
                // The pool was stopped, which has answered the requests.
                (Err(WorkFailure::Stopped) | Ok(()), _) => return,
                (Err(failure), _) => Finished::Failed(job.failed(failure)),
            };
            pool.landed(shard, began, &job, finished);
        });
    }
}

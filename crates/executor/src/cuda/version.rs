//! What the card's threads (driver, poller, taker) need of a version, whether its requests unfold into cells or run in
//! stages.

use std::{collections::HashMap, sync::Arc};

use paternoster_batching::{ReqId, SequenceNo, Task, TaskId};
use paternoster_device::{Access, BufferId, Device, DeviceError, cuda::Cuda};
use paternoster_engine::RowFailure;
use paternoster_model::RowOutcome;
use smallvec::SmallVec;

use super::{
    graph::{GraphSize, OnCard},
    parameters::Section,
};
use crate::job::{Job, Outputs};

/// A version on a card. Owned by the card's thread.
pub(super) trait CardVersion {
    /// Its programs, indexed by cell or stage.
    fn programs(&mut self) -> &mut [OnCard];

    /// Returns the size of the graph that runs a task; `None` if there is no such graph.
    fn size(&self, job: &Job) -> Option<GraphSize>;

    /// Returns whether tasks must be launched in the core's order, on all lanes together, because they may come after
    /// tasks that the core does not name.
    fn keeps_order(&self) -> bool {
        false
    }

    /// Returns whether a task reads outputs of an earlier task that the host has yet to take.
    fn must_wait(&self, job: &Job, unread_outputs: &Untaken) -> bool {
        let _ = (job, unread_outputs);
        false
    }

    /// Writes a task's inputs to its section and returns its parameters and accesses. `size` is that of the graph that
    /// runs it. The task is not recorded as issued: that is [`Self::issued`].
    ///
    /// # Errors
    /// If a row's input is not on the card, because the task that writes it did not run.
    fn fill(&mut self, job: &Job, size: GraphSize, section: &mut Section) -> Result<Filled, String>;

    /// Records that a task has been issued: later tasks may read the rows that it writes.
    fn issued(&mut self, task: &Task);

    /// Frees what a sequence has on the card. No task of it follows.
    fn sequence_over(&mut self, sequence: SequenceNo) {
        let _ = sequence;
    }

    /// Returns the reader of completed tasks' sections.
    fn reader(&self) -> Arc<dyn Reader>;

    /// Frees memory that is not freed on drop.
    ///
    /// # Errors
    /// If the card is lost.
    fn free(self: Box<Self>, card: &mut Cuda) -> Result<(), DeviceError>;
}

/// A task that is ready for its launch.
#[derive(Debug, Default)]
pub(super) struct Filled {
    pub(super) parameters: Box<[u8]>,
    pub(super) accesses: Vec<Access>,
    /// Tasks that it must come after, in addition to those that the core knows.
    pub(super) after: SmallVec<[TaskId; 2]>,
    /// Rows that lack an input of their own request.
    pub(super) failures: Vec<RowFailure>,
    /// Whether the host takes any of its outputs.
    pub(super) is_taken: bool,
}

/// Reads the section of a completed task.
pub(super) trait Reader: Send + Sync {
    /// Returns how each row continues and which rows failed. `failures` are those from before the launch. Runs on the
    /// poller.
    fn ran(&self, job: &Job, section: &Section, failures: Vec<RowFailure>) -> Ended;

    /// Takes what responses need; a request may accumulate at most `most_bytes` of one tensor.
    ///
    /// # Errors
    /// If an output does not match the version's specification.
    fn take(&self, job: &Job, section: &Section, most_bytes: usize) -> Result<Outputs, String>;
}

/// How the rows of a completed task continue.
pub(super) struct Ended {
    pub(super) outcomes: Vec<RowOutcome>,
    pub(super) failures: Vec<RowFailure>,
}

/// For each request, the number of its tasks whose outputs the host has yet to take.
#[derive(Debug, Default)]
pub(super) struct Untaken(HashMap<ReqId, u32>);

impl Untaken {
    /// Returns whether a request has such tasks.
    pub(super) fn has(&self, req: ReqId) -> bool {
        self.0.contains_key(&req)
    }

    /// Adds a task.
    pub(super) fn add(&mut self, task: &Task) {
        task.rows.iter().for_each(|span| *self.0.entry(span.req).or_default() += 1);
    }

    /// Removes a task whose outputs have been taken.
    pub(super) fn remove(&mut self, task: &Task) {
        for span in &task.rows {
            if let Some(count) = self.0.get_mut(&span.req) {
                *count -= 1;
                if *count == 0 {
                    self.0.remove(&span.req);
                }
            }
        }
    }
}

/// Frees buffers on the card.
///
/// # Errors
/// If the card is lost.
pub(super) fn free(card: &mut Cuda, buffers: impl IntoIterator<Item = BufferId>) -> Result<(), DeviceError> {
    buffers.into_iter().try_for_each(|buffer| card.free(buffer))
}

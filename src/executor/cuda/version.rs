//! What the thread of a card, its poller and its taker need of a version, whether its requests unfold into cells or run
//! in stages.

use std::{collections::HashMap, sync::Arc};

use super::graph::{OnCard, Section};
use crate::{
    batching::{ReqId, RowOutcome, Task},
    device::{Access, BufferId, Device, DeviceError, cuda::Cuda},
    engine::{RowFailure, RunSize},
    executor::{job::Job, ran::Outputs},
};

/// A version on a card, as the thread of the card has it.
pub(super) trait Version {
    /// Its programs, by cell or stage.
    fn programs(&mut self) -> &mut [OnCard];

    /// The size of the graph that runs a task; none where there is no such graph.
    fn size(&self, job: &Job) -> Option<RunSize>;

    /// Whether a task reads what the host has yet to take of an earlier one.
    fn must_wait(&self, job: &Job, untaken: &Untaken) -> bool {
        let _ = (job, untaken);
        false
    }

    /// Writes what the host brings for the rows of a task, which runs in a graph of this size, to its section, and says
    /// where they lie. Nothing is noted of the task yet.
    ///
    /// # Errors
    /// When what a row reads is not on the card: a task before it did not run.
    fn fill(&self, job: &Job, size: RunSize, section: &mut Section) -> Result<Filled, String>;

    /// A task has been issued: its rows are where it writes them.
    fn issued(&mut self, task: &Task);

    /// Reads what tasks leave.
    fn reader(&self) -> Arc<dyn Reader>;

    /// Frees what is not freed by being dropped.
    ///
    /// # Errors
    /// When the card is lost.
    fn free(self: Box<Self>, card: &mut Cuda) -> Result<(), DeviceError>;
}

/// A task that is ready for its launch.
#[derive(Debug, Default)]
pub(super) struct Filled {
    pub(super) parameters: Box<[u8]>,
    pub(super) accesses: Vec<Access>,
    /// Rows that lack something of their own requests.
    pub(super) failures: Vec<RowFailure>,
    /// Whether the host takes something of it.
    pub(super) is_taken: bool,
}

/// Reads what a task has left in its section.
pub(super) trait Reader: Send + Sync {
    /// How its rows go on, and which failed, of those that were launched.
    fn ran(&self, job: &Job, section: &Section, failures: Vec<RowFailure>) -> Ended;

    /// What replies need, of which a request may have so many bytes.
    ///
    /// # Errors
    /// When an output is not what the version promises.
    fn take(&self, job: &Job, section: &Section, most_bytes: usize) -> Result<Outputs, String>;
}

/// What became of a task's rows.
pub(super) struct Ended {
    pub(super) outcomes: Vec<RowOutcome>,
    pub(super) failures: Vec<RowFailure>,
    /// Whether requests may leave with it.
    pub(super) ends_rows: bool,
}

/// By request: tasks whose outputs the host has yet to take.
#[derive(Debug, Default)]
pub(super) struct Untaken(HashMap<ReqId, u32>);

impl Untaken {
    /// Whether there are tasks of a request.
    pub(super) fn has(&self, req: ReqId) -> bool {
        self.0.contains_key(&req)
    }

    /// A task is to be taken.
    pub(super) fn add(&mut self, task: &Task) {
        task.rows.iter().for_each(|span| *self.0.entry(span.req).or_default() += 1);
    }

    /// A task has been taken.
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

/// Frees buffers of the card's memory.
///
/// # Errors
/// When the card is lost.
pub(super) fn free(card: &mut Cuda, buffers: impl IntoIterator<Item = BufferId>) -> Result<(), DeviceError> {
    buffers.into_iter().try_for_each(|buffer| card.free(buffer))
}

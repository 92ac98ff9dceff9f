//! Outcomes of a task of cells: nodes make other nodes ready, end their requests, or run again in halves of the failed
//! task.

use paternoster_model::{Next, RowOutcome};

use super::{
    queues::NodeRow,
    scheduling::{CellTask, Cells},
};
use crate::{End, Ns, TaskId, cost::class_of, ledger::InFlightTask, version::StepContext};

impl Cells {
    // ## running => (ready again | ended), row by row
    pub(crate) fn complete(
        &mut self,
        context: &mut StepContext<'_>,
        in_flight: &InFlightTask,
        outcomes: &[RowOutcome],
        took_ns: Ns,
    ) {
        let Some(task) = self.take_completed(context, in_flight) else { return };
        self.chunks.ran(took_ns);
        context.version.learn(task.cell, in_flight.rows, in_flight.bucket, &class_of(task.steps), took_ns);
        for (at, row) in task.nodes.iter().enumerate() {
            let RowOutcome { next, emitted } = RowOutcome::of_row(outcomes, at);
            // Skips rows without effect, and rows whose request has ended or restarted since the launch.
            if !emitted && next != Next::Failed || !self.cells.counts(row) {
                continue;
            }
            if emitted {
                context.emit(row.request());
            }
            if next == Next::Failed {
                self.end(context, row.request(), End::Failed);
            }
        }
        if task.is_retry {
            self.cells.ran_again(&task.nodes);
        }
        let is_last = |at: usize| RowOutcome::of_row(outcomes, at).next == Next::Done;
        let completed = self.cells.completed(task.cell, &task.nodes, is_last);
        for (segment, most_nodes, steps) in self.cells.taken.drain(..) {
            context.version.graph.took_steps(segment, most_nodes, steps);
        }
        for request_ix in completed {
            context.ledger[request_ix].left = 0;
            self.end(context, request_ix, End::Completed);
        }
    }

    // ## running => (to run again, in halves | ended)
    /// Handles a failed task. If a task of several nodes failed, it is unknown which one is at fault; their inputs are
    /// unchanged, so they run again in halves. A node that failed alone, or whose task may not be retried, ends its
    /// request, except if the request's loop had ended before.
    pub(crate) fn fail(&mut self, context: &mut StepContext<'_>, in_flight: &InFlightTask, may_retry: bool) {
        let Some(task) = self.take_completed(context, in_flight) else { return };
        if may_retry && in_flight.rows > 1 {
            let again: Vec<NodeRow> = task.nodes.iter().filter(|row| self.cells.counts(row)).copied().collect();
            context.version.totals.retries += again.len().min(2) as u64;
            let in_flight =
                self.tasks.iter_mut().flat_map(|other| other.nodes.iter_mut().map(|row| (row, other.is_retry)));
            self.cells.failed(task.cell, &again, task.is_retry, in_flight);
        } else {
            for row in &task.nodes {
                if self.cells.counts(row) {
                    self.end(context, row.request(), End::Failed);
                }
            }
        }
        self.cells.completed(task.cell, &task.nodes, |_| false);
        self.cells.taken.clear();
    }

    /// Removes the entry of a task for one cell, after the task has left its lane.
    fn take_completed(&mut self, context: &mut StepContext<'_>, in_flight: &InFlightTask) -> Option<CellTask> {
        context.version.running -= u32::from(!in_flight.is_followed);
        let at = self.tasks.iter().position(|task| task.id == in_flight.task)?;
        Some(self.tasks.remove(at))
    }

    /// Whether a task is a retry.
    pub(crate) fn is_retry(&self, id: TaskId) -> bool {
        self.tasks.iter().any(|task| task.id == id && task.is_retry)
    }
}

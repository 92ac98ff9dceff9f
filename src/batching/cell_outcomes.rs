//! What comes of a task of cells: its nodes make others ready, end their requests, or run again in halves of the failed
//! task.

use super::{
    End, Next, Ns, RowOutcome,
    cells::NodeRow,
    group::{Group, StepContext},
    ledger::InFlightTask,
    outcomes::Outcomes,
};

impl Group {
    // ## running => (ready again | ended), row by row
    pub(super) fn complete_cells(
        &mut self,
        context: &mut StepContext<'_>,
        in_flight: &InFlightTask,
        outcomes: &[RowOutcome],
        took_ns: Ns,
    ) {
        self.running -= u32::from(!in_flight.is_followed);
        if self.learns {
            self.costs.learn(in_flight.cell, in_flight.rows, &in_flight.class, took_ns);
            self.learned += 1;
        }
        let outcomes = Outcomes::of_all(outcomes);
        for (at, row) in in_flight.nodes.iter().enumerate() {
            let RowOutcome { next, emitted } = outcomes.get(at);
            if !emitted && next != Next::Failed || !self.counts(row) {
                continue;
            }
            if emitted {
                self.emit(context, row.request());
            }
            if next == Next::Failed {
                self.end(context, row.request(), End::Failed);
            }
        }
        let Some(cellular) = &mut self.cellular else { return };
        if in_flight.is_retry {
            cellular.cells.ran_again(&in_flight.nodes);
        }
        let is_last = |at: usize| outcomes.get(at).next == Next::Done;
        for request_ix in cellular.cells.completed(in_flight.cell, &in_flight.nodes, is_last) {
            context.ledger[request_ix].left = 0;
            self.end(context, request_ix, End::Completed);
        }
    }

    // ## running => (to run again, in halves | ended)
    /// A node that failed alone ends its request. Of several it is unknown which one failed; their inputs are
    /// unchanged, so that they run again.
    pub(super) fn fail_cells(&mut self, context: &mut StepContext<'_>, in_flight: &InFlightTask) {
        if in_flight.rows == 1 {
            return self.fail_lost_cells(context, in_flight);
        }
        self.running -= u32::from(!in_flight.is_followed);
        let again: Vec<NodeRow> = in_flight.nodes.iter().filter(|row| self.counts(row)).copied().collect();
        let Some(cellular) = &mut self.cellular else { return };
        self.totals.retries += again.len().min(2) as u64;
        cellular.cells.failed(in_flight.cell, &again, in_flight.is_retry, context.ledger.nodes_mut(in_flight.group));
        cellular.cells.completed(in_flight.cell, &in_flight.nodes, |_| false);
    }

    /// A task's nodes end their requests, but for those whose loop had ended before.
    pub(super) fn fail_lost_cells(&mut self, context: &mut StepContext<'_>, in_flight: &InFlightTask) {
        self.running -= u32::from(!in_flight.is_followed);
        for row in &in_flight.nodes {
            if self.counts(row) {
                self.end(context, row.request(), End::Failed);
            }
        }
        if let Some(cellular) = &mut self.cellular {
            cellular.cells.completed(in_flight.cell, &in_flight.nodes, |_| false);
        }
    }

    fn counts(&self, row: &NodeRow) -> bool {
        self.cellular.as_ref().is_some_and(|cellular| cellular.cells.counts(row))
    }
}

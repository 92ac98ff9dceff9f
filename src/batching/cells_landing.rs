//! What comes of a task of cells: its nodes make others ready, end their requests, or run again in halves of the failed task.

use super::{
    End, Next, Ns, RowOutcome,
    cells::NodeRow,
    group::{Group, Turn},
    landing::Outcomes,
    ledger::Flight,
};

impl Group {
    // ## running => (ready again | ended), row by row
    pub(super) fn complete_cells(
        &mut self,
        turn: &mut Turn<'_>,
        flight: &Flight,
        outcomes: &[RowOutcome],
        took_ns: Ns,
    ) {
        self.running -= u32::from(!flight.is_followed);
        if self.learns {
            self.costs.learn(flight.cell, flight.rows, &flight.class, took_ns);
            self.learned += 1;
        }
        let outcomes = Outcomes::of_all(outcomes);
        for (at, row) in flight.nodes.iter().enumerate() {
            let RowOutcome { next, emitted } = outcomes.get(at);
            if !emitted && next != Next::Failed || !self.counts(row) {
                continue;
            }
            if emitted {
                self.emit(turn, row.request());
            }
            if next == Next::Failed {
                self.end(turn, row.request(), End::Failed);
            }
        }
        let Some(cellular) = &mut self.cellular else { return };
        if flight.is_retry {
            cellular.cells.ran_again(&flight.nodes);
        }
        let is_last = |at: usize| outcomes.get(at).next == Next::Done;
        for slot in cellular.cells.completed(flight.cell, &flight.nodes, is_last) {
            turn.ledger[slot].left = 0;
            self.end(turn, slot, End::Completed);
        }
    }

    // ## running => (to run again, in halves | ended)
    /// A node that failed alone ends its request. Of several nobody knows which did, and what they read is as it was: they run again.
    pub(super) fn fail_cells(&mut self, turn: &mut Turn<'_>, flight: &Flight) {
        if flight.rows == 1 {
            return self.lose_cells(turn, flight);
        }
        self.running -= u32::from(!flight.is_followed);
        let again: Vec<NodeRow> = flight.nodes.iter().filter(|row| self.counts(row)).copied().collect();
        let Some(cellular) = &mut self.cellular else { return };
        self.totals.retries += again.len().min(2) as u64;
        cellular.cells.failed(flight.cell, &again, flight.is_retry, turn.ledger.nodes_mut(flight.group));
        cellular.cells.completed(flight.cell, &flight.nodes, |_| false);
    }

    /// A task's nodes end their requests, but for those whose loop had ended before.
    pub(super) fn lose_cells(&mut self, turn: &mut Turn<'_>, flight: &Flight) {
        self.running -= u32::from(!flight.is_followed);
        for row in &flight.nodes {
            if self.counts(row) {
                self.end(turn, row.request(), End::Failed);
            }
        }
        if let Some(cellular) = &mut self.cellular {
            cellular.cells.completed(flight.cell, &flight.nodes, |_| false);
        }
    }

    fn counts(&self, row: &NodeRow) -> bool {
        self.cellular.as_ref().is_some_and(|cellular| cellular.cells.counts(row))
    }
}

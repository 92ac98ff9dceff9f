//! Retries of failed tasks: their rows run again in halves, until only rows that fail alone are left, so no request
//! fails because of another.
//!
//! A half is sealed: no other node joins its task. Until it succeeds, all other nodes of its subgraphs wait. It runs on
//! the lane that its subgraphs are pinned to, after the tasks launched ahead there.

use std::collections::BTreeMap;

use paternoster_model::CellId;

use super::{NodeRow, Queues, SubgraphIx};
use crate::{LaneId, hold::hold};

/// Rows of one type that run again as a separate task.
#[derive(Debug)]
pub(super) struct Retry {
    cell: CellId,
    rows: Vec<NodeRow>,
}

impl Queues {
    /// Handles a failed row of an ordinary task, and returns the nodes of its subgraph that were submitted because of
    /// it. These are void.
    pub(in crate::cells) fn take_back(&mut self, row: &NodeRow) -> Vec<u32> {
        self.change(row.subgraph, |subgraph| {
            subgraph.retried += 1;
            subgraph.nodes.take_back(row.last())
        })
    }

    /// Queues rows that failed together as two retries, or a single row as one.
    pub(in crate::cells) fn halve(&mut self, cell: CellId, rows: &[NodeRow]) {
        let (first, second) = rows.split_at(rows.len().div_ceil(2));
        for half in [first, second].into_iter().filter(|half| !half.is_empty()) {
            self.retries.push_back(Retry { cell, rows: half.to_vec() });
        }
    }

    /// Returns the type of the oldest retry that a lane may run.
    pub(in crate::cells) fn first_retry(&self, lane: LaneId) -> Option<CellId> {
        self.retries.iter().find(|retry| self.may_run(retry, lane)).map(|retry| retry.cell)
    }

    /// Whether a lane may run a retry of this type.
    pub(in crate::cells) fn has_retry(&self, cell: CellId, lane: LaneId) -> bool {
        self.retry_of(cell, lane).is_some()
    }

    fn retry_of(&self, cell: CellId, lane: LaneId) -> Option<usize> {
        self.retries.iter().position(|retry| retry.cell == cell && self.may_run(retry, lane))
    }

    fn may_run(&self, retry: &Retry, lane: LaneId) -> bool {
        let pins = retry.rows.iter().map(|row| self.subgraphs[row.subgraph as usize].pinned);
        pins.into_iter().all(|pinned| pinned.is_none_or(|pinned| pinned == lane))
    }

    /// Takes the oldest retry of a type that a lane may run.
    pub(in crate::cells) fn launch_retry(&mut self, cell: CellId, lane: LaneId) -> Option<Vec<NodeRow>> {
        let at = self.retry_of(cell, lane)?;
        let rows = self.retries.remove(at)?.rows;
        let queue = &mut self.queues[usize::from(cell.0)];
        queue.running += 1;
        for of_subgraph in rows.chunk_by(|one, other| one.subgraph == other.subgraph) {
            let subgraph = &mut self.subgraphs[of_subgraph[0].subgraph as usize];
            subgraph.tasks += 1;
            queue.count(subgraph, Some(lane));
        }
        Some(rows)
    }

    /// Handles a row that need not run again, because it succeeded in a retry or is void: nodes that wait for it may go
    /// on.
    pub(in crate::cells) fn ran_again(&mut self, row: &NodeRow) {
        self.change(row.subgraph, |subgraph| {
            subgraph.retried -= 1;
            subgraph.nodes.release_parents(row.node);
        });
    }

    /// Ends the loop of a subgraph by an outcome. Steps beyond it that were launched ahead and failed do not run again.
    pub(in crate::cells) fn end_loop(&mut self, ix: SubgraphIx) {
        let forgotten = self.forget_retries(|row| row.subgraph == ix).len() as u32;
        self.change(ix, |subgraph| {
            subgraph.retried -= forgotten;
            subgraph.nodes.end();
        });
    }

    /// Drops and returns rows that wait to run again.
    pub(in crate::cells) fn forget_retries(&mut self, is_over: impl Fn(&NodeRow) -> bool) -> Vec<NodeRow> {
        let mut forgotten = Vec::new();
        self.retries.retain_mut(|retry| {
            forgotten.extend(retry.rows.extract_if(.., |row| is_over(row)));
            !retry.rows.is_empty()
        });
        forgotten
    }

    /// Returns the rows that wait to run again.
    pub(in crate::cells) fn retries(&self) -> impl Iterator<Item = &NodeRow> {
        self.retries.iter().flat_map(|retry| &retry.rows)
    }

    /// Checks that each row to run again is in exactly one retry, waiting or among those `in_flight`, and that its
    /// subgraph counts it.
    pub(super) fn check_retries<'a>(&self, in_flight: impl Iterator<Item = &'a NodeRow>) -> Result<(), String> {
        let mut of_subgraph: BTreeMap<SubgraphIx, u32> = BTreeMap::new();
        for retry in &self.retries {
            let (rows, most) = (retry.rows.len(), self.queues[usize::from(retry.cell.0)].knobs.max_rows);
            let fits = (1..=most as usize).contains(&rows);
            hold!(fits, "{rows} rows of cell {} are to run again, of at most {most}", retry.cell.0);
            let void = retry.rows.iter().find(|row| row.is_void || !self.holds(row.subgraph));
            hold!(void.is_none(), "{void:?} is to run again, though no node waits for it");
        }
        let waiting = self.retries.iter().flat_map(|retry| &retry.rows).map(|row| row.subgraph);
        let in_flight = in_flight.filter(|row| !row.is_void).map(|row| row.subgraph);
        for subgraph in waiting.chain(in_flight) {
            *of_subgraph.entry(subgraph).or_default() += 1;
        }
        for (ix, subgraph) in self.subgraphs.iter().filter(|(_, subgraph)| !subgraph.dropped) {
            let there = of_subgraph.get(&(ix as SubgraphIx)).copied().unwrap_or_default();
            let counted = subgraph.retried;
            hold!(there == counted, "subgraph {ix} counts {counted} rows that run again, of {there}");
        }
        Ok(())
    }
}

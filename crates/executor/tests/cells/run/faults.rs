//! The faults of a run: tasks at random, tasks with a bad node, lanes.

use std::cmp::Reverse;

use paternoster_batching::{Event, LaneId, RowSpan, Task};

use super::{Due, Flying, Run};

impl Run {
    /// Returns whether a task fails, at random or because of a bad node.
    pub(super) fn fails(&mut self, task: &Task) -> bool {
        let is_bad = |row: &RowSpan| {
            self.known[&row.req.0].asked.bad.is_some_and(|bad| (row.start..row.start + row.count).contains(&bad))
        };
        let bad = task.rows.iter().any(is_bad);
        self.rare.bad_nodes += u64::from(bad && task.rows.len() == 1);
        self.rng.permille(self.world.failing) || bad
    }

    /// Handles a failed task, of which these nodes count. Nothing may read what it has not written.
    pub(super) fn run_again(&mut self, task: &Task, nodes: &[RowSpan]) {
        if let ([row], 1) = (nodes, task.rows.len())
            && let Some(known) = self.known.get_mut(&row.req.0)
        {
            known.may_fail = true;
            known.is_masked = true;
            return;
        }
        let known = &self.known;
        let depends =
            |req: u64, node: u32| nodes.iter().any(|on| on.req.0 == req && known[&req].asked.depends(node, on.start));
        // A node that was refused while one was running that it depends on runs in its turn if that one fails.
        self.rare.refused_ahead_of_a_failure += u64::from(self.again.forget(depends));
        let again: Vec<(u64, u32)> = nodes.iter().map(|row| (row.req.0, row.start)).collect();
        self.again.failed(task.id, &again);
        for flying in self.lanes.values_mut().flatten() {
            for (at, row) in flying.task.rows.iter().enumerate() {
                if depends(row.req.0, row.start) && flying.void.insert(at) {
                    self.rare.void_rows += 1;
                    self.rare.refused_ahead_of_a_failure += u64::from(flying.is_retry);
                }
            }
        }
    }

    /// Returns whether the outcome of a row counts. Rows beyond the end of a loop, and rows of requests that have
    /// ended, do not.
    pub(super) fn counts(&self, row: &RowSpan) -> bool {
        self.known[&row.req.0].end.is_none() && !self.is_past_the_end(row)
    }

    /// The device refuses the task that it was given last. It fails at once, before the tasks ahead of it on its lane.
    /// The last of these may fail too.
    pub(super) fn refuse_a_launch(&mut self) -> Result<(), String> {
        if !self.rng.permille(4 * self.world.failing) {
            return Ok(());
        }
        let Some(queue) = self.lanes.values_mut().find(|queue| queue.len() > 1) else { return Ok(()) };
        let Some(Flying { task, void, .. }) = queue.pop_back() else { return Ok(()) };
        let fails = self.rng.below(2) == 0;
        queue.iter_mut().last().into_iter().for_each(|ahead| ahead.fails |= fails);
        self.rare.refused_behind_others += 1;
        let rows = task.rows.iter().enumerate();
        let count = rows.filter(|(at, row)| !void.contains(at) && self.counts(row)).map(|(_, row)| *row);
        let count: Vec<RowSpan> = count.collect();
        self.release(&task);
        self.run_again(&task, &count);
        self.act(Event::Failed { task: task.id })
    }

    pub(super) fn lose_a_lane(&mut self) -> Result<(), String> {
        if !self.rng.permille(self.world.losing_lanes) || self.lanes.len() < 2 {
            return Ok(());
        }
        let at = self.rng.below(self.lanes.len() as u64) as usize;
        let Some((&lane, _)) = self.lanes.iter().nth(at) else { return Ok(()) };
        let lost = self.lanes.remove(&lane).unwrap_or_default();
        self.rare.lanes_lost += u64::from(!lost.is_empty());
        for flying in &lost {
            if flying.writes.is_some() {
                for row in &flying.task.rows {
                    let key = self.written(row);
                    self.writing.remove(&key);
                }
            }
            for (at, row) in flying.task.rows.iter().enumerate() {
                let counts = !self.is_past_the_end(row) && !flying.void.contains(&at);
                if let Some(known) = self.known.get_mut(&row.req.0).filter(|_| counts) {
                    (known.is_masked, known.may_fail) = (true, true);
                }
            }
            self.release(&flying.task);
        }
        let back = self.now + 1 + self.rng.exponential(1_000);
        self.due.push(Reverse((back, Due::LaneBack(lane))));
        self.act(Event::LaneLost(LaneId(lane)))
    }
}

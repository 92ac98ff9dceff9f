//! Nodes of failed tasks that must run again, and which of them may share a task.

use std::collections::BTreeMap;

use paternoster_batching::{Task, TaskId};

/// For each request and node, the failed task, and the maximum rows of the task in which it runs next.
#[derive(Debug, Default)]
pub(super) struct Again(BTreeMap<(u64, u32), (TaskId, usize)>);

impl Again {
    /// Records a failed task, of which these nodes count.
    pub(super) fn failed(&mut self, task: TaskId, nodes: &[(u64, u32)]) {
        let most = nodes.len().div_ceil(2);
        self.0.extend(nodes.iter().map(|node| (*node, (task, most))));
    }

    /// Returns whether a launched task retries nodes. If it does, all its nodes must be of one failed task, and at most
    /// half of that task's rows.
    pub(super) fn launched(&mut self, task: &Task) -> Result<bool, String> {
        let of = task.rows.iter().map(|row| self.0.remove(&(row.req.0, row.start)));
        let of: Vec<Option<(TaskId, usize)>> = of.collect();
        let first = of.first().copied().flatten();
        if of.iter().any(|own| *own != first) {
            return Err(format!("{task:?} runs nodes again, and not by themselves: {of:?}"));
        }
        match first {
            Some((failed, most)) if of.len() > most => {
                Err(format!("{:?} runs {} nodes of {failed:?} again, of at most {most}", task.id, of.len()))
            }
            first => Ok(first.is_some()),
        }
    }

    /// Forgets nodes that need not run again. Returns whether there were any.
    pub(super) fn forget(&mut self, is_over: impl Fn(u64, u32) -> bool) -> bool {
        let before = self.0.len();
        self.0.retain(|(req, node), _| !is_over(*req, *node));
        self.0.len() < before
    }
}

//! Nodes of failed tasks that are to run again: with whom they may.

use std::collections::BTreeMap;

use paternoster::batching::{ReqId, Task, TaskId};

/// By request and node: the task that failed, and the most rows of the task in which it runs next.
#[derive(Debug, Default)]
pub(super) struct Again(BTreeMap<(u64, u32), (TaskId, usize)>);

impl Again {
    /// A task has failed of which these nodes count.
    pub(super) fn failed(&mut self, task: TaskId, nodes: &[(u64, u32)]) {
        let most = nodes.len().div_ceil(2);
        self.0.extend(nodes.iter().map(|node| (*node, (task, most))));
    }

    /// Whether a task that is launched runs nodes again: all of them, then, of one task that failed, and half of its
    /// rows at most.
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

    /// A request has ended; whether nodes of it were to run again.
    pub(super) fn ended(&mut self, req: ReqId) -> bool {
        let before = self.0.len();
        self.0.retain(|(own, _), _| *own != req.0);
        self.0.len() < before
    }
}

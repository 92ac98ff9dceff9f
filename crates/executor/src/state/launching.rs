//! Tasks of the core made into jobs of the device.

use std::sync::Arc;

use paternoster_batching::{Instant, Task, TaskId};
use paternoster_observe::timeline::{TaskLaunch, TaskRows};

use super::{Effects, State};
use crate::{
    backend::Order,
    job::{ForeignMember, Job, Member},
    version::longer,
    watch::InFlightTask,
};

impl State {
    /// Hands a task of the core to the device.
    pub(super) fn launch(&mut self, now: Instant, task: Task, after: &mut Effects) {
        let Some(version) = self.models.get(&task.model) else { return };
        let model = Arc::clone(&version.loaded);
        let mut members = Vec::with_capacity(task.rows.len());
        let mut limit_ns = model.limit_ns;
        for &span in &task.rows {
            let Some(record) = self.record(span.req) else { continue };
            record.observed.launched(&record.handle.observed);
            let (payload, unfolded_state) = (Arc::clone(&record.payload), record.unfolded_state.clone());
            let of_other = record.handle.id != task.model;
            let cell = unfolded_state.as_ref().and_then(|unfolded_state| unfolded_state.cell(span.start));
            let is_own = !of_other && cell.is_none_or(|cell| cell == usize::from(task.cell.0));
            let guest = (!is_own).then(|| ForeignMember::new(record.handle.stats(), cell.unwrap_or_default()));
            if of_other {
                limit_ns = longer(limit_ns, record.handle.loaded.limit_ns);
            }
            members.push(Member { span, payload, unfolded_state, step: record.step, guest });
        }
        let flight =
            InFlightTask { task: task.id, loaded: Arc::clone(&model), stage: task.cell.0, since: now, limit_ns };
        let (stop, check_at) = self.watch.launched(task.lane, flight, task.rows.iter().map(|span| span.req));
        after.watch_at = check_at.or(after.watch_at);
        self.record_launch(now, &task);
        after.orders.push(Order::Run(Job { task, model, members, stop }));
    }

    fn record_launch(&self, now: Instant, task: &Task) {
        let launch = TaskLaunch {
            task: self.task_number(task.id),
            model: task.model.0,
            stage: task.cell.0,
            lane: self.numbers.first_lane + task.lane.0,
            batch: task.batch,
            bucket_rows: task.bucket.rows,
            lengths: &task.bucket.class.0,
        };
        let rows = task.rows.iter().map(|span| TaskRows {
            req: span.req.0,
            start: span.start,
            count: span.rows(),
            at: span.at,
        });
        self.timeline.launched(now.as_ns(), &launch, rows);
    }

    /// Returns a task's number in the pool.
    pub(super) fn task_number(&self, task: TaskId) -> u64 {
        task.0 * self.numbers.shards as u64 + self.numbers.shard as u64
    }
}

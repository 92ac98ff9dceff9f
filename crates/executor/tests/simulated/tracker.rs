//! Recognises rare events from outside the core: which requests share batches, which joined which, what was split.

use std::collections::BTreeMap;

use paternoster_batching::{End, LaneId, ModelId, ReqId, Task};

use super::rare::Rare;

/// A batch, as far as its tasks show it.
#[derive(Clone, Debug, Default)]
struct Travelling {
    /// Requests that have not ended.
    members: Vec<ReqId>,
    /// Requests that joined a running batch and have not caught up.
    newcomers: Vec<Newcomers>,
    /// The lane of its last task.
    lane: Option<LaneId>,
    /// If it was split: whether a new batch has been formed since.
    split: Option<bool>,
}

#[derive(Clone, Debug)]
struct Newcomers {
    live: Vec<ReqId>,
    cancelled: u32,
    others_ended: bool,
}

/// The running batches.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tracker {
    batches: BTreeMap<(ModelId, u64), Travelling>,
    of: BTreeMap<ReqId, (ModelId, u64)>,
}

impl Tracker {
    /// Records a launch; `split` says whether batches of its model were split in the same step.
    pub(crate) fn launched(&mut self, task: &Task, split: bool, rare: &mut Rare) {
        let key = (task.model, task.batch);
        if !self.batches.contains_key(&key) {
            let own = self.batches.range_mut((task.model, 0)..=(task.model, u64::MAX));
            own.filter_map(|(_, other)| other.split.as_mut()).for_each(|new_since| *new_since = true);
        }
        let batch = self.batches.entry(key).or_default();
        rare.lane_changes += u64::from(batch.lane.replace(task.lane).is_some_and(|lane| lane != task.lane));
        let old = !batch.members.is_empty();
        let mut joining = Vec::new();
        for span in &task.rows {
            if !batch.members.contains(&span.req) {
                batch.members.push(span.req);
                joining.push(span.req);
            }
            self.of.insert(span.req, key);
        }
        if old && task.cell.0 == 0 && !joining.is_empty() {
            batch.newcomers.push(Newcomers { live: joining, cancelled: 0, others_ended: false });
        } else {
            let aboard = |req: &ReqId| task.rows.iter().any(|span| span.req == *req);
            let apart = |group: &Newcomers| {
                !group.live.iter().any(aboard) || task.rows.iter().all(|span| group.live.contains(&span.req))
            };
            batch.newcomers.retain(apart);
        }
        if batch.split == Some(true) {
            rare.split_then_new += 1;
            batch.split = None;
        }
        if split {
            batch.split = batch.split.or(Some(false));
        }
    }

    /// Records the end of a request.
    pub(crate) fn ended(&mut self, req: ReqId, end: End, rare: &mut Rare) {
        let Some(key) = self.of.remove(&req) else { return };
        let Some(batch) = self.batches.get_mut(&key) else { return };
        batch.members.retain(|member| *member != req);
        let others = batch.members.len();
        batch.newcomers.retain_mut(|group| {
            let before = group.live.len();
            group.live.retain(|newcomer| *newcomer != req);
            if group.live.len() < before {
                group.cancelled += u32::from(end == End::Cancelled);
                group.others_ended |= end != End::Cancelled;
            }
            if group.live.is_empty() {
                rare.newcomers_cancelled += u64::from(others > 0 && !group.others_ended && group.cancelled > 0);
            }
            !group.live.is_empty()
        });
        if batch.members.is_empty() {
            self.batches.remove(&key);
        }
    }

    /// Records that a task failed or was lost. Returns whether older rows wait for its rows.
    pub(crate) fn failed(&mut self, task: &Task) -> bool {
        let Some(batch) = self.batches.get_mut(&(task.model, task.batch)) else { return false };
        let inside = |req: &ReqId| task.rows.iter().any(|span| span.req == *req);
        let awaited = batch.newcomers.iter().any(|group| group.live.iter().any(inside))
            && batch.members.iter().any(|member| !inside(member));
        batch.newcomers.retain(|group| !group.live.iter().any(inside));
        batch.members.retain(|member| !inside(member));
        awaited
    }

    /// Returns one group of requests that joined a running batch and have yet to catch up.
    pub(crate) fn newcomers(&self) -> Option<&[ReqId]> {
        let mut groups = self.batches.values().flat_map(|batch| &batch.newcomers);
        groups.next_back().map(|group| group.live.as_slice())
    }

    /// Returns whether a task runs newcomers that have all ended.
    pub(crate) fn is_void(&self, task: &Task) -> bool {
        let key = (task.model, task.batch);
        let old = self.batches.get(&key).is_some_and(|batch| !batch.members.is_empty());
        task.cell.0 == 0 && old && task.rows.iter().all(|span| self.of.get(&span.req) != Some(&key))
    }
}

//! Recognises rare events from outside the core: which requests share batches, which joined which, what was split.

use std::collections::BTreeMap;

use super::counts::Counts;

/// A device, a model of it, and a batch of the model.
type BatchKey = (usize, u32, u64);

/// A task of a stage, with the requests of its rows.
#[derive(Clone, Debug)]
pub(super) struct Launch {
    pub(super) batch: BatchKey,
    pub(super) lane: u16,
    pub(super) stage: u16,
    pub(super) requests: Vec<u64>,
}

/// A batch, as far as its tasks show it.
#[derive(Debug, Default)]
struct Travelling {
    /// Requests that have not ended.
    members: Vec<u64>,
    /// Requests that joined a running batch and have not caught up.
    newcomers: Vec<Newcomers>,
    /// The lane of its last task.
    lane: Option<u16>,
    /// If it was split: whether a new batch has been formed since.
    split: Option<bool>,
}

#[derive(Debug)]
struct Newcomers {
    live: Vec<u64>,
    cancelled: u32,
    others_ended: bool,
}

/// The running batches.
#[derive(Debug, Default)]
pub(super) struct Tracker {
    batches: BTreeMap<BatchKey, Travelling>,
    of: BTreeMap<u64, BatchKey>,
}

impl Tracker {
    /// Records a launch; `split` says whether batches of its model were split in the same step.
    pub(super) fn launched(&mut self, launch: &Launch, split: bool, counts: &mut Counts) {
        let key @ (shard, model, _) = launch.batch;
        if !self.batches.contains_key(&key) {
            let own = self.batches.range_mut((shard, model, 0)..=(shard, model, u64::MAX));
            own.filter_map(|(_, other)| other.split.as_mut()).for_each(|new_since| *new_since = true);
        }
        let batch = self.batches.entry(key).or_default();
        counts.lane_changes += u64::from(batch.lane.replace(launch.lane).is_some_and(|lane| lane != launch.lane));
        let old = !batch.members.is_empty();
        let mut joining = Vec::new();
        for &request in &launch.requests {
            if !batch.members.contains(&request) {
                batch.members.push(request);
                joining.push(request);
            }
            self.of.insert(request, key);
        }
        if old && launch.stage == 0 && !joining.is_empty() {
            batch.newcomers.push(Newcomers { live: joining, cancelled: 0, others_ended: false });
        } else {
            let aboard = |request: &u64| launch.requests.contains(request);
            let apart = |group: &Newcomers| {
                !group.live.iter().any(aboard) || launch.requests.iter().all(|request| group.live.contains(request))
            };
            batch.newcomers.retain(apart);
        }
        if batch.split == Some(true) {
            counts.split_then_new += 1;
            batch.split = None;
        }
        if split {
            batch.split = batch.split.or(Some(false));
        }
    }

    /// Records the end of a request.
    pub(super) fn ended(&mut self, request: u64, is_cancelled: bool, counts: &mut Counts) {
        let Some(key) = self.of.remove(&request) else { return };
        let Some(batch) = self.batches.get_mut(&key) else { return };
        batch.members.retain(|member| *member != request);
        let others = batch.members.len();
        batch.newcomers.retain_mut(|group| {
            let before = group.live.len();
            group.live.retain(|newcomer| *newcomer != request);
            if group.live.len() < before {
                group.cancelled += u32::from(is_cancelled);
                group.others_ended |= !is_cancelled;
            }
            if group.live.is_empty() {
                counts.newcomers_cancelled += u64::from(others > 0 && !group.others_ended && group.cancelled > 0);
            }
            !group.live.is_empty()
        });
        if batch.members.is_empty() {
            self.batches.remove(&key);
        }
    }

    /// Records that a task failed or was lost. Returns whether older rows wait for its rows.
    pub(super) fn failed(&mut self, launch: &Launch) -> bool {
        let Some(batch) = self.batches.get_mut(&launch.batch) else { return false };
        let inside = |request: &u64| launch.requests.contains(request);
        let awaited = batch.newcomers.iter().any(|group| group.live.iter().any(inside))
            && batch.members.iter().any(|member| !inside(member));
        batch.newcomers.retain(|group| !group.live.iter().any(inside));
        batch.members.retain(|member| !inside(member));
        awaited
    }

    /// Returns one group of requests that joined a running batch and have yet to catch up.
    pub(super) fn newcomers(&self) -> Option<&[u64]> {
        let mut groups = self.batches.values().flat_map(|batch| &batch.newcomers);
        groups.next_back().map(|group| group.live.as_slice())
    }

    /// Returns whether a task runs newcomers that have all ended.
    pub(super) fn is_void(&self, launch: &Launch) -> bool {
        let old = self.batches.get(&launch.batch).is_some_and(|batch| !batch.members.is_empty());
        launch.stage == 0 && old && launch.requests.iter().all(|request| self.of.get(request) != Some(&launch.batch))
    }
}

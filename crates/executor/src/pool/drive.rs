//! Drives the core of a shard: a change under its lock, followed by everything that the change requires outside it,
//! namely launches, the alarm, responses, drops, and requests that move to another shard.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, atomic::Ordering},
};

use paternoster_batching::{Event, Instant, router::Move};
use paternoster_observe::LaneCounts;
use tracing::error;

use super::{Pool, shard::Shard};
use crate::{
    InferError,
    backend::Reports,
    job::Outputs,
    job::{Finished, Job},
    state::{Effects, Replacement, State, Unplaced},
};

impl Pool {
    /// Handles the alarm for the core, the watch and delayed requests. Each sets its next alarm.
    pub(crate) fn ring(self: &Arc<Self>, shard: &Shard) {
        self.drive(shard, |state, now, after| {
            state.step(now, Event::Wake, after);
            state.look_at_lanes(now, after);
            state.end_delays(now, after);
        });
    }

    /// Runs `change` under the shard's lock, and then carries out its results. Returns `None` if it panics, which ends
    /// the pool.
    pub(crate) fn drive<R>(
        self: &Arc<Self>,
        shard: &Shard,
        change: impl FnOnce(&mut State, Instant, &mut Effects) -> R,
    ) -> Option<R> {
        let (result, after) = self.change(shard, change)?;
        self.guarded(|| self.settle(shard, after))?;
        Some(result)
    }

    /// Runs `change` under the shard's lock. The results must be passed to [`settle`](Self::settle).
    pub(super) fn change<R>(
        &self,
        shard: &Shard,
        change: impl FnOnce(&mut State, Instant, &mut Effects) -> R,
    ) -> Option<(R, Effects)> {
        let mut after = Effects::default();
        let mut state = shard.state.lock();
        let started = self.now();
        let result = catch_unwind(AssertUnwindSafe(|| {
            let result = change(&mut state, started, &mut after);
            if self.shards.len() > 1 {
                self.router.publish(shard.number, state.load());
            }
            result
        }));
        // Before another thread can see inconsistent state.
        let result = result.map_err(|panic| {
            self.stopped.store(true, Ordering::Release);
            (panic, state.stop())
        });
        if result.is_ok() {
            after.has_ordered = !after.orders.is_empty();
            shard.queue(&mut after.orders);
        }
        drop(state);
        self.stats.stepped(self.now().since(started));
        match result {
            Ok(result) => Some((result, after)),
            Err((panic, remains)) => {
                self.fail(&*panic, remains, after);
                None
            }
        }
    }

    /// Launches tasks, sets the alarm, sends responses and drops requests; then moves requests to a shard where they
    /// wait less.
    pub(super) fn settle(self: &Arc<Self>, shard: &Shard, after: Effects) {
        self.apply_effects(shard, after);
        if self.shards.len() > 1
            && let Some(Move { from, to }) = self.router.rebalance(shard.number)
        {
            self.rebalance(&self.shards[from], &self.shards[to]);
        }
    }

    fn apply_effects(self: &Arc<Self>, shard: &Shard, after: Effects) {
        // First, so that devices start to work before anything else is done.
        if after.has_ordered {
            shard.issue(self);
        }
        if let Some(at) = [after.wake_at, after.watch_at, after.resume_at].into_iter().flatten().min() {
            shard.timer.set(self.clock.std_time(at));
        }
        let now = self.now();
        for incident in &after.incidents {
            incident.report(now, shard.number);
        }
        if after.lanes_changed || !after.incidents.is_empty() {
            self.publish_lanes(after.incidents.len() as u64);
        }
        for (record, end) in after.ended {
            record.finish(end, now);
        }
        for (record, error) in after.refused {
            record.refuse(error, now);
        }
        // Dropped here, outside of the shard's lock, because destructors may be slow.
        drop(after.dropped);
        drop(after.forgotten);
        self.wake_for_units(after.units_freed);
        for replacement in after.replacements {
            self.replace(shard, replacement);
        }
    }

    /// Moves waiting requests that have not boarded from one shard to another.
    fn rebalance(self: &Arc<Self>, from: &Shard, to: &Shard) {
        let recalled = self.change(from, |state, now, after| state.step(now, Event::Recall, after));
        let Some(((), mut after)) = recalled else { return };
        let recalled = std::mem::take(&mut after.recalled);
        self.apply_effects(from, after);
        if !recalled.is_empty() {
            self.stats.moved(recalled.len() as u64);
            self.take_in(to, recalled);
        }
    }

    /// Passes requests that left one shard to another. Requests whose tensors are in a card's memory go to that card.
    /// If the shard is lost meanwhile, requests go to the one with the least work.
    pub(super) fn take_in(self: &Arc<Self>, to: &Shard, recalled: Vec<Unplaced>) {
        let is_elsewhere =
            |recalled: &Unplaced| recalled.card().is_some_and(|card| self.kinds[to.number].card() != Some(card));
        let (bound, recalled): (Vec<_>, Vec<_>) = recalled.into_iter().partition(is_elsewhere);
        for recalled in bound {
            let is_home = |&shard: &usize| self.kinds[shard].card() == recalled.card();
            match self.router.least((0..self.shards.len()).filter(is_home)) {
                Some(home) => self.take_in(&self.shards[home], vec![recalled]),
                None => recalled.record.refuse(InferError::DeviceLost, self.now()),
            }
        }
        let mut next = Some((to, recalled)).filter(|(_, recalled)| !recalled.is_empty());
        while let Some((to, recalled)) = next.take() {
            let Some((refused, after)) = self.change(to, |state, now, after| state.take_in(now, recalled, after))
            else {
                return;
            };
            self.apply_effects(to, after);
            if refused.is_empty() {
                return;
            }
            match self.router.least(self.router.group_of(to.number)).filter(|_| !self.is_stopped()) {
                Some(least) if refused.iter().any(|recalled| recalled.card().is_some()) => {
                    return self.take_in(&self.shards[least], refused);
                }
                Some(least) => next = Some((&self.shards[least], refused)),
                None => self.refuse_all(refused),
            }
        }
    }

    fn refuse_all(&self, recalled: Vec<Unplaced>) {
        let (error, now) = (self.refusal(), self.now());
        recalled.into_iter().for_each(|recalled| recalled.record.refuse(error.clone(), now));
    }

    /// Takes a lost device out of service permanently. The requests that it ran fail, those that waited there move to
    /// other devices, and it gets no further requests.
    pub fn lose_device(self: &Arc<Self>, device: usize) {
        let Some(shard) = self.shards.get(device) else { return };
        error!(device, "device taken out of service");
        self.router.lose(device);
        let lost = self.change(shard, |state, now, after| state.device_lost(now, after));
        let Some(((), mut after)) = lost else { return };
        let recalled = std::mem::take(&mut after.recalled);
        self.apply_effects(shard, after);
        self.responsiveness.send_modify(|known| {
            known.changes += 1;
            known.lost_devices = self.router.lost() as u64;
        });
        match self.router.least(self.router.group_of(device)) {
            _ if recalled.is_empty() => {}
            Some(least) => self.take_in(&self.shards[least], recalled),
            None => {
                let now = self.now();
                recalled.into_iter().for_each(|recalled| recalled.record.refuse(InferError::DeviceLost, now));
            }
        }
    }

    /// Publishes the lanes' counts, and that `changes` changes may have affected readiness.
    fn publish_lanes(&self, changes: u64) {
        self.responsiveness.send_if_modified(|known| {
            // Under the channel's lock, so that the value published last is the latest.
            let counts: LaneCounts = self.shards.iter().map(|shard| shard.state.lock().lane_counts()).sum();
            known.changes += changes;
            known.stuck_lanes = counts.stuck;
            self.stats.set_lanes(counts);
            changes > 0
        });
    }

    /// Gives a lane a new thread, so that it continues without its task.
    fn replace(self: &Arc<Self>, shard: &Shard, replacement: Replacement) {
        let lane = replacement.lane;
        match shard.backend.leave_behind(lane, replacement.flight.task) {
            Ok(()) => _ = self.drive(shard, |state, now, after| state.lane_up(now, lane, after)),
            Err(error) => {
                error!(device = shard.number, lane = lane.0, %error, "the lane cannot continue");
                self.drive(shard, |state, now, after| state.lane_not_replaced(now, replacement, after));
            }
        }
    }
}

impl Reports for Pool {
    fn now(&self) -> Instant {
        Self::now(self)
    }

    fn begins(&self) -> Instant {
        self.stats.task_started();
        self.now()
    }

    fn completed(self: Arc<Self>, shard: usize, began: Option<Instant>, job: &Job, finished: Finished) {
        if began.is_some() {
            self.stats.task_ended();
        }
        if let Finished::Completed(output) = &finished {
            job.count_execution(output);
        }
        self.guarded(|| {
            self.drive(&self.shards[shard], |state, now, after| {
                state.finish(began.unwrap_or(now), now, job, finished, after);
            });
        });
    }

    fn lost(self: Arc<Self>, shard: usize, reason: &str) {
        error!(device = shard, reason, "device stopped responding");
        self.guarded(|| self.lose_device(shard));
    }

    fn taken(self: Arc<Self>, shard: usize, job: &Job, outputs: Result<Outputs, String>) {
        self.guarded(|| {
            self.drive(&self.shards[shard], |state, now, after| state.taken(now, job, outputs, after));
        });
    }
}

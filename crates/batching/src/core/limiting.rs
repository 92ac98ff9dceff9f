//! The rate limiter's part in a step. A group takes units with a lane; if they lack, it leaves the lane to others and
//! gets the next lane once its units are there. Units of a task return when it ends or its lane is lost.

use std::{mem, sync::Arc};

use smallvec::SmallVec;

use super::Core;
use crate::{
    Action, Actions, Instant, LaneId, ModelId, TaskId,
    group::VersionScheduler,
    ids::{GroupIx, InstanceIx},
    rate_limiter::{Claim, RateLimiter, TaskLimits, Wakes},
};

/// The rate limiter as one core sees it.
#[derive(Debug, Default)]
pub(crate) struct Limiting {
    /// The limiter, and the number of this core; `None`: tasks need no units.
    shared: Option<(Arc<RateLimiter>, usize)>,
    /// Units of tasks in flight.
    holdings: Vec<Holding>,
    /// Groups whose tasks have given back units since groups were last called.
    released: SmallVec<[GroupIx; 1]>,
    /// Whether the limiter may have called groups of this core that do not know it yet.
    has_calls: bool,
    /// Groups that were called since lanes were last given out.
    resumed: SmallVec<[GroupIx; 4]>,
    /// Other cores with groups that may run now.
    wakes: Wakes,
}

/// The units of one task.
#[derive(Debug)]
struct Holding {
    task: TaskId,
    lane: LaneId,
    group: GroupIx,
    instance: InstanceIx,
}

/// Whether nodes of a version may run in a task of another one: they need nothing that the task does not hold.
pub(crate) fn may_join(leader: &VersionScheduler, guest: &VersionScheduler) -> bool {
    let Some(needed) = &guest.claim else { return true };
    leader.claim.as_ref().is_some_and(|held| held.needs == needed.needs)
}

impl Limiting {
    pub(crate) fn new(limiter: Arc<RateLimiter>, core: usize) -> Self {
        Self { shared: Some((limiter, core)), ..Self::default() }
    }

    /// Returns what the tasks of a version need.
    pub(crate) fn claim(&self, model: ModelId) -> Option<Claim> {
        let (limiter, core) = self.shared.as_ref()?;
        limiter.claim(model, *core)
    }

    /// Takes the units of one task; `None` if the group waits for them from now on.
    fn take(&self, claim: &mut Claim, now: Instant) -> Option<TaskLimits> {
        let Some((limiter, _)) = &self.shared else { return Some(TaskLimits::NONE) };
        let taken = limiter.take(claim.instance, now);
        claim.waits_at = taken.err();
        claim.has_yielded &= taken.is_err();
        taken.ok()
    }

    fn hold(&mut self, group: GroupIx, claim: &Claim, task: TaskId, lane: LaneId) {
        self.holdings.push(Holding { task, lane, group, instance: claim.instance });
    }

    fn decline(&mut self, claim: &Claim) {
        self.change(|limiter| limiter.decline(claim.instance));
    }

    /// Lets others have the units of a waiting group.
    fn yield_units(&mut self, claim: &mut Claim, now: Instant) {
        claim.has_yielded = true;
        self.change(|limiter| limiter.yield_units(claim.instance, now));
    }

    /// Removes a group from the order. Returns whether it was there.
    fn withdraw(&mut self, claim: &mut Claim, now: Instant) -> bool {
        claim.has_yielded = false;
        let waited = claim.waits_at.take().is_some();
        if waited {
            self.change(|limiter| limiter.withdraw(claim.instance, now));
        }
        waited
    }

    pub(crate) fn forget(&mut self, claim: &Claim, now: Instant) {
        self.change(|limiter| limiter.remove(claim.instance, now));
    }

    /// Gives back the units of tasks that have ended.
    fn release(&mut self, has_ended: impl Fn(&Holding) -> bool) {
        let Some((limiter, _)) = &self.shared else { return };
        for holding in self.holdings.extract_if(.., |holding| has_ended(holding)) {
            limiter.give_back(holding.instance);
            self.released.push(holding.group);
        }
    }

    /// Records that another core's step has called groups of this one.
    pub(super) fn note_calls(&mut self) {
        self.has_calls = true;
    }

    /// Applies a change to the limiter, and records which cores it calls.
    fn change(&mut self, change: impl FnOnce(&RateLimiter) -> Wakes) {
        let Some((limiter, this_core)) = &self.shared else { return };
        for core in change(limiter) {
            if core == *this_core {
                self.has_calls = true;
            } else if !self.wakes.contains(&core) {
                self.wakes.push(core);
            }
        }
    }

    /// Returns the tasks that hold units, with the instances.
    pub(super) fn holdings(&self) -> impl Iterator<Item = (TaskId, LaneId, InstanceIx)> + '_ {
        self.holdings.iter().map(|holding| (holding.task, holding.lane, holding.instance))
    }
}

impl Core {
    /// Takes the units for a task of a group that is offered a lane. `None`: they lack and the group waits for them, or
    /// it has nothing to run.
    pub(super) fn take_units(&mut self, group: GroupIx) -> Option<TaskLimits> {
        let entry = &mut self.groups[group];
        let wants_lane = entry.wants_lane();
        let Some(claim) = &mut entry.claim else { return Some(TaskLimits::NONE) };
        // Its last request may have ended while it was in the ring. It must not wait for what it does not need.
        if !wants_lane {
            return None;
        }
        let limits = self.limiting.take(claim, self.now);
        if limits.is_none() {
            self.arbiter.stall(group);
            // Otherwise it could miss the lane and the units by turns forever.
            if claim.has_yielded {
                self.arbiter.keep_lane(group, self.now);
            }
        }
        limits
    }

    /// Records that a task was launched with the units that were taken for it.
    pub(super) fn hold_units(&mut self, group: GroupIx, task: TaskId, lane: LaneId) {
        if let Some(claim) = &self.groups[group].claim {
            self.limiting.hold(group, claim, task, lane);
        }
    }

    /// Gives back the units that were taken for a group that launched nothing.
    pub(super) fn decline_units(&mut self, group: GroupIx) {
        if let Some(claim) = &self.groups[group].claim {
            self.limiting.decline(claim);
        }
    }

    /// Gives back the units of a task that has ended.
    pub(super) fn release_units(&mut self, task: TaskId) {
        self.limiting.release(|holding| holding.task == task);
    }

    /// Gives back the units of the tasks of a lost lane, as if they had ended. Without any lane left, the groups of
    /// this core let others have their units.
    pub(super) fn release_units_of_lane(&mut self, lane: LaneId) {
        self.limiting.release(|holding| holding.lane == lane);
        if self.arbiter.lanes().next().is_some() {
            return;
        }
        for (ix, group) in &mut self.groups {
            let Some(claim) = &mut group.claim else { continue };
            if let Some(tag) = claim.waits_at {
                self.limiting.yield_units(claim, self.now);
                self.arbiter.resume(ix, tag);
            }
        }
    }

    /// Removes a group that wants no lane from those that wait for units.
    pub(super) fn withdraw_units(&mut self, group: GroupIx) {
        let Some(claim) = &mut self.groups[group].claim else { return };
        if self.limiting.withdraw(claim, self.now) {
            self.arbiter.withdraw(group);
        }
    }

    /// Calls the groups that may run since units were given back, on all cores. Those that gave them back and want
    /// another task line up first, so that the places in the order decide, and not who waited already. Without any lane
    /// they would keep units from others.
    fn pass_on_units(&mut self) {
        let released = mem::take(&mut self.limiting.released);
        if released.is_empty() {
            return;
        }
        let Some((limiter, _)) = &self.limiting.shared else { return };
        let has_lanes = self.arbiter.lanes().next().is_some();
        for group in released {
            let entry = self.groups.get_mut(group).filter(|entry| has_lanes && entry.wants_lane());
            if let Some(claim) = entry.and_then(|entry| entry.claim.as_mut()).filter(|claim| claim.waits_at.is_none())
                && self.arbiter.waits(group).0
                && let Some(tag) = limiter.line_up(claim.instance, self.now)
            {
                claim.waits_at = Some(tag);
                self.arbiter.uncall(group);
                self.arbiter.stall(group);
            }
        }
        self.limiting.change(RateLimiter::call);
    }

    /// Puts the groups whose units are there now at the head of the ring, in the limiter's order: their turn had come
    /// before.
    pub(super) fn call_groups_with_units(&mut self) {
        self.pass_on_units();
        if !mem::take(&mut self.limiting.has_calls) {
            return;
        }
        let Some((limiter, _)) = &self.limiting.shared else { return };
        let stalled = self.arbiter.stalled();
        let called =
            limiter.called(stalled.filter_map(|group| Some((group, self.groups[group].claim.as_ref()?.instance))));
        for group in called {
            if let Some(tag) = self.groups[group].claim.as_ref().and_then(|claim| claim.waits_at) {
                self.arbiter.resume(group, tag);
                self.limiting.resumed.push(group);
            }
        }
    }

    /// Lets others have the units of groups that were called and got no lane. Returns whether that calls groups of this
    /// core.
    pub(super) fn yield_units(&mut self) -> bool {
        for group in mem::take(&mut self.limiting.resumed) {
            let claim = self.groups.get_mut(group).and_then(|entry| entry.claim.as_mut());
            if let Some(claim) = claim.filter(|claim| claim.waits_at.is_some())
                && !self.arbiter.is_stalled(group)
            {
                self.limiting.yield_units(claim, self.now);
            }
        }
        self.limiting.has_calls
    }

    /// Has the driver wake the cores whose groups may run now.
    pub(super) fn wake_cores(&mut self, actions: &mut Actions) {
        actions.extend(mem::take(&mut self.limiting.wakes).into_iter().map(|core| Action::UnitsFreed { core }));
    }
}

//! The rate limiter's part in a step. A group takes units with a lane; where they lack it steps aside, and gets the
//! next lane once they are there. Units of a task return when it ends or its lane is lost.

use std::sync::Arc;

use smallvec::SmallVec;

use super::Core;
use crate::{
    Action, Actions, LaneId, ModelId, Ns, TaskId,
    group::Group,
    ids::{GroupIx, InstanceIx},
    rate_limiter::{Claim, Place, RateLimiter, Room, Wakes},
};

/// The rate limiter as one core sees it.
#[derive(Debug, Default)]
pub(crate) struct Limiting {
    /// The limiter, and the number of this core; `None`: tasks need no units.
    shared: Option<(Arc<RateLimiter>, usize)>,
    /// Tasks that hold units.
    held: Vec<Held>,
    /// Other cores with groups that may run now.
    wakes: Wakes,
}

#[derive(Debug)]
struct Held {
    task: TaskId,
    lane: LaneId,
    instance: InstanceIx,
}

/// Whether nodes of a version may run in a task of another one: they need nothing that the task does not hold.
pub(crate) fn may_join(leader: &Group, guest: &Group) -> bool {
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
    fn take(&self, claim: &mut Claim, now: Ns) -> Option<Room> {
        let Some((limiter, _)) = &self.shared else { return Some(Room::UNLIMITED) };
        let room = limiter.take(claim.instance, now);
        claim.waits = room.is_none();
        room
    }

    fn hold(&mut self, claim: &Claim, task: TaskId, lane: LaneId) {
        self.held.push(Held { task, lane, instance: claim.instance });
    }

    fn decline(&mut self, claim: &Claim) {
        self.tell(|limiter| limiter.decline(claim.instance));
    }

    /// Removes a group from the order. Returns whether it was there.
    fn withdraw(&mut self, claim: &mut Claim, now: Ns) -> bool {
        let waited = std::mem::take(&mut claim.waits);
        if waited {
            self.tell(|limiter| limiter.withdraw(claim.instance, now));
        }
        waited
    }

    pub(crate) fn forget(&mut self, claim: &Claim, now: Ns) {
        self.tell(|limiter| limiter.remove(claim.instance, now));
    }

    /// Gives back the units of tasks that have ended.
    fn release(&mut self, has_ended: impl Fn(&Held) -> bool) {
        let ended: SmallVec<[Held; 1]> = self.held.extract_if(.., |held| has_ended(held)).collect();
        for held in ended {
            self.tell(|limiter| limiter.give_back(held.instance));
        }
    }

    fn called(&self, claim: &Claim) -> Option<Place> {
        let (limiter, _) = self.shared.as_ref()?;
        limiter.called(claim.instance)
    }

    fn tell(&mut self, change: impl FnOnce(&RateLimiter) -> Wakes) {
        let Some((limiter, own)) = &self.shared else { return };
        for core in change(limiter) {
            // This core looks at its own groups before it gives out its next lane.
            if core != *own && !self.wakes.contains(&core) {
                self.wakes.push(core);
            }
        }
    }

    /// Returns the tasks that hold units, with the instances.
    pub(super) fn held(&self) -> impl Iterator<Item = (TaskId, LaneId, InstanceIx)> + '_ {
        self.held.iter().map(|held| (held.task, held.lane, held.instance))
    }
}

impl Core {
    /// Takes the units for a task of a group that is offered a lane. `None`: they lack and the group steps aside, or it
    /// has nothing to run.
    pub(super) fn take_units(&mut self, group: GroupIx) -> Option<Room> {
        let entry = &mut self.groups[group];
        let wants_lane = entry.wants_lane();
        let Some(claim) = &mut entry.claim else { return Some(Room::UNLIMITED) };
        // Its last request may have ended while it was in the ring. It must not wait for what it does not need.
        if !wants_lane {
            return None;
        }
        let room = self.limiting.take(claim, self.now);
        if room.is_none() {
            self.arbiter.stall(group);
        }
        room
    }

    /// Records that a task was launched with the units that were taken for it.
    pub(super) fn hold_units(&mut self, group: GroupIx, task: TaskId, lane: LaneId) {
        if let Some(claim) = &self.groups[group].claim {
            self.limiting.hold(claim, task, lane);
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
        self.limiting.release(|held| held.task == task);
    }

    /// Gives back the units of the tasks of a lost lane, as if they had ended. Without any lane left, no group of this
    /// core keeps units from those of other cores.
    pub(super) fn release_units_of_lane(&mut self, lane: LaneId) {
        self.limiting.release(|held| held.lane == lane);
        if self.arbiter.lanes().next().is_some() {
            return;
        }
        for (ix, group) in &mut self.groups {
            let Some(claim) = &mut group.claim else { continue };
            if self.limiting.withdraw(claim, self.now) {
                self.arbiter.resume(ix);
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

    /// Puts the groups whose units are there now at the head of the ring, in the limiter's order: their turn had come
    /// before.
    pub(super) fn call_groups_with_units(&mut self) {
        if self.arbiter.stalled().next().is_none() {
            return;
        }
        let called = self.arbiter.stalled().filter_map(|group| {
            let claim = self.groups[group].claim.as_ref()?;
            Some((self.limiting.called(claim)?, group))
        });
        let mut called: SmallVec<[(Place, GroupIx); 4]> = called.collect();
        called.sort_unstable();
        called.into_iter().rev().for_each(|(_, group)| self.arbiter.resume(group));
    }

    /// Has the driver wake the cores whose groups may run now.
    pub(super) fn wake_cores(&mut self, actions: &mut Actions) {
        actions.extend(std::mem::take(&mut self.limiting.wakes).into_iter().map(|core| Action::UnitsFreed { core }));
    }
}

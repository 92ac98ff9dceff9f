//! The arbiter: which group gets the idle lane. Groups with work stand in a ring and take turns; one group does not get
//! the last lane while it holds all the others and another group waits.

use std::collections::{BTreeSet, VecDeque};

use super::{LaneId, Ns};

/// Index of a group in the core.
pub(super) type GroupIx = usize;

#[derive(Clone, Copy, Debug, Default)]
struct Standing {
    in_ring: bool,
    due: Option<Ns>,
}

/// Lanes, and the groups that wait for one or for a time.
#[derive(Debug, Default)]
pub(super) struct Arbiter {
    lanes: BTreeSet<LaneId>,
    idle: BTreeSet<LaneId>,
    ring: VecDeque<GroupIx>,
    /// Groups whose batch still waits for mates, by the time at which it goes without them.
    delays: BTreeSet<(Ns, GroupIx)>,
    standings: Vec<Standing>,
}

impl Arbiter {
    /// Takes a lane into service. A known lane is left as it is.
    pub(super) fn lane_up(&mut self, lane: LaneId) {
        if self.lanes.insert(lane) {
            self.idle.insert(lane);
        }
    }

    pub(super) fn lane_busy(&mut self, lane: LaneId) {
        self.idle.remove(&lane);
    }

    pub(super) fn lane_idle(&mut self, lane: LaneId) {
        self.idle.insert(lane);
    }

    pub(super) fn idle_lanes(&self) -> usize {
        self.idle.len()
    }

    pub(super) fn lanes(&self) -> usize {
        self.lanes.len()
    }

    /// Puts a group with work at the end of the ring, unless it stands there already.
    pub(super) fn call(&mut self, group: GroupIx) {
        if self.standings.len() <= group {
            self.standings.resize_with(group + 1, Standing::default);
        }
        let standing = &mut self.standings[group];
        if !std::mem::replace(&mut standing.in_ring, true) {
            self.ring.push_back(group);
        }
        if let Some(due) = standing.due.take() {
            self.delays.remove(&(due, group));
        }
    }

    /// Lets a group out of the ring wait until `due`.
    pub(super) fn defer(&mut self, group: GroupIx, due: Ns) {
        debug_assert!(!self.standings[group].in_ring, "a group waits for a lane or for a time");
        self.standings[group].due = Some(due);
        self.delays.insert((due, group));
    }

    /// Calls the groups whose time has come.
    pub(super) fn call_due(&mut self, now: Ns) {
        while let Some(&(due, group)) = self.delays.first() {
            if due > now {
                return;
            }
            self.call(group);
        }
    }

    /// When the next group's time comes.
    pub(super) fn earliest(&self) -> Option<Ns> {
        self.delays.first().map(|&(due, _)| due)
    }

    /// The idle lane and the group that may use it, which leaves the ring. `holds` tells how many lanes a group has.
    pub(super) fn grant(&mut self, holds: impl Fn(GroupIx) -> usize) -> Option<(LaneId, GroupIx)> {
        let lane = *self.idle.first()?;
        let mut group = self.ring.pop_front()?;
        let would_hold_all = self.lanes.len() > 1 && holds(group) + 1 == self.lanes.len();
        if would_hold_all && let Some(other) = self.ring.pop_front() {
            self.ring.push_back(group);
            group = other;
        }
        self.standings[group].in_ring = false;
        Some((lane, group))
    }

    pub(super) fn forget(&mut self, group: GroupIx) {
        let Some(standing) = self.standings.get_mut(group).map(std::mem::take) else { return };
        if standing.in_ring {
            self.ring.retain(|&other| other != group);
        }
        if let Some(due) = standing.due {
            self.delays.remove(&(due, group));
        }
    }

    pub(super) fn is_waiting(&self, group: GroupIx) -> Waiting {
        match self.standings.get(group) {
            Some(Standing { in_ring: true, .. }) => Waiting::ForLane,
            Some(Standing { due: Some(due), .. }) => Waiting::Until(*due),
            _ => Waiting::Nothing,
        }
    }
}

/// What a group waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Waiting {
    /// A lane.
    ForLane,
    /// A time.
    Until(Ns),
    /// An event of its own.
    Nothing,
}

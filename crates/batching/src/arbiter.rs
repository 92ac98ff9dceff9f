//! The arbiter decides which group gets a free lane. `Core` calls it.
//!
//! Groups with work form a ring and share the device by deficit round robin. Each group is charged the device time of
//! its tasks; a group in debt waits until the others have had as much, by weight. Time for which no other group waited
//! is not owed. A group whose slack is running out goes first and pays later, as long as its debt is within its loan;
//! beyond the loan, weights decide.
//!
//! The last lane is kept for others. A group that holds all other lanes does not get it while another group waits.
//! While another group was used lately, the time of a task on it is limited, so that it is soon free again. A lane is
//! the last if no other one is open or predicted to open within the limit.
//!
//! A group that lacks units of the rate limiter leaves the ring, and returns to its head with them. A lane may be kept
//! for such a group; the time for which it waits open counts as used.

use std::collections::{BTreeSet, VecDeque};

use super::{
    Instant, LaneId, LaneKnobs, Ns, TaskId,
    ids::{GroupIx, StartTag},
    offer::TimeLimit,
};

/// Device time that a group of weight 1 is credited per round when all waiting groups are in debt.
const QUANTUM_NS: i64 = 1_000_000;

/// Debt, in quanta, up to which a group may overtake others when its slack runs out. Without this bound, weights would
/// not matter for a model that is always urgent, and once it stopped it would be starved for as long as it had
/// overtaken the others.
const LOAN_QUANTA: i64 = 16;

/// Maximum debt of a group, in quanta, so that a single endless task does not starve a group forever. Shares are exact
/// as long as tasks are shorter than that: a second for a group of weight 1.
const MOST_DEBT_QUANTA: i64 = 1_000;

/// Time after a request for which its group counts as used.
const LATELY_NS: Ns = 60_000_000_000;

/// Weight of one task in the average of its lane's pace.
const PACE_WEIGHT: f64 = 1.0 / 8.0;

/// Limit of the ratio between actual and predicted time of one task, and of its inverse.
const MOST_PACE: f64 = 2.0;

#[derive(Clone, Copy, Debug, Default)]
struct Standing {
    in_ring: bool,
    due: Option<Instant>,
    /// Device time that the group may still use before the next group's turn; negative is debt.
    credit_ns: i64,
    weight: u32,
    /// Divides the weight; 0 counts as 1.
    priority: u32,
    /// Whether it waits for units instead of a lane.
    stalled: bool,
    /// Its place in the order of those that waited for units, if it is in the ring because it was called.
    called_at: Option<StartTag>,
    /// Value of `credited_ns` when this group's credit was last brought up to date.
    settled_ns: i64,
    /// Arrival of its latest request.
    used: Option<Instant>,
}

impl Standing {
    fn quantum_ns(&self) -> i64 {
        (QUANTUM_NS * i64::from(self.weight.max(1)) / i64::from(self.priority.max(1))).max(1)
    }

    fn is_within_loan(&self) -> bool {
        self.credit_ns > -LOAN_QUANTA * self.quantum_ns()
    }
}

/// A lane, as the core sees it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lane {
    pub(super) id: LaneId,
    pub(super) knobs: LaneKnobs,
    /// Number of tasks on it.
    pub(super) tasks: u16,
    /// Predicted end of the work on it.
    busy_until: Instant,
    /// End of its last task.
    last_end: Instant,
    /// Average ratio between actual and predicted time of its tasks.
    pace: f64,
}

impl Lane {
    /// Whether the lane accepts work before its previous task has ended.
    pub(super) fn looks_ahead(&self) -> bool {
        self.knobs.horizon_ns > 0
    }

    /// Whether the lane has no task.
    pub(super) fn is_idle(&self) -> bool {
        self.tasks == 0
    }

    fn is_open(&self, now: Instant) -> bool {
        self.is_idle() || self.has_room() && self.busy_until < now + self.knobs.horizon_ns
    }

    /// Returns the time from which its work is predicted to end within its horizon.
    fn opens(&self) -> Instant {
        self.busy_until - self.knobs.horizon_ns + 1
    }

    fn has_room(&self) -> bool {
        self.looks_ahead() && self.tasks < self.knobs.depth
    }

    /// Returns the expected duration of a task with this prediction; the whole horizon if there is no prediction.
    fn takes_ns(&self, predicted_ns: Option<Ns>) -> Ns {
        predicted_ns.map_or(self.knobs.horizon_ns, |ns| (ns as f64 * self.pace).round() as Ns)
    }

    /// Corrects the pace by the actual duration of a task.
    fn learn(&mut self, predicted_ns: Option<Ns>, took_ns: Ns) {
        if let Some(predicted_ns) = predicted_ns.filter(|&ns| ns > 0) {
            let ratio = (took_ns as f64 / predicted_ns as f64).clamp(1.0 / MOST_PACE, MOST_PACE);
            self.pace += (ratio - self.pace) * PACE_WEIGHT;
        }
    }
}

/// A lane that a group gets.
#[derive(Clone, Copy, Debug)]
pub(super) struct Grant {
    pub(super) lane: Lane,
    pub(super) group: GroupIx,
    /// The limit on its next task, if it must soon leave the lane to others.
    pub(super) limit: Option<TimeLimit>,
}

/// A lane and its tasks.
#[derive(Debug)]
struct Load {
    lane: Lane,
    /// Tasks in launch order, with their predicted durations.
    tasks: VecDeque<(TaskId, Option<Ns>)>,
}

impl Load {
    /// Whether the lane is open or predicted to open within a time. A task that takes longer than predicted does not
    /// count.
    fn opens_within(&self, now: Instant, ns: Ns) -> bool {
        let is_known = self.tasks.iter().all(|(_, predicted_ns)| predicted_ns.is_some());
        self.lane.is_open(now) || is_known && (now..=now + ns).contains(&self.lane.busy_until)
    }
}

/// The lanes, and the groups that wait for a lane or for a time.
#[derive(Debug, Default)]
pub(super) struct Arbiter {
    /// Ordered by id. There are only a few.
    lanes: Vec<Load>,
    ring: VecDeque<GroupIx>,
    /// Groups that wait for units of the rate limiter.
    stalled: Vec<GroupIx>,
    /// Groups for each of which an open lane is kept, with the time from which on.
    kept: Vec<(GroupIx, Instant)>,
    /// Groups whose batch waits for more requests, by the time at which it is launched without them.
    delays: BTreeSet<(Instant, GroupIx)>,
    standings: Vec<Standing>,
    /// Total device time credited to, or forgiven, a group of weight 1.
    credited_ns: i64,
    /// Limit on the time of a task on the last lane; `None`: there is none.
    last_lane_ns: Option<Ns>,
    /// The latest use of any group, and the latest of any other one.
    uses: [Option<(Instant, GroupIx)>; 2],
}

impl Arbiter {
    /// Sets the limit on the time of a task on the last lane.
    pub(super) fn limit_last_lane(&mut self, most_ns: Option<Ns>) {
        self.last_lane_ns = most_ns;
    }

    /// Whether lanes are given out by predicted times.
    pub(super) fn asks_for_times(&self) -> bool {
        self.last_lane_ns.is_some() || self.lanes().any(Lane::looks_ahead)
    }

    /// Notes a request for a group.
    pub(super) fn used(&mut self, group: GroupIx, now: Instant) {
        self.standing(group).used = Some(now);
        let [latest, other] = &mut self.uses;
        if latest.is_some_and(|(_, own)| own != group) {
            *other = *latest;
        }
        *latest = Some((now, group));
    }

    /// Returns until when a group must leave a lane to others, which were used lately.
    fn yields_until(&self, group: GroupIx) -> Option<Instant> {
        let (used, _) = self.uses.iter().flatten().find(|(_, own)| *own != group)?;
        Some(*used + LATELY_NS)
    }

    /// Returns the limit on the next task of a group that gets a lane, if no other lane is left for other groups.
    fn limit(&self, now: Instant, lane: LaneId, group: GroupIx, holds: impl Fn(GroupIx) -> usize) -> Option<TimeLimit> {
        let most_ns = self.last_lane_ns?;
        let until = self.yields_until(group).filter(|&until| until > now)?;
        let others = self.lanes.iter().filter(|load| load.lane.id != lane && load.opens_within(now, most_ns));
        let is_last = others.count() <= self.kept.len();
        let longer_from = would_hold_all(holds(group), self.lanes.len()).then_some(until);
        is_last.then_some(TimeLimit { most_ns, longer_from })
    }

    /// Puts a lane into service. Ignored if the lane is known.
    pub(super) fn lane_up(&mut self, id: LaneId, knobs: LaneKnobs) {
        let lane = Lane { id, knobs, tasks: 0, busy_until: Instant::ZERO, last_end: Instant::ZERO, pace: 1.0 };
        if let Err(at) = self.lanes.binary_search_by_key(&id, |load| load.lane.id) {
            self.lanes.insert(at, Load { lane, tasks: VecDeque::new() });
        }
    }

    /// Takes a lane out of service.
    pub(super) fn lane_lost(&mut self, id: LaneId) {
        self.lanes.retain(|load| load.lane.id != id);
        if self.lanes.is_empty() {
            self.kept.clear();
        }
    }

    /// Records a task launched on a lane, with its predicted duration.
    pub(super) fn launched(&mut self, id: LaneId, task: TaskId, now: Instant, predicted_ns: Option<Ns>) {
        let Some(Load { lane, tasks }) = self.load(id) else { return };
        tasks.push_back((task, predicted_ns));
        lane.tasks += 1;
        lane.busy_until = lane.busy_until.max(now) + lane.takes_ns(predicted_ns);
    }

    /// Records the end of a task and returns how long it occupied the lane. Restarts the prediction for the remaining
    /// tasks at `now`; merely adding up predictions would add up their errors too.
    pub(super) fn completed(&mut self, id: LaneId, task: TaskId, launched: Instant, now: Instant) -> Ns {
        let Some(Load { lane, tasks }) = self.load(id) else { return 0 };
        let took_ns = now.since(launched.max(lane.last_end));
        lane.last_end = now;
        if let Some(at) = tasks.iter().position(|(own, _)| *own == task)
            && let Some((_, predicted_ns)) = tasks.remove(at)
        {
            lane.tasks -= 1;
            lane.learn(predicted_ns, took_ns);
        }
        let remaining = tasks.iter().map(|(_, predicted_ns)| lane.takes_ns(*predicted_ns));
        lane.busy_until = remaining.fold(now, |until, ns| until + ns);
        took_ns
    }

    fn load(&mut self, id: LaneId) -> Option<&mut Load> {
        self.lanes.iter_mut().find(|load| load.lane.id == id)
    }

    /// Returns the number of lanes without a task that are not kept for a group.
    pub(super) fn idle_lanes(&self) -> usize {
        self.lanes().filter(|lane| lane.is_idle()).count().saturating_sub(self.kept.len())
    }

    pub(super) fn lanes(&self) -> impl Iterator<Item = &Lane> {
        self.lanes.iter().map(|load| &load.lane)
    }

    /// Returns the lanes that accept a task now, by id.
    pub(super) fn open_lanes(&self, now: Instant) -> impl Iterator<Item = Lane> {
        self.lanes().copied().filter(move |lane| lane.is_open(now))
    }

    /// Sets a group's weight, and the priority that divides it.
    pub(super) fn weigh(&mut self, group: GroupIx, weight: u32, priority: u32) {
        let standing = self.standing(group);
        (standing.weight, standing.priority) = (weight, priority);
    }

    /// Charges device time to a group.
    pub(super) fn charge(&mut self, group: GroupIx, used_ns: Ns) {
        self.settle(group);
        let standing = self.standing(group);
        let credit_ns = standing.credit_ns.saturating_sub(i64::try_from(used_ns).unwrap_or(i64::MAX));
        standing.credit_ns = credit_ns.max(-MOST_DEBT_QUANTA * standing.quantum_ns());
    }

    /// Brings a group's credit up to date after it was out of the ring: it receives the credit that others received
    /// meanwhile, but only up to zero debt, since the others have used that much time by weight.
    fn settle(&mut self, group: GroupIx) {
        let credited_ns = self.credited_ns;
        let standing = self.standing(group);
        let passed_ns = credited_ns - std::mem::replace(&mut standing.settled_ns, credited_ns);
        if !standing.in_ring && standing.credit_ns < 0 {
            // Debts are so small that a product that saturates pays any of them.
            let share_ns = passed_ns.saturating_mul(standing.quantum_ns()) / QUANTUM_NS;
            standing.credit_ns = standing.credit_ns.saturating_add(share_ns).min(0);
        }
    }

    fn standing(&mut self, group: GroupIx) -> &mut Standing {
        if self.standings.len() <= group {
            self.standings.resize_with(group + 1, Standing::default);
        }
        &mut self.standings[group]
    }

    /// Appends a group with work to the ring, unless it is in the ring already or waits for units.
    pub(super) fn call(&mut self, group: GroupIx) {
        self.settle(group);
        let standing = self.standing(group);
        let due = standing.due.take();
        if !standing.stalled && !std::mem::replace(&mut standing.in_ring, true) {
            self.ring.push_back(group);
        }
        if let Some(due) = due {
            self.delays.remove(&(due, group));
        }
    }

    /// Removes a group from the ring.
    pub(super) fn uncall(&mut self, group: GroupIx) {
        self.settle(group);
        self.standing(group).in_ring = false;
        self.ring.retain(|&other| other != group);
    }

    /// Makes a group that is not in the ring wait for units.
    pub(super) fn stall(&mut self, group: GroupIx) {
        debug_assert!(!self.standings[group].in_ring, "a group waits for a lane or for units");
        if !std::mem::replace(&mut self.standings[group].stalled, true) {
            self.stalled.push(group);
        }
    }

    /// Keeps a lane for a group that waits for units: it gets the first that is open once it is in the ring.
    pub(super) fn keep_lane(&mut self, group: GroupIx, now: Instant) {
        self.kept.push((group, now));
    }

    /// Ends the wait for units of a group that wants no lane.
    pub(super) fn withdraw(&mut self, group: GroupIx) {
        self.kept.retain(|&(other, _)| other != group);
        let standing = self.standing(group);
        (standing.stalled, standing.called_at) = (false, None);
        self.stalled.retain(|&other| other != group);
    }

    /// Ends the wait for units of a group, if it waits, and puts it at the head of the ring, behind those that were
    /// before it in the order.
    pub(super) fn resume(&mut self, group: GroupIx, tag: StartTag) {
        if std::mem::take(&mut self.standing(group).stalled) {
            self.stalled.retain(|&other| other != group);
            self.settle(group);
            let standing = self.standing(group);
            (standing.in_ring, standing.called_at) = (true, Some(tag));
            let is_before = |other: &GroupIx| self.standings[*other].called_at.is_some_and(|called_at| called_at < tag);
            let at = self.ring.iter().take_while(|other| is_before(other)).count();
            self.ring.insert(at, group);
        }
    }

    /// Whether a group waits for units.
    pub(super) fn is_stalled(&self, group: GroupIx) -> bool {
        self.standings.get(group).is_some_and(|standing| standing.stalled)
    }

    /// Returns the groups that wait for units.
    pub(super) fn stalled(&self) -> impl Iterator<Item = GroupIx> + '_ {
        self.stalled.iter().copied()
    }

    /// Makes a group that is not in the ring wait until `due`.
    pub(super) fn defer(&mut self, group: GroupIx, due: Instant) {
        debug_assert!(!self.standings[group].in_ring, "a group waits for a lane or for a time");
        self.standings[group].due = Some(due);
        self.delays.insert((due, group));
    }

    /// Adds the groups whose time has come to the ring.
    pub(super) fn call_due(&mut self, now: Instant) {
        while let Some(&(due, group)) = self.delays.first() {
            if due > now {
                return;
            }
            self.call(group);
        }
    }

    /// Returns the next time at which a deferred group is due, or at which a lane opens while a group waits for one.
    pub(super) fn earliest(&self, now: Instant) -> Option<Instant> {
        let due = self.delays.first().map(|&(due, _)| due);
        if self.ring.is_empty() {
            return due;
        }
        // Lanes that are open now are kept.
        let opens = self.lanes_ahead().map(Lane::opens).filter(|&opens| opens > now);
        due.into_iter().chain(opens).min()
    }

    /// Returns when a lane opens for a group that has work only for lanes that are not open now.
    pub(super) fn opens_later(&self, now: Instant, has_work_on: impl Fn(LaneId) -> bool) -> Option<Instant> {
        let lanes = self.lanes_ahead().filter(|lane| !lane.is_open(now) && has_work_on(lane.id));
        lanes.map(Lane::opens).min()
    }

    fn lanes_ahead(&self) -> impl Iterator<Item = &Lane> {
        self.lanes().filter(|lane| lane.has_room())
    }

    /// Gives an open lane to a group, and removes the group from the ring. `holds` returns how many lanes a group has
    /// tasks on, `urgent` whether its slack is running out.
    pub(super) fn grant(
        &mut self,
        now: Instant,
        holds: impl Fn(GroupIx) -> usize,
        urgent: impl FnMut(GroupIx) -> bool,
    ) -> Option<Grant> {
        if self.ring.is_empty() {
            return None;
        }
        let lane = self.open_lanes(now).min_by_key(|lane| (lane.tasks, lane.id))?;
        let at = match self.position_with_lane() {
            Some(at) => at,
            None if self.open_lanes(now).count() <= self.kept.len() => return None,
            None if self.ring.len() == 1 => self.forgive(),
            None => self.turn(&holds, urgent),
        };
        let group = self.ring.remove(at)?;
        self.settle(group);
        let standing = &mut self.standings[group];
        (standing.in_ring, standing.called_at) = (false, None);
        if let Some(at) = self.kept.iter().position(|&(other, _)| other == group) {
            let (_, since) = self.kept.swap_remove(at);
            self.charge(group, now.since(since));
        }
        Some(Grant { lane, group, limit: self.limit(now, lane.id, group, holds) })
    }

    /// Returns the position in the ring of the first group for which a lane is kept.
    fn position_with_lane(&self) -> Option<usize> {
        if self.kept.is_empty() {
            return None;
        }
        self.ring.iter().position(|group| self.kept.iter().any(|(other, _)| other == group))
    }

    /// Cancels the debt of the only group in the ring. Otherwise a group that arrives later would have the device to
    /// itself until it had used as much time.
    fn forgive(&mut self) -> usize {
        if let Some(&group) = self.ring.front() {
            let standing = self.standing(group);
            let round_ns =
                standing.credit_ns.min(0).saturating_neg().saturating_mul(QUANTUM_NS) / standing.quantum_ns();
            standing.credit_ns = standing.credit_ns.max(0);
            self.credited_ns = self.credited_ns.saturating_add(round_ns);
        }
        0
    }

    /// Returns the position in the ring of the group whose turn it is.
    fn turn(&mut self, holds: impl Fn(GroupIx) -> usize, mut urgent: impl FnMut(GroupIx) -> bool) -> usize {
        let lanes = self.lanes.len();
        let may = |group: GroupIx| !would_hold_all(holds(group), lanes);
        let mut in_a_hurry = |group: GroupIx| self.standings[group].is_within_loan() && urgent(group);
        if let Some(at) = self.ring.iter().position(|&group| may(group) && in_a_hurry(group)) {
            return at;
        }
        // If every group already holds all other lanes, none can be preferred, and the last lane is open to all.
        let restricted = self.ring.iter().any(|&group| may(group));
        let takes_part = |group: GroupIx| !restricted || may(group);
        let debts = self.ring.iter().filter(|&&group| takes_part(group)).map(|&group| {
            let standing = &self.standings[group];
            let quantum_ns = standing.quantum_ns();
            standing.credit_ns.saturating_neg().max(0).saturating_add(quantum_ns - 1) / quantum_ns
        });
        // Credit as many rounds at once as the least indebted group needs, instead of looping round by round.
        let rounds = debts.min().unwrap_or(0);
        if rounds > 0 {
            for &group in &self.ring {
                let standing = &mut self.standings[group];
                let quantum_ns = standing.quantum_ns();
                let credit_ns = standing.credit_ns.saturating_add(rounds.saturating_mul(quantum_ns));
                standing.credit_ns = credit_ns.min(quantum_ns);
            }
            self.credited_ns = self.credited_ns.saturating_add(rounds.saturating_mul(QUANTUM_NS));
        }
        let solvent = |&group: &GroupIx| takes_part(group) && self.standings[group].credit_ns >= 0;
        self.ring.iter().position(solvent).unwrap_or(0)
    }

    pub(super) fn forget(&mut self, group: GroupIx) {
        let Some(standing) = self.standings.get_mut(group).map(std::mem::take) else { return };
        if standing.in_ring {
            self.ring.retain(|&other| other != group);
        }
        self.stalled.retain(|&other| other != group);
        self.kept.retain(|&(other, _)| other != group);
        if let Some(due) = standing.due {
            self.delays.remove(&(due, group));
        }
        if self.uses.iter().flatten().any(|&(_, own)| own == group) {
            let mut used: Vec<(Instant, GroupIx)> =
                self.standings.iter().zip(0..).filter_map(|(standing, group)| Some((standing.used?, group))).collect();
            used.sort_unstable_by(|one, other| other.cmp(one));
            self.uses = [used.first().copied(), used.get(1).copied()];
        }
    }

    /// Whether a group waits for a lane, and the time that it waits for, if any.
    pub(super) fn waits(&self, group: GroupIx) -> (bool, Option<Instant>) {
        self.standings.get(group).map_or((false, None), |standing| (standing.in_ring, standing.due))
    }
}

/// Whether a group with tasks on `held` of several lanes would hold all of them with one more.
fn would_hold_all(held: usize, lanes: usize) -> bool {
    lanes > 1 && held + 1 >= lanes
}

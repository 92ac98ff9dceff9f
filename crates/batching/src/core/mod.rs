//! The core: one state machine for a device, its lanes and all model versions that share them. The executor and the
//! simulator drive it through [`Core::step`].

pub(super) mod invariants;
pub(super) mod limiting;
mod sharing;

use std::{collections::BTreeMap, sync::Arc};

use paternoster_model::RowOutcome;
use slab::Slab;
use smallvec::SmallVec;

use self::{limiting::Limiting, sharing::SharedCells};
use super::{
    Action, Actions, Arrival, Counters, End, Event, Instant, Knobs, LaneId, ModelId, Ns, ReqId, TaskId,
    arbiter::{Arbiter, Grant, Lane},
    group::{self, VersionScheduler},
    ids::{GroupIx, RequestIx},
    ledger::{InFlightTask, Ledger},
    offer::{OfferOutcome, PoolView},
    rate_limiter::RateLimiter,
    recall::{abandon, recall_half},
    timers::Timers,
    version::StepContext,
    work::Work,
};

/// Debug builds check the invariants after each step only while at most this many requests are live, because a check
/// visits every request.
const CHECKED_LIVE: usize = 64;

/// The load of one device, as the router reads it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceLoad {
    /// Device time that the live requests are expected to need, in nanoseconds; estimated at arrival.
    pub expected_ns: Ns,
    /// Number of queued requests that may move to another device.
    pub may_leave: usize,
    /// Number of lanes in service.
    pub lanes: usize,
    /// Number of lanes in service that have no task and are not kept for a version that lacks units.
    pub idle_lanes: usize,
}

/// Decides which requests run together, when and on which lane. It has no clock; each event carries the time.
#[derive(Debug, Default)]
pub struct Core {
    pub(crate) ledger: Ledger,
    pub(crate) groups: Slab<VersionScheduler>,
    by_model: BTreeMap<ModelId, GroupIx>,
    pub(crate) shared_cells: SharedCells,
    pub(crate) arbiter: Arbiter,
    pub(crate) timers: Timers,
    pub(crate) limiting: Limiting,
    /// The time of the last `WakeAt` that the driver has not answered yet.
    pub(crate) announced: Option<Instant>,
    /// The time of the latest event.
    pub(crate) now: Instant,
    tasks: u64,
    /// Makes the next step panic.
    #[cfg(any(test, feature = "testing"))]
    fails: bool,
}

impl Core {
    /// Creates a core without lanes or models. `LaneUp` and `ModelUp` events add them.
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates a core of a pool whose cores share a rate limiter, by its number among them.
    pub fn limited(limiter: Arc<RateLimiter>, core: usize) -> Self {
        Self { limiting: Limiting::new(limiter, core), ..Self::default() }
    }

    /// Limits the predicted time of a task on the last lane, while other versions were used in the last minute. Longer
    /// tasks are cut to fewer rows. Of tasks whose single rows take longer, a version has at most one on all lanes but
    /// one. `None`: no limit, which is the default.
    #[must_use]
    pub fn with_last_lane_limit(mut self, most_ns: Option<Ns>) -> Self {
        self.arbiter.limit_last_lane(most_ns);
        self.learn_for_lanes();
        self
    }

    /// Handles one event at `now` and returns the actions for the driver, in order. A time earlier than the previous
    /// one counts as the previous one.
    ///
    /// Deadlines and queue timeouts that have passed at `now` take effect before the event. Events that name an ended
    /// request, an ended task or an unloaded version are ignored, except that `Arrived` finishes as `Failed` if its
    /// version is not loaded, or if it has no rows or more rows than its version's largest batch.
    pub fn step(&mut self, now: Instant, mut event: Event<'_>) -> Actions {
        self.now = self.now.max(now);
        let mut actions = Actions::new();
        self.sound_alarms(&mut actions);
        match event {
            // Borrowed rather than moved: an arrival is large, and each move would copy it.
            Event::Arrived(ref mut arrival) => self.arrived(arrival, &mut actions),
            Event::TakenIn(ref mut arrivals) => arrivals.iter_mut().for_each(|one| self.arrived(one, &mut actions)),
            Event::Cancelled(req) => self.cancelled(req, &mut actions),
            Event::Resumed(req) => self.resumed(req, &mut actions),
            Event::Completed { task, rows } => self.completed(task, rows, &mut actions),
            Event::Failed { task } => self.failed(task, &mut actions),
            Event::LaneUp(lane, knobs) => {
                self.arbiter.lane_up(lane, knobs);
                self.learn_for_lanes();
            }
            Event::LaneLost(lane) => self.lane_lost(lane, &mut actions),
            Event::Recall => self.recall(&mut actions),
            Event::DeviceLost => self.device_lost(&mut actions),
            Event::ModelUp(model, ref knobs) => self.model_up(model, knobs),
            Event::ModelDraining(model) => self.draining(model, &mut actions),
            Event::Wake => self.announced = None,
            Event::UnitsFreed => self.limiting.note_calls(),
        }
        #[cfg(any(test, feature = "testing"))]
        assert!(!std::mem::take(&mut self.fails), "a test asked for this panic");
        self.give_out_lanes(&mut actions);
        self.wake_cores(&mut actions);
        self.timers.sweep(&self.ledger);
        self.announce(&mut actions);
        debug_assert!(
            self.ledger.live() > CHECKED_LIVE || invariants::check(self).is_ok(),
            "invariant broken: {:?}",
            invariants::check(self)
        );
        actions
    }

    /// Checks the invariants that must hold between two steps. Visits every request, so it is meant for tests and
    /// simulations.
    ///
    /// # Errors
    /// Describes the first broken invariant.
    pub fn check(&self) -> Result<(), String> {
        invariants::check(self)
    }

    /// Returns the load of the device, for the router.
    pub fn load(&self) -> DeviceLoad {
        DeviceLoad {
            expected_ns: self.ledger.expected_ns,
            may_leave: self.ledger.may_leave,
            lanes: self.arbiter.lanes().count(),
            idle_lanes: self.arbiter.idle_lanes(),
        }
    }

    /// Returns the counters of every loaded version, by ascending id.
    pub fn counters(&self) -> Vec<(ModelId, Counters)> {
        self.by_model.iter().map(|(&model, &group)| (model, self.groups[group].counters())).collect()
    }

    /// Returns whether a request is still queued.
    #[cfg(any(test, feature = "testing"))]
    pub fn waits(&self, req: ReqId) -> bool {
        let request = self.ledger.find(req).map(|request_ix| &self.ledger[request_ix]);
        request.is_some_and(|request| matches!(request.state, crate::ledger::RequestState::Queued { .. }))
    }

    /// Makes the next step panic halfway, to test how the driver recovers.
    #[cfg(any(test, feature = "testing"))]
    pub fn fail_next_step(&mut self) {
        self.fails = true;
    }

    fn sound_alarms(&mut self, actions: &mut Actions) {
        while let Some(request_ix) = self.timers.pop_due(self.now, &mut self.ledger) {
            self.with_request(request_ix, actions, group::alarm);
        }
        while let Some((group, sequence)) = self.timers.due_sequence(self.now) {
            self.with_group(group, actions, |_, context| context.reclaim(sequence));
        }
        self.arbiter.call_due(self.now);
    }

    fn arrived(&mut self, arrival: &mut Arrival, actions: &mut Actions) {
        debug_assert!(self.ledger.find(arrival.req).is_none(), "request {:?} arrived twice", arrival.req);
        match self.by_model.get(&arrival.model) {
            Some(&group) => {
                self.arbiter.used(group, self.now);
                self.with_group(group, actions, |work, context| group::arrive(work, context, arrival));
            }
            None => actions.push(Action::Finish { req: arrival.req, end: End::Failed }),
        }
    }

    fn cancelled(&mut self, req: ReqId, actions: &mut Actions) {
        if let Some(request_ix) = self.ledger.find(req) {
            self.with_request(request_ix, actions, |work, context, ix| work.end(context, ix, End::Cancelled));
        }
    }

    fn resumed(&mut self, req: ReqId, actions: &mut Actions) {
        if let Some(request_ix) = self.ledger.find(req) {
            self.with_request(request_ix, actions, Work::resume);
        }
    }

    fn completed(&mut self, task: TaskId, rows: &[RowOutcome], actions: &mut Actions) {
        let (in_flight_tasks, used_ns) = self.take_completed(task);
        let nodes = in_flight_tasks.iter().map(|in_flight| in_flight.own_nodes).sum();
        let mut outcomes = rows;
        for in_flight in &in_flight_tasks {
            let own;
            // A shared task reports its rows in order: each version takes the outcomes of its own rows.
            (own, outcomes) = outcomes.split_at(outcomes.len().min(in_flight.own_rows as usize));
            self.with_group(in_flight.group, actions, |work, context| {
                context.version.ran(nodes, used_ns);
                work.complete(context, in_flight, own, used_ns);
            });
        }
    }

    fn failed(&mut self, task: TaskId, actions: &mut Actions) {
        for in_flight in self.take_completed(task).0 {
            self.with_group(in_flight.group, actions, |work, context| work.fail(context, &in_flight, true));
        }
    }

    /// Removes a task from its lane and returns its parts and its device time. The time is charged to models in
    /// proportion to their rows.
    fn take_completed(&mut self, task: TaskId) -> (SmallVec<[InFlightTask; 1]>, Ns) {
        self.release_units(task);
        let in_flight_tasks = self.ledger.completed(task);
        let Some(first) = in_flight_tasks.first() else { return (in_flight_tasks, 0) };
        let used_ns = self.arbiter.completed(first.lane, task, first.launched, self.now);
        for in_flight in &in_flight_tasks {
            self.arbiter.charge(in_flight.group, in_flight.share_ns(used_ns));
        }
        (in_flight_tasks, used_ns)
    }

    fn lane_lost(&mut self, lane: LaneId, actions: &mut Actions) {
        self.arbiter.lane_lost(lane);
        self.release_units_of_lane(lane);
        for in_flight in self.ledger.take_lost(lane) {
            self.with_group(in_flight.group, actions, |work, context| work.fail(context, &in_flight, false));
        }
    }

    fn recall(&mut self, actions: &mut Actions) {
        let groups: Vec<GroupIx> = self.groups.iter().map(|(group, _)| group).collect();
        for group in groups {
            self.with_group(group, actions, |_, context| recall_half(context));
        }
    }

    fn device_lost(&mut self, actions: &mut Actions) {
        let lanes: SmallVec<[LaneId; 8]> = self.arbiter.lanes().map(|lane| lane.id).collect();
        lanes.into_iter().for_each(|lane| self.lane_lost(lane, actions));
        let mut live: Vec<_> = self.ledger.iter().map(|(ix, request)| (request.seq, ix, request.req)).collect();
        // Slab order depends on reuse of places; arrival order is deterministic.
        live.sort_unstable();
        for (_, request_ix, req) in live {
            // Ending one request may end others, so this one may be gone already.
            if self.ledger.same(request_ix, req).is_some() {
                self.with_request(request_ix, actions, abandon);
            }
        }
    }

    fn model_up(&mut self, model: ModelId, knobs: &Knobs) {
        let ix = *self.by_model.entry(model).or_insert_with(|| {
            let ix = self.groups.vacant_key();
            self.groups.insert(VersionScheduler::new(model, ix, knobs, self.limiting.claim(model)));
            self.shared_cells.came_up(ix, &self.groups[ix]);
            ix
        });
        self.arbiter.weigh(ix, knobs.weight, knobs.rate_limiter.priority);
        self.learn_for_lanes();
    }

    /// Lets all versions learn their runs if lanes are given out by predicted times.
    fn learn_for_lanes(&mut self) {
        if self.arbiter.asks_for_times() {
            self.groups.iter_mut().for_each(|(_, entry)| entry.version.learns = true);
        }
    }

    fn draining(&mut self, model: ModelId, actions: &mut Actions) {
        if let Some(&group) = self.by_model.get(&model) {
            self.groups[group].drain();
            self.with_group(group, actions, |_, _| ());
        }
    }

    fn with_request(
        &mut self,
        request_ix: RequestIx,
        actions: &mut Actions,
        change: impl FnOnce(&mut Work, &mut StepContext<'_>, RequestIx),
    ) {
        let group = self.ledger[request_ix].group;
        self.with_group(group, actions, |work, context| change(work, context, request_ix));
    }

    /// Applies a change to a group, then requests a lane if the group has work, or removes the group if it is drained.
    fn with_group(
        &mut self,
        group: GroupIx,
        actions: &mut Actions,
        change: impl FnOnce(&mut Work, &mut StepContext<'_>),
    ) {
        let entry = &mut self.groups[group];
        let (work, mut context) = entry.at(self.now, &mut self.ledger, &mut self.timers, actions);
        change(work, &mut context);
        work.tidy(&mut context);
        if entry.is_drained() {
            self.forget(group, actions);
        } else if entry.wants_lane() {
            self.arbiter.call(group);
        } else {
            self.withdraw_units(group);
        }
    }

    /// Removes a drained group.
    fn forget(&mut self, group: GroupIx, actions: &mut Actions) {
        let VersionScheduler { version, claim, .. } = self.groups.remove(group);
        let model = version.model;
        claim.iter().for_each(|claim| self.limiting.forget(claim, self.now));
        self.shared_cells.forget(group);
        self.by_model.remove(&model);
        self.arbiter.forget(group);
        self.timers.forget(group);
        actions.push(Action::Drained(model));
    }

    fn give_out_lanes(&mut self, actions: &mut Actions) {
        loop {
            self.call_groups_with_units();
            let (groups, ledger, now) = (&mut self.groups, &self.ledger, self.now);
            let holds = |group: GroupIx| ledger.lanes_of(group);
            let urgent = |group: GroupIx| groups[group].is_urgent(now, ledger);
            let Some(Grant { lane, group, limit }) = self.arbiter.grant(now, holds, urgent) else {
                if self.yield_units() {
                    continue;
                }
                return;
            };
            let Some(limits) = self.take_units(group) else { continue };
            let (groups, ledger, now) = (&mut self.groups, &self.ledger, self.now);
            let asks = groups[group].asks_for_neighbours();
            // Computing other groups' slack is costly, so do it only for a policy that uses it.
            let others = groups.iter_mut().filter(|(ix, entry)| asks && *ix != group && entry.version.live > 0);
            let neighbours_slack_ns = others.filter_map(|(_, entry)| Some(entry.tightest(now, ledger)?.slack_ns)).min();
            let idle_besides = self.arbiter.idle_lanes().saturating_sub(usize::from(lane.is_idle())) as u32;
            let idle_besides = idle_besides.min(limits.additional);
            let lanes = (self.arbiter.lanes().count() as u32).min(limits.total);
            let pool = PoolView { neighbours_slack_ns, lanes, idle_besides, limit, brought: &[] };
            let mut lane = lane;
            let mut answer = self.offer(group, lane, pool, actions);
            if !matches!(answer, OfferOutcome::Launched(_)) && self.groups[group].work.cells().is_some() {
                // The arbiter chose the lane by availability alone; ready nodes may be pinned to a different open lane.
                let open: SmallVec<[Lane; 8]> = self.arbiter.open_lanes(self.now).collect();
                for other in open.into_iter().filter(|other| other.id != lane.id) {
                    match self.offer(group, other, pool, actions) {
                        launched @ OfferOutcome::Launched(_) => {
                            (answer, lane) = (launched, other);
                            break;
                        }
                        theirs if matches!(answer, OfferOutcome::Nothing) => answer = theirs,
                        _ => {}
                    }
                }
            }
            if !matches!(answer, OfferOutcome::Launched(_)) {
                self.decline_units(group);
            }
            match answer {
                OfferOutcome::Launched(predicted_ns) => {
                    self.hold_units(group, TaskId(self.tasks), lane.id);
                    self.arbiter.launched(lane.id, TaskId(self.tasks), self.now, predicted_ns);
                    self.tasks += 1;
                    if self.groups[group].wants_lane() {
                        self.arbiter.call(group);
                    }
                }
                OfferOutcome::NotBefore(due) => self.arbiter.defer(group, due),
                // The offer may have rejected or expired the group's last requests.
                OfferOutcome::Nothing if self.groups[group].is_drained() => self.forget(group, actions),
                // Ready nodes may be pinned to a lane that has not reached its horizon. Retry when that lane opens,
                // even if other lanes are open now.
                OfferOutcome::Nothing => {
                    let opens = self.arbiter.opens_later(self.now, |lane| self.groups[group].has_ready_on(lane));
                    if let Some(due) = opens {
                        self.arbiter.defer(group, due);
                    }
                }
            }
        }
    }

    /// Offers a lane to a group. Room left in the launched task is filled with nodes of other versions.
    fn offer(&mut self, group: GroupIx, lane: Lane, pool: PoolView<'_>, actions: &mut Actions) -> OfferOutcome {
        let id = TaskId(self.tasks);
        let brought = self.brought(group, lane.id);
        let pool = PoolView { brought: &brought, ..pool };
        let entry = &mut self.groups[group];
        if !entry.version.may_run() {
            return OfferOutcome::Nothing;
        }
        let (work, mut context) = entry.at(self.now, &mut self.ledger, &mut self.timers, actions);
        let answer = work.offer(&mut context, &lane, id, pool);
        match answer {
            OfferOutcome::Launched(predicted_ns) => {
                OfferOutcome::Launched(self.fill_up(group, lane, pool.limit, predicted_ns, actions))
            }
            OfferOutcome::NotBefore(_) | OfferOutcome::Nothing => answer,
        }
    }

    /// Requests a wake-up if something is due before the driver's next scheduled one. An announced time that no longer
    /// matters is not withdrawn: that wake does nothing, and the driver is spared an update for each request.
    fn announce(&mut self, actions: &mut Actions) {
        let alarm = self.timers.earliest(&self.ledger);
        if let Some(due) = alarm.into_iter().chain(self.arbiter.earliest(self.now)).min()
            && self.announced.is_none_or(|announced| due < announced)
        {
            self.announced = Some(due);
            actions.push(Action::WakeAt(due));
        }
    }
}

//! The core: one state machine for a pool of lanes and all the versions that share it.

pub(super) mod invariants;
mod sharing;

use std::collections::BTreeMap;

use slab::Slab;
use smallvec::SmallVec;

use self::sharing::SharedCells;
use super::{
    Action, Actions, Arrival, Counters, End, Event, Knobs, LaneId, ModelId, Ns, ReqId, RowOutcome, TaskId,
    arbiter::{Arbiter, Lane},
    group::{self, Group},
    ids::{GroupIx, RequestIx},
    ledger::{InFlightTask, Ledger},
    offer::{Answer, PoolView},
    recall::{abandon, recall_half},
    timers::Timers,
    version::StepContext,
    work::Work,
};

/// In debug builds the invariants are checked after every step while at most this many requests live, since a check
/// walks over all of them.
const CHECKED_LIVE: usize = 64;

/// What a device has to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Device time that its live requests take, in nanoseconds, as expected when they arrived.
    pub expected_ns: Ns,
    /// Requests that wait and may leave for another device.
    pub may_leave: usize,
    /// Lanes in service.
    pub lanes: usize,
    /// Of those, without a task.
    pub idle_lanes: usize,
}

/// Decides which requests run together, when and where. It owns no clock: time comes with every event.
#[derive(Debug, Default)]
pub struct Core {
    pub(in crate::batching) ledger: Ledger,
    pub(in crate::batching) groups: Slab<Group>,
    by_model: BTreeMap<ModelId, GroupIx>,
    pub(in crate::batching) shared_cells: SharedCells,
    pub(in crate::batching) arbiter: Arbiter,
    pub(in crate::batching) timers: Timers,
    /// The `WakeAt` that the driver has yet to answer.
    announced: Option<Ns>,
    pub(in crate::batching) now: Ns,
    tasks: u64,
    /// Whether the next step panics.
    #[cfg(test)]
    fails: bool,
}

impl Core {
    /// A core without lanes and models: both come by events.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes one event at `now` (nanoseconds since the driver's epoch; an earlier time than before counts as the last)
    /// and returns what the driver has to do, in order.
    ///
    /// Deadlines and queue timeouts that have passed at `now` take effect before the event does. Events that name an
    /// ended request, an ended task or a version that is not up change nothing, but that a request for a version that
    /// is not up, or with no rows, or more than its version's largest batch, ends `Failed`.
    pub fn step(&mut self, now: Ns, mut event: Event<'_>) -> Actions {
        self.now = self.now.max(now);
        let mut actions = Actions::new();
        self.sound_alarms(&mut actions);
        match event {
            // An arrival is large, and each move would copy it.
            Event::Arrived(ref mut arrival) => self.arrived(arrival, &mut actions),
            Event::TakenIn(ref mut arrivals) => arrivals.iter_mut().for_each(|one| self.arrived(one, &mut actions)),
            Event::Cancelled(req) => self.cancelled(req, &mut actions),
            Event::Resumed(req) => self.resumed(req, &mut actions),
            Event::Completed { task, rows } => self.completed(task, rows, &mut actions),
            Event::Failed { task } => self.failed(task, &mut actions),
            Event::LaneUp(lane, knobs) => self.arbiter.lane_up(lane, knobs),
            Event::LaneLost(lane) => self.lane_lost(lane, &mut actions),
            Event::Recall => self.recall(&mut actions),
            Event::DeviceLost => self.device_lost(&mut actions),
            Event::ModelUp(model, ref knobs) => self.model_up(model, knobs),
            Event::ModelDraining(model) => self.draining(model, &mut actions),
            Event::Wake => self.announced = None,
        }
        #[cfg(test)]
        assert!(!std::mem::take(&mut self.fails), "a test asked for this panic");
        self.give_out_lanes(&mut actions);
        self.timers.sweep(&self.ledger);
        self.announce(&mut actions);
        debug_assert!(
            self.ledger.live() > CHECKED_LIVE || invariants::check(self).is_ok(),
            "invariant broken: {:?}",
            invariants::check(self)
        );
        actions
    }

    /// Checks what must hold between two steps. It walks over everything, so it is for tests and simulations.
    ///
    /// # Errors
    /// The first broken invariant, in words.
    pub fn check(&self) -> Result<(), String> {
        invariants::check(self)
    }

    /// What the device has to do, for the router.
    pub fn load(&self) -> Load {
        Load {
            expected_ns: self.ledger.expected_ns(),
            may_leave: self.ledger.may_leave,
            lanes: self.arbiter.lanes().count(),
            idle_lanes: self.arbiter.idle_lanes(),
        }
    }

    /// The figures of every version that is up, by ascending id.
    pub fn counters(&self) -> Vec<(ModelId, Counters)> {
        self.by_model.iter().map(|(&model, &group)| (model, self.groups[group].counters())).collect()
    }

    /// Whether a request waits to board.
    #[cfg(test)]
    pub(crate) fn waits(&self, req: ReqId) -> bool {
        let request = self.ledger.find(req).map(|request_ix| &self.ledger[request_ix]);
        request.is_some_and(|request| matches!(request.state, crate::batching::ledger::RequestState::Queued { .. }))
    }

    /// Lets the next step panic halfway, to test how its driver ends.
    #[cfg(test)]
    pub(crate) fn fail_next_step(&mut self) {
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
            Some(&group) => self.with_group(group, actions, |work, context| group::arrive(work, context, arrival)),
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
        let mut outcomes = rows;
        for in_flight in &in_flight_tasks {
            let own;
            (own, outcomes) = outcomes.split_at(outcomes.len().min(in_flight.own_rows as usize));
            self.with_group(in_flight.group, actions, |work, context| {
                context.version.ran(in_flight.rows, used_ns);
                work.complete(context, in_flight, own, used_ns);
            });
        }
    }

    fn failed(&mut self, task: TaskId, actions: &mut Actions) {
        for in_flight in self.take_completed(task).0 {
            self.with_group(in_flight.group, actions, |work, context| work.fail(context, &in_flight));
        }
    }

    /// Removes a task from its lane and returns its device time, charged to models in proportion to their rows.
    fn take_completed(&mut self, task: TaskId) -> (SmallVec<[InFlightTask; 1]>, Ns) {
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
        for in_flight in self.ledger.take_lost(lane) {
            self.with_group(in_flight.group, actions, |work, context| work.fail_lost(context, &in_flight));
        }
    }

    fn recall(&mut self, actions: &mut Actions) {
        let groups: Vec<GroupIx> = self.groups.iter().map(|(group, _)| group).collect();
        for group in groups {
            self.with_group(group, actions, |_, context| recall_half(context));
        }
    }

    fn device_lost(&mut self, actions: &mut Actions) {
        let lanes: SmallVec<[LaneId; 8]> = self.arbiter.lanes().map(|(lane, _)| lane.id).collect();
        lanes.into_iter().for_each(|lane| self.lane_lost(lane, actions));
        let mut live: Vec<_> = self.ledger.iter().map(|(ix, request)| (request.seq, ix, request.req)).collect();
        live.sort_unstable();
        for (_, request_ix, req) in live {
            // The end of one may be that of others.
            if self.ledger.same(request_ix, req).is_some() {
                self.with_request(request_ix, actions, abandon);
            }
        }
    }

    fn model_up(&mut self, model: ModelId, knobs: &Knobs) {
        let ix = *self.by_model.entry(model).or_insert_with(|| {
            let ix = self.groups.vacant_key();
            self.groups.insert(Group::new(model, ix, knobs));
            self.shared_cells.came_up(ix, &self.groups[ix]);
            ix
        });
        self.arbiter.weigh(ix, knobs.weight);
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

    /// Changes a group, then lets it wait for a lane if it has work, or go if it is drained.
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
        }
    }

    /// A group is drained.
    fn forget(&mut self, group: GroupIx, actions: &mut Actions) {
        let model = self.groups.remove(group).version.model;
        self.shared_cells.forget(group);
        self.by_model.remove(&model);
        self.arbiter.forget(group);
        self.timers.forget(group);
        actions.push(Action::Drained(model));
    }

    fn give_out_lanes(&mut self, actions: &mut Actions) {
        loop {
            let (groups, ledger, now) = (&mut self.groups, &self.ledger, self.now);
            let holds = |group: GroupIx| ledger.lanes_of(group);
            let urgent = |group: GroupIx| groups[group].is_urgent(now, ledger);
            let Some((lane, group)) = self.arbiter.grant(now, holds, urgent) else { return };
            let asks = groups[group].asks_for_neighbours();
            let others = groups.iter_mut().filter(|(ix, entry)| asks && *ix != group && entry.version.live > 0);
            let neighbours_slack_ns = others.filter_map(|(_, entry)| entry.slack_ns(now, ledger)).min();
            let idle_besides = self.arbiter.idle_lanes().saturating_sub(usize::from(lane.is_idle())) as u32;
            let lanes = self.arbiter.lanes().count() as u32;
            let pool = PoolView { neighbours_slack_ns, lanes, idle_besides, brought: &[] };
            let mut lane = lane;
            let mut answer = self.offer(group, lane, pool, actions);
            if matches!(answer, Answer::Nothing) && self.groups[group].has_pins() {
                // What is ready may be bound to another lane.
                let open: SmallVec<[Lane; 8]> = self.arbiter.open_lanes(self.now).collect();
                for other in open.into_iter().filter(|other| other.id != lane.id) {
                    answer = self.offer(group, other, pool, actions);
                    if !matches!(answer, Answer::Nothing) {
                        lane = other;
                        break;
                    }
                }
            }
            match answer {
                Answer::Launched(predicted_ns) => {
                    self.arbiter.launched(lane.id, TaskId(self.tasks), self.now, predicted_ns);
                    self.tasks += 1;
                    if self.groups[group].wants_lane() {
                        self.arbiter.call(group);
                    }
                }
                Answer::NotBefore(due) => self.arbiter.defer(group, due),
                // What it had may all have been refused.
                Answer::Nothing if self.groups[group].is_drained() => self.forget(group, actions),
                // What is bound to a lane that has yet to reach its horizon waits for that, whatever lanes are open.
                Answer::Nothing => {
                    let opens = self.arbiter.opens_later(self.now, |lane| self.groups[group].has_ready_on(lane));
                    if let Some(due) = opens {
                        self.arbiter.defer(group, due);
                    }
                }
            }
        }
    }

    /// Offers a group a lane; what room its task has left goes to others.
    fn offer(&mut self, group: GroupIx, lane: Lane, pool: PoolView<'_>, actions: &mut Actions) -> Answer {
        let id = TaskId(self.tasks);
        let brought = self.brought(group, lane.id);
        let pool = PoolView { brought: &brought, ..pool };
        let entry = &mut self.groups[group];
        if !entry.version.may_run() {
            return Answer::Nothing;
        }
        let (work, mut context) = entry.at(self.now, &mut self.ledger, &mut self.timers, actions);
        let answer = work.offer(&mut context, &lane, id, pool);
        match answer {
            Answer::Launched(predicted_ns) => Answer::Launched(self.fill_up(group, lane, predicted_ns, actions)),
            Answer::NotBefore(_) | Answer::Nothing => answer,
        }
    }

    /// Asks to be woken if something is due before the driver would wake the core anyway. An instant that has become
    /// void is left to a wake that does nothing, so that the driver is not bothered for each request.
    fn announce(&mut self, actions: &mut Actions) {
        let alarm = self.timers.earliest(&self.ledger);
        if let Some(due) = alarm.into_iter().chain(self.arbiter.earliest()).min()
            && self.announced.is_none_or(|announced| due < announced)
        {
            self.announced = Some(due);
            actions.push(Action::WakeAt(due));
        }
    }

    /// The time of the latest event.
    pub(in crate::batching) fn now(&self) -> Ns {
        self.now
    }

    /// The `WakeAt` that the driver has yet to answer.
    pub(in crate::batching) fn announced(&self) -> Option<Ns> {
        self.announced
    }
}

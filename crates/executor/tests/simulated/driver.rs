//! The driver: executes the core's actions, reports events to it, and checks each request's end against the oracle.

use paternoster_batching::{
    Action, Arrival, Core, Counters, End, Event, LaneId, ModelId, Next, Ns, ReqId, RowOutcome, RowSpan, Task,
};
use paternoster_testing::sim::Completion;

use super::{
    device::{Floor, InFlight, rows_of},
    oracle::{WayEnd, is_bad, next_of, repeats, way_end},
    planted::Planted,
    rare::Rare,
    rng::Rng,
    scenario::Scenario,
    tracker::Tracker,
};

/// Maximum steps of a run; one that takes more would not end.
const MOST_STEPS: u64 = 200_000;

/// The driver's state of a request.
#[derive(Clone, Debug, Default)]
struct Known {
    live: bool,
    aboard: bool,
    cancelled: bool,
    /// Whether a task or lane that held it failed, so that its rows there may be lost.
    hurt: bool,
    /// Whether a task of it alone failed, or its lane was lost, so that it may end by that.
    failed_alone: bool,
    /// Rows of it in tasks before this one are void: those tasks were launched ahead of one that failed.
    void_before: u64,
    /// Bit mask of the rows whose replies have been computed.
    replied: u64,
    /// How often each row repeated a stage.
    repeated: [u8; 16],
    responses: u32,
}

/// Decides which tasks the device fails.
pub(crate) type Fails<'s> = Box<dyn FnMut(&mut Rng) -> bool + 's>;

/// A core, its device, and the state of all requests.
pub(crate) struct Driver<'s> {
    pub scenario: &'s Scenario,
    pub floor: Floor,
    pub now: Ns,
    pub wake: Option<Ns>,
    pub live: Vec<ReqId>,
    pub rare: Rare,
    pub rng: Rng,
    /// Number of launched tasks.
    launched: u64,
    /// Decides whether the device fails the next task.
    fails: Fails<'s>,
    pub lanes_up: Vec<bool>,
    pub tracker: Tracker,
    core: Core,
    known: Vec<Known>,
    drained: Vec<ModelId>,
    /// Requests that have left the core and will arrive there again.
    moving: Vec<Arrival>,
    planted: Option<Planted>,
    counters: Vec<Counters>,
    check_every: u64,
}

impl<'s> Driver<'s> {
    /// Starts all models and lanes. Invariants are checked after each `check_every`-th step.
    pub(crate) fn new(
        scenario: &'s Scenario,
        planted: Option<Planted>,
        check_every: u64,
        fails: Fails<'s>,
    ) -> Result<Self, String> {
        let mut driver = Self {
            scenario,
            floor: Floor::new(scenario, planted)?,
            now: 0,
            wake: None,
            live: Vec::new(),
            rare: Rare::default(),
            rng: Rng::new(!scenario.seed),
            launched: 0,
            fails,
            lanes_up: vec![false; scenario.lanes.len()],
            tracker: Tracker::default(),
            core: Core::new(),
            known: vec![Known::default(); scenario.arrivals.len()],
            drained: Vec::new(),
            moving: Vec::new(),
            planted,
            counters: vec![Counters::default(); scenario.models.len()],
            check_every,
        };
        for (id, model) in (0..).zip(&scenario.models) {
            driver.act(Event::ModelUp(ModelId(id), model.knobs.clone()))?;
        }
        for lane in 0..scenario.lanes.len() {
            driver.lane_up(LaneId(lane as u16))?;
        }
        Ok(driver)
    }

    pub(crate) fn lane_up(&mut self, lane: LaneId) -> Result<(), String> {
        self.lanes_up[usize::from(lane.0)] = true;
        self.act(Event::LaneUp(lane, self.scenario.lanes[usize::from(lane.0)]))
    }

    pub(crate) fn arrive(&mut self, arrival: &Arrival) -> Result<(), String> {
        self.rare.requests += 1;
        self.known[arrival.req.0 as usize].live = true;
        self.live.push(arrival.req);
        self.act(Event::Arrived(arrival.clone()))
    }

    pub(crate) fn cancel(&mut self, req: ReqId) -> Result<(), String> {
        self.known[req.0 as usize].cancelled = true;
        self.act(Event::Cancelled(req))
    }

    /// Recalls waiting requests, as for another device.
    pub(crate) fn recall(&mut self) -> Result<(), String> {
        self.act(Event::Recall)?;
        self.rare.requests_moved += self.moving.len() as u64;
        Ok(())
    }

    pub(crate) fn moves(&self) -> bool {
        !self.moving.is_empty()
    }

    /// Submits the recalled requests again.
    pub(crate) fn take_in(&mut self) -> Result<(), String> {
        let moving = std::mem::take(&mut self.moving);
        let is_given_up = |req: &ReqId| self.known[req.0 as usize].cancelled;
        let given_up: Vec<ReqId> = moving.iter().map(|arrival| arrival.req).filter(is_given_up).collect();
        self.act(Event::TakenIn(moving))?;
        given_up.into_iter().try_for_each(|req| self.act(Event::Cancelled(req)))
    }

    pub(crate) fn wake(&mut self) -> Result<(), String> {
        self.wake = None;
        self.act(Event::Wake)
    }

    pub(crate) fn lose_lane(&mut self, lane: LaneId) -> Result<(), String> {
        self.rare.lanes_lost += 1;
        self.lanes_up[usize::from(lane.0)] = false;
        let untold = self.floor.untold.extract_if(.., |flight| flight.task.lane == lane);
        for lost in untold.collect::<Vec<InFlight>>() {
            self.hurt(&lost.task, true);
        }
        for lost in self.floor.give_up(lane)? {
            self.rare.tasks_lost += 1;
            self.hurt(&lost.task, true);
            self.rare.lane_lost_while_waiting += u64::from(self.tracker.failed(&lost.task));
        }
        self.act(Event::LaneLost(lane))
    }

    /// Handles a task that the device has completed.
    pub(crate) fn ended(&mut self, completion: Completion) -> Result<(), String> {
        let flight = self.floor.land(completion.operation)?;
        let task = &flight.task;
        let last = task.writes.is_none();
        let forgotten = match self.planted {
            Some(Planted::LostCredit) => last,
            Some(Planted::LostCompletion) => task.cell.0 == 0,
            Some(Planted::NewcomersForgotten) => self.tracker.is_void(task),
            _ => flight.told,
        };
        if forgotten {
            self.floor.untold.push(flight);
            return self.progress();
        }
        if let Err(failure) = completion.outcome {
            self.rare.faults += 1;
            self.judge(task, &failure.to_string())?;
            let is_alone = task.rows.iter().all(|span| span.req == task.rows[0].req);
            self.hurt(task, is_alone);
            self.rare.fault_while_waiting += u64::from(self.tracker.failed(task));
            let (task, rows) = (task.id, task.row_count() as usize);
            self.floor.recycle(flight);
            if self.planted == Some(Planted::StrangersFail) {
                let failed = vec![RowOutcome { next: Next::Failed, emitted: false }; rows];
                return self.act(Event::Completed { task, rows: &failed });
            }
            return self.act(Event::Failed { task });
        }
        let outcomes = self.outcomes(&flight)?;
        let task = task.id;
        self.floor.recycle(flight);
        self.act(Event::Completed { task, rows: &outcomes })
    }

    /// Checks a failure: a task that the scenario does not fail may fail only if an earlier task of its requests
    /// failed, or their lane was lost.
    fn judge(&mut self, task: &Task, failure: &str) -> Result<(), String> {
        if failure.contains("planted") {
            return Ok(());
        }
        self.rare.faults_by_input += 1;
        let is_hurt = |span: &RowSpan| self.known[span.req.0 as usize].hurt;
        if task.rows.iter().any(is_hurt) {
            Ok(())
        } else {
            Err(format!("{:?} at stage {} fails for no reason: {failure}", task.id, task.cell.0))
        }
    }

    /// Reports a task's end to the core before it has ended: a planted fault.
    pub(crate) fn tell_early(&mut self) -> Result<(), String> {
        let models = &self.scenario.models;
        let decides = |task: &Task| models[task.model.0 as usize].knobs.stages[usize::from(task.cell.0)].decides;
        let may = |flight: &&mut InFlight| !flight.told && flight.task.writes.is_some() && !decides(&flight.task);
        let Some(flight) = self.floor.tasks.iter_mut().find(may) else { return Ok(()) };
        flight.told = true;
        let task = flight.task.id;
        self.act(Event::Completed { task, rows: &[] })
    }

    /// Returns the outcomes of a task's rows, after comparing the replies of rows that are done with the oracle.
    fn outcomes(&mut self, flight: &InFlight) -> Result<Vec<RowOutcome>, String> {
        let InFlight { task, .. } = flight;
        let stage = &self.scenario.models[task.model.0 as usize].knobs.stages[usize::from(task.cell.0)];
        let last = task.writes.is_none();
        let mut outcomes = Vec::new();
        for (index, (req, row, place)) in (0..).zip(rows_of(task)) {
            let known = &mut self.known[req.0 as usize];
            let mut outcome = RowOutcome { next: Next::On, emitted: false };
            // The core ignores the outcomes of other rows.
            if known.live && task.id.0 >= known.void_before {
                let before = &mut known.repeated[row as usize];
                if repeats(self.scenario, task.model, task.cell.0, req, row, *before) {
                    *before += 1;
                    self.rare.repeats += 1;
                    outcome.next = Next::Skip(task.cell);
                } else {
                    outcome.next = next_of(self.scenario, task.model, task.cell.0, req, row);
                    outcome.emitted = last && req.0 % 8 == 0;
                    match outcome.next {
                        Next::Done => self.rare.exits += u64::from(!last),
                        Next::Skip(_) => self.rare.skips += 1,
                        Next::Failed | Next::Pause => self.rare.failed_rows += 1,
                        Next::On => {}
                    }
                    if outcome.next == Next::Done || last && outcome.next == Next::On {
                        let swapped =
                            self.planted == Some(Planted::SwappedReplies) && task.row_count() > 1 && index < 2;
                        let index = if swapped { 1 - index } else { index };
                        let content = self.floor.reply(flight, index, place)?;
                        let found = WayEnd::Reply { stage: task.cell.0, content };
                        let right = way_end(self.scenario, task.model, req, row);
                        if found != right {
                            return Err(format!(
                                "row {row} of {req:?} is answered with {found:?} instead of {right:?}"
                            ));
                        }
                        self.known[req.0 as usize].replied |= 1 << row;
                    }
                }
            }
            outcomes.push(outcome);
        }
        if self.planted == Some(Planted::ShiftedOutcomes) {
            outcomes.rotate_left(1);
        }
        // Where rows can only go on, an executor reports no outcomes.
        if !stage.decides && !last {
            outcomes.clear();
        }
        Ok(outcomes)
    }

    /// Handles a task that failed or is lost. Requests that do not end by it start again, and tasks that were launched
    /// ahead for them are void.
    fn hurt(&mut self, task: &Task, ends_them: bool) {
        let stage = &self.scenario.models[task.model.0 as usize].knobs.stages[usize::from(task.cell.0)];
        let looks_ahead = self.scenario.lanes[usize::from(task.lane.0)].horizon_ns > 0;
        let has_gone_on = looks_ahead && !stage.decides && task.writes.is_some();
        for span in &task.rows {
            let known = &mut self.known[span.req.0 as usize];
            known.hurt = true;
            let counts = task.id.0 >= known.void_before;
            known.failed_alone |= ends_them && counts;
            if has_gone_on && counts {
                known.void_before = self.launched;
            }
        }
    }

    /// Runs one step of the core, and executes its actions.
    pub(crate) fn act(&mut self, event: Event<'_>) -> Result<(), String> {
        self.rare.steps += 1;
        if self.rare.steps > MOST_STEPS {
            return Err(format!("the run does not end: {} requests live", self.live.len()));
        }
        let actions = self.core.step(self.now, event);
        for action in actions {
            match action {
                Action::Launch(task) => self.launch(task)?,
                Action::Finish { req, end } => self.finish(req, end)?,
                Action::Emit { req, step } => {
                    let known = &mut self.known[req.0 as usize];
                    if step != known.responses || !known.live {
                        return Err(format!("response {step} of {req:?} comes after {}", known.responses));
                    }
                    known.responses += 1;
                    self.rare.emitted += 1;
                }
                Action::WakeAt(at) => self.wake = Some(at),
                Action::Drained(model) => self.drained.push(model),
                Action::Recalled(arrival) => {
                    let known = &self.known[arrival.req.0 as usize];
                    if known.aboard || !known.live {
                        return Err(format!("{:?} leaves though it has boarded or ended", arrival.req));
                    }
                    self.moving.push(*arrival);
                }
                Action::Joined { .. } | Action::SequenceOver { .. } => return Err("no model has sequences".to_owned()),
            }
        }
        if self.rare.steps.is_multiple_of(self.check_every) {
            self.core.check()?;
        }
        self.progress()
    }

    /// Checks for deadlock: if nothing is on the device and no timer is set, live requests would wait forever.
    pub(crate) fn progress(&self) -> Result<(), String> {
        let stuck = self.floor.tasks.is_empty() && self.wake.is_none() && self.lanes_up.contains(&true);
        if stuck && self.live.len() > self.moving.len() {
            return Err(format!("deadlock: {} requests wait for nothing", self.live.len()));
        }
        Ok(())
    }

    fn launch(&mut self, task: Task) -> Result<(), String> {
        self.rare.tasks += 1;
        let Some(&lane) = self.scenario.lanes.get(usize::from(task.lane.0)) else {
            return Err(format!("{:?} is launched on {:?}, which does not exist", task.id, task.lane));
        };
        let there = self.floor.tasks.iter().filter(|flight| flight.task.lane == task.lane && !flight.told).count();
        if !self.lanes_up[usize::from(task.lane.0)] || there >= usize::from(lane.depth.max(1)) {
            return Err(format!("{:?} is launched on {:?}, which takes no more", task.id, task.lane));
        }
        for span in &task.rows {
            let known = &mut self.known[span.req.0 as usize];
            if !known.live {
                return Err(format!("{:?} launches {:?}, which has ended", task.id, span.req));
            }
            known.aboard = true;
        }
        let model = task.model.0 as usize;
        let splits = self.counters[model].splits;
        self.count(task.model);
        self.tracker.launched(&task, self.counters[model].splits > splits, &mut self.rare);
        let (launch_ns, row_ns) = self.scenario.models[model].costs[usize::from(task.cell.0)];
        let usual_ns = launch_ns + row_ns * u64::from(task.bucket.rows);
        let duration_ns = usual_ns * self.rng.within(8, 14) / 10;
        let by_chance = (self.fails)(&mut self.rng);
        let is_bad = |(req, row, _)| is_bad(self.scenario, task.model, task.cell.0, req, row);
        let bad = rows_of(&task).any(is_bad);
        self.rare.bad_tasks += u64::from(bad);
        let fails = by_chance || bad;
        self.launched = task.id.0 + 1;
        self.floor.launch(task, duration_ns, fails, &mut self.rare)
    }

    fn count(&mut self, model: ModelId) {
        let counters = self.core.counters();
        if let Some(&(_, now)) = counters.iter().find(|&&(id, _)| id == model) {
            self.counters[model.0 as usize] = now;
        }
    }

    fn finish(&mut self, req: ReqId, end: End) -> Result<(), String> {
        match self.planted {
            Some(Planted::LostAnswer) if req.0 % 50 == 7 => Ok(()),
            Some(Planted::TwoAnswers) if req.0 % 50 == 7 => {
                self.settle(req, end)?;
                self.settle(req, end)
            }
            _ => self.settle(req, end),
        }
    }

    fn settle(&mut self, req: ReqId, end: End) -> Result<(), String> {
        let Some(at) = self.live.iter().position(|&live| live == req) else {
            return Err(format!("{req:?} ends twice"));
        };
        self.live.swap_remove(at);
        let scenario = self.scenario;
        let known = &mut self.known[req.0 as usize];
        known.live = false;
        let arrival = &scenario.arrivals[req.0 as usize].1;
        let model = &scenario.models[arrival.model.0 as usize].knobs;
        let rare = &mut self.rare;
        let right = match end {
            End::Completed => {
                rare.completed += 1;
                known.replied == (1 << arrival.rows) - 1
            }
            End::Failed => {
                rare.failed += 1;
                let mut ways = (0..arrival.rows).map(|row| way_end(scenario, arrival.model, req, row));
                known.failed_alone || arrival.rows > model.max_batch_rows || ways.any(|way| way == WayEnd::Fails)
            }
            End::Cancelled => {
                rare.cancelled += 1;
                rare.cancelled_aboard += u64::from(known.aboard);
                known.cancelled
            }
            End::Expired => {
                rare.expired += 1;
                rare.expired_aboard += u64::from(known.aboard);
                arrival.deadline.is_some_and(|deadline| deadline <= self.now)
            }
            End::Rejected(_) => {
                rare.rejected += 1;
                !known.aboard
            }
        };
        if !right {
            return Err(format!("{req:?} may not end {end:?} at {}: {known:?}", self.now));
        }
        self.tracker.ended(req, end, &mut self.rare);
        Ok(())
    }

    /// Checks at the end that nothing is left, and that the models drain.
    pub(crate) fn end(mut self) -> Result<Rare, String> {
        if !self.live.is_empty() || !self.floor.tasks.is_empty() {
            return Err(format!("{} requests and {} tasks are left", self.live.len(), self.floor.tasks.len()));
        }
        self.core.check()?;
        for id in 0..self.scenario.models.len() as u32 {
            self.count(ModelId(id));
            let counters = self.counters[id as usize];
            self.rare.retries += counters.retries;
            self.rare.stretches += counters.stretches;
            self.rare.stretches_while_checking += counters.stretches_while_checking;
            self.rare.merges += counters.merges;
            self.rare.splits += counters.splits;
            self.act(Event::ModelDraining(ModelId(id)))?;
            if self.drained.last() != Some(&ModelId(id)) {
                return Err(format!("{:?} has nothing left and is not drained", ModelId(id)));
            }
        }
        Ok(self.rare)
    }
}

//! The state behind a shard's lock: the core, the records of its requests, and the loaded versions. Carries out the
//! core's actions on them.

mod delays;
mod effects;
mod lanes;
mod launching;
mod outputs;
mod unplaced;

use std::{collections::HashMap, sync::Arc};

use paternoster_batching::{
    Action, Arrival, Core, DeviceLoad, End, Event, Instant, Knobs, LaneId, LaneKnobs, ModelId, Ns, ReqId,
};
use paternoster_model::{Next, RowOutcome};
use paternoster_observe::{MetaCounters, ModelStats, TaskRun, timeline::Timeline};
use slab::Slab;

use self::delays::Delays;
pub use self::lanes::Responsiveness;
pub(super) use self::{
    effects::Effects,
    lanes::{Incident, Replacement},
    unplaced::{TimeLimits, Unplaced},
};
use super::{
    backend::Order,
    job::{Finished, Job, Outputs, TaskOutput},
    location::Location,
    pieces::Piece,
    record::{Record, Sink},
    version::{ServedVersion, VersionState},
    watch::{Returned, StopReason, Watch},
};

/// Maps a shard's numbers to those of the pool.
#[derive(Clone, Copy, Debug)]
pub(super) struct Numbers {
    /// Number of the shard.
    pub(super) shard: usize,
    /// Number of shards.
    pub(super) shards: usize,
    /// Number of its first lane in the pool.
    pub(super) first_lane: u16,
}

pub(super) struct State {
    numbers: Numbers,
    /// How much work its lanes accept ahead of completion.
    lane_knobs: LaneKnobs,
    core: Core,
    pub(super) requests: Slab<Record>,
    /// Makes each request's id unique in the pool: the upper half of the id, above the index in `requests`.
    serial: u32,
    models: HashMap<ModelId, VersionState>,
    pub(super) watch: Watch,
    pub(super) delays: Delays,
    timeline: Arc<Timeline>,
    stopped: bool,
    /// Whether the device is lost.
    lost: bool,
}

impl State {
    pub(super) fn new(
        mut core: Core,
        numbers: Numbers,
        (lanes, lane_knobs): (u16, LaneKnobs),
        stop_grace_ns: Ns,
        timeline: Arc<Timeline>,
    ) -> Self {
        for lane in 0..lanes {
            core.step(Instant::ZERO, Event::LaneUp(LaneId(lane), lane_knobs));
        }
        Self {
            numbers,
            lane_knobs,
            core,
            requests: Slab::new(),
            serial: numbers.shard as u32,
            models: HashMap::new(),
            watch: Watch::new(lanes, stop_grace_ns),
            delays: Delays::default(),
            timeline,
            stopped: false,
            lost: false,
        }
    }

    #[cfg(test)]
    pub(super) fn core(&self) -> &Core {
        &self.core
    }

    #[cfg(any(test, feature = "testing"))]
    pub(super) fn fail_next_step(&mut self) {
        self.core.fail_next_step();
    }

    pub(super) fn in_flight(&self) -> usize {
        self.requests.len()
    }

    /// Returns the load of the device.
    pub(super) fn load(&self) -> DeviceLoad {
        self.core.load()
    }

    pub(super) fn bring_up(
        &mut self,
        now: Instant,
        id: ModelId,
        loaded: Arc<ServedVersion>,
        knobs: Knobs,
        after: &mut Effects,
    ) {
        self.models.insert(id, VersionState::new(loaded, knobs.queueing.preserve_ordering));
        self.step(now, Event::ModelUp(id, Box::new(knobs)), after);
    }

    /// Admits a request.
    ///
    /// # Errors
    /// Returns the request if the pool is stopped or the device is lost.
    pub(super) fn submit(
        &mut self,
        now: Instant,
        mut request: Unplaced,
        after: &mut Effects,
    ) -> Result<Location, Box<Unplaced>> {
        if self.lost || self.stopped {
            return Err(Box::new(request));
        }
        let Some(version) = self.models.get_mut(&request.arrival.model) else { return Err(Box::new(request)) };
        version.live += 1;
        let req = self.next_req();
        request.number(req);
        let Unplaced { mut record, arrival } = request;
        let location = match &record.current_shard {
            None => Location::Fixed(self.numbers.shard, req),
            Some(current_shard) => {
                current_shard.arrive(self.numbers.shard, req);
                Location::Movable(Arc::clone(current_shard))
            }
        };
        record.observed.arrived(&record.handle.observed, now.as_ns(), req.0);
        self.requests.insert(record);
        self.step(now, Event::Arrived(arrival), after);
        Ok(location)
    }

    /// Returns the id of the next request.
    fn next_req(&mut self) -> ReqId {
        self.serial = self.serial.wrapping_add(self.numbers.shards as u32);
        ReqId(u64::from(self.serial) << 32 | self.requests.vacant_key() as u64)
    }

    /// Takes in requests that have left the core of another device. Returns them if the pool is stopped or this device
    /// is lost.
    pub(super) fn take_in(&mut self, now: Instant, recalled: Vec<Unplaced>, after: &mut Effects) -> Vec<Unplaced> {
        if self.lost || self.stopped {
            return recalled;
        }
        let (mut arrivals, mut given_up) = (Vec::with_capacity(recalled.len()), Vec::new());
        for mut request in recalled {
            let req = self.next_req();
            request.number(req);
            let Unplaced { mut record, arrival } = request;
            if record.current_shard.as_ref().is_some_and(|current_shard| current_shard.arrive(self.numbers.shard, req))
            {
                given_up.push(req);
            }
            if let Some(version) = self.models.get_mut(&arrival.model) {
                version.live += 1;
            }
            record.observed.moved_in(&record.handle.observed, now.as_ns(), req.0);
            self.requests.insert(record);
            arrivals.push(arrival);
        }
        self.step(now, Event::TakenIn(arrivals), after);
        for req in given_up {
            self.step(now, Event::Cancelled(req), after);
        }
        Vec::new()
    }

    fn recall(&mut self, now: Instant, arrival: Arrival, after: &mut Effects) {
        let req = arrival.req;
        if self.record(req).is_none() {
            return;
        }
        let record = self.requests.remove(place(req));
        if let Some(current_shard) = &record.current_shard {
            current_shard.leave();
        }
        self.left(arrival.model, after);
        record.observed.moved_out(&record.handle.observed, now.as_ns());
        after.recalled.push(Unplaced { record, arrival });
    }

    /// Handles the result of a task that its lane started at `started`.
    pub(super) fn finish(
        &mut self,
        started: Instant,
        now: Instant,
        job: &Job,
        finished: Finished,
        after: &mut Effects,
    ) {
        let (task, lane) = (job.task.id, job.task.lane);
        let returned = self.watch.returned(lane, task);
        after.watch_at = self.watch.goes_on(lane, now).or(after.watch_at);
        self.timeline.completed(now.as_ns(), self.task_number(task), matches!(finished, Finished::Failed(_)));
        if let Returned::Abandoned(flight) = returned {
            after.incidents.push(Incident::returned(lane, flight));
            // The abandoned task has ended, so another one may be abandoned.
            return self.abandon_lost(after);
        }
        match finished {
            Finished::Failed(reason) => self.failed(now, job, reason, &returned, after),
            Finished::Completed(ran) => self.ran(started, now, job, ran, after),
        }
        if let Returned::Stopped { flight, reason, lost } = returned {
            if reason == StopReason::Overdue {
                flight.loaded.hangs.ended(flight.stage);
            }
            if lost {
                self.lane_up(now, lane, after);
            }
            if lost || reason == StopReason::Overdue {
                after.incidents.push(Incident::returned(lane, flight));
            }
        }
    }

    fn failed(&mut self, now: Instant, job: &Job, reason: String, returned: &Returned, after: &mut Effects) {
        // The reason may contain data of another request, so only a request that ran alone receives it.
        if let Some(record) = job.only_member().and_then(|req| self.record(req)) {
            record.error = Some(match returned {
                // The program's own message does not say that the time limit was the cause.
                Returned::Stopped { flight, reason: StopReason::Overdue, .. } => {
                    flight.overdue_reason(&record.handle.loaded.spec.name)
                }
                _ => reason,
            });
        }
        self.step(now, Event::Failed { task: job.task.id }, after);
    }

    fn ran(&mut self, started: Instant, now: Instant, job: &Job, ran: TaskOutput, after: &mut Effects) {
        let TaskOutput { outputs, mut outcomes, failures, delays, timings } = ran;
        let is_taken = outputs.is_some();
        let Outputs { responses, pieces, streamed, failures: lost } = outputs.unwrap_or_default();
        self.lose_outputs(job, lost);
        for failure in failures {
            if let Some(record) = job.member_of_row(failure.row).and_then(|req| self.record(req)) {
                record.error = Some(failure.reason);
            }
        }
        self.take_pieces(job, pieces);
        for (part, response) in streamed {
            if let Some(record) = job.members.get(part).and_then(|member| self.record(member.span.req)) {
                // In a task of nodes, each row is its own part.
                if !record.take_streamed(response)
                    && let Some(outcome) = outcomes.get_mut(part)
                {
                    *outcome = RowOutcome { next: Next::Failed, emitted: false };
                }
            }
        }
        let mut responses = responses.into_iter();
        let mut end = 0;
        for (stats, cell, members) in job.by_cell() {
            let batch_rows = job.task.row_count();
            let run = TaskRun { cell, started_ns: started.as_ns(), ended_ns: now.as_ns(), timings, batch_rows };
            let (first_row, mut queue_ns) = (end, 0);
            for member in members {
                let response = responses.next();
                let rows = end..end + member.span.rows() as usize;
                end = rows.end;
                let delay = delays.iter().find(|delay| rows.contains(&(delay.row as usize)));
                let Some(record) = self.record(member.span.req) else { continue };
                queue_ns += record.ran(&run) * Ns::from(member.span.rows());
                let outcomes = outcomes.get_mut(rows).unwrap_or_default();
                let emitted = outcomes.iter().any(|row| row.emitted);
                if !is_taken {
                    record.unread_outputs.push_back(emitted);
                }
                if let Some(response) = response
                    && (emitted || matches!(record.sink, Sink::Once(_)))
                {
                    let start = member.span.start;
                    record.take(response, start..start + member.span.count);
                }
                if emitted {
                    record.pause(outcomes);
                }
                if let Some(until) = delay.and_then(|delay| record.delay(now, delay, outcomes)) {
                    self.delays.insert(until, member.span.req);
                    after.resume_at = self.delays.next();
                }
            }
            if let Some(stage) = stats.stage(cell) {
                stage.ran((end - first_row) as u32, queue_ns, timings.total_ns());
            }
        }
        self.step(now, Event::Completed { task: job.task.id, rows: &outcomes }, after);
    }

    fn take_pieces(&mut self, job: &Job, pieces: Vec<(usize, Piece)>) {
        for (part, piece) in pieces {
            if let Some(record) = job.members.get(part).and_then(|member| self.record(member.span.req)) {
                record.pieces.push(piece);
            }
        }
    }

    /// Counts a request that left a version.
    fn left(&mut self, model: ModelId, after: &mut Effects) {
        let Some(version) = self.models.get_mut(&model) else { return };
        if version.left() && version.keeps_rows() {
            after.orders.push(Order::Rest(model));
        }
    }

    /// Stops: takes no further request, asks tasks to stop, and returns the records of the requests in flight and the
    /// loaded versions.
    pub(super) fn stop(&mut self) -> (Vec<Record>, Vec<VersionState>) {
        self.stopped = true;
        self.watch.stop_all();
        let records = std::mem::take(&mut self.requests).into_iter().map(|(_, record)| record).collect();
        (records, std::mem::take(&mut self.models).into_values().collect())
    }

    /// Steps the core and carries out its actions. Does nothing once the pool is stopped.
    pub(super) fn step(&mut self, now: Instant, event: Event<'_>, after: &mut Effects) {
        if self.stopped {
            return;
        }
        let mut gave_up = false;
        for action in self.core.step(now, event) {
            match action {
                Action::Launch(task) => self.launch(now, *task, after),
                Action::Emit { req, step } => {
                    if let Some(record) = self.record(req) {
                        record.emit(now, step);
                    }
                }
                Action::Joined { req, sequence } => {
                    let unfolded_state =
                        self.record(req).and_then(|record| Some((record.handle.id, record.unfolded_state.clone()?)));
                    if let Some((model, unfolded_state)) = unfolded_state
                        && let Some(version) = self.models.get_mut(&model)
                    {
                        unfolded_state.join(version.sequence(sequence));
                    }
                }
                Action::SequenceOver { model, sequence } => {
                    let version = self.models.get_mut(&model);
                    after.forgotten.extend(version.and_then(|version| version.sequence_over(sequence)));
                    after.orders.push(Order::SequenceOver(model, sequence));
                }
                Action::Finish { req, end } => {
                    gave_up |= matches!(end, End::Cancelled | End::Expired | End::Failed);
                    self.ended(now, req, end, after);
                }
                Action::Recalled(arrival) => self.recall(now, *arrival, after),
                Action::Drained(model) => {
                    after.dropped.extend(self.models.remove(&model));
                    after.orders.push(Order::Unload(model));
                }
                Action::UnitsFreed { core } => after.units_freed.push(core),
                Action::WakeAt(at) => after.wake_at = Some(at),
            }
        }
        if gave_up {
            self.stop_unwanted(now, after);
        }
    }

    /// Returns the core's counters of batch operations for every loaded version, with the version's statistics.
    pub(super) fn meta_counters(&self) -> Vec<(ModelId, Arc<ModelStats>, MetaCounters)> {
        let counters = self.core.counters().into_iter();
        let metas = counters.filter_map(|(model, counters)| {
            let meta = MetaCounters {
                stretches: counters.stretches,
                splits: counters.splits,
                merges: counters.merges,
                preemptions: counters.preemptions,
                slack_misses: counters.slack_misses,
                early_exits: counters.early_exits,
            };
            Some((model, Arc::clone(&self.models.get(&model)?.loaded.stats), meta))
        });
        metas.collect()
    }

    pub(super) fn record(&mut self, req: ReqId) -> Option<&mut Record> {
        self.requests.get_mut(place(req)).filter(|record| record.req == req)
    }
}

/// Returns the record of a request that has not ended.
pub(super) fn find(requests: &Slab<Record>, req: ReqId) -> Option<&Record> {
    requests.get(place(req)).filter(|record| record.req == req)
}

fn place(req: ReqId) -> usize {
    (req.0 & u64::from(u32::MAX)) as usize
}

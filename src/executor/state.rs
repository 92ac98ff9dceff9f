//! What is behind the pool's lock: the core, the records of its requests, the loaded versions; and how the core's
//! actions are carried out on them.

mod delays;
mod lanes;

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use slab::Slab;

use self::delays::Delays;
pub use self::lanes::Responsiveness;
pub(super) use self::lanes::{Incident, Replacement};
use super::{
    Backlog, InferRequest, ModelHandle,
    boundary::BoundaryRows,
    cells::{Journey, SequenceState},
    lane::{Finished, Guest, Job, Member},
    loaded::{Loaded, Version, longer},
    ran::Ran,
    record::{Payload, Record, Sink},
    stages::Programs,
    watch::{Flight, Returned, StopReason, Watch},
};
use crate::{
    batching::{
        Action, Arrival, Core, End, Event, Knobs, LaneId, LaneKnobs, Lease, ModelId, Next, Ns, ReqId, RowOutcome,
        RowSpan, Task,
    },
    model::unfold::Unfolded,
    observe::{
        ExecutionTimings, MetaCounters, ModelStats,
        timeline::{RequestEnd, TaskLaunch, TaskRows, Timeline},
    },
};

/// What is left to do once the lock is free again: everything that may wake, drop or block.
#[derive(Default)]
pub(super) struct After {
    pub(super) launches: Vec<Job>,
    pub(super) ended: Vec<(Record, End)>,
    pub(super) dropped: Vec<Version>,
    /// Memory of batches that are over.
    pub(super) freed: Vec<Arc<BoundaryRows>>,
    /// State of sequences that are over.
    pub(super) forgotten: Vec<Arc<SequenceState>>,
    pub(super) wake_at: Option<Ns>,
    /// When to look for tasks that do not end.
    pub(super) watch_at: Option<Ns>,
    /// When the delay of a request is over.
    pub(super) resume_at: Option<Ns>,
    /// What happened to tasks that were told to stop.
    pub(super) incidents: Vec<Incident>,
    /// Lanes that go on without their tasks.
    pub(super) replacements: Vec<Replacement>,
    /// Whether the lanes' counts changed besides.
    pub(super) lanes_changed: bool,
}

/// Times of a request that count from its submission, in the pool's time.
#[derive(Clone, Copy)]
pub(super) struct Due {
    pub(super) board_by: Option<Ns>,
    pub(super) expiry: Option<Ns>,
}

/// A request, and what it unfolds into; nothing where requests travel in batches.
pub(super) struct Asked {
    pub(super) request: InferRequest,
    pub(super) graph: Box<[Unfolded]>,
    /// Where its responses count while they wait for the client.
    pub(super) backlog: Option<Arc<Backlog>>,
}

pub(super) struct State {
    core: Core,
    pub(super) requests: Slab<Record>,
    /// Makes each request's id unique: the upper half, above its place in `requests`.
    serial: u32,
    models: HashMap<ModelId, Version>,
    next_model: u32,
    pub(super) watch: Watch,
    pub(super) delays: Delays,
    timeline: Arc<Timeline>,
    pub(super) stopped: bool,
}

impl State {
    pub(super) fn new(lanes: u16, stop_grace_ns: Ns, timeline: Arc<Timeline>) -> Self {
        let mut core = Core::new();
        for lane in 0..lanes {
            core.step(0, Event::LaneUp(LaneId(lane), LaneKnobs::default()));
        }
        Self {
            core,
            requests: Slab::new(),
            serial: 0,
            models: HashMap::new(),
            next_model: 0,
            watch: Watch::new(lanes, stop_grace_ns),
            delays: Delays::default(),
            timeline,
            stopped: false,
        }
    }

    #[cfg(test)]
    pub(super) fn fail_next_step(&mut self) {
        self.core.fail_next_step();
    }

    pub(super) fn in_flight(&self) -> usize {
        self.requests.len()
    }

    pub(super) fn bring_up(&mut self, now: Ns, loaded: Arc<Loaded>, knobs: Knobs, after: &mut After) -> ModelId {
        let id = ModelId(self.next_model);
        self.next_model += 1;
        self.timeline.model_up(id.0, &loaded.spec.name, loaded.spec.version);
        self.models.insert(id, Version::new(loaded, knobs.max_batch_rows));
        self.step(now, Event::ModelUp(id, knobs), after);
        id
    }

    /// Admits a request.
    ///
    /// # Errors
    /// Gives its sink back once the pool is stopped.
    pub(super) fn submit(
        &mut self,
        now: Ns,
        handle: &Arc<ModelHandle>,
        Asked { request, graph, backlog }: Asked,
        due: Due,
        sink: Sink,
        after: &mut After,
    ) -> Result<ReqId, Sink> {
        let Some(version) = self.models.get_mut(&handle.id).filter(|_| !self.stopped) else { return Err(sink) };
        version.live += 1;
        let (lengths, key) = version.loaded.admission.measure(&request.inputs);
        self.serial = self.serial.wrapping_add(1);
        let entry = self.requests.vacant_entry();
        let req = ReqId(u64::from(self.serial) << 32 | entry.key() as u64);
        let payload = Payload { rows: request.rows, lengths: lengths.clone(), inputs: request.inputs, backlog };
        let payload = Arc::new(payload);
        let journey = match &version.loaded.programs.0 {
            Programs::Cells(cells) => {
                let has_batch_axis = version.loaded.spec.has_batch_axis();
                let sequence = request.sequence.clone();
                Some(Arc::new(Journey::new(cells, has_batch_axis, Arc::clone(&payload), &graph, sequence)))
            }
            Programs::Whole(_) | Programs::Cut(_) => None,
        };
        entry.insert(Record {
            req,
            handle: Arc::clone(handle),
            payload,
            journey,
            sink,
            responses: VecDeque::new(),
            pieces: Vec::new(),
            error: None,
            unread: None,
            step: 0,
            arrived: now,
            waiting_since: now,
            queued: true,
            queue_ns: 0,
            compute: ExecutionTimings::default(),
            awaits_client: false,
            delayed_until: None,
            delayed_ns: 0,
        });
        let arrival = Arrival {
            req,
            model: handle.id,
            rows: request.rows,
            lengths,
            key,
            priority: request.priority,
            board_by: due.board_by,
            expiry: due.expiry,
            graph,
            sequence: request.sequence,
        };
        self.timeline.arrived(now, req.0, handle.id.0, arrival.rows);
        self.step(now, Event::Arrived(arrival), after);
        Ok(req)
    }

    /// Takes the result of a task that its lane began at `started`.
    pub(super) fn finish(&mut self, started: Ns, now: Ns, job: &Job, finished: Finished, after: &mut After) {
        let (task, lane) = (job.task.id, job.task.lane);
        let returned = self.watch.returned(lane, task);
        self.timeline.completed(now, task.0, matches!(finished, Finished::Failed(_)));
        if let Returned::Abandoned(flight) = returned {
            after.incidents.push(Incident::returned(lane, flight));
            // There is room for another one.
            return self.abandon_lost(after);
        }
        match finished {
            Finished::Failed(reason) => self.failed(now, job, reason, &returned, after),
            Finished::Ran(ran) => self.ran(started, now, job, ran, after),
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

    fn failed(&mut self, now: Ns, job: &Job, reason: String, returned: &Returned, after: &mut After) {
        // The reason may name what another request brought: only one that is alone is told.
        if let Some(record) = job.only_member().and_then(|req| self.record(req)) {
            record.error = Some(match returned {
                // The program says in other words that it was stopped.
                Returned::Stopped { flight, reason: StopReason::Overdue, .. } => {
                    flight.overdue_reason(&record.handle.spec.name)
                }
                _ => reason,
            });
        }
        self.step(now, Event::Failed { task: job.task.id }, after);
    }

    fn ran(&mut self, started: Ns, now: Ns, job: &Job, ran: Ran, after: &mut After) {
        let Ran { responses, pieces, streamed, mut outcomes, failures, delays, timings } = ran;
        for failure in failures {
            if let Some(record) = job.member_of_row(failure.row).and_then(|req| self.record(req)) {
                record.error = Some(failure.reason);
            }
        }
        for (part, piece) in pieces {
            if let Some(record) = job.members.get(part).and_then(|member| self.record(member.span.req)) {
                record.pieces.push(piece);
            }
        }
        for (part, response) in streamed {
            if let Some(record) = job.members.get(part).and_then(|member| self.record(member.span.req)) {
                // Each row of the task is a part of its own.
                if !record.take_streamed(response)
                    && let Some(outcome) = outcomes.get_mut(part)
                {
                    *outcome = RowOutcome { next: Next::Failed, emitted: false };
                }
            }
        }
        let mut responses = responses.into_iter();
        let run_ns = timings.compute_input_ns + timings.compute_infer_ns + timings.compute_output_ns;
        let mut end = 0;
        for (stats, cell, members) in job.by_cell() {
            let (first_row, mut queue_ns) = (end, 0);
            for member in members {
                let response = responses.next();
                let rows = end..end + member.span.count as usize;
                end = rows.end;
                let delay = delays.iter().find(|delay| rows.contains(&(delay.row as usize)));
                let Some(record) = self.record(member.span.req) else { continue };
                queue_ns += started.saturating_sub(record.waiting_since) * Ns::from(member.span.count);
                record.ran(started, now, &timings);
                let outcomes = outcomes.get_mut(rows).unwrap_or_default();
                let emitted = outcomes.iter().any(|row| row.emitted);
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
                stage.ran((end - first_row) as u32, queue_ns, run_ns);
            }
        }
        self.step(now, Event::Completed { task: job.task.id, rows: &outcomes }, after);
    }

    /// Takes no further request, tells tasks to stop, and gives up the requests in flight: their records and the loaded
    /// versions.
    pub(super) fn stop(&mut self) -> (Vec<Record>, Vec<Version>) {
        self.stopped = true;
        self.watch.stop_all();
        let records = std::mem::take(&mut self.requests).into_iter().map(|(_, record)| record).collect();
        (records, std::mem::take(&mut self.models).into_values().collect())
    }

    /// Steps the core and carries its actions out. A stopped pool launches nothing any more.
    pub(super) fn step(&mut self, now: Ns, event: Event<'_>, after: &mut After) {
        if self.stopped {
            return;
        }
        let mut gave_up = false;
        for action in self.core.step(now, event) {
            match action {
                Action::Launch(task) => self.launch(now, task, after),
                Action::Emit { req, step } => {
                    if let Some(record) = self.record(req) {
                        record.emit(now, step);
                    }
                }
                Action::Joined { req, sequence } => {
                    let journey = self.record(req).and_then(|record| Some((record.handle.id, record.journey.clone()?)));
                    if let Some((model, journey)) = journey
                        && let Some(version) = self.models.get_mut(&model)
                    {
                        journey.join(version.sequence(sequence));
                    }
                }
                Action::SequenceOver { model, sequence } => {
                    let version = self.models.get_mut(&model);
                    after.forgotten.extend(version.and_then(|version| version.sequence_over(sequence)));
                }
                Action::Finish { req, end } => {
                    gave_up |= matches!(end, End::Cancelled | End::Expired | End::Failed);
                    if self.record(req).is_some() {
                        let record = self.requests.remove(place(req));
                        if let Some(until) = record.delayed_until {
                            self.delays.remove(until, req);
                        }
                        if let (End::Completed, Some(journey)) = (end, &record.journey) {
                            journey.commit();
                        }
                        let model = record.handle.id;
                        after.ended.push((record, end));
                        if let Some(version) = self.models.get_mut(&model) {
                            version.left(&mut after.freed);
                        }
                        self.timeline.ended(now, req.0, request_end(end));
                    }
                }
                Action::Drained(model) => after.dropped.extend(self.models.remove(&model)),
                Action::WakeAt(at) => after.wake_at = Some(at),
            }
        }
        if gave_up {
            self.stop_unwanted(now, after);
        }
    }

    fn launch(&mut self, now: Ns, task: Task, after: &mut After) {
        let Some(version) = self.models.get_mut(&task.model) else { return };
        let model = Arc::clone(&version.loaded);
        let kept = |&lease: &Lease| Some((lease.boundary, version.kept(lease, task.batch)?));
        let reads = task.reads.iter().filter_map(kept).collect();
        let writes = version.keep(&task, &mut after.freed);
        let mut members = Vec::with_capacity(task.rows.len());
        let mut limit_ns = model.limit_ns;
        for &span in &task.rows {
            let Some(record) = self.record(span.req) else { continue };
            record.launched();
            let (payload, journey) = (Arc::clone(&record.payload), record.journey.clone());
            let of_other = record.handle.id != task.model;
            let cell = journey.as_ref().and_then(|journey| journey.cell(span.start));
            let is_own = !of_other && cell.is_none_or(|cell| cell == usize::from(task.cell.0));
            let guest = (!is_own).then(|| Guest::new(&record.handle.stats, cell.unwrap_or_default()));
            if of_other {
                limit_ns = longer(limit_ns, record.handle.limit_ns);
            }
            members.push(Member { span, payload, journey, step: record.step, guest });
        }
        let flight = Flight { task: task.id, loaded: Arc::clone(&model), stage: task.cell.0, since: now, limit_ns };
        let (stop, look) = self.watch.launched(task.lane, flight, task.rows.iter().map(|span| span.req));
        after.watch_at = look.or(after.watch_at);
        self.record_launch(now, &task);
        after.launches.push(Job { task, model, members, reads, writes, stop });
    }

    fn record_launch(&self, now: Ns, task: &Task) {
        let launch = TaskLaunch {
            task: task.id.0,
            model: task.model.0,
            stage: task.cell.0,
            lane: task.lane.0,
            batch: task.batch,
            bucket_rows: task.bucket.rows,
            lengths: &task.bucket.class.0,
        };
        let rows = task.rows.iter().map(|&RowSpan { req, start, count, at }| TaskRows { req: req.0, start, count, at });
        self.timeline.launched(now, &launch, rows);
    }

    /// What the core did with the batches of every version that is up, beside the version's own counters.
    pub(super) fn meta_counters(&self) -> Vec<(Arc<ModelStats>, MetaCounters)> {
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
            Some((Arc::clone(&self.models.get(&model)?.loaded.stats), meta))
        });
        metas.collect()
    }

    pub(super) fn record(&mut self, req: ReqId) -> Option<&mut Record> {
        self.requests.get_mut(place(req)).filter(|record| record.req == req)
    }
}

/// The record of a request that has not ended.
pub(super) fn find(requests: &Slab<Record>, req: ReqId) -> Option<&Record> {
    requests.get(place(req)).filter(|record| record.req == req)
}

fn place(req: ReqId) -> usize {
    (req.0 & u64::from(u32::MAX)) as usize
}

fn request_end(end: End) -> RequestEnd {
    match end {
        End::Completed => RequestEnd::Completed,
        End::Failed => RequestEnd::Failed,
        End::Rejected(_) => RequestEnd::Rejected,
        End::Expired => RequestEnd::Expired,
        End::Cancelled => RequestEnd::Cancelled,
    }
}

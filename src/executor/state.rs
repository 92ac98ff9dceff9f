//! What is behind the pool's lock: the core, the records of its requests, the loaded versions; and how the core's
//! actions are carried out on them.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use slab::Slab;

use super::{
    InferRequest, ModelHandle,
    lane::{Finished, Job, Member, Ran},
    loaded::Loaded,
    record::{Payload, Record, Sink},
};
use crate::{
    batching::{Action, Arrival, Core, End, Event, Knobs, LaneId, LaneKnobs, ModelId, Ns, ReqId, Task},
    observe::ExecutionTimings,
};

/// What is left to do once the lock is free again: everything that may wake, drop or block.
#[derive(Default)]
pub(super) struct After {
    pub(super) launches: Vec<(LaneId, Job)>,
    pub(super) ended: Vec<(Record, End)>,
    pub(super) dropped: Vec<Arc<Loaded>>,
    pub(super) wake_at: Option<Ns>,
}

/// Times of a request that count from its submission, in the pool's time.
#[derive(Clone, Copy)]
pub(super) struct Due {
    pub(super) board_by: Option<Ns>,
    pub(super) expiry: Option<Ns>,
}

pub(super) struct State {
    core: Core,
    requests: Slab<Record>,
    /// Makes each request's id unique: the upper half, above its place in `requests`.
    serial: u32,
    models: HashMap<ModelId, Arc<Loaded>>,
    next_model: u32,
    stopped: bool,
}

impl State {
    pub(super) fn new(lanes: u16) -> Self {
        let mut core = Core::new();
        for lane in 0..lanes {
            core.step(0, Event::LaneUp(LaneId(lane), LaneKnobs::default()));
        }
        Self { core, requests: Slab::new(), serial: 0, models: HashMap::new(), next_model: 0, stopped: false }
    }

    pub(super) fn in_flight(&self) -> usize {
        self.requests.len()
    }

    pub(super) fn bring_up(&mut self, now: Ns, loaded: Arc<Loaded>, knobs: Knobs, after: &mut After) -> ModelId {
        let id = ModelId(self.next_model);
        self.next_model += 1;
        self.models.insert(id, loaded);
        self.step(now, Event::ModelUp(id, knobs), after);
        id
    }

    /// Admits a request; `None` (its sink closes) once the pool is stopped.
    pub(super) fn submit(
        &mut self,
        now: Ns,
        handle: &Arc<ModelHandle>,
        request: InferRequest,
        due: Due,
        sink: Sink,
        after: &mut After,
    ) -> Option<ReqId> {
        let loaded = self.models.get(&handle.id).filter(|_| !self.stopped)?;
        let (lengths, key) = loaded.admission.measure(&request.inputs);
        self.serial = self.serial.wrapping_add(1);
        let entry = self.requests.vacant_entry();
        let req = ReqId(u64::from(self.serial) << 32 | entry.key() as u64);
        let payload = Payload { rows: request.rows, lengths: lengths.clone(), inputs: request.inputs };
        entry.insert(Record {
            req,
            handle: Arc::clone(handle),
            payload: Arc::new(payload),
            sink,
            responses: VecDeque::new(),
            error: None,
            step: 0,
            arrived: now,
            waiting_since: now,
            queued: true,
            queue_ns: 0,
            compute: ExecutionTimings::default(),
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
        };
        self.step(now, Event::Arrived(arrival), after);
        Some(req)
    }

    /// Takes the result of a task that its lane began at `started`.
    pub(super) fn finish(&mut self, started: Ns, now: Ns, job: &Job, finished: Finished, after: &mut After) {
        let task = job.task.id;
        match finished {
            Finished::Failed(reason) => {
                for member in &job.members {
                    if let Some(record) = self.record(member.span.req) {
                        record.error = Some(reason.clone());
                    }
                }
                self.step(now, Event::Failed { task }, after);
            }
            Finished::Ran(Ran { responses, outcomes, failures, timings }) => {
                for failure in failures {
                    if let Some(record) = job.member_of_row(failure.row).and_then(|req| self.record(req)) {
                        record.error = Some(failure.reason);
                    }
                }
                let mut first_row = 0;
                for (member, response) in job.members.iter().zip(responses) {
                    let rows = first_row..first_row + member.span.count as usize;
                    first_row = rows.end;
                    let Some(record) = self.record(member.span.req) else { continue };
                    record.ran(started, now, &timings);
                    let emitted = outcomes.get(rows).is_some_and(|rows| rows.iter().any(|row| row.emitted));
                    if emitted || matches!(record.sink, Sink::Once(_)) {
                        record.responses.push_back(response);
                    }
                }
                self.step(now, Event::Completed { task, rows: &outcomes }, after);
            }
        }
    }

    /// Takes no further request, and gives up those in flight: their records and the loaded versions.
    pub(super) fn stop(&mut self) -> (Vec<Record>, Vec<Arc<Loaded>>) {
        self.stopped = true;
        let records = std::mem::take(&mut self.requests).into_iter().map(|(_, record)| record).collect();
        (records, std::mem::take(&mut self.models).into_values().collect())
    }

    /// Steps the core and carries its actions out. A stopped pool launches nothing any more.
    pub(super) fn step(&mut self, now: Ns, event: Event<'_>, after: &mut After) {
        if self.stopped {
            return;
        }
        for action in self.core.step(now, event) {
            match action {
                Action::Launch(task) => self.launch(task, after),
                Action::Emit { req, step } => {
                    if let Some(record) = self.record(req) {
                        record.emit(step);
                    }
                }
                Action::Finish { req, end } => {
                    if self.record(req).is_some() {
                        after.ended.push((self.requests.remove(place(req)), end));
                    }
                }
                Action::Drained(model) => after.dropped.extend(self.models.remove(&model)),
                Action::WakeAt(at) => after.wake_at = Some(at),
            }
        }
    }

    fn launch(&mut self, task: Task, after: &mut After) {
        let Some(model) = self.models.get(&task.model).map(Arc::clone) else { return };
        let mut members = Vec::with_capacity(task.rows.len());
        for &span in &task.rows {
            let Some(record) = self.record(span.req) else { continue };
            record.launched();
            members.push(Member { span, payload: Arc::clone(&record.payload), step: record.step });
        }
        after.launches.push((task.lane, Job { task, model, members }));
    }

    fn record(&mut self, req: ReqId) -> Option<&mut Record> {
        self.requests.get_mut(place(req)).filter(|record| record.req == req)
    }
}

fn place(req: ReqId) -> usize {
    (req.0 & u64::from(u32::MAX)) as usize
}

//! The behaviour of the devices of a run: times, faults, and outcomes of rows.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use parking_lot::Mutex;
use paternoster_batching::{Knobs, Ns, Policy, Task};
use paternoster_model::{CellId, Next, RowOutcome};

use super::{
    buckets,
    counts::Counts,
    oracle,
    rng::Rng,
    scenario::Model,
    tracker::{Launch, Tracker},
    values::value,
    world::{Kind, World},
};
use crate::{job::Job, record::Payload};

/// What devices record about requests, by the requests' numbers.
#[derive(Default)]
pub(super) struct RunRecord {
    /// For each request of which a device had rows, the device.
    pub(super) ran: BTreeMap<u64, usize>,
    /// Requests that were answered or cancelled.
    pub(super) ended: BTreeSet<u64>,
    /// Requests that failed in a task of their own, or were lost with a lane.
    pub(super) failed_alone: BTreeSet<u64>,
    /// Requests whose outputs were lost.
    pub(super) outputs_lost: BTreeSet<u64>,
    /// For each row, how often it repeated a stage.
    repeated: BTreeMap<(u64, u32), u8>,
    /// Tasks of stages that were launched in the current step.
    pub(super) launched: Vec<Launch>,
    pub(super) tracker: Tracker,
}

/// Decides which tasks fail by chance.
pub(super) type Faults = Box<dyn FnMut(&mut Rng) -> bool + Send>;

/// The behaviour of one device.
pub(super) struct Behaviour {
    world: Arc<World>,
    shard: usize,
    rng: Rng,
    noted: Arc<Mutex<RunRecord>>,
    faults: Faults,
    pub(super) counts: Counts,
}

impl Behaviour {
    pub(super) fn new(world: &Arc<World>, shard: usize, noted: &Arc<Mutex<RunRecord>>, faults: Faults) -> Self {
        let rng = Rng::new(world.scenario.seed ^ (shard as u64 + 1) << 32);
        let (world, noted) = (Arc::clone(world), Arc::clone(noted));
        Self { world, shard, rng, noted, faults, counts: Counts::default() }
    }

    /// Returns the rows of memory that a device has for versions.
    pub(super) fn memory_rows(&self) -> u64 {
        self.world.memory_rows
    }

    /// Gives some devices bucket sizes for the cells of a model. The buckets of stages are part of the scenario.
    pub(super) fn give_buckets(&mut self, knobs: &mut Knobs) {
        let Policy::Cellular(cellular) = &mut knobs.policy else { return };
        let is_chosen = self.rng.coin();
        for cell in cellular.cells.iter_mut().filter(|_| is_chosen) {
            cell.buckets = buckets::draw(&mut self.rng, 1, cell.max_rows);
        }
    }

    /// Returns the duration of a task.
    pub(super) fn took_ns(&mut self, task: &Task) -> Ns {
        let model = self.world.scenario.models.get(task.model.0 as usize);
        let of_stage = |model: &Model| model.costs[usize::from(task.cell.0)];
        let (launch_ns, row_ns) = model.map_or(self.world.cells.costs, of_stage);
        let steps = match self.world.kind(task.model.0 as usize) {
            Kind::Cells => task.rows.iter().map(|span| span.count).max().unwrap_or(1),
            Kind::Stages | Kind::Decoupled => 1,
        };
        (launch_ns + row_ns * u64::from(task.bucket.rows * steps)) * self.rng.within(8, 14) / 10
    }

    /// Returns how long the outputs of a task stay on the device.
    pub(super) fn take_ns(&mut self) -> Ns {
        self.rng.within(1.min(self.world.most_take_ns), self.world.most_take_ns)
    }

    /// Whether a task fails, because of one of its rows or by chance.
    pub(super) fn fails(&mut self, job: &Job) -> bool {
        let cell = usize::from(job.task.cell.0);
        let is_bad = |(number, row): (u64, u32)| {
            let request = &self.world.requests[number as usize];
            match self.world.kind(request.model) {
                Kind::Stages => oracle::is_bad(&self.world.scenario, request.model, cell, number, row),
                Kind::Cells | Kind::Decoupled => request.bad_node == Some(row),
            }
        };
        let has_bad = self.rows(job).any(is_bad);
        self.counts.bad_tasks += u64::from(has_bad);
        (self.faults)(&mut self.rng) || has_bad
    }

    /// Records that a task was launched, and checks that its requests have not ended and run on no other device.
    pub(super) fn launched(&mut self, job: &Job) -> Result<(), String> {
        let task = &job.task;
        if job.members.len() != task.rows.len() {
            return Err(format!("{:?} has rows of requests that are not there", task.id));
        }
        let noted = &mut *self.noted.lock();
        for (number, _) in self.rows(job) {
            let shard = *noted.ran.entry(number).or_insert(self.shard);
            if noted.ended.contains(&number) || shard != self.shard {
                return Err(format!("{:?} runs request {number}, which has ended or begun elsewhere", task.id));
            }
        }
        if self.kind(job) == Kind::Stages {
            noted.launched.push(self.launch(job));
        }
        Ok(())
    }

    fn launch(&self, job: &Job) -> Launch {
        let task = &job.task;
        let mut requests: Vec<u64> = self.rows(job).map(|(number, _)| number).collect();
        requests.dedup();
        Launch { batch: (self.shard, task.model.0, task.batch), lane: task.lane.0, stage: task.cell.0, requests }
    }

    /// Whether all requests of a task have ended that joined a running batch, while others of the batch go on.
    pub(super) fn is_void(&self, job: &Job) -> bool {
        self.kind(job) == Kind::Stages && self.noted.lock().tracker.is_void(&self.launch(job))
    }

    /// Whether the outputs of a task are lost on the way to the host, which ends its requests.
    pub(super) fn loses_outputs(&mut self, job: &Job) -> bool {
        let is_lost = self.rng.permille(self.world.output_losses);
        if is_lost {
            self.noted.lock().outputs_lost.extend(self.rows(job).map(|(number, _)| number));
        }
        is_lost
    }

    /// Records that a task failed.
    pub(super) fn failed(&mut self, job: &Job) {
        let numbers: BTreeSet<u64> = self.rows(job).map(|(number, _)| number).collect();
        let mut noted = self.noted.lock();
        self.counts.fault_while_waiting += u64::from(noted.tracker.failed(&self.launch(job)));
        if numbers.len() == 1 {
            noted.failed_alone.extend(numbers);
        }
    }

    /// Records that a task was lost with its lane.
    pub(super) fn lost(&mut self, job: &Job) {
        let mut noted = self.noted.lock();
        self.counts.tasks_lost += 1;
        self.counts.lane_lost_while_waiting += u64::from(noted.tracker.failed(&self.launch(job)));
        noted.failed_alone.extend(self.rows(job).map(|(number, _)| number));
    }

    /// Whether rows of a task may go elsewhere than on.
    pub(super) fn decides(&self, job: &Job) -> bool {
        let model = self.world.scenario.models.get(job.task.model.0 as usize);
        model.is_none_or(|model| model.knobs.stages[usize::from(job.task.cell.0)].decides)
    }

    /// Returns the outcomes of a task's rows.
    pub(super) fn outcomes(&mut self, job: &Job) -> Vec<RowOutcome> {
        let rows: Vec<(u64, u32)> = self.rows(job).collect();
        if self.kind(job) == Kind::Decoupled {
            self.counts.emitted += rows.len() as u64;
            return rows.iter().zip(&job.members).map(|(&(number, _), of)| self.answer(number, of.step)).collect();
        }
        if self.kind(job) == Kind::Cells {
            // One of each node, or of the steps that run together.
            let lasts =
                job.members.iter().map(|of| (number_of(Kind::Cells, &of.payload), of.span.start + (of.span.count - 1)));
            let next = |(number, last)| if oracle::is_last(&self.world, number, last) { Next::Done } else { Next::On };
            return lasts.map(|last| RowOutcome { next: next(last), emitted: false }).collect();
        }
        rows.iter().map(|&(number, row)| RowOutcome { next: self.next(job, number, row), emitted: false }).collect()
    }

    fn kind(&self, job: &Job) -> Kind {
        self.world.kind(job.task.model.0 as usize)
    }

    /// Returns the outcome of a request of one row that has answered `before` times.
    fn answer(&self, number: u64, before: u32) -> RowOutcome {
        let is_last = before + 1 == self.world.requests[number as usize].nodes;
        RowOutcome { next: if is_last { Next::Done } else { Next::Skip(CellId(0)) }, emitted: true }
    }

    fn next(&mut self, job: &Job, number: u64, row: u32) -> Next {
        let (model, cell) = (job.task.model.0 as usize, usize::from(job.task.cell.0));
        let mut noted = self.noted.lock();
        let before = noted.repeated.entry((number, row)).or_default();
        if oracle::repeats(&self.world.scenario, model, cell, number, row, *before) {
            *before += 1;
            self.counts.repeats += 1;
            return Next::Skip(CellId(cell as u16));
        }
        let next = oracle::next_of(&self.world.scenario, model, cell, number, row);
        match next {
            Next::Done => self.counts.exits += u64::from(job.task.writes.is_some()),
            Next::Skip(_) => self.counts.skips += 1,
            Next::Failed | Next::Pause => self.counts.failed_rows += 1,
            Next::On => {}
        }
        next
    }

    /// For each row, the numbers of its request and of the row; for cells, of each step that a node runs.
    fn rows<'j>(&self, job: &'j Job) -> impl Iterator<Item = (u64, u32)> + use<'j> {
        let kind = self.kind(job);
        job.members.iter().flat_map(move |member| {
            let (number, span) = (number_of(kind, &member.payload), member.span);
            (span.start..span.start + span.count).map(move |row| (number, row))
        })
    }
}

/// Returns the number of a request, encoded in its inputs according to the kind of its model.
pub(super) fn number_of(kind: Kind, payload: &Payload) -> u64 {
    let first = value(payload.inputs[0].as_ref().map_or(&[], |input| &input.data), 0);
    if kind == Kind::Cells { first >> 16 } else { first }
}

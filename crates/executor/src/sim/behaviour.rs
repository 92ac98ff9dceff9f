//! The behaviour of the devices of a run: times, faults, and outcomes of rows.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use parking_lot::Mutex;
use paternoster_batching::{CellId, Knobs, Next, Ns, Policy, RowOutcome, Task};

use super::{
    buckets, oracle,
    rng::Rng,
    scenario::Model,
    values::value,
    world::{Kind, World},
};
use crate::{job::Job, record::Payload};

/// What devices record about requests, by the requests' numbers.
#[derive(Default)]
pub(super) struct RunRecord {
    /// For each device, the requests of which it had rows.
    pub(super) ran: Vec<BTreeSet<u64>>,
    /// Requests that failed in a task of their own.
    pub(super) failed_alone: BTreeSet<u64>,
    /// Requests whose outputs were lost.
    pub(super) outputs_lost: BTreeSet<u64>,
    /// For each row, how often it repeated a stage.
    repeated: BTreeMap<(u64, u32), u8>,
}

/// A planted fault of a device, to test that it is detected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Planted {
    /// Does not wait for tasks of other lanes.
    NoWaits,
    /// Carries out orders from the last to the first.
    Backwards,
    /// Swaps the outputs of two requests' rows.
    SwappedOutputs,
    /// Uses the next slot for nodes with odd numbers.
    NextSlot,
    /// Overwrites outputs before the host has taken them.
    OutputsReused,
    /// Never delivers outputs.
    NeverTaken,
    /// Runs tasks that depend on a failed task as if it had succeeded.
    FailureUnnoticed,
    /// Does not free the memory of a version.
    NeverFreed,
    /// Reports outputs out of order.
    TakenOutOfOrder,
}

impl Planted {
    pub(super) const ALL: [Self; 9] = [
        Self::NoWaits,
        Self::Backwards,
        Self::SwappedOutputs,
        Self::NextSlot,
        Self::OutputsReused,
        Self::NeverTaken,
        Self::FailureUnnoticed,
        Self::NeverFreed,
        Self::TakenOutOfOrder,
    ];
}

/// The behaviour of one device.
pub(super) struct Behaviour {
    world: Arc<World>,
    shard: usize,
    rng: Rng,
    noted: Arc<Mutex<RunRecord>>,
}

impl Behaviour {
    pub(super) fn new(world: &Arc<World>, shard: usize, noted: &Arc<Mutex<RunRecord>>) -> Self {
        let rng = Rng::new(world.scenario.seed ^ (shard as u64 + 1) << 32);
        Self { world: Arc::clone(world), shard, rng, noted: Arc::clone(noted) }
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
    pub(super) fn took_ns(&self, task: &Task) -> Ns {
        let model = self.world.scenario.models.get(task.model.0 as usize);
        let of_stage = |model: &Model| model.costs[usize::from(task.cell.0)];
        let (launch_ns, row_ns) = model.map_or(self.world.cells.costs, of_stage);
        launch_ns + row_ns * u64::from(task.bucket.rows)
    }

    /// Returns how long the outputs of a task stay on the device.
    pub(super) fn take_ns(&mut self) -> Ns {
        self.rng.within(1, self.world.most_take_ns)
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
        self.noted.lock().ran[self.shard].extend(self.rows(job).map(|(number, _)| number));
        has_bad || self.rng.permille(self.world.scenario.faults)
    }

    /// Whether the outputs of a task are lost on the way to the host, which ends its requests.
    pub(super) fn loses_outputs(&mut self, job: &Job) -> bool {
        let is_lost = self.rng.permille(3);
        if is_lost {
            self.noted.lock().outputs_lost.extend(self.rows(job).map(|(number, _)| number));
        }
        is_lost
    }

    /// Records that a task failed.
    pub(super) fn failed(&self, job: &Job) {
        let numbers: BTreeSet<u64> = self.rows(job).map(|(number, _)| number).collect();
        if numbers.len() == 1 {
            self.noted.lock().failed_alone.extend(numbers);
        }
    }

    /// Returns the outcomes of a task's rows.
    pub(super) fn outcomes(&self, job: &Job) -> Vec<RowOutcome> {
        if self.kind(job) == Kind::Decoupled {
            return self
                .rows(job)
                .zip(&job.members)
                .map(|((number, _), member)| self.answer(number, member.step))
                .collect();
        }
        let outcome = |(number, row)| RowOutcome { next: self.next(job, number, row), emitted: false };
        self.rows(job).map(outcome).collect()
    }

    fn kind(&self, job: &Job) -> Kind {
        self.world.kind(job.task.model.0 as usize)
    }

    /// Returns the outcome of a request of one row that has answered `before` times.
    fn answer(&self, number: u64, before: u32) -> RowOutcome {
        let is_last = before + 1 == self.world.requests[number as usize].nodes;
        RowOutcome { next: if is_last { Next::Done } else { Next::Skip(CellId(0)) }, emitted: true }
    }

    fn next(&self, job: &Job, number: u64, row: u32) -> Next {
        let (model, cell) = (job.task.model.0 as usize, usize::from(job.task.cell.0));
        if self.kind(job) == Kind::Cells {
            return if oracle::is_last(&self.world, number, row) { Next::Done } else { Next::On };
        }
        let mut noted = self.noted.lock();
        let before = noted.repeated.entry((number, row)).or_default();
        if oracle::repeats(&self.world.scenario, model, cell, number, row, *before) {
            *before += 1;
            return Next::Skip(CellId(cell as u16));
        }
        oracle::next_of(&self.world.scenario, model, cell, number, row)
    }

    /// For each row, the numbers of its request and of the row.
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

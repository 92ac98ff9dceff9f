//! The simulated device as a backend: arenas for stages, slot tables for cells, lanes that take work ahead, and outputs
//! that the host takes later.
//!
//! A row holds a hash of everything that made it (`device::sim`), so a reply identifies every task that its rows went
//! through. Requests carry INT64 values: the numbers of the request and of the row.

use std::{
    collections::{BTreeMap, VecDeque},
    io,
    sync::Arc,
    time::Instant,
};

use parking_lot::Mutex;
use paternoster_batching::{Knobs, LaneId, LaneKnobs, ModelId, Ns, Policy, RowOutcome, TaskId};
use paternoster_device::{BufferId, Device, Operation};
use paternoster_observe::ExecutionTimings;
use paternoster_testing::sim::{Completion, Sim, Work};

use super::{
    behaviour::{Behaviour, Planted},
    buckets, cells, stages,
    values::{Counts, ROW_BYTES},
};

use crate::{
    backend::{Backend, Order, Reports},
    dispatch::{Tickets, issue},
    job::{Finished, Job},
    job::{Outputs, TaskOutput},
    stages::Programs,
    version::ServedVersion,
};

/// One device: the interface to the pool, and to the test.
pub(super) struct Simulated {
    shard: usize,
    lanes: u16,
    lane_knobs: LaneKnobs,
    floor: Arc<Mutex<Floor>>,
}

/// The state of the device.
pub(super) struct Floor {
    pub(super) sim: Sim,
    behaviour: Behaviour,
    planted: Option<Planted>,
    tickets: Tickets,
    versions: BTreeMap<ModelId, SimVersion>,
    used_rows: u64,
    /// Tasks on the device.
    flights: Vec<InFlightTask>,
    /// Completed tasks whose outputs the host has not taken yet, in the order of completion.
    untaken: VecDeque<Untaken>,
    /// Output rows that are free.
    spare: Vec<(u32, BufferId)>,
    /// The first fault found where no error could be returned.
    pub(super) broken: Option<String>,
    pub(super) counts: Counts,
}

/// The memory of a version on the device.
struct SimVersion {
    reserved: Reserved,
    /// For each stage or cell, the sizes that it runs in; empty if it runs in any.
    buckets: Vec<Box<[u32]>>,
}

enum Reserved {
    Arenas(stages::Arenas),
    Slots(cells::SlotTable),
}

/// A task on the device.
pub(super) struct InFlightTask {
    pub(super) job: Job,
    operation: Operation,
    /// Buffer of its outputs until they are taken.
    pub(super) out: BufferId,
    out_rows: u32,
    /// Whether it fails; tasks that depend on it fail too.
    pub(super) fails: bool,
}

struct Untaken {
    at: Ns,
    flight: InFlightTask,
    outcomes: Vec<RowOutcome>,
}

impl Simulated {
    pub(super) fn new(
        shard: usize,
        lanes: u16,
        lane_knobs: LaneKnobs,
        behaviour: Behaviour,
        planted: Option<Planted>,
    ) -> (Self, Arc<Mutex<Floor>>) {
        let floor = Arc::new(Mutex::new(Floor {
            sim: Sim::new(lanes),
            behaviour,
            planted,
            tickets: Tickets::default(),
            versions: BTreeMap::new(),
            used_rows: 0,
            flights: Vec::new(),
            untaken: VecDeque::new(),
            spare: Vec::new(),
            broken: None,
            counts: Counts::default(),
        }));
        (Self { shard, lanes, lane_knobs, floor: Arc::clone(&floor) }, floor)
    }
}

impl Backend for Simulated {
    fn lanes(&self) -> u16 {
        self.lanes
    }

    fn lane_knobs(&self) -> LaneKnobs {
        self.lane_knobs
    }

    fn load(&self, model: ModelId, version: &ServedVersion, knobs: &mut Knobs) -> Result<(), String> {
        let mut floor = self.floor.lock();
        let rows = match (&version.programs.0, &knobs.policy) {
            (Programs::Cells(_), Policy::Cellular(cellular)) => cells::SlotTable::rows(cellular.slots),
            _ => stages::Arenas::rows(knobs),
        };
        let free = floor.behaviour.memory_rows() - floor.used_rows;
        if rows > free {
            return Err(format!("it needs {rows} rows, expected at most {free}"));
        }
        floor.used_rows += rows;
        floor.behaviour.give_buckets(knobs);
        let reserved = match (&version.programs.0, &knobs.policy) {
            (Programs::Cells(_), Policy::Cellular(cellular)) => {
                Reserved::Slots(cells::SlotTable::new(&mut floor.sim, cellular.slots))
            }
            _ => Reserved::Arenas(stages::Arenas::new(&mut floor.sim, knobs)),
        };
        let buckets = match &knobs.policy {
            Policy::Cellular(cellular) => cellular.cells.iter().map(|cell| cell.buckets.clone()).collect(),
            _ => knobs.stages.iter().map(|stage| stage.buckets.clone()).collect(),
        };
        floor.versions.insert(model, SimVersion { reserved, buckets });
        Ok(())
    }

    fn issue(&self, _: &Arc<dyn Reports>, next: &mut dyn FnMut() -> Option<Order>) {
        let mut floor = self.floor.lock();
        let mut orders: Vec<Order> = std::iter::from_fn(next).collect();
        if floor.planted == Some(Planted::Backwards) {
            orders.reverse();
        }
        for order in orders {
            let done = match order {
                Order::Run(job) => floor.launch(job),
                Order::Rest(model) => floor.rest(model),
                Order::SequenceOver(..) => Ok(()),
                Order::Unload(model) => floor.unload(model),
            };
            if let Err(fault) = done {
                floor.broken.get_or_insert(format!("device {}: {fault}", self.shard));
            }
        }
    }

    fn leave_behind(&self, lane: LaneId, _: TaskId) -> io::Result<()> {
        Err(io::Error::other(format!("lane {} cannot go on without its task", lane.0)))
    }

    fn stop(&self, _: Instant) -> bool {
        self.floor.lock().sim.stop(Default::default())
    }
}

impl Floor {
    /// Enqueues a task.
    fn launch(&mut self, job: Job) -> Result<(), String> {
        let task = &job.task;
        let rows = task.row_count();
        let version = self.versions.get(&task.model);
        buckets::check(task, version.map_or(&[], |version| &version.buckets[usize::from(task.cell.0)]))?;
        self.counts.tasks += 1;
        self.counts.rows += u64::from(rows);
        self.counts.padding += u64::from(task.bucket.rows - rows);
        self.counts.ahead += u64::from(self.flights.iter().any(|flight| flight.job.task.lane == task.lane));
        self.counts.waits += task.after.len() as u64;
        for other in &task.after {
            if self.tickets.of(*other).is_none() {
                return Err(format!("{:?} waits for {other:?}, which is not on the device", task.id));
            }
        }
        let needs_failed = self.flights.iter().any(|flight| flight.fails && needs(&job, &flight.job));
        let needs_failed = needs_failed && self.planted != Some(Planted::FailureUnnoticed);
        let fails = self.behaviour.fails(&job) || needs_failed;
        if fails {
            self.behaviour.failed(&job);
        }
        self.counts.failed += u64::from(fails);
        self.counts.failed_by_need += u64::from(needs_failed);
        let took_ns = self.behaviour.took_ns(task);
        let (out, out_rows) = self.out(rows)?;
        let program = u64::from(task.model.0) << 16 | u64::from(task.cell.0);
        let version = self.versions.get_mut(&task.model).map(|version| &mut version.reserved);
        let (accesses, work) = match version {
            // A refused task has touched nothing: its inputs are unchanged, and it may run again.
            _ if fails => (Vec::new(), Work::new(program, took_ns, 1).failing()),
            None => return Err(format!("{:?} is of {:?}, which is not loaded", task.id, task.model)),
            Some(Reserved::Arenas(arenas)) => {
                let (sim, counts) = (&mut self.sim, &mut self.counts);
                arenas.work(sim, counts, &job, Work::new(program, took_ns, 1), out)?
            }
            Some(Reserved::Slots(table)) => {
                let moved_by = u32::from(self.planted == Some(Planted::NextSlot));
                table.work(&mut self.counts, &job, Work::new(program, took_ns, 1), (out, moved_by))?
            }
        };
        let mut unordered = task.clone();
        if self.planted == Some(Planted::NoWaits) {
            unordered.after.clear();
        }
        let order = (&unordered).into();
        let issued = issue(&mut self.sim, &mut self.tickets, &order, &accesses, work);
        let operation = issued.map_err(|error| format!("{:?}: {error}", task.id))?;
        self.flights.push(InFlightTask { job, operation, out, out_rows, fails });
        Ok(())
    }

    /// Returns a buffer for a task's outputs.
    fn out(&mut self, rows: u32) -> Result<(BufferId, u32), String> {
        if let Some(at) = self.spare.iter().position(|&(own, _)| own >= rows) {
            let (rows, buffer) = self.spare.swap_remove(at);
            return Ok((buffer, rows));
        }
        let rows = rows.next_power_of_two();
        let buffer = self.sim.allocate(rows, ROW_BYTES).map_err(|error| error.to_string())?;
        Ok((buffer, rows))
    }

    fn rest(&mut self, model: ModelId) -> Result<(), String> {
        match self.versions.get_mut(&model) {
            Some(SimVersion { reserved: Reserved::Arenas(arenas), .. }) => arenas.rest(&mut self.sim),
            _ => Ok(()),
        }
    }

    fn unload(&mut self, model: ModelId) -> Result<(), String> {
        let version = self.versions.remove(&model).ok_or_else(|| format!("{model:?} is not loaded"))?;
        let (buffers, rows) = match version.reserved {
            Reserved::Arenas(arenas) => arenas.into_buffers(),
            Reserved::Slots(table) => table.into_buffers(),
        };
        if self.planted != Some(Planted::NeverFreed) {
            self.used_rows -= rows;
        }
        buffers.into_iter().try_for_each(|buffer| self.sim.free(buffer)).map_err(|error| error.to_string())
    }

    /// Advances the device to the current time.
    pub(super) fn keep_up(&mut self, now: Ns) {
        if self.sim.next_end_ns().is_none_or(|end| end > now) {
            self.sim.advance_to(now);
        }
    }

    /// Returns the time of the device's next event.
    pub(super) fn next_ns(&self) -> Option<Ns> {
        let taken = self.untaken.front().map(|untaken| untaken.at);
        [self.sim.next_end_ns(), taken].into_iter().flatten().min()
    }

    /// Whether nothing is in flight.
    pub(super) fn is_idle(&self) -> bool {
        self.flights.is_empty() && self.untaken.is_empty()
    }

    /// Returns the number of rows that versions have reserved.
    pub(super) fn used_rows(&self) -> u64 {
        self.used_rows
    }
}

/// Processes one due event of a device: a completion, or the outputs of one task. Returns whether there was one.
pub(super) fn advance(floor: &Mutex<Floor>, pool: &Arc<dyn Reports>, shard: usize, now: Ns) -> Result<bool, String> {
    let mut here = floor.lock();
    if here.untaken.front().is_some_and(|untaken| untaken.at <= now) {
        let out_of_order = here.planted == Some(Planted::TakenOutOfOrder);
        let next = if out_of_order { here.untaken.pop_back() } else { here.untaken.pop_front() };
        let Some(Untaken { flight, outcomes, .. }) = next else { return Ok(false) };
        let outputs = here.outputs(&flight, &outcomes)?;
        if here.planted != Some(Planted::OutputsReused) {
            here.spare.push((flight.out_rows, flight.out));
        }
        let is_lost = here.behaviour.loses_outputs(&flight.job);
        here.counts.outputs_lost += u64::from(is_lost);
        drop(here);
        let outputs = if is_lost { Err("the outputs are lost".to_owned()) } else { Ok(outputs) };
        Arc::clone(pool).taken(shard, &flight.job, outputs);
        return Ok(true);
    }
    let Some(Completion { operation, started_ns, ended_ns, outcome }) = here.sim.advance_to(now) else {
        return Ok(false);
    };
    let at = here.flights.iter().position(|flight| flight.operation == operation);
    let flight = here.flights.remove(at.ok_or_else(|| format!("{operation} is no task's"))?);
    here.tickets.landed(flight.job.task.id);
    let job = &flight.job;
    if let Err(failure) = outcome {
        if !flight.fails {
            return Err(format!("{:?} fails for no reason: {failure}", job.task.id));
        }
        here.spare.push((flight.out_rows, flight.out));
        drop(here);
        Arc::clone(pool).completed(shard, Some(started_ns), &flight.job, Finished::Failed(failure.to_string()));
        return Ok(true);
    }
    let outcomes = here.behaviour.outcomes(job);
    let timings = ExecutionTimings { compute_infer_ns: ended_ns - started_ns, ..ExecutionTimings::default() };
    let of_requests = outcomes.clone();
    let ran = TaskOutput { outputs: None, outcomes: of_requests, failures: Vec::new(), delays: Vec::new(), timings };
    here.counts.completed_before_taken += u64::from(!here.untaken.is_empty());
    drop(here);
    Arc::clone(pool).completed(shard, Some(started_ns), &flight.job, Finished::Completed(ran));
    let mut here = floor.lock();
    let before = here.untaken.back().map_or(0, |untaken| untaken.at);
    let at = before.max(now + here.behaviour.take_ns());
    match here.planted {
        Some(Planted::NeverTaken) => return Ok(true),
        Some(Planted::OutputsReused) => here.spare.push((flight.out_rows, flight.out)),
        _ => {}
    }
    here.untaken.push_back(Untaken { at, flight, outcomes });
    Ok(true)
}

impl Floor {
    fn outputs(&mut self, flight: &InFlightTask, outcomes: &[RowOutcome]) -> Result<Outputs, String> {
        let rows = super::rows_of(&flight.job.task).count() as u32;
        let read = |row| self.sim.read(flight.out, row).map_err(|error| format!("{:?}: {error}", flight.job.task.id));
        let mut values = (0..rows).map(read).collect::<Result<Vec<u64>, String>>()?;
        if self.planted == Some(Planted::SwappedOutputs) && rows > 1 {
            values.swap(0, 1);
        }
        match &flight.job.model.programs.0 {
            Programs::Cells(_) => cells::outputs(&flight.job, &values, outcomes),
            programs => Ok(stages::outputs(programs, &flight.job, &values, outcomes)),
        }
    }
}

/// Whether a task depends on what another writes.
fn needs(job: &Job, other: &Job) -> bool {
    match &job.model.programs.0 {
        Programs::Cells(_) => cells::needs(job, other),
        _ => stages::needs(&job.task, &other.task),
    }
}

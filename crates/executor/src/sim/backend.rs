//! The simulated device as a backend: arenas for stages, slot tables for cells, lanes that take work ahead, and outputs
//! that the host takes later.
//!
//! A row holds a hash of everything that made it (`paternoster_testing::sim`), so a response identifies every task that
//! its rows went through. Requests carry INT64 values: the numbers of the request and of the row.

use std::{
    collections::{BTreeMap, VecDeque},
    io,
    sync::Arc,
    time,
};

use parking_lot::Mutex;
use paternoster_batching::{Instant, Knobs, LaneId, LaneKnobs, ModelId, Policy, Task, TaskId};
use paternoster_device::{Access, BufferId, Device, Operation, Region, StreamId};
use paternoster_model::RowOutcome;
use paternoster_testing::sim::{Sim, Work};

use super::{behaviour::Behaviour, buckets, cells, planted::Planted, stages, values::ROW_BYTES};
use crate::{
    backend::{Backend, CannotHold, Order, Reports},
    dispatch::{Tickets, issue},
    job::{Job, Outputs},
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
    pub(super) behaviour: Behaviour,
    pub(super) planted: Option<Planted>,
    /// Maximum number of tasks on a lane.
    depth: usize,
    pub(super) tickets: Tickets,
    versions: BTreeMap<ModelId, SimVersion>,
    used_rows: u64,
    /// Tasks on the device.
    pub(super) flights: Vec<InFlightTask>,
    /// Completed tasks whose outputs the host has not taken yet, in the order of completion.
    pub(super) unread_outputs: VecDeque<Untaken>,
    /// Output rows that are free.
    pub(super) spare: Vec<(u32, BufferId)>,
    /// The first fault found where no error could be returned.
    pub(super) broken: Option<String>,
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
    pub(super) operation: Operation,
    /// Buffer of its outputs until they are taken.
    pub(super) out: BufferId,
    pub(super) out_rows: u32,
    writes: Vec<Region>,
    /// Whether it fails; tasks that depend on it fail too.
    pub(super) fails: bool,
    /// Whether its end was reported early, or is never reported: planted faults.
    pub(super) is_told: bool,
}

pub(super) struct Untaken {
    pub(super) at: Instant,
    pub(super) flight: InFlightTask,
    pub(super) outcomes: Vec<RowOutcome>,
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
            depth: usize::from(lane_knobs.depth.max(1)),
            tickets: Tickets::default(),
            versions: BTreeMap::new(),
            used_rows: 0,
            flights: Vec::new(),
            unread_outputs: VecDeque::new(),
            spare: Vec::new(),
            broken: None,
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

    fn load(&self, model: ModelId, version: &ServedVersion, knobs: &mut Knobs) -> Result<(), CannotHold> {
        let floor = &mut *self.floor.lock();
        let planted = floor.planted;
        let rows = match (&version.programs.0, &knobs.policy) {
            (Programs::Cells(_), Policy::Cellular(cellular)) => cells::SlotTable::rows(cellular),
            _ => stages::Arenas::rows(knobs),
        };
        let free = floor.behaviour.memory_rows() - floor.used_rows;
        if rows > free {
            return Err(format!("it needs {rows} rows, expected at most {free}").into());
        }
        floor.used_rows += rows;
        floor.behaviour.give_buckets(knobs);
        let reserved = match (&version.programs.0, &knobs.policy) {
            (Programs::Cells(_), Policy::Cellular(cellular)) => {
                Reserved::Slots(cells::SlotTable::new(&mut floor.sim, cellular))
            }
            _ => Reserved::Arenas(stages::Arenas::new(&mut floor.sim, knobs, planted)),
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

    fn stop(&self, _: time::Instant) -> bool {
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
        self.behaviour.launched(&job)?;
        let ahead = self.running().filter(|other| other.lane == task.lane).count();
        if ahead >= self.depth {
            return Err(format!("{:?} is launched on {:?}, which takes no more", task.id, task.lane));
        }
        let order = self.order(task)?;
        let counts = &mut self.behaviour.counts;
        counts.tasks += 1;
        counts.padding += u64::from(task.bucket.rows - rows);
        counts.ahead += u64::from(ahead > 0);
        let needs_failed = self.flights.iter().any(|flight| flight.fails && needs(&job, &flight.job));
        let needs_failed = needs_failed && self.planted != Some(Planted::FailureUnnoticed);
        let fails = self.behaviour.fails(&job) || needs_failed;
        self.behaviour.counts.failed_tasks += u64::from(fails);
        self.behaviour.counts.failed_by_need += u64::from(needs_failed);
        let took_ns = self.behaviour.took_ns(task);
        let (out, out_rows) = self.out(rows)?;
        let program = u64::from(task.model.0) << 16 | u64::from(task.cell.0);
        let version = self.versions.get_mut(&task.model).map(|version| &mut version.reserved);
        let (sim, counts) = (&mut self.sim, &mut self.behaviour.counts);
        let work = Work { fails, ..Work::new(program, took_ns, 1) };
        let (accesses, work) = match version {
            None => return Err(format!("{:?} is of {:?}, which is not loaded", task.id, task.model)),
            // What a failed task of a stage has written is lost.
            Some(Reserved::Arenas(arenas)) => arenas.work(sim, counts, &job, work, out)?,
            // A refused task of nodes has touched nothing: its inputs are unchanged, and it may run again.
            Some(Reserved::Slots(_)) if fails => (Vec::new(), work),
            Some(Reserved::Slots(table)) => table.work(counts, &job, work, out, self.planted)?,
        };
        let issued = issue(sim, &mut self.tickets, &(&order).into(), &accesses, work);
        let operation = issued.map_err(|error| format!("{:?}: {error}", task.id))?;
        let writes = accesses.into_iter().filter(|access| access.kind.writes()).map(|Access { region, .. }| region);
        let writes = writes.collect();
        self.flights.push(InFlightTask { job, operation, out, out_rows, writes, fails, is_told: false });
        Ok(())
    }

    /// Returns a task with the waits that the device carries out, which a planted fault may omit.
    fn order(&mut self, task: &Task) -> Result<Task, String> {
        let mut order = task.clone();
        order.after.clear();
        for &other in &task.after {
            let awaited = self.flights.iter().find(|flight| flight.job.task.id == other);
            let Some(InFlightTask { job: Job { task: awaited, .. }, .. }) = awaited else {
                return Err(format!("{:?} waits for {other:?}, which is not on the device", task.id));
            };
            let has_written =
                awaited.writes.is_some_and(|lease| task.reads.contains(&lease) || task.writes == Some(lease));
            let counts = &mut self.behaviour.counts;
            let (kind, omits_it) = if has_written {
                (&mut counts.waits_for_writer, Planted::NoWaitForWriter)
            } else {
                (&mut counts.waits_for_reader, Planted::NoWaitForReader)
            };
            *kind += 1;
            if self.planted != Some(omits_it) {
                order.after.push(other);
            }
        }
        Ok(order)
    }

    /// Returns the tasks whose end has not been reported, from the oldest on.
    fn running(&self) -> impl Iterator<Item = &Task> {
        self.flights.iter().filter(|flight| !flight.is_told).map(|flight| &flight.job.task)
    }

    /// Whether the oldest task of a lane may end next: every task that it waited for has ended.
    pub(super) fn may_end(&self, lane: LaneId) -> bool {
        let runs = |id: &TaskId| self.running().any(|task| task.id == *id);
        self.running().find(|task| task.lane == lane).is_some_and(|oldest| !oldest.after.iter().any(runs))
    }

    /// Abandons a lane's stream with its tasks, and returns them. What they had yet to write is poison.
    pub(super) fn give_up(&mut self, lane: LaneId) -> Result<Vec<Job>, String> {
        self.sim.give_up(StreamId(lane.0)).map_err(|error| error.to_string())?;
        self.behaviour.counts.lanes_lost += 1;
        let lost: Vec<_> = self.flights.extract_if(.., |flight| flight.job.task.lane == lane).collect();
        let lost = lost.into_iter().map(|flight| {
            self.behaviour.lost(&flight.job);
            self.tickets.landed(flight.job.task.id);
            let poisoned = flight.writes.iter().try_for_each(|region| self.sim.lose(flight.operation, region));
            poisoned.map_err(|error| error.to_string())?;
            self.spare.push((flight.out_rows, flight.out));
            Ok(flight.job)
        });
        lost.collect()
    }

    /// Whether the end of a task is never reported: a planted fault.
    pub(super) fn forgets(&self, job: &Job) -> bool {
        let is_last = job.task.writes.is_none();
        match self.planted {
            Some(Planted::LostCredit) => is_last,
            Some(Planted::LostCompletion) => job.task.cell.0 == 0,
            Some(Planted::NewcomersForgotten) => self.behaviour.is_void(job),
            _ => false,
        }
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
    pub(super) fn keep_up(&mut self, now: Instant) {
        if self.sim.next_end_ns().is_none_or(|end_ns| end_ns > now.as_ns()) {
            self.sim.advance_to(now.as_ns());
        }
    }

    /// Returns the time of the device's next event.
    pub(super) fn next(&self) -> Option<Instant> {
        let taken = self.unread_outputs.front().map(|unread_outputs| unread_outputs.at);
        [self.sim.next_end_ns().map(Instant::from_ns), taken].into_iter().flatten().min()
    }

    /// Whether nothing is in flight.
    pub(super) fn is_idle(&self) -> bool {
        self.flights.is_empty() && self.unread_outputs.is_empty()
    }

    /// Returns the models of the tasks on the device.
    pub(super) fn models_in_flight(&self) -> Vec<usize> {
        self.flights.iter().map(|flight| flight.job.task.model.0 as usize).collect()
    }

    /// Returns the number of rows that versions have reserved.
    pub(super) fn used_rows(&self) -> u64 {
        self.used_rows
    }
}

impl Floor {
    pub(super) fn outputs(&mut self, flight: &InFlightTask, outcomes: &[RowOutcome]) -> Result<Outputs, String> {
        let rows = flight.job.task.row_count();
        let read = |row| self.sim.read(flight.out, row).map_err(|error| format!("{:?}: {error}", flight.job.task.id));
        let mut values = (0..rows).map(read).collect::<Result<Vec<u64>, String>>()?;
        if self.planted == Some(Planted::SwappedReplies) && rows > 1 {
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

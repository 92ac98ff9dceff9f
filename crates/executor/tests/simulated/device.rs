//! What an executor does with the core's tasks, on the simulated device: a buffer for each pair, a stream for each
//! lane, a ticket for each task.

use std::sync::Arc;

use paternoster_batching::{LaneId, Lease, ReqId, RowSpan, Task, TaskId};
use paternoster_device::{Access, BufferId, Device, Operation, Region, Rows, StreamId, Ticket};
use paternoster_testing::sim::{Sim, Source, Work, external};

use super::{
    buckets,
    oracle::program,
    planted::Planted,
    rare::Rare,
    scenario::{Model, Scenario},
};

const ROW_BYTES: usize = 8;

/// A task on its stream.
#[derive(Clone, Debug)]
pub(crate) struct InFlight {
    pub task: Task,
    pub operation: Operation,
    /// Its end was reported to the core before the device had completed it (a planted fault).
    pub told: bool,
    ticket: Ticket,
    /// The buffer that the last stage writes.
    reply: Option<BufferId>,
}

/// The memory of one buffer pair of a boundary.
#[derive(Clone, Debug)]
struct Pair {
    buffer: BufferId,
    /// The batch that wrote it last.
    owner: Option<u64>,
    /// The task that wrote each row last.
    writers: Vec<Option<TaskId>>,
}

/// The device, with an executor's state about it.
#[derive(Clone, Debug)]
pub(crate) struct Floor {
    pub sim: Sim,
    pub tasks: Vec<InFlight>,
    /// Tasks that the device has completed but whose end is never reported to the core (a planted fault).
    pub untold: Vec<InFlight>,
    planted: Option<Planted>,
    /// Indexed by model and stage.
    buckets: Vec<Vec<Box<[u32]>>>,
    /// Indexed by model, boundary and pair.
    pairs: Vec<Vec<Vec<Pair>>>,
    /// Unused reply buffers.
    replies: Vec<BufferId>,
    most_rows: u32,
}

/// Returns the rows of a task one by one: the request, the row within it, and the place in the batch.
pub(crate) fn rows_of(task: &Task) -> impl Iterator<Item = (ReqId, u32, u32)> + '_ {
    let of = |span: &RowSpan| {
        let span = *span;
        (0..span.count).map(move |row| (span.req, span.start + row, span.at + row))
    };
    task.rows.iter().flat_map(of)
}

impl Floor {
    pub(crate) fn new(scenario: &Scenario, planted: Option<Planted>) -> Result<Self, String> {
        let mut sim = Sim::new(scenario.lanes.len() as u16);
        let mut pairs = Vec::new();
        for model in &scenario.models {
            let rows = model.knobs.max_batch_rows;
            let mut boundaries = Vec::new();
            for _ in 1..model.knobs.stages.len() {
                let mut own = Vec::new();
                for _ in 0..model.knobs.buffer_pairs {
                    let buffer = sim.allocate(rows, ROW_BYTES).map_err(|error| error.to_string())?;
                    own.push(Pair { buffer, owner: None, writers: vec![None; rows as usize] });
                }
                boundaries.push(own);
            }
            pairs.push(boundaries);
        }
        let most_rows = scenario.models.iter().map(|model| model.knobs.max_batch_rows).max().unwrap_or(1);
        let of_model = |model: &Model| model.knobs.stages.iter().map(|stage| stage.buckets.clone()).collect();
        let buckets = scenario.models.iter().map(of_model).collect();
        Ok(Self { sim, buckets, tasks: Vec::new(), untold: Vec::new(), planted, pairs, replies: Vec::new(), most_rows })
    }

    /// Enqueues a task: its waits, poison over another batch's rows, the launch, and a ticket for its end.
    pub(crate) fn launch(&mut self, task: Task, duration_ns: u64, fails: bool, rare: &mut Rare) -> Result<(), String> {
        let stream = StreamId(task.lane.0);
        for &other in &task.after {
            self.wait(stream, &task, other, rare)?;
        }
        let mut places: Vec<u32> = rows_of(&task).map(|(.., at)| at).collect();
        let rows = places.len() as u32;
        buckets::check(&task, &self.buckets[task.model.0 as usize][usize::from(task.cell.0)])?;
        let gaps = places.windows(2).any(|pair| pair[0] + 1 != pair[1]);
        rare.partial_rows += u64::from(gaps);
        if self.planted == Some(Planted::RowOffsetZero) {
            places = (0..rows).collect();
        }
        let read_at = named(&places);
        // Swapped only after the rows to read were named, so that the task writes other rows than it read.
        if self.planted == Some(Planted::SwappedRows) && rows > 1 && task.writes.is_some() {
            places.swap(0, 1);
        }
        let write_at = named(&places);

        let mut accesses = Vec::with_capacity(task.reads.len() + 1);
        for (at, &lease) in task.reads.iter().enumerate() {
            let lease = self.misled(&task, lease, at == 0);
            accesses.push(Access::read(self.pair(&task, lease)?.buffer, read_at.clone()));
        }
        let mut reply = None;
        let target = match task.writes {
            Some(lease) => {
                let lease = self.misled(&task, lease, false);
                self.claim(&task, lease, &places, rare)?
            }
            None => *reply.insert(self.reply_buffer()?),
        };
        let written = if task.writes.is_some() { write_at } else { (0..rows).into() };
        accesses.push(Access::write(target, written));

        let mut work = Work::new(program(task.model, task.cell.0), duration_ns, task.reads.len().max(1) as u32);
        work.fails = fails;
        if task.reads.is_empty() {
            // A task without reads is one of the first stage: its rows come from the requests.
            work.sources.extend(rows_of(&task).map(|(req, row, _)| Source::External(external(req.0, u64::from(row)))));
        } else {
            let fan_in = task.reads.len() as u16;
            work.sources.extend((0..rows).flat_map(|row| (0..fan_in).map(move |access| Source::Row { access, row })));
        }
        let operation = self.sim.launch(stream, &accesses, work).map_err(|error| format!("{:?}: {error}", task.id))?;
        let ticket = self.sim.record(stream).map_err(|error| error.to_string())?;
        self.tasks.push(InFlight { task, operation, told: false, ticket, reply });
        Ok(())
    }

    fn wait(&mut self, stream: StreamId, task: &Task, other: TaskId, rare: &mut Rare) -> Result<(), String> {
        let mut known = self.tasks.iter().chain(&self.untold);
        let Some(InFlight { task: other, ticket, .. }) = known.find(|flight| flight.task.id == other) else {
            return Err(format!("{:?} waits for {other:?}, which is not in flight", task.id));
        };
        let wrote = other.writes.is_some_and(|lease| task.reads.contains(&lease) || task.writes == Some(lease));
        let (kind, planted) = if wrote {
            (&mut rare.waits_for_writer, Planted::NoWaitForWriter)
        } else {
            (&mut rare.waits_for_reader, Planted::NoWaitForReader)
        };
        *kind += 1;
        if self.planted == Some(planted) {
            return Ok(());
        }
        self.sim.wait(stream, *ticket).map_err(|error| error.to_string())
    }

    /// Returns a lease as a planted fault changes it.
    fn misled(&self, task: &Task, lease: Lease, first_read: bool) -> Lease {
        let pairs = self.pairs[task.model.0 as usize][usize::from(lease.boundary)].len() as u16;
        match self.planted {
            Some(Planted::ForeignLease) if first_read => Lease { pair: (lease.pair + 1) % pairs, ..lease },
            Some(Planted::CreditTwice) => Lease { pair: 0, ..lease },
            _ => lease,
        }
    }

    fn pair(&self, task: &Task, lease: Lease) -> Result<&Pair, String> {
        let boundaries = self.pairs.get(task.model.0 as usize);
        let pairs = boundaries.and_then(|boundaries| boundaries.get(usize::from(lease.boundary)));
        let pair = pairs.and_then(|pairs| pairs.get(usize::from(lease.pair)));
        pair.ok_or_else(|| format!("{:?} names {lease:?}, which does not exist", task.id))
    }

    /// Records that a task writes rows of a pair. Rows that another batch left there become poison.
    fn claim(&mut self, task: &Task, lease: Lease, places: &[u32], rare: &mut Rare) -> Result<BufferId, String> {
        self.pair(task, lease)?;
        let pairs = &mut self.pairs[task.model.0 as usize][usize::from(lease.boundary)];
        let pair = &mut pairs[usize::from(lease.pair)];
        if pair.owner != Some(task.batch) {
            rare.leases_reused += u64::from(pair.owner.is_some());
            pair.owner = Some(task.batch);
            let all = Region::new(pair.buffer, 0..pair.writers.len() as u32);
            self.sim.poison(&all).map_err(|error| error.to_string())?;
        }
        for &place in places {
            let writer = pair.writers.get_mut(place as usize);
            *writer.ok_or_else(|| format!("{:?} writes row {place}, which does not exist", task.id))? = Some(task.id);
        }
        Ok(pair.buffer)
    }

    fn reply_buffer(&mut self) -> Result<BufferId, String> {
        match self.replies.pop() {
            Some(buffer) => Ok(buffer),
            None => self.sim.allocate(self.most_rows, ROW_BYTES).map_err(|error| error.to_string()),
        }
    }

    /// Removes a completed task from its stream.
    pub(crate) fn land(&mut self, operation: Operation) -> Result<InFlight, String> {
        let at = self.tasks.iter().position(|flight| flight.operation == operation);
        at.map(|at| self.tasks.remove(at)).ok_or_else(|| format!("{operation} is no task's"))
    }

    /// Returns the reply that the host reads for a task's row, whichever stage the row ended at.
    pub(crate) fn reply(&self, flight: &InFlight, row: u32, place: u32) -> Result<u64, String> {
        let read = match (flight.reply, flight.task.writes) {
            (Some(buffer), _) => self.sim.read(buffer, row),
            (None, Some(lease)) => self.sim.read(self.pair(&flight.task, lease)?.buffer, place),
            (None, None) => return Err(format!("{:?} writes nothing", flight.task.id)),
        };
        read.map_err(|error| format!("reply of {:?}: {error}", flight.task.id))
    }

    /// Reuses a task's reply buffer once the host has taken the replies.
    pub(crate) fn recycle(&mut self, flight: InFlight) {
        self.replies.extend(flight.reply);
    }

    /// Abandons a lane's stream with its tasks. Rows that they had yet to write become poison.
    pub(crate) fn give_up(&mut self, lane: LaneId) -> Result<Vec<InFlight>, String> {
        self.sim.give_up(StreamId(lane.0)).map_err(|error| error.to_string())?;
        let lost: Vec<InFlight> = self.tasks.extract_if(.., |flight| flight.task.lane == lane).collect();
        for flight in &lost {
            self.replies.extend(flight.reply);
            let Some(lease) = flight.task.writes else { continue };
            let Pair { buffer, writers, .. } = self.pair(&flight.task, lease)?;
            let own = (0..).zip(writers).filter(|(_, writer)| **writer == Some(flight.task.id)).map(|(row, _)| row);
            let own: Arc<[u32]> = own.collect();
            let region = Region::new(*buffer, own);
            self.sim.poison(&region).map_err(|error| error.to_string())?;
        }
        Ok(lost)
    }
}

/// Returns places as rows: a range if they are consecutive.
fn named(places: &[u32]) -> Rows {
    match (places.first(), places.windows(2).all(|pair| pair[0] + 1 == pair[1])) {
        (Some(&first), true) => (first..first + places.len() as u32).into(),
        _ => Rows::List(places.into()),
    }
}

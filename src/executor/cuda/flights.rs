//! Tasks on the card, from their launch until the host has their outputs.
//!
//! The poller hears that a task is complete, reads what decides how its rows go on, and tells the pool, which may
//! launch the next. What replies need is taken by another thread, off the poller's way.

use std::{
    collections::VecDeque,
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};

use bytes::Bytes;
use crossbeam_channel::{Receiver, Sender};
use parking_lot::Mutex;

use super::{
    cells::Section,
    launch::is_last,
    layout::{CellLayout, Layout, is_taken},
};
use crate::{
    batching::{Next, Ns, RowOutcome},
    device::{Operation, cuda::Told},
    engine::RowFailure,
    executor::{
        backend::Reports,
        cells::{CellPrograms, Node, Row},
        job::{Finished, Job},
        ran::{Outputs, Ran},
    },
    observe::ExecutionTimings,
};

/// A task on the card.
pub(super) struct Flight {
    pub(super) pool: Arc<dyn Reports>,
    pub(super) job: Job,
    pub(super) section: Section,
    pub(super) programs: Arc<CellPrograms>,
    pub(super) layout: Arc<Layout>,
    /// Rows that lack something of their own requests.
    pub(super) failures: Vec<RowFailure>,
    /// Whether the host takes something of it.
    pub(super) is_taken: bool,
    pub(super) issued_ns: Ns,
    pub(super) issued_at: Instant,
}

/// Takes a task that nobody needs any more: its memory is the driver's again.
pub(super) type GiveBack = Arc<dyn Fn(Flight) + Send + Sync>;

/// The tasks of a card, as the poller sees them.
pub(super) struct Flights {
    shard: usize,
    lanes: Box<[Mutex<Lane>]>,
    taker: Sender<Flight>,
    give_back: GiveBack,
    /// The pool, once there was a task.
    reports: OnceLock<Weak<dyn Reports>>,
    is_lost: AtomicBool,
}

#[derive(Default)]
struct Lane {
    /// In the order of their launches.
    flights: VecDeque<Flight>,
    /// When the last of them that ended did.
    last_end: Option<Instant>,
}

impl Flights {
    pub(super) fn new(shard: usize, lanes: u16, taker: Sender<Flight>, give_back: GiveBack) -> Self {
        let lanes = (0..lanes).map(|_| Mutex::default()).collect();
        Self { shard, lanes, taker, give_back, reports: OnceLock::new(), is_lost: AtomicBool::new(false) }
    }

    /// A task is about to be launched.
    pub(super) fn begin(&self, flight: Flight) {
        self.reports.get_or_init(|| Arc::downgrade(&flight.pool));
        let lane = usize::from(flight.job.task.lane.0);
        self.lanes[lane].lock().flights.push_back(flight);
    }

    /// The launch of the last task was refused.
    pub(super) fn take_back(&self, lane: u16) -> Option<Flight> {
        self.lanes[usize::from(lane)].lock().flights.pop_back()
    }

    /// Nothing that is on the card ends any more.
    pub(super) fn lose(&self, reason: &str) {
        if self.is_lost.swap(true, Ordering::AcqRel) {
            return;
        }
        let lost: Vec<Flight> = self.lanes.iter().flat_map(|lane| std::mem::take(&mut lane.lock().flights)).collect();
        if let Some(pool) = self.reports.get().and_then(Weak::upgrade) {
            pool.lost(self.shard, reason);
        }
        for flight in lost {
            let pool = Arc::clone(&flight.pool);
            pool.completed(self.shard, Some(flight.issued_ns), &flight.job, Finished::Failed(reason.to_owned()));
            // The card may still write to its memory: it is the driver's to keep.
            (self.give_back)(flight);
        }
    }

    pub(super) fn is_lost(&self) -> bool {
        self.is_lost.load(Ordering::Acquire)
    }
}

impl Told for Flights {
    fn ended(&self, operation: Operation) {
        let now = Instant::now();
        let mut lane = self.lanes[usize::from(operation.stream.0)].lock();
        let Some(flight) = lane.flights.pop_front() else { return };
        let waited = lane.last_end.and_then(|end| end.checked_duration_since(flight.issued_at)).unwrap_or_default();
        lane.last_end = Some(now);
        drop(lane);
        let began_at = flight.issued_at + waited;
        let began = flight.issued_ns + waited.as_nanos() as u64;
        let took_ns = now.saturating_duration_since(began_at).as_nanos() as u64;
        let ran = flight.ran(took_ns);
        flight.job.count_execution(&ran.timings);
        let pool = Arc::clone(&flight.pool);
        pool.completed(self.shard, Some(began), &flight.job, Finished::Ran(ran));
        if flight.is_taken {
            // Whoever takes lives as long as this.
            let _ = self.taker.send(flight);
        } else {
            (self.give_back)(flight);
        }
    }

    fn lost(&self, reason: &str) {
        self.lose(reason);
    }
}

impl Flight {
    fn cell(&self) -> (usize, &CellLayout) {
        let cell = usize::from(self.job.task.cell.0);
        (cell, &self.layout.cells[cell])
    }

    fn node(&self, row: usize) -> Option<Node<'_>> {
        let member = self.job.members.get(row)?;
        Node::of(member.journey.as_ref()?, member.span.start, &self.programs, self.cell().0).ok()
    }

    /// A row of an output that the host takes.
    fn row(&self, row: usize, output: usize) -> Option<Row> {
        let (cell, layout) = self.cell();
        let place = layout.fetched.iter().position(|fetched| fetched.output == output)?;
        let row_bytes = layout.fetched[place].row_bytes;
        let bytes = &self.section.fetched[place].bytes()[row * row_bytes..][..row_bytes];
        let spec = &self.programs.unfolding.cells[cell].outputs[output];
        Some(Row::alone(spec.dims.clone(), Bytes::copy_from_slice(bytes)))
    }

    /// Whether a row names what a table does not have.
    fn is_faulty(&self, row: usize) -> bool {
        let word = size_of::<u32>();
        self.section.faults.bytes()[row * word..][..word].iter().any(|byte| *byte != 0)
    }

    /// How its rows go on.
    fn ran(&self, took_ns: Ns) -> Ran {
        let mut failures = self.failures.clone();
        let (cell, _) = self.cell();
        let mut outcomes = Vec::with_capacity(self.job.members.len());
        for row in 0..self.job.members.len() {
            let is_refused = failures.iter().any(|failure| failure.row as usize == row);
            if !is_refused && self.is_faulty(row) {
                let name = &self.programs.unfolding.cells[cell].name;
                let reason = format!("cell '{name}': an index is beyond its table");
                failures.push(RowFailure { row: row as u32, reason });
            }
            let fails = is_refused || self.is_faulty(row);
            outcomes.push(match self.node(row).filter(|_| !fails) {
                Some(node) => node.outcome(|output| self.row(row, output)),
                None => RowOutcome { next: Next::Failed, emitted: false },
            });
        }
        let outputs = (!self.is_taken).then(Outputs::default);
        let timings = ExecutionTimings { compute_infer_ns: took_ns, ..ExecutionTimings::default() };
        Ran { outputs, outcomes, failures, delays: Vec::new(), timings }
    }

    /// Takes what replies need, of which a request may have so many bytes.
    fn take(&self, most_bytes: usize) -> Outputs {
        let mut outputs = Outputs::default();
        for part in 0..self.job.members.len() {
            let Some(node) = self.node(part) else { continue };
            let at = (node.place.segment, node.journey.role(node.place));
            let is_last = is_last(&node);
            let row = |output| is_taken(&self.programs, at, output, is_last).then(|| self.row(part, output)).flatten();
            match node.keep(row, most_bytes) {
                Ok(()) => outputs.streamed.extend(node.response(row).map(|response| (part, response))),
                Err(fault) => outputs.failures.push((part, fault)),
            }
        }
        outputs
    }
}

/// Takes the outputs of tasks one by one, until no more come.
pub(super) fn take_outputs(flights: &Receiver<Flight>, give_back: &GiveBack, shard: usize, most_bytes: usize) {
    for flight in flights {
        let outputs = flight.take(most_bytes);
        let pool = Arc::clone(&flight.pool);
        pool.taken(shard, &flight.job, Ok(outputs));
        give_back(flight);
    }
}

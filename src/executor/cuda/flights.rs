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

use crossbeam_channel::{Receiver, Sender};
use parking_lot::Mutex;

use super::{
    graph::Section,
    version::{Ended, Reader},
};
use crate::{
    batching::Ns,
    device::{Operation, cuda::Told},
    engine::RowFailure,
    executor::{
        backend::Reports,
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
    pub(super) reader: Arc<dyn Reader>,
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
        let timings = ExecutionTimings { compute_infer_ns: took_ns, ..ExecutionTimings::default() };
        let Ended { outcomes, failures, ends_rows } =
            flight.reader.ran(&flight.job, &flight.section, flight.failures.clone());
        if ends_rows {
            flight.job.count_execution(&timings);
        }
        let outputs = (!flight.is_taken).then(Outputs::default);
        let ran = Ran { outputs, outcomes, failures, delays: Vec::new(), timings };
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

/// Takes the outputs of tasks one by one, until no more come.
pub(super) fn take_outputs(flights: &Receiver<Flight>, give_back: &GiveBack, shard: usize, most_bytes: usize) {
    for flight in flights {
        let outputs = flight.reader.take(&flight.job, &flight.section, most_bytes);
        let pool = Arc::clone(&flight.pool);
        pool.taken(shard, &flight.job, outputs);
        give_back(flight);
    }
}

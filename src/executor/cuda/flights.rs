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
};

use crossbeam_channel::{Receiver, Sender};
use parking_lot::Mutex;

use super::{
    graph::Section,
    journal::{Journal, Noted},
    version::{Ended, Reader},
};
use crate::{
    batching::{Ns, TaskId},
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
    /// When the host began to bring what its rows need.
    pub(super) filling_ns: Ns,
    pub(super) issued_ns: Ns,
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
    journal: Option<Arc<Journal>>,
}

#[derive(Default)]
struct Lane {
    /// In the order of their launches.
    flights: VecDeque<Flight>,
    /// The latest that have been told, and when.
    told: VecDeque<(TaskId, Ns)>,
}

/// Tasks that a lane remembers when they were told: more than what another may have waited for.
const REMEMBERED: usize = 64;

impl Flights {
    pub(super) fn new(
        shard: usize,
        lanes: u16,
        taker: Sender<Flight>,
        give_back: GiveBack,
        journal: Option<Arc<Journal>>,
    ) -> Self {
        let lanes = (0..lanes).map(|_| Mutex::default()).collect();
        Self { shard, lanes, taker, give_back, reports: OnceLock::new(), is_lost: AtomicBool::new(false), journal }
    }

    /// Keeps how a task ends, if a caller asks for it.
    pub(super) fn note(&self, noted: impl FnOnce() -> Noted) {
        if let Some(journal) = &self.journal {
            journal.note(noted());
        }
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

    /// Nothing that is on the card ends any more. A task may have begun while another thread said so: it is lost by the
    /// next call.
    pub(super) fn lose(&self, reason: &str) {
        let was_lost = self.is_lost.swap(true, Ordering::AcqRel);
        let lost: Vec<Flight> = self.lanes.iter().flat_map(|lane| std::mem::take(&mut lane.lock().flights)).collect();
        if !was_lost && let Some(pool) = self.reports.get().and_then(Weak::upgrade) {
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

    /// When a task began: once what its stream ran before, and what it waited for on others, had been told. So the
    /// times of tasks that were launched ahead of one another do not overlap.
    fn began(&self, flight: &Flight) -> Ns {
        let task = &flight.job.task;
        let before = self.lanes[usize::from(task.lane.0)].lock().told.back().map(|(_, at)| *at);
        let awaited = task.after.iter().filter_map(|after| {
            let told = |lane: &Mutex<Lane>| lane.lock().told.iter().find(|(own, _)| own == after).map(|(_, at)| *at);
            self.lanes.iter().find_map(told)
        });
        before.into_iter().chain(awaited).fold(flight.filling_ns, Ns::max)
    }
}

impl Lane {
    fn has_told(&mut self, task: TaskId, now: Ns) {
        if self.told.len() == REMEMBERED {
            self.told.pop_front();
        }
        self.told.push_back((task, now));
    }
}

impl Told for Flights {
    fn ended(&self, operation: Operation) {
        let lane = &self.lanes[usize::from(operation.stream.0)];
        let Some(flight) = lane.lock().flights.pop_front() else { return };
        self.note(|| Noted::Ended(flight.job.task.id));
        let pool = Arc::clone(&flight.pool);
        let ended_ns = pool.now();
        let Ended { outcomes, failures, ends_rows } =
            flight.reader.ran(&flight.job, &flight.section, flight.failures.clone());
        let began_ns = self.began(&flight);
        let timings = ExecutionTimings {
            compute_input_ns: flight.issued_ns.saturating_sub(began_ns),
            compute_infer_ns: ended_ns.saturating_sub(began_ns.max(flight.issued_ns)),
            compute_output_ns: pool.now() - ended_ns,
        };
        if ends_rows {
            flight.job.count_execution(&timings);
        }
        let outputs = (!flight.is_taken).then(Outputs::default);
        let ran = Ran { outputs, outcomes, failures, delays: Vec::new(), timings };
        Arc::clone(&pool).completed(self.shard, Some(began_ns), &flight.job, Finished::Ran(ran));
        lane.lock().has_told(flight.job.task.id, pool.now());
        if flight.is_taken {
            // The taker lives as long as this.
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

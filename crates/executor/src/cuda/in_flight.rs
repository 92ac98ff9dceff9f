//! Tasks in flight on a card, from their launch until the host has taken their outputs.
//!
//! When a task completes, the poller reads only the outputs that decide how its rows continue, and reports to the pool,
//! which may launch the next task. Another thread copies what responses need, so that these copies do not delay the
//! poller.

use std::{
    collections::VecDeque,
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicBool, Ordering},
    },
};

use crossbeam_channel::{Receiver, Sender};
use parking_lot::Mutex;
use paternoster_batching::{Instant, TaskId};
use paternoster_device::{Operation, cuda::CompletionListener};
use paternoster_engine::RowFailure;
use paternoster_observe::ExecutionTimings;

use super::{
    journal::{Journal, JournalEntry},
    parameters::Section,
    version::{Ended, Reader},
};
use crate::{
    backend::Reports,
    job::{Finished, Job},
    job::{Outputs, TaskOutput},
};

/// A task in flight.
pub(super) struct InFlightTask {
    pub(super) pool: Arc<dyn Reports>,
    pub(super) job: Job,
    pub(super) section: Section,
    pub(super) reader: Arc<dyn Reader>,
    /// Rows that lack an input of their own request.
    pub(super) failures: Vec<RowFailure>,
    /// Whether the host takes any of its outputs.
    pub(super) is_taken: bool,
    /// When the host began to write the inputs of its rows.
    pub(super) filling: Instant,
    pub(super) issued: Instant,
}

/// Returns a task to the driver, which reuses its memory.
pub(super) type GiveBack = Arc<dyn Fn(InFlightTask) + Send + Sync>;

/// The tasks in flight on a card, by lane.
pub(super) struct InFlightTasks {
    shard: usize,
    lanes: Box<[Mutex<Lane>]>,
    taker: Sender<InFlightTask>,
    give_back: GiveBack,
    /// The pool; set by the first task.
    reports: OnceLock<Weak<dyn Reports>>,
    is_lost: AtomicBool,
    journal: Option<Arc<Journal>>,
}

#[derive(Default)]
struct Lane {
    /// In the order of their launches.
    flights: VecDeque<InFlightTask>,
    /// The latest tasks reported to the pool, with the time of the report.
    told: VecDeque<(TaskId, Instant)>,
}

/// How many reports a lane remembers: more than the tasks that a later one may have waited for.
const REMEMBERED: usize = 64;

impl InFlightTasks {
    pub(super) fn new(
        shard: usize,
        lanes: u16,
        taker: Sender<InFlightTask>,
        give_back: GiveBack,
        journal: Option<Arc<Journal>>,
    ) -> Self {
        let lanes = (0..lanes).map(|_| Mutex::default()).collect();
        Self { shard, lanes, taker, give_back, reports: OnceLock::new(), is_lost: AtomicBool::new(false), journal }
    }

    /// Adds an entry to the journal, if there is one.
    pub(super) fn note(&self, noted: impl FnOnce() -> JournalEntry) {
        if let Some(journal) = &self.journal {
            journal.note(noted());
        }
    }

    /// Registers a task that is about to be launched.
    pub(super) fn begin(&self, flight: InFlightTask) {
        self.reports.get_or_init(|| Arc::downgrade(&flight.pool));
        let lane = usize::from(flight.job.task.lane.0);
        self.lanes[lane].lock().flights.push_back(flight);
    }

    /// Removes the lane's last task, whose launch was refused.
    pub(super) fn take_back(&self, lane: u16) -> Option<InFlightTask> {
        self.lanes[usize::from(lane)].lock().flights.pop_back()
    }

    /// Fails all tasks in flight, because the card is lost. A task may be registered while another thread runs this;
    /// the driver calls it again for that task.
    pub(super) fn lose(&self, reason: &str) {
        let was_lost = self.is_lost.swap(true, Ordering::AcqRel);
        let lost: Vec<InFlightTask> =
            self.lanes.iter().flat_map(|lane| std::mem::take(&mut lane.lock().flights)).collect();
        if !was_lost && let Some(pool) = self.reports.get().and_then(Weak::upgrade) {
            pool.lost(self.shard, reason);
        }
        for flight in lost {
            let pool = Arc::clone(&flight.pool);
            pool.completed(self.shard, Some(flight.issued), &flight.job, Finished::Failed(reason.to_owned()));
            // The card may still write to the section, so the driver keeps it.
            (self.give_back)(flight);
        }
    }

    pub(super) fn is_lost(&self) -> bool {
        self.is_lost.load(Ordering::Acquire)
    }

    /// Returns when a task began: when the last of the tasks that it had to wait for was reported, whether earlier on
    /// its stream or awaited on another. Times of tasks that were launched ahead therefore do not overlap.
    fn began(&self, flight: &InFlightTask) -> Instant {
        let task = &flight.job.task;
        let before = self.lanes[usize::from(task.lane.0)].lock().told.back().map(|(_, at)| *at);
        let awaited = task.after.iter().filter_map(|after| {
            let told = |lane: &Mutex<Lane>| lane.lock().told.iter().find(|(own, _)| own == after).map(|(_, at)| *at);
            self.lanes.iter().find_map(told)
        });
        before.into_iter().chain(awaited).fold(flight.filling, Instant::max)
    }
}

impl Lane {
    fn mark_reported(&mut self, task: TaskId, now: Instant) {
        if self.told.len() == REMEMBERED {
            self.told.pop_front();
        }
        self.told.push_back((task, now));
    }
}

impl CompletionListener for InFlightTasks {
    /// Reports a completed task. Runs on the poller.
    fn ended(&self, operation: Operation) {
        let lane = &self.lanes[usize::from(operation.stream.0)];
        let Some(flight) = lane.lock().flights.pop_front() else { return };
        self.note(|| JournalEntry::Ended(flight.job.task.id));
        let pool = Arc::clone(&flight.pool);
        let ended = pool.now();
        let Ended { outcomes, failures } = flight.reader.ran(&flight.job, &flight.section, flight.failures.clone());
        let began = self.began(&flight);
        let timings = ExecutionTimings {
            compute_input_ns: flight.issued.since(began),
            compute_infer_ns: ended.since(began.max(flight.issued)),
            compute_output_ns: pool.now().since(ended),
        };
        // With `None`, the pool finishes rows only once `take_outputs` has delivered their outputs.
        let outputs = (!flight.is_taken).then(Outputs::default);
        let ran = TaskOutput { outputs, outcomes, failures, delays: Vec::new(), timings };
        Arc::clone(&pool).completed(self.shard, Some(began), &flight.job, Finished::Completed(ran));
        // Only after the report: a task that waited for this one must not seem to begin before it.
        lane.lock().mark_reported(flight.job.task.id, pool.now());
        if flight.is_taken {
            // The thread that receives lives as long as this sender.
            let _ = self.taker.send(flight);
        } else {
            (self.give_back)(flight);
        }
    }

    fn lost(&self, reason: &str) {
        self.lose(reason);
    }
}

/// Takes the outputs of tasks one by one, until the sender is dropped.
pub(super) fn take_outputs(flights: &Receiver<InFlightTask>, give_back: &GiveBack, shard: usize, most_bytes: usize) {
    for flight in flights {
        let outputs = flight.reader.take(&flight.job, &flight.section, most_bytes);
        let pool = Arc::clone(&flight.pool);
        pool.taken(shard, &flight.job, outputs);
        give_back(flight);
    }
}

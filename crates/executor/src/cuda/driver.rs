//! The thread that owns a card. It loads versions, launches tasks in the core's order, and reclaims the memory of
//! completed tasks.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use crossbeam_channel::{Receiver, Sender};
use paternoster_batching::{Bucket, Instant, Knobs, ModelId, Policy};
use paternoster_device::{
    Device, DeviceError,
    cuda::{Compiler, Cuda, CudaOptions, CudaWork},
};
use paternoster_model::ModelSpec;
use tracing::error;

use super::{
    cells::Cells,
    graph::{Kernels, Loader},
    in_flight::{InFlightTask, InFlightTasks},
    journal::JournalEntry,
    stages::Stages,
    version::{CardVersion, Reader, Untaken},
    waiting::Waiting,
};
use crate::{
    StagePrograms,
    backend::{CannotHold, Order, Reports},
    dispatch::{Tickets, issue},
    job::{Finished, Job},
};

/// Messages to the card's thread.
pub(super) enum Message {
    /// Load a version; the reply carries its knobs as adjusted for the card, and the bytes of the card's memory that
    /// it reserved.
    Load {
        model: ModelId,
        spec: Arc<ModelSpec>,
        programs: StagePrograms,
        knobs: Box<Knobs>,
        reply: Sender<Result<(Box<Knobs>, u64), CannotHold>>,
    },
    /// Execute an order.
    Order(Arc<dyn Reports>, Order),
    /// The memory of a task is no longer needed.
    Back(InFlightTask),
    /// Execute no further orders; the reply says whether all running tasks ended in time.
    Stop { patience: Duration, reply: Sender<bool> },
}

/// Everything that the thread needs at its start.
pub(super) struct Driver {
    pub(super) shard: usize,
    pub(super) options: CudaOptions,
    pub(super) compiler: Compiler,
    pub(super) messages: Receiver<Message>,
    pub(super) flights: Arc<InFlightTasks>,
}

impl Driver {
    /// Opens the card, reports the result to `opened`, and handles messages until [`Message::Stop`].
    pub(super) fn run(self, opened: &Sender<Result<(Compiler, String), DeviceError>>) {
        let told = Arc::clone(&self.flights);
        let card = Cuda::open(&self.options, &self.compiler, told).and_then(|mut card| {
            let kernels = Kernels::new(&mut card)?;
            let uuid = card.uuid()?;
            Ok((card, kernels, uuid))
        });
        let (card, kernels, uuid) = match card {
            Ok(card) => card,
            Err(error) => return drop(opened.send(Err(error))),
        };
        let _ = opened.send(Ok((card.compiler().clone(), uuid)));
        let Self { shard, options, messages, flights, .. } = self;
        let mut serving = Serving {
            shard,
            parameter_bytes: options.parameter_bytes,
            card,
            kernels,
            flights,
            tickets: Tickets::default(),
            versions: BTreeMap::new(),
            leaving: Vec::new(),
            waiting: Waiting::default(),
            unread_outputs: Untaken::default(),
        };
        for message in messages {
            if let Some(reply) = serving.hear(message) {
                let _ = reply.0.send(reply.1);
                return;
            }
        }
    }
}

struct Serving {
    shard: usize,
    parameter_bytes: usize,
    card: Cuda,
    kernels: Kernels,
    flights: Arc<InFlightTasks>,
    tickets: Tickets,
    versions: BTreeMap<ModelId, OnCard>,
    /// Unloaded versions that still have tasks in flight.
    leaving: Vec<(ModelId, OnCard)>,
    waiting: Waiting,
    unread_outputs: Untaken,
}

/// A version on the card.
struct OnCard {
    version: Box<dyn CardVersion>,
    reader: Arc<dyn Reader>,
    /// Sections held by tasks in flight.
    sections_out: usize,
}

/// Result of an attempt to launch a task.
enum Launch {
    Launched,
    /// An earlier task must return its memory or outputs first.
    Waits(Job),
    /// The task cannot be launched. `began` is its start time, if the pool has been given one.
    Fails {
        job: Job,
        began: Option<Instant>,
        reason: String,
    },
    /// The card is lost: nothing can be launched.
    Lost(String),
}

impl Launch {
    /// Fails a task that has not begun.
    fn fails(job: Job, reason: String) -> Self {
        Self::Fails { job, began: None, reason }
    }
}

impl Serving {
    /// Handles a message. Returns where to send the last reply, and its value, after [`Message::Stop`].
    fn hear(&mut self, message: Message) -> Option<(Sender<bool>, bool)> {
        match message {
            Message::Load { model, spec, programs, knobs, reply } => {
                let loaded = self.load(model, &spec, &programs, knobs);
                let _ = reply.send(loaded.map_err(|reason| CannotHold { reason, shortage: self.card.shortage() }));
            }
            Message::Order(pool, order) => {
                self.waiting.push(pool, order);
                self.go_on();
            }
            Message::Back(flight) => {
                self.back(flight);
                self.go_on();
            }
            Message::Stop { patience, reply } => {
                self.waiting.clear();
                return Some((reply, self.card.stop(patience)));
            }
        }
        None
    }

    fn load(
        &mut self,
        model: ModelId,
        spec: &Arc<ModelSpec>,
        programs: &StagePrograms,
        mut knobs: Box<Knobs>,
    ) -> Result<(Box<Knobs>, u64), String> {
        let before = self.card.reserved_bytes();
        self.card.begin_load();
        let (kernels, parameter_bytes) = (&self.kernels, self.parameter_bytes);
        let loader = Loader { card: &mut self.card, kernels, parameter_bytes, places_rows: false };
        let version: Box<dyn CardVersion> = match (programs.cells(), &mut knobs.policy) {
            (Some(cells), Policy::Cellular(cellular)) => Box::new(Cells::load(loader, cells, cellular)?),
            (Some(_), _) => return Err("its cells have no policy of cells".to_owned()),
            (None, _) => Box::new(Stages::load(loader, spec, programs, &mut knobs)?),
        };
        let reader = version.reader();
        self.versions.insert(model, OnCard { version, reader, sections_out: 0 });
        Ok((knobs, self.card.reserved_bytes().saturating_sub(before) as u64))
    }

    /// Executes the waiting orders that need not wait any longer. What is executed may be what an order of another lane
    /// comes after.
    fn go_on(&mut self) {
        loop {
            let mut has_executed = false;
            while let Some(order) = self.waiting.next_other() {
                self.execute(order);
                has_executed = true;
            }
            for lane in 0..self.waiting.lanes() {
                loop {
                    let Self { waiting, versions, .. } = self;
                    let keeps_order = |model| versions.get(&model).is_some_and(|loaded| loaded.version.keeps_order());
                    let Some((pool, number, job)) = waiting.next(lane, keeps_order) else { break };
                    if let Some(job) = self.run(&pool, job) {
                        self.waiting.put_back(lane, pool, number, job);
                        break;
                    }
                    has_executed = true;
                }
            }
            if !has_executed {
                return;
            }
        }
    }

    /// Executes an order other than a task.
    fn execute(&mut self, order: Order) {
        match order {
            Order::SequenceOver(model, sequence) => {
                if let Some(loaded) = self.versions.get_mut(&model) {
                    loaded.version.sequence_over(sequence);
                }
            }
            Order::Unload(model) => {
                if let Some(loaded) = self.versions.remove(&model) {
                    self.leaving.push((model, loaded));
                    self.free_those_that_left();
                }
            }
            Order::Run(_) | Order::Rest(_) => {}
        }
    }

    /// Launches a task. Returns it if it has to wait.
    fn run(&mut self, pool: &Arc<dyn Reports>, job: Job) -> Option<Job> {
        match self.launch(pool, job) {
            Launch::Launched => None,
            Launch::Waits(job) => Some(job),
            Launch::Fails { job, began, reason } => {
                Arc::clone(pool).completed(self.shard, began, &job, Finished::Failed(reason));
                None
            }
            Launch::Lost(reason) => {
                self.flights.lose(&reason);
                None
            }
        }
    }

    /// Fills a section for a task and issues its graph.
    fn launch(&mut self, pool: &Arc<dyn Reports>, job: Job) -> Launch {
        if self.flights.is_lost() {
            return Launch::Lost("the card is lost".to_owned());
        }
        let (model, part, lane) = (job.task.model, usize::from(job.task.cell.0), usize::from(job.task.lane.0));
        let Some(loaded) = self.versions.get_mut(&model) else {
            return Launch::fails(job, format!("{model:?} is not on the card"));
        };
        if loaded.version.must_wait(&job, &self.unread_outputs) {
            return Launch::Waits(job);
        }
        let size = loaded.version.size(&job);
        let on_lane = &mut loaded.version.programs()[part].lanes[lane];
        let graph = on_lane.graphs.iter().find(|(own, _)| Some(*own) == size);
        let Some((size, graph)) = graph.map(|(size, graph)| (*size, graph.clone())) else {
            let Bucket { rows, class } = &job.task.bucket;
            let reason = format!("there is no graph for {rows} rows of the lengths {:?}", class.0.as_slice());
            return Launch::fails(job, reason);
        };
        let Some(mut section) = on_lane.free.pop() else { return Launch::Waits(job) };
        // The section is filled before the task is registered, so a task that fails here leaves no trace.
        let filling = pool.now();
        let filled = match loaded.version.fill(&job, size, &mut section) {
            Ok(filled) => filled,
            Err(reason) => {
                loaded.version.programs()[part].lanes[lane].free.push(section);
                return Launch::fails(job, reason);
            }
        };
        loaded.sections_out += 1;
        let mut task = job.task.clone();
        task.after.extend(filled.after);
        if filled.is_taken {
            self.unread_outputs.add(&task);
        }
        // The poller pops tasks in launch order and may see this one complete before `issue` returns, so the task is
        // registered first.
        self.flights.begin(InFlightTask {
            pool: Arc::clone(pool),
            job,
            section,
            reader: Arc::clone(&loaded.reader),
            failures: filled.failures,
            is_taken: filled.is_taken,
            filling,
            issued: pool.begins(),
        });
        let (work, accesses) = (CudaWork { graph, parameters: filled.parameters }, filled.accesses);
        self.flights.note(|| JournalEntry::Issued { task: Box::new(task.clone()), accesses: accesses.clone() });
        match issue(&mut self.card, &mut self.tickets, &(&task).into(), &accesses, work) {
            Ok(_) => {
                loaded.version.issued(&task);
                Launch::Launched
            }
            // The launch may have reached the card, so the task stays in flight; `lose` fails it with the others.
            Err(DeviceError::Lost(reason)) => Launch::Lost(reason),
            Err(error) => {
                self.flights.note(|| JournalEntry::Refused(task.id));
                let Some(flight) = self.flights.take_back(task.lane.0) else { return Launch::Launched };
                let began = Some(flight.issued);
                Launch::Fails { job: self.release(flight), began, reason: error.to_string() }
            }
        }
    }

    /// Handles the return of a task, whose memory the host no longer reads: frees its section and its ticket.
    fn back(&mut self, flight: InFlightTask) {
        self.tickets.landed(flight.job.task.id);
        self.release(flight);
        self.free_those_that_left();
    }

    /// Returns a task's section to its program, on the lane where it ran.
    fn release(&mut self, flight: InFlightTask) -> Job {
        let InFlightTask { job, section, is_taken, .. } = flight;
        let model = job.task.model;
        if is_taken {
            self.unread_outputs.remove(&job.task);
        }
        let left = self.leaving.iter_mut().find(|(own, _)| *own == model).map(|(_, loaded)| loaded);
        if let Some(loaded) = self.versions.get_mut(&model).or(left) {
            loaded.sections_out -= 1;
            let program = &mut loaded.version.programs()[usize::from(job.task.cell.0)];
            program.lanes[usize::from(job.task.lane.0)].free.push(section);
        }
        job
    }

    /// Frees unloaded versions that have no task left in flight. Not on a lost card, whose memory goes with the
    /// process.
    fn free_those_that_left(&mut self) {
        if self.flights.is_lost() {
            return;
        }
        for (_, loaded) in self.leaving.extract_if(.., |(_, loaded)| loaded.sections_out == 0) {
            if let Err(fault) = loaded.version.free(&mut self.card) {
                error!(device = self.shard, %fault, "the memory of a version cannot be freed");
            }
        }
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        // Their handles of the driver must be dropped on the card's thread, before the card.
        self.waiting.clear();
        self.versions.clear();
        self.leaving.clear();
    }
}

//! A CUDA card as a backend. Each task is a graph that was captured when its version was loaded. One thread owns the
//! card and launches the graphs.
//!
//! - **Intermediate state stays on the card.** Cells keep it in slots (`cells`), stages in the rows of buffer pairs
//!   (`stages`). A task's graph gathers its rows from there, runs the program, and scatters the outputs (`graph`).
//! - **Requests' inputs** are written to host memory that the graph reads. Each task in flight has its own section of
//!   that memory, and the graph writes there what responses need.
//! - **The card's poller reports completed tasks.** It reads only the outputs that decide where rows go next. Another
//!   thread copies what responses need (`in_flight`).
//! - **A task that cannot run fails before its launch**, and so does each task that needs its outputs: every slot and
//!   every row records which task wrote it last. A row that lacks an input of its own request fails that request alone.

mod cells;
mod driver;
mod graph;
mod in_flight;
mod journal;
mod parameters;
mod row_bytes;
mod stages;
mod version;
mod waiting;

use std::{
    io,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use crossbeam_channel::{RecvTimeoutError, Sender, unbounded};
use parking_lot::Mutex;
use paternoster_batching::{Knobs, LaneId, LaneKnobs, ModelId, TaskId};
use paternoster_device::{
    DeviceError,
    cuda::{Compiler, CudaOptions},
};
use paternoster_model::ModelSpec;
use paternoster_observe::CardMemory;

pub(super) use self::cells::CellLimits;
use self::{
    driver::{Driver, Message},
    in_flight::{GiveBack, InFlightTasks, take_outputs},
};
pub use self::{
    journal::{Journal, JournalEntry},
    stages::{CapturedStages, StageLaunch},
};
use super::{
    StagePrograms,
    backend::{Backend, CannotHold, Order, Reports},
    version::ServedVersion,
};

/// Maximum operations in flight on one stream.
const DEPTH: u32 = 64;

/// Maximum bytes of a task's parameters.
const PARAMETER_BYTES: usize = 64 << 10;

/// Checks whether CUDA cards can run a version.
///
/// # Errors
/// If they cannot; the text says what is missing.
pub fn check_cards(spec: &ModelSpec, programs: &StagePrograms) -> Result<(), String> {
    match programs.cells() {
        Some(cells) => cells::check(cells),
        None => stages::check(spec, programs),
    }
}

/// Returns which inputs and outputs of requests may lie anywhere in the card's memory: tasks read such inputs and write
/// such outputs in place. Both lists are empty for a version of cells, because its requests are unfolded on the host.
pub(super) fn placed_ports(spec: &ModelSpec, programs: &StagePrograms) -> (Box<[bool]>, Box<[bool]>) {
    match programs.cells() {
        Some(_) => Default::default(),
        None => stages::placed_ports(spec, programs),
    }
}

/// Options of a card.
#[derive(Clone, Debug)]
pub(super) struct CardOptions {
    /// The card's ordinal in the driver.
    pub(super) ordinal: u16,
    /// Number of streams, at least one.
    pub(super) lanes: u16,
    /// How many tasks a stream accepts before its earlier ones complete.
    pub(super) lane_knobs: LaneKnobs,
    /// Maximum bytes that a request may accumulate of one tensor on the host.
    pub(super) most_bytes: usize,
    /// Maximum bytes of the card's memory; `None`: as much as there is.
    pub(super) memory_bytes: Option<usize>,
    pub(super) journal: Option<Arc<Journal>>,
}

/// The backend of a shard whose device is a card.
pub(super) struct Card {
    lanes: u16,
    lane_knobs: LaneKnobs,
    ordinal: u16,
    uuid: String,
    compiler: Compiler,
    /// The lock keeps orders in the order in which the core issued them.
    messages: Mutex<Sender<Message>>,
}

impl Card {
    /// Opens a card and starts its threads.
    ///
    /// # Errors
    /// If the card cannot be opened or a thread cannot be started.
    pub(super) fn open(shard: usize, options: &CardOptions, compiler: Compiler) -> Result<Self, DeviceError> {
        let (sender, messages) = unbounded();
        let (taker, taken) = unbounded();
        let lanes = options.lanes.max(1);
        let to_driver = sender.clone();
        // A send fails only once the driver has stopped, and then nothing is reused.
        let give_back: GiveBack = Arc::new(move |flight| _ = to_driver.send(Message::Back(flight)));
        let flights =
            Arc::new(InFlightTasks::new(shard, lanes, taker, Arc::clone(&give_back), options.journal.clone()));
        let cuda = CudaOptions {
            ordinal: options.ordinal,
            streams: lanes,
            depth: DEPTH,
            parameter_bytes: PARAMETER_BYTES,
            memory_bytes: options.memory_bytes,
        };
        let driver = Driver { shard, options: cuda, compiler, messages, flights };
        let cannot_start = |error: io::Error| DeviceError::Driver(format!("a thread cannot be started: {error}"));
        let (opening, opened) = crossbeam_channel::bounded(1);
        thread::Builder::new()
            .name(format!("cuda-{}", options.ordinal))
            .spawn(move || driver.run(&opening))
            .map_err(cannot_start)?;
        let most_bytes = options.most_bytes;
        thread::Builder::new()
            .name(format!("cuda-taker-{}", options.ordinal))
            .spawn(move || take_outputs(&taken, &give_back, shard, most_bytes))
            .map_err(cannot_start)?;
        let (compiler, uuid) = opened.recv().unwrap_or(Err(DeviceError::Stopped))?;
        let CardOptions { ordinal, lane_knobs, .. } = *options;
        Ok(Self { lanes, lane_knobs, ordinal, uuid, compiler, messages: Mutex::new(sender) })
    }
}

impl Backend for Card {
    fn lanes(&self) -> u16 {
        self.lanes
    }

    fn lane_knobs(&self) -> LaneKnobs {
        self.lane_knobs
    }

    fn load(&self, model: ModelId, version: &ServedVersion, knobs: &mut Knobs) -> Result<(), CannotHold> {
        // Compiling is slow and does not need the card's thread, which keeps launching tasks meanwhile.
        let programs = version.programs.iter().filter_map(|program| program.on_card());
        programs.into_iter().try_for_each(|program| program.compile(&self.compiler))?;
        let (reply, answer) = crossbeam_channel::bounded(1);
        let (spec, programs, mut own) = (Arc::clone(&version.spec), version.programs.clone(), Box::new(knobs.clone()));
        // Instances run concurrently, and each has further tasks queued behind it on its stream.
        own.max_in_flight = own.max_in_flight.saturating_mul(u32::from(self.lane_knobs.depth));
        let gone = || "the card is gone".to_owned();
        let message = Message::Load { model, spec, programs, knobs: own, reply };
        self.messages.lock().send(message).map_err(|_| gone())?;
        let (own, bytes) = answer.recv().map_err(|_| gone())??;
        *knobs = *own;
        version.stats.reserved_on_card(CardMemory { card: self.ordinal, uuid: self.uuid.clone(), bytes });
        Ok(())
    }

    fn issue(&self, pool: &Arc<dyn Reports>, next: &mut dyn FnMut() -> Option<Order>) {
        let messages = self.messages.lock();
        while let Some(order) = next() {
            // A send fails only once the driver has stopped, and orders are void then.
            let _ = messages.send(Message::Order(Arc::clone(pool), order));
        }
    }

    fn leave_behind(&self, lane: LaneId, _: TaskId) -> io::Result<()> {
        Err(io::Error::other(format!("a card cannot abandon a running task, and lane {} waits for it", lane.0)))
    }

    fn stop(&self, deadline: Instant) -> bool {
        let (reply, answer) = crossbeam_channel::bounded(1);
        let patience = deadline.saturating_duration_since(Instant::now());
        if self.messages.lock().send(Message::Stop { patience, reply }).is_err() {
            return true;
        }
        match answer.recv_timeout(patience) {
            Ok(has_ended) => has_ended,
            Err(RecvTimeoutError::Disconnected) => true,
            Err(RecvTimeoutError::Timeout) => false,
        }
    }
}

impl Drop for Card {
    fn drop(&mut self) {
        let (reply, _) = crossbeam_channel::bounded(1);
        // A send fails if the driver has stopped already.
        let _ = self.messages.lock().send(Message::Stop { patience: Duration::ZERO, reply });
    }
}

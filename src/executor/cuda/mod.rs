//! A CUDA card as a backend: tasks are graphs that were captured at load, launched by the one thread that owns the
//! card.
//!
//! - **Intermediate state stays on the card**: that of cells in slots (`cells`), that of stages in the rows of buffer
//!   pairs (`stages`). A task's graph gathers its rows from there, runs the program, and scatters the outputs
//!   (`graph`).
//! - **Requests' inputs** are written to host memory that the graph reads, a section of it for each task in flight;
//!   the graph writes what replies need to such memory, too.
//! - **The card's poller reports completed tasks.** It reads the outputs that decide where rows go next. Another thread
//!   copies what replies need (`flights`).
//! - **A task that cannot run fails before its launch**, and so does each task that needs its outputs: every slot and
//!   every row records what was written to it last. A row that lacks something fails its own request alone.

mod cells;
mod driver;
mod flights;
mod graph;
mod journal;
mod row_bytes;
mod stages;
mod version;

use std::{
    io,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use crossbeam_channel::{RecvTimeoutError, Sender, unbounded};
use parking_lot::Mutex;

pub(super) use self::cells::CellLimits;
pub use self::journal::{Journal, Noted};
use self::{
    driver::{Driver, Message},
    flights::{Flights, GiveBack, take_outputs},
};
use super::{
    StagePrograms,
    backend::{Backend, Order, Reports},
    loaded::Loaded,
};
use crate::{
    batching::{Knobs, LaneId, LaneKnobs, ModelId, TaskId},
    device::{
        DeviceError,
        cuda::{Compiler, CudaOptions},
    },
    model::ModelSpec,
};

/// How many operations of a stream may be in flight.
const DEPTH: u32 = 64;

/// Most bytes of a task's parameters.
const PARAMETER_BYTES: usize = 64 << 10;

/// Whether CUDA cards run a version.
///
/// # Errors
/// When they do not; says what is missing.
pub fn check_cards(spec: &ModelSpec, programs: &StagePrograms) -> Result<(), String> {
    match programs.cells() {
        Some(cells) => cells::check(cells),
        None => stages::check(spec, programs),
    }
}

/// Which inputs of a version's requests tasks read on a card, and which outputs they write there, wherever in its
/// memory they lie: none of a version of cells, whose requests the host unfolds.
pub(super) fn placed_ports(spec: &ModelSpec, programs: &StagePrograms) -> (Box<[bool]>, Box<[bool]>) {
    match programs.cells() {
        Some(_) => Default::default(),
        None => stages::placed_ports(spec, programs),
    }
}

/// How a card is used.
#[derive(Clone, Debug)]
pub(super) struct CardOptions {
    /// Which card: its number among those of the driver.
    pub(super) ordinal: u16,
    /// Streams, at least one.
    pub(super) lanes: u16,
    /// How far ahead of its completions a stream takes tasks.
    pub(super) lane_knobs: LaneKnobs,
    /// Most bytes that a request may leave of one tensor on the host.
    pub(super) most_bytes: usize,
    pub(super) journal: Option<Arc<Journal>>,
}

/// A card, as one shard's device.
pub(super) struct Card {
    lanes: u16,
    lane_knobs: LaneKnobs,
    compiler: Compiler,
    /// Locked so that orders go in the order in which they are taken.
    messages: Mutex<Sender<Message>>,
}

impl Card {
    /// Opens a card and starts its threads.
    ///
    /// # Errors
    /// When the card cannot be opened or a thread not be started.
    pub(super) fn open(shard: usize, options: &CardOptions, compiler: Compiler) -> Result<Self, DeviceError> {
        let (sender, messages) = unbounded();
        let (taker, taken) = unbounded();
        let lanes = options.lanes.max(1);
        let to_driver = sender.clone();
        // A driver that has stopped has no use for what comes back.
        let give_back: GiveBack = Arc::new(move |flight| _ = to_driver.send(Message::Back(flight)));
        let flights = Arc::new(Flights::new(shard, lanes, taker, Arc::clone(&give_back), options.journal.clone()));
        let cuda =
            CudaOptions { ordinal: options.ordinal, streams: lanes, depth: DEPTH, parameter_bytes: PARAMETER_BYTES };
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
        let compiler = opened.recv().unwrap_or(Err(DeviceError::Stopped))?;
        Ok(Self { lanes, lane_knobs: options.lane_knobs, compiler, messages: Mutex::new(sender) })
    }
}

impl Backend for Card {
    fn lanes(&self) -> u16 {
        self.lanes
    }

    fn lane_knobs(&self) -> LaneKnobs {
        self.lane_knobs
    }

    fn load(&self, model: ModelId, version: &Loaded, knobs: &mut Knobs) -> Result<(), String> {
        // Compiling takes long, and needs no card.
        let programs = version.programs.iter().filter_map(|program| program.on_card());
        programs.into_iter().try_for_each(|program| program.compile(&self.compiler))?;
        let (reply, answer) = crossbeam_channel::bounded(1);
        let (spec, programs, mut own) = (Arc::clone(&version.spec), version.programs.clone(), Box::new(knobs.clone()));
        // Instances run side by side; what is launched ahead of one runs behind it.
        own.max_in_flight = own.max_in_flight.saturating_mul(u32::from(self.lane_knobs.depth));
        let gone = || "the card is gone".to_owned();
        let message = Message::Load { model, spec, programs, knobs: own, reply };
        self.messages.lock().send(message).map_err(|_| gone())?;
        *knobs = *answer.recv().map_err(|_| gone())??;
        Ok(())
    }

    fn issue(&self, pool: &Arc<dyn Reports>, next: &mut dyn FnMut() -> Option<Order>) {
        let messages = self.messages.lock();
        while let Some(order) = next() {
            // A card that has stopped has no use for orders.
            let _ = messages.send(Message::Order(Arc::clone(pool), order));
        }
    }

    fn leave_behind(&self, lane: LaneId, _: TaskId) -> io::Result<()> {
        Err(io::Error::other(format!("a card cannot be told to leave a task, and lane {} waits for it", lane.0)))
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
        // One that has stopped does not listen.
        let _ = self.messages.lock().send(Message::Stop { patience: Duration::ZERO, reply });
    }
}

//! A program on one stream of a card: its graphs, the row moves around the program in each graph, and the host memory
//! of its tasks.

use std::rc::Rc;

use paternoster_device::{
    Device, DeviceError, StreamId,
    cuda::{Address, Argument, Capture, CapturedGraph, Cuda, Function, KERNELS, KernelElement, LaunchShape},
};
use paternoster_engine::{CardProgram, CardWeights, CardWorkspace, RunParameters, RunSize};

use super::{
    parameters::{PLACE_BYTES, Places, Ring, Section},
    row_bytes::RowBytes,
};

/// Sections for each program and stream: the tasks that may be on the card, or wait for the host to take their outputs.
const SECTIONS: usize = 4;

/// Maximum threads of a block that moves rows.
const MOST_THREADS: u32 = 256;

/// Bytes that one thread moves at once.
const CHUNK_BYTES: usize = 16;

/// Chunks for each thread before a row gets another block, and the maximum blocks of a row.
const CHUNKS_OF_A_THREAD: usize = 8;
const MOST_BLOCKS: usize = 32;

/// The size of a captured graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct GraphSize {
    /// Of a run of its program.
    pub(super) run: RunSize,
    /// How many runs there are, one after another, each with its own lists.
    pub(super) steps: u32,
}

impl From<RunSize> for GraphSize {
    fn from(run: RunSize) -> Self {
        Self { run, steps: 1 }
    }
}

impl GraphSize {
    /// Returns the rows of all runs.
    pub(super) fn rows(self) -> u32 {
        self.run.rows * self.steps
    }
}

/// The row moves of a graph: gathers to its program's inputs, scatters from its outputs.
#[derive(Debug, Default)]
pub(super) struct Around {
    /// Number of lists in a task's parameters, with an entry for each row: row numbers and lengths.
    pub(super) lists: usize,
    /// Indexed by input of the program.
    pub(super) gathers: Vec<Move>,
    /// Outputs of the program that are moved, each by its index.
    pub(super) scatters: Vec<(usize, Move)>,
    /// The list that names where each row's fault is written.
    pub(super) faults: usize,
    /// The list of each row's own length, indexed by padded axis.
    pub(super) lengths: Vec<usize>,
    /// Rings that the host writes: the pitch of each, in bytes.
    pub(super) brought: Vec<usize>,
    /// Rings that the host reads: the pitch of each, in bytes.
    pub(super) fetched: Vec<usize>,
}

/// A move of the rows that a list names.
#[derive(Clone, Debug)]
pub(super) struct Move {
    pub(super) list: usize,
    /// The list with the number of entries of each row; the row's first entry is the one in `list`. If `None`, rows are
    /// moved whole.
    pub(super) counts: Option<usize>,
    pub(super) row_bytes: RowBytes,
    pub(super) place: RowsPlace,
    /// For a gather of state, its number among such gathers: the first row of a request lies elsewhere, at a place of
    /// its own.
    pub(super) begins: Option<usize>,
}

/// Where rows lie.
#[derive(Clone, Copy, Debug)]
pub(super) enum RowsPlace {
    /// In the ring of this index that the host writes.
    Brought(usize),
    /// In the ring of this index that the host reads.
    Fetched(usize),
    /// In the card's memory: the address of the first row, and the number of rows.
    Rows(Address, u32),
    /// In the card's memory: the address of the first entry, the number of entries, and the bytes of each. A row is one
    /// entry or several consecutive ones.
    Entries(Address, u32, usize),
}

/// The kernels that move rows.
pub(super) struct Kernels {
    gather: Function,
    scatter: Function,
}

impl Kernels {
    pub(super) fn new(card: &mut Cuda) -> Result<Self, DeviceError> {
        let kernels = card.kernels(KERNELS.rows, KernelElement::F32)?;
        Ok(Self { gather: kernels.function("gather_rows")?, scatter: kernels.function("scatter_rows")? })
    }
}

/// Loads programs onto a card.
pub(super) struct Loader<'a> {
    pub(super) card: &'a mut Cuda,
    pub(super) kernels: &'a Kernels,
    /// Maximum bytes of a task's parameters.
    pub(super) parameter_bytes: usize,
    /// Whether rows of host memory may have places of their own on the card instead
    /// ([`place`](super::parameters::Parameters::place)).
    pub(super) places_rows: bool,
}

/// A program on a card.
pub(super) struct OnCard {
    pub(super) around: Around,
    /// Indexed by stream.
    pub(super) lanes: Vec<OnLane>,
    _weights: Box<dyn CardWeights>,
}

/// A program on one stream.
pub(super) struct OnLane {
    stream: StreamId,
    /// Rows of a section: those of the largest task.
    max_rows: u32,
    pub(super) graphs: Vec<(GraphSize, Rc<CapturedGraph>)>,
    /// Sections that no task holds.
    pub(super) free: Vec<Section>,
    workspace: Box<dyn CardWorkspace>,
}

impl Loader<'_> {
    /// Reserves a program's memory on each stream and captures its graphs, of each of `buckets` rows and `steps` runs.
    ///
    /// # Errors
    /// If the card has too little memory, or tasks of the largest bucket exceed the limit of parameters.
    pub(super) fn load(
        &mut self,
        program: &dyn CardProgram,
        around: Around,
        buckets: &[u32],
        steps: &[u32],
    ) -> Result<OnCard, String> {
        let largest = |of: &[u32]| of.iter().copied().max().unwrap_or(1);
        let mut on_card = self.reserve(program, around, largest(buckets), largest(steps))?;
        let lengths = 0..program.lengths().len();
        let runs = lengths.flat_map(|lengths| buckets.iter().map(move |&rows| RunSize { rows, lengths }));
        let sizes = runs.flat_map(|run| steps.iter().map(move |&steps| GraphSize { run, steps }));
        let sizes: Vec<GraphSize> = sizes.collect();
        let OnCard { around, lanes, .. } = &mut on_card;
        for lane in lanes {
            for &size in &sizes {
                let graph = self.capture(lane, around, size).map_err(|error| error.to_string())?;
                lane.graphs.push((size, graph));
            }
        }
        Ok(on_card)
    }

    /// Reserves a program's memory on each stream, for tasks of up to `max_rows` rows in each of `max_steps` runs.
    ///
    /// # Errors
    /// As [`Self::load`].
    pub(super) fn reserve(
        &mut self,
        program: &dyn CardProgram,
        around: Around,
        max_rows: u32,
        max_steps: u32,
    ) -> Result<OnCard, String> {
        let all_rows = max_rows.saturating_mul(max_steps);
        let bytes = Places { bucket: all_rows, lists: around.lists }.bytes();
        if bytes > self.parameter_bytes {
            let most = self.parameter_bytes;
            return Err(format!("tasks of {all_rows} rows take {bytes} bytes of parameters, expected at most {most}"));
        }
        let weights = program.load(self.card).map_err(|error| error.to_string())?;
        let streams = (0..self.card.streams()).map(StreamId);
        let lanes = streams.map(|stream| self.lane(&*weights, &around, stream, max_rows, all_rows));
        let lanes = lanes.collect::<Result<_, _>>().map_err(|error| error.to_string())?;
        Ok(OnCard { around, lanes, _weights: weights })
    }

    fn lane(
        &mut self,
        weights: &dyn CardWeights,
        around: &Around,
        stream: StreamId,
        run_rows: u32,
        max_rows: u32,
    ) -> Result<OnLane, DeviceError> {
        let workspace = weights.reserve(self.card, stream, run_rows)?;
        let free = self.sections(around, max_rows)?;
        Ok(OnLane { stream, max_rows, graphs: Vec::new(), free, workspace })
    }

    /// Captures the graph of a size for one stream. No task may hold a section of it.
    ///
    /// # Errors
    /// If the card has too little memory, or the driver or a library refuses an operation.
    pub(super) fn capture(
        &mut self,
        lane: &mut OnLane,
        around: &Around,
        size: GraphSize,
    ) -> Result<Rc<CapturedGraph>, DeviceError> {
        // Preparing a size may run products and convolutions once. That writes to memory that earlier tasks of the
        // stream may still use.
        self.card.drain(lane.stream)?;
        lane.workspace.prepare(self.card, size.run)?;
        let around = InGraph::new(lane, around, size, self.places_rows)?;
        let program = &*lane.workspace;
        let steps: Vec<StepMoves> = (0..size.steps).map(|step| around.moves(program, step)).collect();
        let of_steps = steps.iter().flat_map(|moves| moves.gathers.iter().chain(&moves.scatters));
        let words: Vec<u8> = of_steps.flat_map(MoveWords::to_bytes).collect();
        let moves = self.card.memory(words.len())?;
        moves.upload(0, &words)?;
        let mut at = moves.address();
        let Kernels { gather, scatter } = self.kernels;
        let rows = size.run.rows;
        let graph = self.card.capture_fetching(lane.stream, around.places.bytes(), |capture| {
            for (step, StepMoves { gathers, scatters }) in steps.iter().enumerate() {
                let count = gathers.len() as u32;
                let mut arguments = if step == 0 { capture.fetching() } else { capture.fetched() }.to_vec();
                arguments.extend([Argument::I32(rows as i32), Argument::Address(at), Argument::I32(count as i32)]);
                capture.kernel(gather, shape(rows, gathers), &arguments)?;
                around.run(capture, program)?;
                at = at.offset(gathers.len() * MoveWords::BYTES);
                if !scatters.is_empty() {
                    let arguments =
                        [Argument::Address(capture.parameters()), Argument::I32(rows as i32), Argument::Address(at)];
                    capture.kernel(scatter, shape(rows, scatters), &arguments)?;
                    at = at.offset(scatters.len() * MoveWords::BYTES);
                }
            }
            Ok(())
        })?;
        Ok(Rc::new(graph.keeping(moves)))
    }

    /// Captures a graph of the program alone, without the moves of rows around it, for measurements. It takes the same
    /// parameters as the graph of this size, which must have been captured.
    ///
    /// # Errors
    /// If the driver refuses an operation.
    pub(super) fn capture_alone(
        &mut self,
        lane: &OnLane,
        around: &Around,
        size: GraphSize,
    ) -> Result<Rc<CapturedGraph>, DeviceError> {
        let around = InGraph::new(lane, around, size, self.places_rows)?;
        let bytes = around.places.bytes();
        let graph = self.card.capture(lane.stream, bytes, |capture| around.run(capture, &*lane.workspace))?;
        Ok(Rc::new(graph))
    }

    fn sections(&mut self, around: &Around, rows: u32) -> Result<Vec<Section>, DeviceError> {
        let mut ring = |row_bytes: usize| {
            // One allocation for all sections: row numbers count from the first section's address.
            let parts = self.card.host_memory(row_bytes * rows as usize, SECTIONS)?;
            Ok::<_, DeviceError>(parts.into_iter())
        };
        let mut brought = around.brought.iter().map(|&bytes| ring(bytes)).collect::<Result<Vec<_>, _>>()?;
        let mut fetched = around.fetched.iter().map(|&bytes| ring(bytes)).collect::<Result<Vec<_>, _>>()?;
        let mut faults = ring(size_of::<u32>())?;
        let lists = around.lists_of_places(self.places_rows);
        let mut placed = if lists > 0 { Some(ring(PLACE_BYTES * lists)?) } else { None };
        let sections = (0..SECTIONS as u32).map_while(|section| {
            Some(Section {
                first_row: section * rows,
                rows,
                brought: brought.iter_mut().map_while(Iterator::next).collect(),
                fetched: fetched.iter_mut().map_while(Iterator::next).collect(),
                faults: faults.next()?,
                placed: placed.as_mut().and_then(Iterator::next),
            })
        });
        Ok(sections.collect())
    }
}

/// Returns the powers of two below `most`, and `most`.
pub(super) fn buckets(most: u32) -> Box<[u32]> {
    let most = most.max(1);
    let powers = (0..u32::BITS).map(|power| 1 << power).take_while(|&rows| rows < most);
    powers.chain([most]).collect()
}

impl Around {
    /// Returns how many lists of places a section has: one for each ring if rows of host memory may have places of
    /// their own, and one for each gather whose first rows may.
    fn lists_of_places(&self, places_rows: bool) -> usize {
        let rings = if places_rows { self.brought.len() + self.fetched.len() } else { 0 };
        rings + self.gathers.iter().filter(|gather| gather.begins.is_some()).count()
    }
}

/// The moves around one run of a program.
struct StepMoves {
    gathers: Vec<MoveWords>,
    scatters: Vec<MoveWords>,
}

/// A move as the kernels read it: `Move` in `kernels/rows.cu`.
struct MoveWords {
    table: Address,
    batch: Address,
    numbers: [i32; 7],
    /// Chunks of a row, which decide about the launch.
    chunks: usize,
}

impl MoveWords {
    const BYTES: usize = 48;

    fn to_bytes(&self) -> impl Iterator<Item = u8> + use<> {
        let addresses = [self.table, self.batch].map(|address| address.to_bits().to_ne_bytes());
        let numbers = self.numbers.map(i32::to_ne_bytes);
        addresses.into_iter().flatten().chain(numbers.into_iter().flatten()).chain([0; size_of::<i32>()])
    }
}

/// Returns a launch for these moves: one block for each row and move, or several if rows are long, with up to a few
/// chunks for each thread.
fn shape(rows: u32, moves: &[MoveWords]) -> LaunchShape {
    let chunks = moves.iter().map(|own| own.chunks).max().unwrap_or(1);
    let threads = u32::try_from(chunks.next_multiple_of(32)).unwrap_or(MOST_THREADS).min(MOST_THREADS);
    let blocks = chunks.div_ceil(MOST_THREADS as usize * CHUNKS_OF_A_THREAD).clamp(1, MOST_BLOCKS);
    LaunchShape { grid: [rows, blocks as u32, moves.len().max(1) as u32], threads, shared_bytes: 0 }
}

/// The row moves of a graph of one size.
struct InGraph<'a> {
    around: &'a Around,
    size: GraphSize,
    places: Places,
    /// The first section: the rings begin at its addresses. A graph keeps these addresses; its tasks name rows from
    /// there, across all sections.
    first: &'a Section,
    /// Rows of a section.
    section_rows: u32,
    places_rows: bool,
}

impl<'a> InGraph<'a> {
    /// # Errors
    /// If tasks hold all sections of the program.
    fn new(lane: &'a OnLane, around: &'a Around, size: GraphSize, places_rows: bool) -> Result<Self, DeviceError> {
        let places = Places { bucket: size.rows(), lists: around.lists };
        let first = lane.free.first().ok_or(DeviceError::MalformedWork("all sections of the program are taken"))?;
        Ok(Self { around, size, places, first, section_rows: lane.max_rows, places_rows })
    }

    /// Returns the moves around one of the runs: gathers to the program's inputs, and scatters of its outputs and of
    /// its faults.
    fn moves(&self, program: &dyn CardWorkspace, step: u32) -> StepMoves {
        let lengths = self.size.run.lengths;
        let gathers = self.around.gathers.iter().enumerate();
        let gathers = gathers.map(|(number, from)| self.words(from, program.input(lengths, number), step));
        let outputs = self.around.scatters.iter();
        let outputs = outputs.map(|(output, to)| self.words(to, program.output(lengths, *output), step));
        let faults = program.faults(lengths).map(|faults| {
            let place = RowsPlace::Rows(self.first.faults.address(), self.ring_rows());
            let row_bytes = size_of::<u32>().into();
            self.words(&Move { list: self.around.faults, counts: None, row_bytes, place, begins: None }, faults, step)
        });
        StepMoves { gathers: gathers.collect(), scatters: outputs.chain(faults).collect() }
    }

    /// Issues the program alone.
    fn run(&self, capture: &mut Capture<'_>, program: &dyn CardWorkspace) -> Result<(), DeviceError> {
        let base = capture.parameters();
        let own_lengths = self.around.lengths.iter().map(|&list| base.offset(self.places.list(list)));
        let own_lengths: Vec<Address> = own_lengths.collect();
        let parameters = RunParameters { live: base.offset(Places::LIVE), lengths: &own_lengths };
        program.issue(capture, self.size.run, parameters)
    }

    /// Rows of each ring, of all sections together.
    fn ring_rows(&self) -> u32 {
        self.section_rows * SECTIONS as u32
    }

    /// Returns a move of one of the runs between its place and consecutive rows at `batch`.
    fn words(&self, of: &Move, batch: Address, step: u32) -> MoveWords {
        let (pitch, row_bytes) = (of.row_bytes.pitch(), of.row_bytes.at(self.size.run.lengths));
        let (table, rows, pitch) = match of.place {
            RowsPlace::Brought(ring) => (self.first.brought[ring].address(), self.ring_rows(), pitch),
            RowsPlace::Fetched(ring) => (self.first.fetched[ring].address(), self.ring_rows(), pitch),
            RowsPlace::Rows(address, rows) => (address, rows, pitch),
            RowsPlace::Entries(address, rows, bytes) => (address, rows, bytes),
        };
        let first_row = step * self.size.run.rows;
        let word = |list: usize| (self.places.list(list) / size_of::<i32>()) as i32 + first_row as i32;
        let first_place = |list: usize| list as i32 * self.section_rows as i32 + first_row as i32;
        // A request begins with the first run.
        let list_of_places = self.list_of_places(of).filter(|_| step == 0 || of.begins.is_none());
        let numbers = [
            word(of.list),
            of.counts.map_or(-1, word),
            rows as i32,
            row_bytes as i32,
            pitch as i32,
            row_bytes as i32,
            list_of_places.map_or(-1, first_place),
        ];
        MoveWords { table, batch, numbers, chunks: row_bytes.div_ceil(CHUNK_BYTES) }
    }

    /// Returns the list with the places of a move's rows; `None` if its rows have no places of their own.
    fn list_of_places(&self, of: &Move) -> Option<usize> {
        let ring = match of.place {
            RowsPlace::Brought(ring) if self.places_rows => Ring::Brought(ring),
            RowsPlace::Fetched(ring) if self.places_rows => Ring::Fetched(ring),
            _ => Ring::Begins(of.begins?),
        };
        Some(ring.list(self.around.brought.len(), self.around.fetched.len(), self.places_rows))
    }
}

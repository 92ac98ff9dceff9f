//! A program on one stream of a card: its graphs, what they do around it, and the host memory of its tasks.

use std::rc::Rc;

use super::row_bytes::RowBytes;
use crate::{
    device::{
        BufferId, Device, DeviceError, StreamId,
        cuda::{Address, Argument, Capture, Cuda, Element, Function, Graph, HostMemory, KERNELS, Shape},
    },
    engine::{CardProgram, CardWeights, CardWorkspace, RunSize},
};

/// Tasks of one program and stream whose rows may lie in host memory: those on the card, and those whose outputs the
/// host has yet to take.
const SECTIONS: usize = 4;

/// Threads of a block that moves rows, at most.
const MOST_THREADS: u32 = 256;

/// Bytes that one thread moves at once.
const CHUNK_BYTES: usize = 16;

/// Chunks that a thread moves before a row gets a further block, and most blocks of a row.
const CHUNKS_OF_A_THREAD: usize = 8;
const MOST_BLOCKS: usize = 32;

/// Bytes of a piece in the list that [`copy_pieces`](Kernels) takes.
const PIECE_BYTES: usize = 24;

/// Bytes of a place in the lists of those that rows have of their own.
const PLACE_BYTES: usize = size_of::<u64>();

/// What a graph does around its program: rows are brought to its inputs, and its outputs to where they are read.
#[derive(Debug, Default)]
pub(super) struct Around {
    /// How many lists of row numbers a task has.
    pub(super) lists: usize,
    /// Most pieces that are copied for each row before any is read; 0: none.
    pub(super) pieces: usize,
    /// By input of the program.
    pub(super) gathers: Vec<Move>,
    /// Outputs of the program that are moved.
    pub(super) scatters: Vec<(usize, Move)>,
    /// The list of where each row's fault goes.
    pub(super) faults: usize,
    /// Rings that the host writes: from row to row of each.
    pub(super) brought: Vec<usize>,
    /// Rings that the host reads.
    pub(super) fetched: Vec<usize>,
}

/// Rows that a list names.
#[derive(Clone, Debug)]
pub(super) struct Move {
    pub(super) list: usize,
    /// The list of how many entries each row has, which begin at the one that `list` names; none: rows are moved as
    /// they are.
    pub(super) counts: Option<usize>,
    pub(super) row_bytes: RowBytes,
    pub(super) place: Place,
}

/// Where rows lie.
#[derive(Clone, Copy, Debug)]
pub(super) enum Place {
    /// In this ring of those that the host writes.
    Brought(usize),
    /// In this ring of those that the host reads.
    Fetched(usize),
    /// In so many rows of the card's memory.
    Rows(Address, u32),
    /// In so many entries of the card's memory, of so many bytes. A row is one of them or several, one behind the
    /// other.
    Entries(Address, u32, usize),
}

/// Host memory of one task.
#[derive(Debug)]
pub(super) struct Section {
    /// The number of its first row among those of all sections.
    pub(super) first_row: u32,
    /// By ring that the host writes.
    pub(super) brought: Vec<HostMemory>,
    /// By ring that the host reads.
    pub(super) fetched: Vec<HostMemory>,
    /// A word a row.
    faults: HostMemory,
    pieces: HostMemory,
    /// By ring, first those that the host writes, and row: the place that the row has instead, if it may have one.
    placed: Option<HostMemory>,
}

impl Section {
    /// Whether a row names what a table does not have.
    pub(super) fn is_faulty(&self, row: usize) -> bool {
        let word = size_of::<u32>();
        self.faults.bytes()[row * word..][..word].iter().any(|byte| *byte != 0)
    }
}

/// Where the parts of a task's parameters lie, in bytes.
#[derive(Clone, Copy, Debug)]
struct Places {
    /// Rows of a list.
    bucket: u32,
    lists: usize,
}

impl Places {
    const LIVE: usize = 0;
    const PIECES: usize = 4;
    const PIECE_LIST: usize = 8;
    const PLACED: usize = 16;
    const LISTS: usize = 24;

    fn list(self, number: usize) -> usize {
        Self::LISTS + number * self.bucket as usize * size_of::<i32>()
    }

    fn bytes(self) -> usize {
        self.list(self.lists)
    }
}

/// The parameters of a task.
#[derive(Debug)]
pub(super) struct Parameters {
    bytes: Vec<u8>,
    places: Places,
    pieces: Vec<[u64; 3]>,
    /// Rows of rings that lie elsewhere: the ring, the row, and where.
    placed: Vec<(Ring, usize, Address)>,
}

/// A ring of host memory, in whose place a row may have one of its own on the card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ring {
    /// Of those that the host writes.
    Brought(usize),
    /// Of those that the host reads.
    Fetched(usize),
}

impl Ring {
    /// Its number among all of them.
    fn number(self, brought: usize) -> usize {
        match self {
            Self::Brought(number) => number,
            Self::Fetched(number) => brought + number,
        }
    }
}

impl Parameters {
    /// Of a task of so many rows, in a graph for `bucket` rows.
    pub(super) fn new(around: &Around, bucket: u32, rows: usize) -> Self {
        let places = Places { bucket, lists: around.lists };
        let bytes = vec![0; places.bytes()];
        let mut parameters = Self { bytes, places, pieces: Vec::new(), placed: Vec::new() };
        parameters.number(Places::LIVE, rows as u32);
        parameters
    }

    /// Names a row in a list; −1: none.
    pub(super) fn name(&mut self, list: usize, row: usize, value: i32) {
        let at = self.places.list(list) + row * size_of::<i32>();
        self.bytes[at..][..size_of::<i32>()].copy_from_slice(&value.to_ne_bytes());
    }

    /// Has bytes copied before any row is read.
    pub(super) fn copy(&mut self, from: Address, to: Address, bytes: usize) {
        self.pieces.push([from.to_bits(), to.to_bits(), bytes as u64]);
    }

    /// Has a row lie elsewhere than in a ring: a multiple of 4 bytes, as long as a row of the ring. The version was
    /// loaded by a [`Loader`] whose rows may.
    pub(super) fn place(&mut self, ring: Ring, row: usize, at: Address) {
        self.placed.push((ring, row, at));
    }

    /// The parameters as the graph takes them; pieces and places are listed in the task's section.
    pub(super) fn finish(mut self, section: &mut Section) -> Box<[u8]> {
        let brought = section.brought.len();
        let rings = brought + section.fetched.len();
        if let Some(list) = section.placed.as_mut().filter(|_| !self.placed.is_empty()) {
            let address = list.address().to_bits();
            let bytes = list.bytes_mut();
            let ring_bytes = bytes.len() / rings.max(1);
            bytes.fill(0);
            for (ring, row, at) in &self.placed {
                let to = ring.number(brought) * ring_bytes + row * PLACE_BYTES;
                bytes[to..][..PLACE_BYTES].copy_from_slice(&at.to_bits().to_ne_bytes());
            }
            self.bytes[Places::PLACED..][..PLACE_BYTES].copy_from_slice(&address.to_ne_bytes());
        }
        self.number(Places::PIECES, self.pieces.len() as u32);
        let list = section.pieces.address().to_bits();
        self.bytes[Places::PIECE_LIST..][..size_of::<u64>()].copy_from_slice(&list.to_ne_bytes());
        for (piece, to) in self.pieces.iter().zip(section.pieces.bytes_mut().chunks_exact_mut(PIECE_BYTES)) {
            for (word, to) in piece.iter().zip(to.chunks_exact_mut(size_of::<u64>())) {
                to.copy_from_slice(&word.to_ne_bytes());
            }
        }
        self.bytes.into()
    }

    fn number(&mut self, at: usize, value: u32) {
        self.bytes[at..][..size_of::<u32>()].copy_from_slice(&value.to_ne_bytes());
    }
}

/// Kernels that move rows.
pub(super) struct Kernels {
    gather: Function,
    gather_entries: Function,
    scatter: Function,
    gather_placed: Function,
    scatter_placed: Function,
    pieces: Function,
    /// Where faults are noted that cannot be: the host names rows that exist.
    unread: BufferId,
}

impl Kernels {
    pub(super) fn new(card: &mut Cuda, most_rows: u32) -> Result<Self, DeviceError> {
        let kernels = card.kernels(KERNELS.rows, Element::F32)?;
        Ok(Self {
            gather: kernels.function("gather_rows")?,
            gather_entries: kernels.function("gather_entries")?,
            scatter: kernels.function("scatter_rows")?,
            gather_placed: kernels.function("gather_placed")?,
            scatter_placed: kernels.function("scatter_placed")?,
            pieces: kernels.function("copy_pieces")?,
            unread: card.allocate(most_rows, size_of::<u32>())?,
        })
    }
}

/// What programs are loaded onto.
pub(super) struct Loader<'a> {
    pub(super) card: &'a mut Cuda,
    pub(super) kernels: &'a Kernels,
    /// Most bytes of a task's parameters.
    pub(super) parameter_bytes: usize,
    /// Whether rows of host memory may have places of their own on the card instead ([`Parameters::place`]).
    pub(super) places_rows: bool,
}

/// A program on a card.
pub(super) struct OnCard {
    pub(super) around: Around,
    /// By stream.
    pub(super) lanes: Vec<OnLane>,
    _weights: Box<dyn CardWeights>,
}

/// A program on one stream.
pub(super) struct OnLane {
    pub(super) graphs: Vec<(RunSize, Rc<Graph>)>,
    /// Sections that no task has.
    pub(super) free: Vec<Section>,
    _workspace: Box<dyn CardWorkspace>,
}

impl Loader<'_> {
    /// Reserves what a program needs on each stream, and captures its graphs.
    ///
    /// # Errors
    /// When the card has not enough, or tasks have more parameters than they may.
    pub(super) fn load(
        &mut self,
        program: &dyn CardProgram,
        around: Around,
        buckets: &[u32],
    ) -> Result<OnCard, String> {
        let largest = buckets.iter().copied().max().unwrap_or(1);
        let bytes = Places { bucket: largest, lists: around.lists }.bytes();
        if bytes > self.parameter_bytes {
            let most = self.parameter_bytes;
            return Err(format!("tasks of {largest} rows take {bytes} bytes of parameters, expected at most {most}"));
        }
        let weights = program.load(self.card).map_err(|error| error.to_string())?;
        let streams = (0..self.card.streams()).map(StreamId);
        let lengths = 0..program.lengths().len();
        let sizes = lengths.flat_map(|lengths| buckets.iter().map(move |&rows| RunSize { rows, lengths }));
        let sizes: Vec<RunSize> = sizes.collect();
        let lanes = streams.map(|stream| self.lane(&*weights, &around, stream, &sizes, largest));
        let lanes = lanes.collect::<Result<_, _>>().map_err(|error| error.to_string())?;
        Ok(OnCard { around, lanes, _weights: weights })
    }

    fn lane(
        &mut self,
        weights: &dyn CardWeights,
        around: &Around,
        stream: StreamId,
        sizes: &[RunSize],
        largest: u32,
    ) -> Result<OnLane, DeviceError> {
        let mut workspace = weights.reserve(self.card, stream, largest)?;
        // What is tried meanwhile writes to memory that the stream's tasks may use.
        self.card.drain(stream)?;
        let sections = self.sections(around, largest)?;
        let mut graphs = Vec::with_capacity(sizes.len());
        for &size in sizes {
            workspace.prepare(self.card, size)?;
            let unread = self.card.address(self.kernels.unread)?;
            let places = Places { bucket: size.rows, lists: around.lists };
            let moves = Moves {
                kernels: self.kernels,
                around,
                size,
                places,
                unread,
                first: &sections[0],
                ring_rows: largest * SECTIONS as u32,
                section_rows: self.places_rows.then_some(largest),
            };
            let graph = self.card.capture(stream, places.bytes(), |capture| moves.issue(capture, &*workspace))?;
            graphs.push((size, Rc::new(graph)));
        }
        Ok(OnLane { graphs, free: sections, _workspace: workspace })
    }

    fn sections(&mut self, around: &Around, rows: u32) -> Result<Vec<Section>, DeviceError> {
        let rings = around.brought.len() + around.fetched.len();
        let mut ring = |row_bytes: usize| {
            let parts = self.card.host_memory(row_bytes * rows as usize, SECTIONS)?;
            Ok::<_, DeviceError>(parts.into_iter())
        };
        let mut brought = around.brought.iter().map(|&bytes| ring(bytes)).collect::<Result<Vec<_>, _>>()?;
        let mut fetched = around.fetched.iter().map(|&bytes| ring(bytes)).collect::<Result<Vec<_>, _>>()?;
        let mut faults = ring(size_of::<u32>())?;
        let mut pieces = ring(PIECE_BYTES * around.pieces.max(1))?;
        let mut placed = if self.places_rows && rings > 0 { Some(ring(PLACE_BYTES * rings)?) } else { None };
        let sections = (0..SECTIONS as u32).map_while(|section| {
            Some(Section {
                first_row: section * rows,
                brought: brought.iter_mut().map_while(Iterator::next).collect(),
                fetched: fetched.iter_mut().map_while(Iterator::next).collect(),
                faults: faults.next()?,
                pieces: pieces.next()?,
                placed: placed.as_mut().and_then(Iterator::next),
            })
        });
        Ok(sections.collect())
    }
}

/// Most rows of a task of so many lists whose parameters have so many bytes.
pub(super) fn rows_of(parameter_bytes: usize, lists: usize) -> u32 {
    let rows = parameter_bytes.saturating_sub(Places::LISTS) / (lists.max(1) * size_of::<i32>());
    u32::try_from(rows).unwrap_or(u32::MAX)
}

/// The powers of two up to a size, and that size.
pub(super) fn buckets(most: u32) -> Box<[u32]> {
    let most = most.max(1);
    let powers = (0..u32::BITS).map(|power| 1 << power).take_while(|&rows| rows < most);
    powers.chain([most]).collect()
}

/// Issues what a graph does.
struct Moves<'a> {
    kernels: &'a Kernels,
    around: &'a Around,
    size: RunSize,
    places: Places,
    unread: Address,
    /// Where the rings begin, each of which has so many rows.
    first: &'a Section,
    ring_rows: u32,
    /// Rows of a section, if they may have places of their own.
    section_rows: Option<u32>,
}

impl Moves<'_> {
    fn issue(&self, capture: &mut Capture<'_>, program: &dyn CardWorkspace) -> Result<(), DeviceError> {
        let base = capture.parameters();
        let live = base.offset(Places::LIVE);
        let RunSize { rows, lengths } = self.size;
        if self.around.pieces > 0 {
            let arguments = [
                Argument::Address(base.offset(Places::PIECES)),
                Argument::I32((rows as usize * self.around.pieces) as i32),
                Argument::Address(base.offset(Places::PIECE_LIST)),
            ];
            let shape = Shape { grid: [rows.min(64), 1, 1], threads: MOST_THREADS, shared_bytes: 0 };
            capture.kernel(&self.kernels.pieces, shape, &arguments)?;
        }
        for (number, from) in self.around.gathers.iter().enumerate() {
            self.gather(capture, from, program.input(lengths, number))?;
        }
        program.issue(capture, self.size, live)?;
        for (output, to) in &self.around.scatters {
            self.scatter(capture, to, program.output(lengths, *output))?;
        }
        match program.faults(lengths) {
            Some(faults) => {
                let place = Place::Rows(self.first.faults.address(), self.ring_rows);
                let row_bytes = size_of::<u32>().into();
                let to = Move { list: self.around.faults, counts: None, row_bytes, place };
                self.scatter(capture, &to, faults)
            }
            None => Ok(()),
        }
    }

    /// Where rows lie, how many there are, and the bytes from one to the next.
    fn region(&self, of: &Move) -> [Argument; 3] {
        let pitch = of.row_bytes.pitch();
        let (address, rows, pitch) = match of.place {
            Place::Brought(ring) => (self.first.brought[ring].address(), self.ring_rows, pitch),
            Place::Fetched(ring) => (self.first.fetched[ring].address(), self.ring_rows, pitch),
            Place::Rows(address, rows) => (address, rows, pitch),
            Place::Entries(address, rows, bytes) => (address, rows, bytes),
        };
        [Argument::Address(address), Argument::I32(rows as i32), Argument::I32(pitch as i32)]
    }

    /// Brings rows to follow one another.
    fn gather(&self, capture: &mut Capture<'_>, from: &Move, to: Address) -> Result<(), DeviceError> {
        let [address, rows, pitch] = self.region(from);
        if let Some(counts) = from.counts {
            let counts = self.list(capture, counts);
            let places = [counts, address, rows, pitch, Argument::Address(to)];
            return self.launch(capture, [&self.kernels.gather_entries; 2], from, places);
        }
        let places = [address, rows, pitch, Argument::Address(to), self.row_bytes(from)];
        self.launch(capture, [&self.kernels.gather, &self.kernels.gather_placed], from, places)
    }

    /// Where a list of a task's parameters lies.
    fn list(&self, capture: &Capture<'_>, number: usize) -> Argument {
        Argument::Address(capture.parameters().offset(self.places.list(number)))
    }

    /// Brings rows that follow one another to where they are read.
    fn scatter(&self, capture: &mut Capture<'_>, to: &Move, from: Address) -> Result<(), DeviceError> {
        let [address, rows, pitch] = self.region(to);
        let places = [Argument::Address(from), self.row_bytes(to), address, rows, pitch];
        self.launch(capture, [&self.kernels.scatter, &self.kernels.scatter_placed], to, places)
    }

    /// Moves rows: which, and how many of them are live, lies on the card; with the second kernel where rows may have
    /// places of their own.
    fn launch(
        &self,
        capture: &mut Capture<'_>,
        [kernel, placed]: [&Function; 2],
        of: &Move,
        places: [Argument; 5],
    ) -> Result<(), DeviceError> {
        let live = Argument::Address(capture.parameters().offset(Places::LIVE));
        let list = self.list(capture, of.list);
        let (rows, bytes) = (Argument::I32(self.size.rows as i32), self.row_bytes(of));
        let mut arguments = vec![live, rows, bytes, list];
        arguments.extend(places);
        arguments.push(Argument::Address(self.unread));
        let first_place = self.first_place(of.place);
        if let Some(first) = first_place {
            let list = capture.parameters().offset(Places::PLACED);
            arguments.extend([Argument::Address(list), Argument::I32(first as i32)]);
        }
        let kernel = if first_place.is_some() { placed } else { kernel };
        capture.kernel(kernel, self.shape(of.row_bytes.at(self.size.lengths)), &arguments)
    }

    /// Where the places of a ring's rows begin in a section's list; none where its rows have no places of their own.
    fn first_place(&self, place: Place) -> Option<u32> {
        let ring = match place {
            Place::Brought(ring) => Ring::Brought(ring),
            Place::Fetched(ring) => Ring::Fetched(ring),
            Place::Rows(..) | Place::Entries(..) => return None,
        };
        Some(ring.number(self.around.brought.len()) as u32 * self.section_rows?)
    }

    fn row_bytes(&self, of: &Move) -> Argument {
        Argument::I32(of.row_bytes.at(self.size.lengths) as i32)
    }

    /// A block a row, or several where it is long, with a thread for each chunk of it, up to a few.
    fn shape(&self, row_bytes: usize) -> Shape {
        let chunks = row_bytes.div_ceil(CHUNK_BYTES);
        let threads = u32::try_from(chunks.next_multiple_of(32)).unwrap_or(MOST_THREADS).min(MOST_THREADS);
        let blocks = chunks.div_ceil(MOST_THREADS as usize * CHUNKS_OF_A_THREAD).clamp(1, MOST_BLOCKS);
        Shape { grid: [self.size.rows, blocks as u32, 1], threads, shared_bytes: 0 }
    }
}

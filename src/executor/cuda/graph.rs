//! A program on one stream of a card: its graphs, the row moves around the program in each graph, and the host memory
//! of its tasks.

use std::rc::Rc;

use super::{
    parameters::{PIECE_BYTES, PLACE_BYTES, Places, Ring, Section},
    row_bytes::RowBytes,
};
use crate::{
    device::{
        BufferId, Device, DeviceError, StreamId,
        cuda::{Address, Argument, Capture, Cuda, Element, Function, Graph, KERNELS, Shape},
    },
    engine::{CardProgram, CardWeights, CardWorkspace, RunParameters, RunSize},
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

/// The row moves of a graph: gathers to its program's inputs, scatters from its outputs.
#[derive(Debug, Default)]
pub(super) struct Around {
    /// Number of lists in a task's parameters, with an entry for each row: row numbers and lengths.
    pub(super) lists: usize,
    /// Maximum pieces for each row that are copied before any row is read; 0 if none are.
    pub(super) pieces: usize,
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
    pub(super) place: Place,
}

/// Where rows lie.
#[derive(Clone, Copy, Debug)]
pub(super) enum Place {
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
    gather_entries: Function,
    scatter: Function,
    gather_placed: Function,
    scatter_placed: Function,
    pieces: Function,
    /// The fault words of the moves themselves, which nothing reads: the host names only rows that exist.
    pub(super) unread: BufferId,
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
    pub(super) graphs: Vec<(RunSize, Rc<Graph>)>,
    /// Sections that no task holds.
    pub(super) free: Vec<Section>,
    workspace: Box<dyn CardWorkspace>,
}

impl Loader<'_> {
    /// Reserves a program's memory on each stream and captures its graphs.
    ///
    /// # Errors
    /// If the card has too little memory, or tasks of the largest bucket exceed the limit of parameters.
    pub(super) fn load(
        &mut self,
        program: &dyn CardProgram,
        around: Around,
        buckets: &[u32],
    ) -> Result<OnCard, String> {
        let largest = buckets.iter().copied().max().unwrap_or(1);
        let mut on_card = self.reserve(program, around, largest)?;
        let lengths = 0..program.lengths().len();
        let sizes = lengths.flat_map(|lengths| buckets.iter().map(move |&rows| RunSize { rows, lengths }));
        let sizes: Vec<RunSize> = sizes.collect();
        let OnCard { around, lanes, .. } = &mut on_card;
        for lane in lanes {
            for &size in &sizes {
                let graph = self.capture(lane, around, size).map_err(|error| error.to_string())?;
                lane.graphs.push((size, graph));
            }
        }
        Ok(on_card)
    }

    /// Reserves a program's memory on each stream, for tasks of up to `max_rows` rows.
    ///
    /// # Errors
    /// As [`Self::load`].
    pub(super) fn reserve(
        &mut self,
        program: &dyn CardProgram,
        around: Around,
        max_rows: u32,
    ) -> Result<OnCard, String> {
        let bytes = Places { bucket: max_rows, lists: around.lists }.bytes();
        if bytes > self.parameter_bytes {
            let most = self.parameter_bytes;
            return Err(format!("tasks of {max_rows} rows take {bytes} bytes of parameters, expected at most {most}"));
        }
        let weights = program.load(self.card).map_err(|error| error.to_string())?;
        let streams = (0..self.card.streams()).map(StreamId);
        let lanes = streams.map(|stream| self.lane(&*weights, &around, stream, max_rows));
        let lanes = lanes.collect::<Result<_, _>>().map_err(|error| error.to_string())?;
        Ok(OnCard { around, lanes, _weights: weights })
    }

    fn lane(
        &mut self,
        weights: &dyn CardWeights,
        around: &Around,
        stream: StreamId,
        max_rows: u32,
    ) -> Result<OnLane, DeviceError> {
        let workspace = weights.reserve(self.card, stream, max_rows)?;
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
        size: RunSize,
    ) -> Result<Rc<Graph>, DeviceError> {
        // Preparing a size may run products and convolutions once. That writes to memory that earlier tasks of the
        // stream may still use.
        self.card.drain(lane.stream)?;
        lane.workspace.prepare(self.card, size)?;
        self.graph(lane, around, size, |moves, capture, program| moves.issue(capture, program))
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
        size: RunSize,
    ) -> Result<Rc<Graph>, DeviceError> {
        self.graph(lane, around, size, |moves, capture, program| moves.run(capture, program))
    }

    fn graph(
        &mut self,
        lane: &OnLane,
        around: &Around,
        size: RunSize,
        issue: impl FnOnce(&Moves<'_>, &mut Capture<'_>, &dyn CardWorkspace) -> Result<(), DeviceError>,
    ) -> Result<Rc<Graph>, DeviceError> {
        let unread = self.card.address(self.kernels.unread)?;
        let places = Places { bucket: size.rows, lists: around.lists };
        // A graph keeps the addresses of the first section's rings. Its tasks name rows from there, across all
        // sections.
        let first = lane.free.first().ok_or(DeviceError::MalformedWork("all sections of the program are taken"))?;
        let moves = Moves {
            kernels: self.kernels,
            around,
            size,
            places,
            unread,
            first,
            ring_rows: lane.max_rows * SECTIONS as u32,
            section_rows: self.places_rows.then_some(lane.max_rows),
        };
        let graph =
            self.card.capture(lane.stream, places.bytes(), |capture| issue(&moves, capture, &*lane.workspace))?;
        Ok(Rc::new(graph))
    }

    fn sections(&mut self, around: &Around, rows: u32) -> Result<Vec<Section>, DeviceError> {
        let rings = around.brought.len() + around.fetched.len();
        let mut ring = |row_bytes: usize| {
            // One allocation for all sections: row numbers count from the first section's address.
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

/// Returns the powers of two below `most`, and `most`.
pub(super) fn buckets(most: u32) -> Box<[u32]> {
    let most = most.max(1);
    let powers = (0..u32::BITS).map(|power| 1 << power).take_while(|&rows| rows < most);
    powers.chain([most]).collect()
}

/// Issues the operations of a graph.
struct Moves<'a> {
    kernels: &'a Kernels,
    around: &'a Around,
    size: RunSize,
    places: Places,
    unread: Address,
    /// The first section: the rings begin at its addresses.
    first: &'a Section,
    /// Rows of each ring, of all sections together.
    ring_rows: u32,
    /// Rows of a section, if rows may have places of their own.
    section_rows: Option<u32>,
}

impl Moves<'_> {
    fn issue(&self, capture: &mut Capture<'_>, program: &dyn CardWorkspace) -> Result<(), DeviceError> {
        let base = capture.parameters();
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
        self.run(capture, program)?;
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

    /// Issues the program alone.
    fn run(&self, capture: &mut Capture<'_>, program: &dyn CardWorkspace) -> Result<(), DeviceError> {
        let base = capture.parameters();
        let own_lengths = self.around.lengths.iter().map(|&list| base.offset(self.places.list(list)));
        let own_lengths: Vec<Address> = own_lengths.collect();
        let parameters = RunParameters { live: base.offset(Places::LIVE), lengths: &own_lengths };
        program.issue(capture, self.size, parameters)
    }

    /// Returns the address of the first row, the number of rows, and the pitch.
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

    /// Gathers rows into consecutive ones at `to`.
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

    /// Returns the address of a list in the task's parameters.
    fn list(&self, capture: &Capture<'_>, number: usize) -> Argument {
        Argument::Address(capture.parameters().offset(self.places.list(number)))
    }

    /// Scatters consecutive rows at `from` to their places.
    fn scatter(&self, capture: &mut Capture<'_>, to: &Move, from: Address) -> Result<(), DeviceError> {
        let [address, rows, pitch] = self.region(to);
        let places = [Argument::Address(from), self.row_bytes(to), address, rows, pitch];
        self.launch(capture, [&self.kernels.scatter, &self.kernels.scatter_placed], to, places)
    }

    /// Launches a kernel that moves rows. It reads the number of live rows and the row numbers from the task's
    /// parameters. The second kernel is used where rows may have places of their own.
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

    /// Returns the index of a ring's first place in the section's list; `None` if its rows have no places of their own.
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

    /// One block for each row, or several if the row is long, with up to a few chunks for each thread.
    fn shape(&self, row_bytes: usize) -> Shape {
        let chunks = row_bytes.div_ceil(CHUNK_BYTES);
        let threads = u32::try_from(chunks.next_multiple_of(32)).unwrap_or(MOST_THREADS).min(MOST_THREADS);
        let blocks = chunks.div_ceil(MOST_THREADS as usize * CHUNKS_OF_A_THREAD).clamp(1, MOST_BLOCKS);
        Shape { grid: [self.size.rows, blocks as u32, 1], threads, shared_bytes: 0 }
    }
}

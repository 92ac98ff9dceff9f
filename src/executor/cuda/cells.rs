//! What the cells of a version have on a card: slot tables, weights, and on each stream the memory and the graphs.

use std::{rc::Rc, sync::Arc};

use super::{
    layout::{CellLayout, Layout, ReadFrom},
    slots::Slots,
};
use crate::{
    batching::CellularKnobs,
    device::{
        BufferId, Device, DeviceError, StreamId,
        cuda::{Address, Argument, Capture, Cuda, Element, Function, Graph, HostMemory, KERNELS, Shape},
    },
    engine::{CardWeights, CardWorkspace},
    executor::cells::CellPrograms,
};

/// Tasks of one cell and stream whose rows may lie in host memory: those on the card, and those whose outputs the host
/// has yet to take.
const SECTIONS: usize = 4;

/// The part of the card's free memory that the slots of one version may take.
const SLOTS_PART: usize = 4;

/// Threads of a block that moves rows, at most.
const MOST_THREADS: u32 = 256;

/// Bytes that one thread moves at once.
const CHUNK_BYTES: usize = 16;

/// Bytes of a piece in the list that [`copy_pieces`](KernelsOfRows) takes.
pub(super) const PIECE_BYTES: usize = 24;

/// What a version has on the card.
pub(super) struct Cells {
    pub(super) programs: Arc<CellPrograms>,
    pub(super) layout: Arc<Layout>,
    pub(super) slots: Slots,
    pub(super) tables: Vec<SlotTable>,
    pub(super) cells: Vec<Cell>,
    /// Sections that tasks have.
    pub(super) sections_out: usize,
}

/// A table in the card's memory.
pub(super) struct SlotTable {
    pub(super) buffer: BufferId,
    pub(super) address: Address,
    pub(super) row_bytes: usize,
    /// Slots, and the constants behind them.
    rows: u32,
}

/// A cell on the card.
pub(super) struct Cell {
    pub(super) lanes: Vec<CellOnLane>,
    _weights: Box<dyn CardWeights>,
}

/// A cell on one stream.
pub(super) struct CellOnLane {
    /// By bucket.
    pub(super) graphs: Vec<(u32, Rc<Graph>)>,
    /// Sections that no task has.
    pub(super) free: Vec<Section>,
    _workspace: Box<dyn CardWorkspace>,
}

/// Host memory of one task.
#[derive(Debug)]
pub(super) struct Section {
    /// The number of its first row among those of all sections.
    pub(super) first_row: u32,
    /// By input of the cell.
    pub(super) inputs: Vec<HostMemory>,
    /// By fetched output of the cell.
    pub(super) fetched: Vec<HostMemory>,
    /// A word a row.
    pub(super) faults: HostMemory,
    pub(super) pieces: HostMemory,
}

/// Where the parts of a task's parameters lie, in bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Parameters {
    /// Rows of a list.
    bucket: u32,
    children: usize,
    fetched: usize,
}

/// Kernels that move rows.
pub(super) struct KernelsOfRows {
    gather: Function,
    scatter: Function,
    pieces: Function,
    /// Where faults are noted that cannot be: the host names rows that exist.
    unread: BufferId,
}

impl Parameters {
    pub(super) const LIVE: usize = 0;
    pub(super) const PIECES: usize = 4;
    pub(super) const PIECE_LIST: usize = 8;
    const LISTS: usize = 16;

    pub(super) fn new(cell: &CellLayout, bucket: u32) -> Self {
        Self { bucket, children: cell.child_lists(), fetched: cell.fetched.len() }
    }

    fn list(self, number: usize) -> usize {
        Self::LISTS + number * self.bucket as usize * size_of::<i32>()
    }

    /// By row: its slot.
    pub(super) fn slots(self) -> usize {
        self.list(0)
    }

    /// By row: its number in the rings of host memory.
    pub(super) fn host_rows(self) -> usize {
        self.list(1)
    }

    /// By row: the slot of a child.
    pub(super) fn children(self, list: usize) -> usize {
        self.list(2 + list)
    }

    /// By row: its number in the ring of a fetched output; -1 where the host does not take it.
    pub(super) fn fetched(self, number: usize) -> usize {
        self.list(2 + self.children + number)
    }

    pub(super) fn bytes(self) -> usize {
        self.list(2 + self.children + self.fetched)
    }
}

impl KernelsOfRows {
    pub(super) fn new(card: &mut Cuda, most_rows: u32) -> Result<Self, DeviceError> {
        let kernels = card.kernels(KERNELS.rows, Element::F32)?;
        Ok(Self {
            gather: kernels.function("gather_rows")?,
            scatter: kernels.function("scatter_rows")?,
            pieces: kernels.function("copy_pieces")?,
            unread: card.allocate(most_rows, size_of::<u32>())?,
        })
    }
}

/// What a version is loaded with.
pub(super) struct Loading<'a> {
    pub(super) card: &'a mut Cuda,
    pub(super) kernels: &'a KernelsOfRows,
    pub(super) knobs: &'a mut CellularKnobs,
    /// Most bytes of a task's parameters.
    pub(super) parameter_bytes: usize,
}

impl Loading<'_> {
    /// Reserves all that a version's cells need, captures their graphs, and tells the core of their buckets and slots.
    ///
    /// # Errors
    /// When the card has not enough, or does not run what a cell needs; with the cell.
    pub(super) fn load(mut self, programs: &Arc<CellPrograms>) -> Result<Cells, String> {
        let layout = Arc::new(Layout::new(programs)?);
        for (cell, knobs) in self.knobs.cells.iter_mut().enumerate() {
            if knobs.buckets.is_empty() {
                knobs.buckets = buckets(knobs.max_rows);
            }
            // Slots are numbered by version.
            knobs.kind = None;
            let largest = knobs.buckets.iter().copied().max().unwrap_or(1);
            let bytes = Parameters::new(&layout.cells[cell], largest).bytes();
            if bytes > self.parameter_bytes {
                let name = &programs.unfolding.cells[cell].name;
                let most = self.parameter_bytes;
                return Err(format!(
                    "cell '{name}': tasks of {largest} rows take {bytes} bytes of parameters, expected at most {most}"
                ));
            }
        }
        self.knobs.slots = self.slots(&layout).map_err(|error| error.to_string())?;
        let mut tables = Vec::with_capacity(layout.tables.len());
        let reserved = self.tables(&layout, &mut tables).map_err(|error| format!("its slot tables: {error}"));
        let cells = match reserved.and_then(|()| self.cells(programs, &layout, &tables)) {
            Ok(cells) => cells,
            Err(reason) => {
                // Why it is refused says more than that the card is lost, which is all that can hinder this.
                let _ = free(self.card, tables);
                return Err(reason);
            }
        };
        let slots = Slots::new(self.knobs.slots);
        Ok(Cells { programs: Arc::clone(programs), layout, slots, tables, cells, sections_out: 0 })
    }

    fn cells(&mut self, programs: &CellPrograms, layout: &Layout, tables: &[SlotTable]) -> Result<Vec<Cell>, String> {
        let mut cells = Vec::with_capacity(programs.cells.len());
        for (number, (spec, cell)) in programs.unfolding.cells.iter().zip(&programs.cells).enumerate() {
            let program =
                cell.program.on_card().ok_or_else(|| format!("cell '{}' has no plan for cards", spec.name))?;
            let loaded = program.load(self.card).and_then(|weights| {
                let streams = (0..self.card.streams()).map(StreamId);
                let lanes = streams.map(|stream| {
                    let buckets = self.knobs.cells[number].buckets.clone();
                    self.lane(&*weights, &layout.cells[number], tables, stream, &buckets)
                });
                Ok(Cell { lanes: lanes.collect::<Result<_, _>>()?, _weights: weights })
            });
            cells.push(loaded.map_err(|error| format!("cell '{}': {error}", spec.name))?);
        }
        Ok(cells)
    }

    /// As many slots as were asked for, as far as they fit into a part of the free memory.
    fn slots(&self, layout: &Layout) -> Result<u32, DeviceError> {
        let (free, _) = self.card.memory_bytes()?;
        let most = (free / SLOTS_PART).checked_div(layout.slot_bytes()).unwrap_or(usize::MAX);
        Ok(self.knobs.slots.min(u32::try_from(most).unwrap_or(u32::MAX)).max(1))
    }

    /// Reserves slot tables one by one: those that there are if one fails are the caller's.
    fn tables(&mut self, layout: &Layout, tables: &mut Vec<SlotTable>) -> Result<(), DeviceError> {
        for table in &layout.tables {
            let rows = self.knobs.slots + table.constants.len() as u32;
            let buffer = self.card.allocate(rows, table.row_bytes)?;
            tables.push(SlotTable { buffer, address: self.card.address(buffer)?, row_bytes: table.row_bytes, rows });
            for (row, constant) in (self.knobs.slots..).zip(&table.constants) {
                self.card.upload(buffer, row, constant)?;
            }
        }
        Ok(())
    }

    fn lane(
        &mut self,
        weights: &dyn CardWeights,
        cell: &CellLayout,
        tables: &[SlotTable],
        stream: StreamId,
        buckets: &[u32],
    ) -> Result<CellOnLane, DeviceError> {
        let largest = buckets.iter().copied().max().unwrap_or(1);
        let mut workspace = weights.reserve(self.card, largest)?;
        let sections = self.sections(cell, largest)?;
        let mut graphs = Vec::with_capacity(buckets.len());
        for &rows in buckets {
            workspace.prepare(self.card, rows)?;
            let unread = self.card.address(self.kernels.unread)?;
            let parameters = Parameters::new(cell, rows);
            let moves = Moves { kernels: self.kernels, rows, parameters, unread };
            let graph = self.card.capture(stream, parameters.bytes(), |capture| {
                moves.issue(capture, cell, tables, &sections[0], (&*workspace, largest * SECTIONS as u32))
            })?;
            graphs.push((rows, Rc::new(graph)));
        }
        Ok(CellOnLane { graphs, free: sections, _workspace: workspace })
    }

    fn sections(&mut self, cell: &CellLayout, rows: u32) -> Result<Vec<Section>, DeviceError> {
        let mut ring = |row_bytes: usize| {
            let parts = self.card.host_memory(row_bytes * rows as usize, SECTIONS)?;
            Ok::<_, DeviceError>(parts.into_iter())
        };
        let mut inputs = Vec::new();
        for input in &cell.inputs {
            inputs.push(ring(input.row_bytes)?);
        }
        let mut fetched = Vec::new();
        for output in &cell.fetched {
            fetched.push(ring(output.row_bytes)?);
        }
        let mut faults = ring(size_of::<u32>())?;
        let mut pieces = ring(PIECE_BYTES * cell.inputs.len().max(1))?;
        let sections = (0..SECTIONS as u32).map_while(|section| {
            Some(Section {
                first_row: section * rows,
                inputs: inputs.iter_mut().map_while(Iterator::next).collect(),
                fetched: fetched.iter_mut().map_while(Iterator::next).collect(),
                faults: faults.next()?,
                pieces: pieces.next()?,
            })
        });
        Ok(sections.collect())
    }
}

/// The powers of two up to a size, and that size.
fn buckets(most: u32) -> Box<[u32]> {
    let most = most.max(1);
    let powers = (0..u32::BITS).map(|power| 1 << power).take_while(|&rows| rows < most);
    powers.chain([most]).collect()
}

/// What a graph does around its program: rows are brought to it, and its outputs to where they are read.
struct Moves<'a> {
    kernels: &'a KernelsOfRows,
    rows: u32,
    parameters: Parameters,
    unread: Address,
}

impl Moves<'_> {
    /// Issues a task. The rings of host memory begin with the `first` section and have so many rows.
    fn issue(
        &self,
        capture: &mut Capture<'_>,
        cell: &CellLayout,
        tables: &[SlotTable],
        first: &Section,
        (program, ring_rows): (&dyn CardWorkspace, u32),
    ) -> Result<(), DeviceError> {
        let base = capture.parameters();
        let live = base.offset(Parameters::LIVE);
        let slots = base.offset(self.parameters.slots());
        let host_rows = base.offset(self.parameters.host_rows());
        if cell.inputs.iter().any(|input| matches!(input.from, ReadFrom::Own { .. })) {
            let most = self.rows * cell.inputs.len() as u32;
            let arguments = [
                Argument::Address(base.offset(Parameters::PIECES)),
                Argument::I32(most as i32),
                Argument::Address(base.offset(Parameters::PIECE_LIST)),
            ];
            let shape = Shape { grid: [self.rows.min(64), 1, 1], threads: MOST_THREADS, shared_bytes: 0 };
            capture.kernel(&self.kernels.pieces, shape, &arguments)?;
        }
        for (number, input) in cell.inputs.iter().enumerate() {
            let (list, (from, from_rows)) = match input.from {
                ReadFrom::Host => (host_rows, (first.inputs[number].address(), ring_rows)),
                ReadFrom::Own { table } => (slots, tables[table].region()),
                ReadFrom::Child { table, list } => {
                    (base.offset(self.parameters.children(list)), tables[table].region())
                }
            };
            self.gather(capture, (live, list), input.row_bytes, (from, from_rows), program.input(number))?;
        }
        program.issue(capture, self.rows, live)?;
        for &(output, table) in &cell.kept {
            let SlotTable { row_bytes, .. } = tables[table];
            self.scatter(capture, (live, slots), row_bytes, program.output(output), tables[table].region())?;
        }
        for (number, fetched) in cell.fetched.iter().enumerate() {
            let list = base.offset(self.parameters.fetched(number));
            let to = (first.fetched[number].address(), ring_rows);
            self.scatter(capture, (live, list), fetched.row_bytes, program.output(fetched.output), to)?;
        }
        match program.faults() {
            Some(faults) => {
                let to = (first.faults.address(), ring_rows);
                self.scatter(capture, (live, host_rows), size_of::<u32>(), faults, to)
            }
            None => Ok(()),
        }
    }

    /// Brings rows of a table, or of a ring, to follow one another.
    fn gather(
        &self,
        capture: &mut Capture<'_>,
        rows: (Address, Address),
        row_bytes: usize,
        (from, from_rows): (Address, u32),
        to: Address,
    ) -> Result<(), DeviceError> {
        let places = [
            Argument::Address(from),
            Argument::I32(from_rows as i32),
            Argument::Address(to),
            Argument::I32(row_bytes as i32),
        ];
        self.launch(capture, &self.kernels.gather, rows, row_bytes, places)
    }

    /// Brings rows that follow one another to those of a table, or of a ring.
    fn scatter(
        &self,
        capture: &mut Capture<'_>,
        rows: (Address, Address),
        row_bytes: usize,
        from: Address,
        (to, to_rows): (Address, u32),
    ) -> Result<(), DeviceError> {
        let places = [
            Argument::Address(from),
            Argument::I32(row_bytes as i32),
            Argument::Address(to),
            Argument::I32(to_rows as i32),
        ];
        self.launch(capture, &self.kernels.scatter, rows, row_bytes, places)
    }

    /// Moves rows: which, and how many of them are live, lies on the card.
    fn launch(
        &self,
        capture: &mut Capture<'_>,
        kernel: &Function,
        (live, list): (Address, Address),
        row_bytes: usize,
        [first, second, third, fourth]: [Argument; 4],
    ) -> Result<(), DeviceError> {
        let live = Argument::Address(live);
        let (rows, bytes) = (Argument::I32(self.rows as i32), Argument::I32(row_bytes as i32));
        let (list, unread) = (Argument::Address(list), Argument::Address(self.unread));
        let arguments = [live, rows, bytes, list, first, second, third, fourth, unread];
        capture.kernel(kernel, self.shape(row_bytes), &arguments)
    }

    /// A block a row, with a thread for each chunk of it.
    fn shape(&self, row_bytes: usize) -> Shape {
        let chunks = row_bytes.div_ceil(CHUNK_BYTES).next_multiple_of(32);
        let threads = u32::try_from(chunks).unwrap_or(MOST_THREADS).min(MOST_THREADS);
        Shape { grid: [self.rows, 1, 1], threads, shared_bytes: 0 }
    }
}

impl SlotTable {
    fn region(&self) -> (Address, u32) {
        (self.address, self.rows)
    }

    /// The row of a constant.
    pub(super) fn constant(&self, number: usize, constants: usize) -> u32 {
        self.rows - constants as u32 + number as u32
    }
}

impl Cells {
    /// Frees what is not freed by being dropped. On the card's thread.
    pub(super) fn free(self, card: &mut Cuda) -> Result<(), DeviceError> {
        free(card, self.tables)
    }
}

fn free(card: &mut Cuda, tables: Vec<SlotTable>) -> Result<(), DeviceError> {
    tables.into_iter().try_for_each(|table| card.free(table.buffer))
}

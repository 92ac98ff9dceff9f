//! Cells on a card. State lies in slots (BatchMaker section 5). Each tensor that nodes pass on has a table with a row
//! for each slot. What nodes append lies in pools, with a fixed number of entries for each slot. State that sequences
//! keep between requests lies in further rows of the same tables (`sequences`).

mod accesses;
mod cell_layout;
mod launch;
mod layout;
mod lengths;
mod limits;
mod node_types;
mod outputs;
mod sequences;
mod slots;
mod spans;
mod tables;
mod taking;
mod task_builder;

use std::sync::Arc;

use paternoster_batching::{CellularKnobs, ChunkKnobs};
use paternoster_device::{
    BufferId, Device, DeviceError,
    cuda::{Address, Cuda},
};

pub(crate) use self::limits::CellLimits;
use self::{
    layout::{Layout, ReadFrom},
    sequences::SequenceSlots,
    slots::Slots,
    spans::{Pool, Reading, Span},
};
use super::{
    graph::{Around, Loader, Move, OnCard, RowsPlace, buckets},
    parameters::rows_of,
    row_bytes::RowBytes,
    version::free,
};
use crate::cells::CellPrograms;

/// The slots of one version may take this fraction of the card's free memory: one in `SLOTS_PART`.
const SLOTS_PART: usize = 4;

/// A version of cells on the card.
pub(super) struct Cells {
    programs: Arc<CellPrograms>,
    layout: Arc<Layout>,
    slots: Slots,
    sequences: SequenceSlots,
    tables: Vec<SlotTable>,
    pools: Vec<SlotPool>,
    cells: Vec<OnCard>,
    /// The sizes of each cell's graphs, in rows, ascending.
    sizes: Vec<Box<[u32]>>,
    /// The numbers of steps of each cell's graphs, ascending.
    steps: Vec<Box<[u32]>>,
}

/// By cell: sizes of its graphs, ascending.
type Sizes = [Box<[u32]>];

/// A table in the card's memory.
struct SlotTable {
    buffer: BufferId,
    address: Address,
    row_bytes: usize,
    /// One for each slot, then the constants, then those of sequences.
    rows: u32,
    /// Index of the first constant; that of the first row of a sequence is next.
    first_constant: u32,
    first_of_sequences: u32,
}

/// A pool in the card's memory.
struct SlotPool {
    buffer: BufferId,
    address: Address,
    of: Pool,
    entries: u32,
}

/// The buffers of a version's slots.
#[derive(Default)]
struct Reserved {
    tables: Vec<SlotTable>,
    pools: Vec<SlotPool>,
}

/// Checks whether cards can run a version's cells.
///
/// # Errors
/// If they cannot; the text says what is missing.
pub(super) fn check(programs: &CellPrograms) -> Result<(), String> {
    Layout::new(programs).map(drop)
}

impl Cells {
    /// Reserves the memory of a version's cells, captures their graphs, and sets the buckets and slots in the core's
    /// knobs.
    ///
    /// # Errors
    /// If the card has too little memory, or does not support what a cell needs; the text names the cell.
    pub(super) fn load(
        mut loader: Loader<'_>,
        programs: &Arc<CellPrograms>,
        knobs: &mut CellularKnobs,
    ) -> Result<Self, String> {
        let layout = Arc::new(Layout::new(programs)?);
        let most_bytes = loader.parameter_bytes;
        let mut sizes = Vec::with_capacity(layout.cells.len());
        let mut steps = Vec::with_capacity(layout.cells.len());
        // The baselines run single steps.
        let may_chunk = !knobs.paper && knobs.merge_requests.is_none();
        for (number, (cell, own)) in knobs.cells.iter_mut().zip(&layout.cells).enumerate() {
            if own.by_rows {
                // The core counts nodes, but a graph is captured for rows: each node may have up to `most_steps` of
                // them.
                let most = nodes_of_a_task(own.lists, programs.most_steps, most_bytes).map_err(|fault| {
                    let name = &programs.unfolding.cells[number].name;
                    format!("cell '{name}': {fault}")
                })?;
                cell.buckets = buckets(cell.max_rows.min(most));
                let most_nodes = cell.buckets.iter().copied().max().unwrap_or(1);
                sizes.push(buckets(most_nodes.saturating_mul(programs.most_steps)));
            } else {
                if cell.buckets.is_empty() {
                    cell.buckets = buckets(cell.max_rows);
                }
                sizes.push(cell.buckets.clone());
            }
            let most_rows = cell.buckets.iter().copied().max().unwrap_or(1);
            let most_steps = if may_chunk { layout.most_steps(programs, number, most_rows, most_bytes) } else { 1 };
            cell.chunks = (most_steps > 1).then_some(ChunkKnobs {
                is_padded: true,
                most_row_steps: u32::MAX,
                powers_up_to: Some(most_steps),
            });
            steps.push(buckets(most_steps));
            // Each version has tables of its own, so its slots must not be shared with others by kind.
            cell.kind = None;
        }
        let most_sequences =
            knobs.sequences.filter(|_| layout.has_sequences()).map_or(0, |own| own.max_sequences.max(1));
        let sequences = SequenceSlots::new(most_sequences)?;
        knobs.slots = slots(loader.card, &layout, knobs.slots, most_sequences).map_err(|error| error.to_string())?;
        let mut reserved = Reserved::default();
        let outcome = reserved.add(loader.card, &layout, knobs.slots, most_sequences);
        let outcome = outcome.map_err(|error| {
            let (slots, bytes) = (knobs.slots, layout.slot_bytes());
            let of_sequences = match most_sequences {
                0 => String::new(),
                count => format!(", and of {count} sequences of {} bytes", layout.sequence_bytes()),
            };
            format!("the state of its requests, {slots} slots of {bytes} bytes{of_sequences}: {error}")
        });
        match outcome.and_then(|()| load(&mut loader, programs, &layout, &reserved, &sizes[..], &steps[..])) {
            Ok(cells) => {
                let (programs, slots) = (Arc::clone(programs), Slots::new(knobs.slots));
                let Reserved { tables, pools } = reserved;
                Ok(Self { programs, layout, slots, sequences, tables, pools, cells, sizes, steps })
            }
            Err(reason) => {
                // Freeing fails only on a lost card; the first error says more.
                let _ = free(loader.card, reserved.memory());
                Err(reason)
            }
        }
    }

    /// Returns whether slots hold any state.
    fn has_state(&self) -> bool {
        !self.tables.is_empty() || !self.pools.is_empty()
    }

    /// Returns the buffers of all slots.
    fn memory(&self) -> impl Iterator<Item = BufferId> {
        memory(&self.tables, &self.pools)
    }
}

fn memory(tables: &[SlotTable], pools: &[SlotPool]) -> impl Iterator<Item = BufferId> {
    tables.iter().map(|table| table.buffer).chain(pools.iter().map(|pool| pool.buffer))
}

/// Returns the maximum nodes of a task, where each node has up to `rows` rows and each row is named in `lists` lists.
///
/// # Errors
/// If the parameters of one node exceed the limit.
fn nodes_of_a_task(lists: usize, rows: u32, most_bytes: usize) -> Result<u32, String> {
    let most_rows = rows_of(most_bytes, lists);
    match most_rows / rows.max(1) {
        0 => Err(format!("goes over {rows} rows, expected at most {most_rows} (instance.lengths.steps)")),
        nodes => Ok(nodes),
    }
}

/// Returns the number of slots: as many as asked for, limited to those that fit into a fraction of the memory that is
/// free once all sequences have their state.
fn slots(card: &Cuda, layout: &Layout, asked: u32, sequences: u32) -> Result<u32, DeviceError> {
    let (free, _) = card.memory_bytes()?;
    let free = free.saturating_sub(layout.sequence_bytes().saturating_mul(sequences as usize));
    let most = (free / SLOTS_PART).checked_div(layout.slot_bytes()).unwrap_or(usize::MAX);
    // Tasks name entries in signed 32-bit numbers.
    let entries = layout.spans.pools.iter().map(|pool| pool.entries).max().unwrap_or(1);
    let named = (i32::MAX.unsigned_abs() - sequences * sequences::ROWS) / entries.max(1);
    Ok(asked.min(u32::try_from(most).unwrap_or(u32::MAX)).min(named).max(1))
}

impl Reserved {
    /// Reserves slot tables and pools one by one. If one fails, the caller frees those that `self` holds already.
    fn add(&mut self, card: &mut Cuda, layout: &Layout, slots: u32, sequences: u32) -> Result<(), DeviceError> {
        for table in &layout.tables {
            let first_of_sequences = slots + table.constants.len() as u32;
            let of_sequences = if table.outlives { sequences * sequences::ROWS } else { 0 };
            let (rows, row_bytes) = (first_of_sequences + of_sequences, table.row_bytes);
            let buffer = card.allocate(rows, row_bytes)?;
            let address = card.address(buffer)?;
            self.tables.push(SlotTable { buffer, address, row_bytes, rows, first_constant: slots, first_of_sequences });
            for (row, constant) in (slots..).zip(&table.constants) {
                card.upload(buffer, row, constant)?;
            }
        }
        for &of in &layout.spans.pools {
            let entries = slots.saturating_mul(of.entries);
            let buffer = card.allocate(entries, of.entry_bytes)?;
            self.pools.push(SlotPool { buffer, address: card.address(buffer)?, of, entries });
        }
        Ok(())
    }

    fn memory(&self) -> impl Iterator<Item = BufferId> {
        memory(&self.tables, &self.pools)
    }
}

fn load(
    loader: &mut Loader<'_>,
    programs: &CellPrograms,
    layout: &Layout,
    reserved: &Reserved,
    sizes: &Sizes,
    steps: &Sizes,
) -> Result<Vec<OnCard>, String> {
    let specs = programs.unfolding.cells.iter().enumerate();
    let cells = specs.zip(&programs.cells).map(|((number, spec), cell)| {
        let program = cell.program.on_card().ok_or("has no plan for cards".to_owned());
        let around = layout.around(number, reserved);
        let loaded = program.and_then(|program| loader.load(program, around, &sizes[number], &steps[number]));
        loaded.map_err(|fault| format!("cell '{}': {fault}", spec.name))
    });
    cells.collect()
}

impl SlotPool {
    /// Returns the first entry of a span in a slot.
    fn entry(&self, slot: u32, span: Span) -> u32 {
        slot * self.of.entries + span.first
    }

    fn place(&self) -> RowsPlace {
        RowsPlace::Entries(self.address, self.entries, self.of.entry_bytes)
    }
}

impl SlotTable {
    fn row(&self, slot: u32) -> Address {
        self.address.offset(slot as usize * self.row_bytes)
    }

    /// Returns the row of a constant.
    fn constant(&self, number: usize) -> u32 {
        self.first_constant + number as u32
    }

    /// Returns one of the rows of the sequence that has this slot.
    fn of_sequence(&self, slot: u32, row: u32) -> u32 {
        self.first_of_sequences + slot * sequences::ROWS + row
    }

    fn place(&self) -> RowsPlace {
        RowsPlace::Rows(self.address, self.rows)
    }
}

/// The list of each row's slot.
const SLOTS: usize = 0;
/// The list of each row's index in the rings of host memory.
const HOST_ROWS: usize = 1;

impl Layout {
    /// Returns the row moves of a cell's graphs.
    fn around(&self, cell: usize, Reserved { tables, pools }: &Reserved) -> Around {
        let cell = &self.cells[cell];
        let gathers = cell.inputs.iter().enumerate().map(|(number, input)| {
            let (list, counts, place) = match input.from {
                ReadFrom::Host => (HOST_ROWS, None, RowsPlace::Brought(input.ring.unwrap_or_default())),
                ReadFrom::Own { table } => (SLOTS, None, tables[table].place()),
                ReadFrom::Child { table, list } => (list, None, tables[table].place()),
                ReadFrom::Span { pool, list, reading } => {
                    // A whole span is gathered up to each row's own length; a single entry has none.
                    let axis = input.axis.filter(|_| reading == Reading::Whole);
                    (list, axis.map(|axis| cell.count(axis)), pools[pool].place())
                }
            };
            let begins = matches!(input.from, ReadFrom::Own { .. }).then(|| cell.begins(number));
            Move { list, counts, row_bytes: input.row_bytes.clone(), place, begins }
        });
        let to = |list: usize, row_bytes: &RowBytes, place: RowsPlace| {
            let row_bytes = row_bytes.clone();
            Move { list, counts: None, row_bytes, place, begins: None }
        };
        let kept = cell
            .kept
            .iter()
            .map(|&(output, table)| (output, to(SLOTS, &tables[table].row_bytes.into(), tables[table].place())));
        let left = cell
            .left
            .iter()
            .map(|left| (left.output, to(left.list, &tables[left.table].row_bytes.into(), tables[left.table].place())));
        let appended = cell
            .appended
            .iter()
            .map(|appended| (appended.output, to(appended.list, &appended.row_bytes, pools[appended.pool].place())));
        let fetched =
            cell.fetched.iter().enumerate().map(|(ring, fetched)| {
                (fetched.output, to(fetched.list, &fetched.row_bytes, RowsPlace::Fetched(ring)))
            });
        let brought = cell.inputs.iter().filter(|input| input.ring.is_some());
        Around {
            lists: cell.lists,
            gathers: gathers.collect(),
            scatters: kept.chain(left).chain(appended).chain(fetched).collect(),
            faults: HOST_ROWS,
            lengths: (0..cell.axes).map(|axis| cell.count(axis)).collect(),
            brought: brought.map(|input| input.row_bytes.pitch()).collect(),
            fetched: cell.fetched.iter().map(|fetched| fetched.row_bytes.pitch()).collect(),
        }
    }
}

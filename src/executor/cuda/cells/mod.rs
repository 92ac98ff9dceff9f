//! Cells on a card: state lies in slots (BatchMaker section 5), a table for each tensor that nodes hand on, with a row
//! for each slot.

mod launch;
mod layout;
mod outputs;
mod slots;

use std::sync::Arc;

use self::{
    layout::{Layout, ReadFrom},
    slots::Slots,
};
use super::{
    graph::{Around, Loader, Move, OnCard, Place, buckets},
    version::free,
};
use crate::{
    batching::CellularKnobs,
    device::{
        BufferId, Device, DeviceError,
        cuda::{Address, Cuda},
    },
    executor::cells::CellPrograms,
};

/// The part of the card's free memory that the slots of one version may take.
const SLOTS_PART: usize = 4;

/// What a version has on the card.
pub(super) struct Cells {
    programs: Arc<CellPrograms>,
    layout: Arc<Layout>,
    slots: Slots,
    tables: Vec<SlotTable>,
    cells: Vec<OnCard>,
}

/// A table in the card's memory.
struct SlotTable {
    buffer: BufferId,
    address: Address,
    row_bytes: usize,
    /// Slots, and the constants behind them.
    rows: u32,
}

/// Whether cards run such cells.
///
/// # Errors
/// When they do not; says what is missing.
pub(super) fn check(programs: &CellPrograms) -> Result<(), String> {
    Layout::new(programs).map(drop)
}

impl Cells {
    /// Reserves all that a version's cells need, captures their graphs, and tells the core of their buckets and slots.
    ///
    /// # Errors
    /// When the card has not enough, or does not run what a cell needs; with the cell.
    pub(super) fn load(
        mut loader: Loader<'_>,
        programs: &Arc<CellPrograms>,
        knobs: &mut CellularKnobs,
    ) -> Result<Self, String> {
        let layout = Arc::new(Layout::new(programs)?);
        for cell in &mut knobs.cells {
            if cell.buckets.is_empty() {
                cell.buckets = buckets(cell.max_rows);
            }
            // Slots are numbered by version.
            cell.kind = None;
        }
        knobs.slots = slots(loader.card, &layout, knobs.slots).map_err(|error| error.to_string())?;
        let mut tables = Vec::with_capacity(layout.tables.len());
        let reserved = reserve(loader.card, &layout, knobs.slots, &mut tables);
        let reserved = reserved.map_err(|error| format!("its slot tables: {error}"));
        match reserved.and_then(|()| load(&mut loader, programs, &layout, &tables, knobs)) {
            Ok(cells) => {
                let slots = Slots::new(knobs.slots);
                Ok(Self { programs: Arc::clone(programs), layout, slots, tables, cells })
            }
            Err(reason) => {
                // Why it is refused says more than that the card is lost, which is all that can hinder this.
                let _ = free(loader.card, tables.iter().map(|table| table.buffer));
                Err(reason)
            }
        }
    }
}

/// As many slots as were asked for, as far as they fit into a part of the free memory.
fn slots(card: &Cuda, layout: &Layout, asked: u32) -> Result<u32, DeviceError> {
    let (free, _) = card.memory_bytes()?;
    let most = (free / SLOTS_PART).checked_div(layout.slot_bytes()).unwrap_or(usize::MAX);
    Ok(asked.min(u32::try_from(most).unwrap_or(u32::MAX)).max(1))
}

/// Reserves slot tables one by one: those that there are if one fails are the caller's.
fn reserve(card: &mut Cuda, layout: &Layout, slots: u32, tables: &mut Vec<SlotTable>) -> Result<(), DeviceError> {
    for table in &layout.tables {
        let rows = slots + table.constants.len() as u32;
        let buffer = card.allocate(rows, table.row_bytes)?;
        tables.push(SlotTable { buffer, address: card.address(buffer)?, row_bytes: table.row_bytes, rows });
        for (row, constant) in (slots..).zip(&table.constants) {
            card.upload(buffer, row, constant)?;
        }
    }
    Ok(())
}

fn load(
    loader: &mut Loader<'_>,
    programs: &CellPrograms,
    layout: &Layout,
    tables: &[SlotTable],
    knobs: &CellularKnobs,
) -> Result<Vec<OnCard>, String> {
    let specs = programs.unfolding.cells.iter().enumerate();
    let cells = specs.zip(&programs.cells).map(|((number, spec), cell)| {
        let program = cell.program.on_card().ok_or("has no plan for cards".to_owned());
        let around = layout.around(number, tables);
        let loaded = program.and_then(|program| loader.load(program, around, &knobs.cells[number].buckets));
        loaded.map_err(|fault| format!("cell '{}': {fault}", spec.name))
    });
    cells.collect()
}

impl SlotTable {
    fn row(&self, slot: u32) -> Address {
        self.address.offset(slot as usize * self.row_bytes)
    }

    /// The row of a constant.
    fn constant(&self, number: usize, constants: usize) -> u32 {
        self.rows - constants as u32 + number as u32
    }

    fn place(&self) -> Place {
        Place::Rows(self.address, self.rows)
    }
}

/// By row: its slot.
const SLOTS: usize = 0;
/// By row: its number in the rings of host memory.
const HOST_ROWS: usize = 1;

impl Layout {
    /// What a cell's graphs do around its program. Each input has a ring for what the host brings.
    fn around(&self, cell: usize, tables: &[SlotTable]) -> Around {
        let cell = &self.cells[cell];
        let gathers = cell.inputs.iter().enumerate().map(|(number, input)| {
            let (list, place) = match input.from {
                ReadFrom::Host => (HOST_ROWS, Place::Brought(number)),
                ReadFrom::Own { table } => (SLOTS, tables[table].place()),
                ReadFrom::Child { table, list } => (cell.children(list), tables[table].place()),
            };
            Move { list, row_bytes: input.row_bytes.into(), place }
        });
        let kept = cell.kept.iter().map(|&(output, table)| {
            (output, Move { list: SLOTS, row_bytes: tables[table].row_bytes.into(), place: tables[table].place() })
        });
        let fetched = cell.fetched.iter().enumerate().map(|(ring, fetched)| {
            let list = cell.fetched(ring);
            (fetched.output, Move { list, row_bytes: fetched.row_bytes.into(), place: Place::Fetched(ring) })
        });
        let has_own = cell.inputs.iter().any(|input| matches!(input.from, ReadFrom::Own { .. }));
        Around {
            lists: cell.fetched(cell.fetched.len()),
            pieces: if has_own { cell.inputs.len() } else { 0 },
            gathers: gathers.collect(),
            scatters: kept.chain(fetched).collect(),
            faults: HOST_ROWS,
            brought: cell.inputs.iter().map(|input| input.row_bytes).collect(),
            fetched: cell.fetched.iter().map(|fetched| fetched.row_bytes).collect(),
        }
    }
}

//! Where the cells of a version read and write on a card: what a request carries from node to node lies in tables of
//! slots (BatchMaker section 5), all else comes from the host or goes there.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::HOST_ROWS;
use crate::{
    executor::{
        cells::{CellPrograms, Keep},
        cuda::row_bytes::fixed_row_bytes,
    },
    model::unfold::{NodeType, Nodes, Segment, Source, Start, Tensor, Which},
};

/// Where a version's cells read and write.
#[derive(Debug)]
pub(super) struct Layout {
    /// By table: what each of its rows has.
    pub(super) tables: Vec<Table>,
    /// By cell.
    pub(super) cells: Vec<CellLayout>,
    /// By segment and the output of its first type: the table that it lies in.
    table_of: BTreeMap<(usize, usize), usize>,
}

/// A table with a row for each slot, and constant rows behind them.
#[derive(Debug, Default)]
pub(super) struct Table {
    pub(super) row_bytes: usize,
    /// What nodes read that have no such child.
    pub(super) constants: Vec<Bytes>,
}

/// Where a cell reads and writes.
#[derive(Debug)]
pub(super) struct CellLayout {
    pub(super) inputs: Vec<Input>,
    /// Outputs that later nodes read from tables: each output with its table.
    pub(super) kept: Vec<(usize, usize)>,
    /// Outputs that the host takes of some nodes.
    pub(super) fetched: Vec<Fetched>,
}

/// An input of a cell.
#[derive(Debug)]
pub(super) struct Input {
    pub(super) row_bytes: usize,
    pub(super) from: ReadFrom,
}

/// Where an input comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReadFrom {
    /// The host, with each task.
    Host,
    /// The slot of the node's own request; the host brings what it begins with.
    Own { table: usize },
    /// The slot of a child, or a constant row; `list` counts such inputs of the cell.
    Child { table: usize, list: usize },
}

/// An output that the host takes.
#[derive(Debug)]
pub(super) struct Fetched {
    pub(super) output: usize,
    pub(super) row_bytes: usize,
}

impl Layout {
    /// Of a version's cells.
    ///
    /// # Errors
    /// When a cell needs what cards do not do.
    pub(super) fn new(programs: &CellPrograms) -> Result<Self, String> {
        let mut layout = Self { tables: Vec::new(), cells: Vec::new(), table_of: tables_of(programs) };
        let count = layout.table_of.values().max().map_or(0, |last| last + 1);
        layout.tables.resize_with(count, Table::default);
        for (number, cell) in programs.unfolding.cells.iter().enumerate() {
            let laid_out = layout.cell(programs, number);
            layout.cells.push(laid_out.map_err(|fault| format!("cell '{}': {fault}", cell.name))?);
        }
        Ok(layout)
    }

    /// Bytes that a slot takes.
    pub(super) fn slot_bytes(&self) -> usize {
        self.tables.iter().map(|table| table.row_bytes).sum()
    }

    /// Where what a segment leaves at an output of its first type lies, if on the card.
    pub(super) fn table_of(&self, segment: usize, output: usize) -> Option<usize> {
        self.table_of.get(&(segment, output)).copied()
    }

    /// The table in which what a request begins with lies already: that of an earlier segment's last step, unless steps
    /// beyond it may have written there.
    pub(super) fn begins_in(&self, programs: &CellPrograms, start: &Start) -> Option<usize> {
        let Start::Tensor(Tensor::Emitted(emitted)) = start else { return None };
        let segment = &programs.unfolding.segments[emitted.segment];
        let emit = &segment.emits[emitted.emit];
        let stays = matches!(segment.nodes, Nodes::Stage | Nodes::Chain { .. } | Nodes::Decode { until: None, .. });
        (stays && emit.which == Which::Last).then(|| self.table_of(emitted.segment, emit.output)).flatten()
    }

    fn cell(&mut self, programs: &CellPrograms, cell: usize) -> Result<CellLayout, String> {
        let spec = &programs.unfolding.cells[cell];
        let types = || types_of(programs, cell);
        let program = programs.cells[cell].program.on_card().ok_or("has no plan for CUDA cards")?;
        if program.lengths().iter().any(|lengths| !lengths.is_empty()) {
            return Err("has axes that are padded, which those of cells on a card are not".to_owned());
        }
        if types().any(|(.., own)| own.goes_over_rows()) {
            return Err("goes over the rows of a tensor, which cells on a card do not".to_owned());
        }
        let mut lists = 0;
        let mut inputs = Vec::with_capacity(spec.inputs.len());
        for (number, input) in spec.inputs.iter().enumerate() {
            let row_bytes = fixed_row_bytes(input)?;
            let mut from = None;
            for (segment, _, own) in types() {
                let found = self.source(segment, &own.inputs[number], row_bytes, lists)?;
                if *from.get_or_insert(found) != found {
                    return Err(format!("input '{}' is carried in one segment and brought in another", input.name));
                }
            }
            let from = from.unwrap_or(ReadFrom::Host);
            lists += usize::from(matches!(from, ReadFrom::Child { .. }));
            inputs.push(Input { row_bytes, from });
        }
        let mut kept: Vec<(usize, usize)> = Vec::new();
        let mut fetched = Vec::new();
        for (number, output) in spec.outputs.iter().enumerate() {
            let tables = types().flat_map(|(segment, role, _)| {
                let keeps = programs.keeps[segment].iter().filter(move |keep| keep.outputs[role] == number);
                keeps.map(move |keep| (segment, keep.outputs[0]))
            });
            let tables: Vec<(usize, usize)> = tables.collect();
            let is_fetched = types().any(|(segment, role, _)| is_fetched(programs, segment, role, number));
            let table = tables.iter().find_map(|&(segment, output)| self.table_of(segment, output));
            if table.is_none() && !is_fetched {
                continue;
            }
            let row_bytes = fixed_row_bytes(output)?;
            if let Some(table) = table {
                self.tables[table].row_bytes = row_bytes;
                kept.push((number, table));
            }
            if is_fetched {
                fetched.push(Fetched { output: number, row_bytes });
            }
        }
        Ok(CellLayout { inputs, kept, fetched })
    }

    fn source(&mut self, segment: usize, source: &Source, row_bytes: usize, list: usize) -> Result<ReadFrom, String> {
        let mut table = |output: usize| {
            let table = self.table_of[&(segment, output)];
            self.tables[table].row_bytes = row_bytes;
            table
        };
        Ok(match source {
            // What a sequence keeps is known once replies are taken, and the next request may be launched before.
            Source::Carried { is_kept: true, .. } => {
                return Err("keeps state between the requests of a sequence, which cells on a card do not".to_owned());
            }
            Source::Carried { output, .. } => ReadFrom::Own { table: table(*output) },
            Source::Child { output, none, .. } => {
                let table = table(*output);
                let constants = &mut self.tables[table].constants;
                if !constants.contains(none) {
                    constants.push(none.clone());
                }
                ReadFrom::Child { table, list }
            }
            Source::Grown { .. } => return Err("has state that grows, which cells on a card do not".to_owned()),
            _ => ReadFrom::Host,
        })
    }
}

impl CellLayout {
    /// The list that names the slots of children, by its number among such lists.
    pub(super) fn children(&self, list: usize) -> usize {
        HOST_ROWS + 1 + list
    }

    /// The list that names the rows of a fetched output, by its ring: -1 where the host does not take it.
    pub(super) fn fetched(&self, ring: usize) -> usize {
        let children = self.inputs.iter().filter(|input| matches!(input.from, ReadFrom::Child { .. })).count();
        self.children(children) + ring
    }
}

/// The node types that run as a cell: each with its segment, and its place there.
fn types_of(programs: &CellPrograms, cell: usize) -> impl Iterator<Item = (usize, usize, &NodeType)> {
    let segments = programs.unfolding.segments.iter().enumerate();
    segments
        .flat_map(|(number, segment)| segment.types.iter().enumerate().map(move |(role, own)| (number, role, own)))
        .filter(move |(.., own)| own.cell == cell)
}

/// By segment and output: which table it lies in, of those that nodes read. What one input of a cell reads, or one
/// output of it writes, lies in one table, whichever segment the node is of.
fn tables_of(programs: &CellPrograms) -> BTreeMap<(usize, usize), usize> {
    let mut tables: BTreeMap<(usize, usize), usize> = BTreeMap::new();
    let mut together: BTreeMap<(usize, bool, usize), Vec<(usize, usize)>> = BTreeMap::new();
    for cell in 0..programs.unfolding.cells.len() {
        for (segment, role, own) in types_of(programs, cell) {
            for (number, source) in own.inputs.iter().enumerate() {
                if let Source::Carried { output, .. } | Source::Child { output, .. } = source {
                    let next = tables.len();
                    tables.entry((segment, *output)).or_insert(next);
                    together.entry((cell, true, number)).or_default().push((segment, *output));
                }
            }
            for keep in &programs.keeps[segment] {
                together.entry((cell, false, keep.outputs[role])).or_default().push((segment, keep.outputs[0]));
            }
        }
    }
    // As often as one may pull in the next.
    for _ in 0..=together.len() {
        for states in together.values() {
            let least = states.iter().filter_map(|state| tables.get(state)).min().copied();
            for state in states {
                if let (Some(table), Some(least)) = (tables.get_mut(state), least) {
                    *table = least;
                }
            }
        }
    }
    let mut names: Vec<usize> = tables.values().copied().collect();
    names.sort_unstable();
    names.dedup();
    for table in tables.values_mut() {
        *table = names.binary_search(table).unwrap_or_default();
    }
    tables
}

/// Whether the host takes an output of some nodes of a segment's type.
fn is_fetched(programs: &CellPrograms, segment: usize, role: usize, output: usize) -> bool {
    let own = &programs.unfolding.segments[segment];
    ends_loop(own, output) || keeps_of(programs, segment, role, output).any(|keep| emits(own, keep))
}

fn ends_loop(segment: &Segment, output: usize) -> bool {
    matches!(segment.nodes, Nodes::Decode { until: Some((own, _)), .. } if own == output)
}

fn emits(segment: &Segment, keep: &Keep) -> bool {
    segment.emits.iter().any(|emit| emit.output == keep.outputs[0])
}

fn keeps_of(programs: &CellPrograms, segment: usize, role: usize, output: usize) -> impl Iterator<Item = &Keep> {
    programs.keeps[segment].iter().filter(move |keep| keep.outputs[role] == output)
}

/// Whether the host takes an output of this very node: `is_last` of its segment, as far as is known.
pub(super) fn is_taken(programs: &CellPrograms, (segment, role): (usize, usize), output: usize, is_last: bool) -> bool {
    let own = &programs.unfolding.segments[segment];
    let of_emits = |keep: &Keep| {
        let mut emits = own.emits.iter().filter(|emit| emit.output == keep.outputs[0]);
        emits.any(|emit| is_last || own.streams || emit.which == Which::All)
    };
    ends_loop(own, output) || keeps_of(programs, segment, role, output).any(of_emits)
}

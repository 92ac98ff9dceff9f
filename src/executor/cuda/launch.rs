//! A task of nodes made into a launch: what the host brings for its rows, and where they lie.

use smallvec::SmallVec;

use super::{
    cells::{Cells, PIECE_BYTES, Parameters, Section, SlotTable},
    layout::{ReadFrom, is_taken},
};
use crate::{
    batching::Task,
    device::{Access, Rows, cuda::Address},
    engine::RowFailure,
    executor::{
        cells::{Node, fits},
        job::Job,
    },
    model::unfold::{Nodes, Source, Start, Tensor},
};

/// A task that is ready for its launch.
#[derive(Debug, Default)]
pub(super) struct Filled {
    pub(super) parameters: Box<[u8]>,
    pub(super) accesses: Vec<Access>,
    /// Rows that lack something of their own requests.
    pub(super) failures: Vec<RowFailure>,
    /// Whether the host takes something of it.
    pub(super) is_taken: bool,
}

/// The nodes of a task, in the order of its rows.
///
/// # Errors
/// When a request has no such node.
pub(super) fn nodes<'a>(cells: &Cells, job: &'a Job) -> Result<Vec<Node<'a>>, String> {
    let nodes = job.members.iter().map(|member| {
        let journey = member.journey.as_ref().ok_or("a request has not unfolded")?;
        Node::of(journey, member.span.start, &cells.programs, usize::from(job.task.cell.0))
    });
    nodes.collect()
}

impl Cells {
    /// Whether a node reads what the host has of an earlier segment of its request.
    pub(super) fn reads_emitted(&self, node: &Node<'_>) -> bool {
        let emitted = |tensor: &Tensor| matches!(tensor, Tensor::Emitted(_));
        node.node_type().inputs.iter().any(|source| match source {
            Source::Whole(tensor) | Source::Rows(tensor) | Source::Length(tensor) => emitted(tensor),
            Source::Step { of, .. } => emitted(of),
            Source::Carried { start: start @ Start::Tensor(tensor), .. } => {
                node.place.node == 0 && emitted(tensor) && self.layout.begins_in(&self.programs, start).is_none()
            }
            _ => false,
        })
    }

    /// Writes what the host brings for the rows of a task to its section, and says where they lie. Nothing is noted of
    /// the task yet.
    ///
    /// # Errors
    /// When what a node reads is not on the card: a task before it did not run.
    pub(super) fn fill(&self, job: &Job, nodes: &[Node<'_>], section: &mut Section) -> Result<Filled, String> {
        let cell = usize::from(job.task.cell.0);
        let (layout, spec) = (&self.layout.cells[cell], &self.programs.unfolding.cells[cell]);
        let parameters = Parameters::new(layout, job.task.bucket.rows);
        let mut block = Block(vec![0; parameters.bytes()]);
        let mut filled = Filled::default();
        let mut touched = Touched::default();
        let mut pieces: Vec<[u64; 3]> = Vec::new();
        for (row, (member, node)) in job.members.iter().zip(nodes).enumerate() {
            let (req, number, slot) = (member.span.req, member.span.start, member.span.slot);
            if !self.tables.is_empty() && !self.slots.has(slot) {
                return Err(format!("{:?} names slot {slot}, which does not exist", job.task.id));
            }
            let mut fault = None;
            let mut brought = |input: usize, source: &Source, section: &mut Section| {
                let (spec, row_bytes) = (&spec.inputs[input], layout.inputs[input].row_bytes);
                let to = &mut section.inputs[input].bytes_mut()[row * row_bytes..][..row_bytes];
                match node.input(spec, source).and_then(|found| fits(spec, &found).map(|()| found)) {
                    Ok(found) => to.copy_from_slice(found.as_slice()),
                    Err(reason) => {
                        to.fill(0);
                        fault.get_or_insert(reason);
                    }
                }
            };
            let mut goes_on = true;
            for (number_of_input, (input, source)) in layout.inputs.iter().zip(&node.node_type().inputs).enumerate() {
                match (input.from, source) {
                    (ReadFrom::Child { table, list }, Source::Child { child, none, .. }) => {
                        let at = match node.journey.children(node.place).get(*child) {
                            Some(&child) => {
                                let slot = self.slots.of(req, child);
                                let slot = slot.ok_or_else(|| format!("node {child} of {req:?} has not run"))?;
                                touched.read(table, slot);
                                slot
                            }
                            None => {
                                let constants = &self.layout.tables[table].constants;
                                let at = constants.iter().position(|constant| constant == none).unwrap_or_default();
                                self.tables[table].constant(at, constants.len())
                            }
                        };
                        block.list(parameters.children(list), row, at as i32);
                    }
                    (ReadFrom::Own { table }, Source::Carried { start, .. }) if node.place.node == 0 => {
                        goes_on = false;
                        let to = self.tables[table].row(slot);
                        let from = match self.layout.begins_in(&self.programs, start) {
                            Some(other) if other == table => continue,
                            Some(other) => {
                                touched.read(other, slot);
                                self.tables[other].row(slot)
                            }
                            None => {
                                brought(number_of_input, source, section);
                                section.inputs[number_of_input].address().offset(row * input.row_bytes)
                            }
                        };
                        pieces.push([from.to_bits(), to.to_bits(), input.row_bytes as u64]);
                    }
                    (ReadFrom::Own { .. }, _) => {
                        if !self.slots.holds(slot, req, number - 1) {
                            return Err(format!("node {} of {req:?} has not run", number - 1));
                        }
                    }
                    _ => brought(number_of_input, source, section),
                }
            }
            block.list(parameters.slots(), row, slot as i32);
            block.list(parameters.host_rows(), row, section.first_row as i32 + row as i32);
            let is_last = is_last(node);
            let at = (node.place.segment, node.journey.role(node.place));
            for (place, fetched) in layout.fetched.iter().enumerate() {
                let is_taken = is_taken(&self.programs, at, fetched.output, is_last);
                let to = if is_taken { section.first_row as i32 + row as i32 } else { -1 };
                block.list(parameters.fetched(place), row, to);
                filled.is_taken |= is_taken;
            }
            for &(_, table) in &layout.kept {
                touched.write(table, slot, goes_on);
            }
            if let Some(reason) = fault {
                let reason = format!("cell '{}': {reason}", spec.name);
                filled.failures.push(RowFailure { row: row as u32, reason });
            }
        }
        block.number(Parameters::LIVE, nodes.len() as u32);
        block.number(Parameters::PIECES, pieces.len() as u32);
        block.address(Parameters::PIECE_LIST, section.pieces.address());
        for (piece, to) in pieces.iter().zip(section.pieces.bytes_mut().chunks_exact_mut(PIECE_BYTES)) {
            for (word, to) in piece.iter().zip(to.chunks_exact_mut(size_of::<u64>())) {
                to.copy_from_slice(&word.to_ne_bytes());
            }
        }
        filled.parameters = block.0.into();
        filled.accesses = touched.accesses(self);
        Ok(filled)
    }

    /// A task has been issued: its rows are where it writes them.
    pub(super) fn issued(&mut self, task: &Task) {
        for span in &task.rows {
            self.slots.write(span.slot, span.req, span.start);
        }
    }
}

impl SlotTable {
    fn row(&self, slot: u32) -> Address {
        self.address.offset(slot as usize * self.row_bytes)
    }
}

/// Whether a node is the last of its segment, as far as is known before it has run.
pub(super) fn is_last(node: &Node<'_>) -> bool {
    match node.segment().nodes {
        Nodes::Stage => true,
        // Which step ends the loop is not known.
        Nodes::Decode { until: Some(_), .. } => true,
        Nodes::Chain { .. } | Nodes::Decode { .. } => node.place.node + 1 == node.place.nodes,
        Nodes::Tree { .. } => node.journey.is_root(node.place),
    }
}

/// The parameters of a task.
struct Block(Vec<u8>);

impl Block {
    fn number(&mut self, at: usize, value: u32) {
        self.0[at..][..size_of::<u32>()].copy_from_slice(&value.to_ne_bytes());
    }

    fn address(&mut self, at: usize, value: Address) {
        self.0[at..][..size_of::<u64>()].copy_from_slice(&value.to_bits().to_ne_bytes());
    }

    /// An element of a list that begins at `at`.
    fn list(&mut self, at: usize, row: usize, value: i32) {
        self.0[at + row * size_of::<i32>()..][..size_of::<i32>()].copy_from_slice(&value.to_ne_bytes());
    }
}

/// The rows of tables that a task touches, by table.
#[derive(Default)]
struct Touched(SmallVec<[(usize, OfTable); 4]>);

#[derive(Default)]
struct OfTable {
    read: Vec<u32>,
    written: Vec<u32>,
    updated: Vec<u32>,
}

impl Touched {
    fn of(&mut self, table: usize) -> &mut OfTable {
        let at = self.0.iter().position(|(own, _)| *own == table).unwrap_or_else(|| {
            self.0.push((table, OfTable::default()));
            self.0.len() - 1
        });
        &mut self.0[at].1
    }

    fn read(&mut self, table: usize, slot: u32) {
        self.of(table).read.push(slot);
    }

    fn write(&mut self, table: usize, slot: u32, goes_on: bool) {
        let of = self.of(table);
        if goes_on { of.updated.push(slot) } else { of.written.push(slot) }
    }

    fn accesses(self, cells: &Cells) -> Vec<Access> {
        let mut accesses = Vec::new();
        for (table, OfTable { read, written, updated }) in self.0 {
            let buffer = cells.tables[table].buffer;
            let list = |rows: Vec<u32>| (!rows.is_empty()).then(|| Rows::List(rows.into()));
            accesses.extend(list(read).map(|rows| Access::read(buffer, rows)));
            accesses.extend(list(written).map(|rows| Access::write(buffer, rows)));
            accesses.extend(list(updated).map(|rows| Access::update(buffer, rows)));
        }
        accesses
    }
}

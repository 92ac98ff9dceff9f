//! A task of nodes made into a launch: what the host brings for its rows, and where they lie.

use std::sync::Arc;

use smallvec::SmallVec;

use super::{
    Cells, HOST_ROWS, SLOTS,
    layout::{ReadFrom, is_taken},
    outputs::{CellReader, is_last},
};
use crate::{
    batching::{Bucket, Task},
    device::{Access, DeviceError, Rows, cuda::Cuda},
    engine::{RowFailure, RunSize},
    executor::{
        cells::{Node, fits},
        cuda::{
            graph::{OnCard, Parameters, Section},
            version::{Filled, Reader, Untaken, Version, free},
        },
        job::Job,
    },
    model::unfold::{Source, Start, Tensor},
};

impl Version for Cells {
    fn programs(&mut self) -> &mut [OnCard] {
        &mut self.cells
    }

    fn size(&self, bucket: &Bucket) -> Option<RunSize> {
        Some(RunSize { rows: bucket.rows, lengths: 0 })
    }

    fn must_wait(&self, job: &Job, untaken: &Untaken) -> bool {
        // A node that cannot be found is found missing when the task is filled.
        let reads_it = |member: &usize| self.node(job, *member).is_ok_and(|node| self.reads_emitted(&node));
        let members = job.members.iter().enumerate();
        members
            .filter(|(_, member)| untaken.has(member.span.req))
            .map(|(number, _)| number)
            .any(|member| reads_it(&member))
    }

    fn fill(&self, job: &Job, section: &mut Section) -> Result<Filled, String> {
        let cell = usize::from(job.task.cell.0);
        let mut task = Filling {
            of: self,
            cell,
            parameters: Parameters::new(&self.cells[cell].around, job.task.bucket.rows, job.members.len()),
            filled: Filled::default(),
            touched: Touched::default(),
        };
        for row in 0..job.members.len() {
            task.row(job, row, section)?;
        }
        let Filling { parameters, mut filled, touched, .. } = task;
        filled.parameters = parameters.finish(section);
        filled.accesses = touched.accesses(self);
        Ok(filled)
    }

    fn issued(&mut self, task: &Task) {
        for span in &task.rows {
            self.slots.write(span.slot, span.req, span.start);
        }
    }

    fn reader(&self) -> Arc<dyn Reader> {
        Arc::new(CellReader { programs: Arc::clone(&self.programs), layout: Arc::clone(&self.layout) })
    }

    fn free(self: Box<Self>, card: &mut Cuda) -> Result<(), DeviceError> {
        free(card, self.tables.iter().map(|table| table.buffer))
    }
}

impl Cells {
    /// The node that a member of a task runs.
    ///
    /// # Errors
    /// When its request has no such node.
    fn node<'a>(&self, job: &'a Job, member: usize) -> Result<Node<'a>, String> {
        let member = &job.members[member];
        let journey = member.journey.as_ref().ok_or("a request has not unfolded")?;
        Node::of(journey, member.span.start, &self.programs, usize::from(job.task.cell.0))
    }

    /// Whether a node reads what the host has of an earlier segment of its request.
    fn reads_emitted(&self, node: &Node<'_>) -> bool {
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
}

/// A task that is being filled, row by row.
struct Filling<'a> {
    of: &'a Cells,
    cell: usize,
    parameters: Parameters,
    filled: Filled,
    touched: Touched,
}

impl Filling<'_> {
    fn row(&mut self, job: &Job, row: usize, section: &mut Section) -> Result<(), String> {
        let of = self.of;
        let (layout, spec) = (&of.layout.cells[self.cell], &of.programs.unfolding.cells[self.cell]);
        let (span, node) = (&job.members[row].span, of.node(job, row)?);
        let slot = span.slot;
        if !of.tables.is_empty() && !of.slots.has(slot) {
            return Err(format!("{:?} names slot {slot}, which does not exist", job.task.id));
        }
        let mut fault = None;
        // Tables whose row of its slot it reads as it is.
        let mut read: SmallVec<[usize; 4]> = SmallVec::new();
        for (number, (input, source)) in layout.inputs.iter().zip(&node.node_type().inputs).enumerate() {
            let mut bring = |section: &mut Section| {
                let (spec, row_bytes) = (&spec.inputs[number], input.row_bytes);
                let to = &mut section.brought[number].bytes_mut()[row * row_bytes..][..row_bytes];
                match node.input(spec, source).and_then(|found| fits(spec, &found).map(|()| found)) {
                    Ok(found) => to.copy_from_slice(found.as_slice()),
                    Err(reason) => {
                        to.fill(0);
                        fault.get_or_insert(reason);
                    }
                }
            };
            match (input.from, source) {
                (ReadFrom::Child { table, list }, Source::Child { child, none, .. }) => {
                    let at = match node.journey.children(node.place).get(*child) {
                        Some(&child) => {
                            let slot = of.slots.of(span.req, child);
                            let slot = slot.ok_or_else(|| format!("node {child} of {:?} has not run", span.req))?;
                            self.touched.read(table, slot);
                            slot
                        }
                        None => {
                            let constants = &of.layout.tables[table].constants;
                            let at = constants.iter().position(|constant| constant == none).unwrap_or_default();
                            of.tables[table].constant(at, constants.len())
                        }
                    };
                    self.parameters.name(layout.children(list), row, at as i32);
                }
                (ReadFrom::Own { table }, Source::Carried { start, .. }) if node.place.node == 0 => {
                    let from = match of.layout.begins_in(&of.programs, start) {
                        Some(other) if other == table => {
                            read.push(table);
                            continue;
                        }
                        Some(other) => {
                            self.touched.read(other, slot);
                            of.tables[other].row(slot)
                        }
                        None => {
                            bring(section);
                            section.brought[number].address().offset(row * input.row_bytes)
                        }
                    };
                    self.parameters.copy(from, of.tables[table].row(slot), input.row_bytes);
                }
                (ReadFrom::Own { table }, _) => {
                    read.push(table);
                    let before = span.start - 1;
                    if !of.slots.holds(slot, span.req, before) {
                        return Err(format!("node {before} of {:?} has not run", span.req));
                    }
                }
                _ => bring(section),
            }
        }
        let host_row = section.first_row as i32 + row as i32;
        self.parameters.name(SLOTS, row, slot as i32);
        self.parameters.name(HOST_ROWS, row, host_row);
        let at = (node.place.segment, node.journey.role(node.place));
        let is_last = is_last(&node);
        for (ring, fetched) in layout.fetched.iter().enumerate() {
            let is_taken = is_taken(&of.programs, at, fetched.output, is_last);
            self.parameters.name(layout.fetched(ring), row, if is_taken { host_row } else { -1 });
            self.filled.is_taken |= is_taken;
        }
        for &(_, table) in &layout.kept {
            self.touched.write(table, slot, read.contains(&table));
        }
        if let Some(reason) = fault {
            let reason = format!("cell '{}': {reason}", spec.name);
            self.filled.failures.push(RowFailure { row: row as u32, reason });
        }
        Ok(())
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

    fn write(&mut self, table: usize, slot: u32, is_read: bool) {
        let of = self.of(table);
        if is_read { of.updated.push(slot) } else { of.written.push(slot) }
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

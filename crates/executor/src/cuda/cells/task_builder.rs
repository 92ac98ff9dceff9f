//! Fills a task of nodes: the inputs that the host writes, and the lists of where its rows lie.

use paternoster_batching::RowSpan;
use paternoster_device::cuda::Address;
use paternoster_engine::RowFailure;
use paternoster_model::{
    TensorSpec,
    unfold::{CellInputSource, Nodes, Tensor},
};
use smallvec::SmallVec;

use super::{
    Cells, HOST_ROWS, SLOTS,
    accesses::Touched,
    layout::{CellLayout, Input, ReadFrom},
    outputs::is_last,
    sequences::{OfSequence, outlives},
    spans::{Reading, Span, origin_of},
    taking::keeps_of,
};
use crate::{
    cells::{Node, Row, fits, length},
    cuda::{
        graph::GraphSize,
        parameters::{Parameters, Ring, Section},
        version::Filled,
    },
};

/// A task while it is filled, node by node.
pub(super) struct TaskBuilder<'a> {
    of: &'a Cells,
    cell: usize,
    layout: &'a CellLayout,
    size: GraphSize,
    section: &'a mut Section,
    parameters: Parameters,
    /// Rows of the first step added so far.
    rows: usize,
    members: u32,
    filled: Filled,
    touched: Touched,
}

/// A node of a task.
struct Placed<'n> {
    node: Node<'n>,
    span: &'n RowSpan,
    /// Number of the step among those that the task runs.
    step: usize,
    /// Index of its first row in the task.
    at: usize,
    /// Number of its rows.
    rows: usize,
    /// The slot of its sequence, if the sequence has state on the card.
    sequence: Option<u32>,
    /// Why it fails, if it does.
    fault: Option<String>,
    /// Tables from which it reads its slot's row as an earlier task left it.
    read_tables: SmallVec<[usize; 4]>,
    /// Pools from which it reads entries of its slot.
    read_pools: SmallVec<[usize; 4]>,
}

impl<'a> TaskBuilder<'a> {
    /// Starts a task of a cell in a graph of size `size`, with `rows` live rows in its first step.
    pub(super) fn new(of: &'a Cells, cell: usize, size: GraphSize, rows: usize, section: &'a mut Section) -> Self {
        Self {
            of,
            cell,
            layout: &of.layout.cells[cell],
            size,
            section,
            parameters: Parameters::new(of.cells[cell].around.lists, size.rows(), rows),
            rows: 0,
            members: 0,
            filled: Filled::default(),
            touched: Touched::default(),
        }
    }

    /// Appends the nodes of one request, which run one after another. A node that lacks an input fails its own request
    /// alone.
    ///
    /// # Errors
    /// If what they read is not on the card, because the task that writes it did not run.
    pub(super) fn add(&mut self, span: &RowSpan, nodes: &[Node<'_>], sequence: OfSequence) -> Result<(), String> {
        let mut fault = sequence.fault();
        for (step, &node) in nodes.iter().enumerate() {
            fault = fault.or(self.node(span, step, node, sequence)?);
        }
        let rows_of_step = self.size.run.rows as usize;
        for step in nodes.len()..self.size.steps as usize {
            let row = step * rows_of_step + self.rows;
            (0..self.layout.lists).for_each(|list| self.parameters.name(list, row, -1));
        }
        if let Some(reason) = fault {
            let name = &self.of.programs.unfolding.cells[self.cell].name;
            let reason = format!("cell '{name}': {reason}");
            self.filled.failures.push(RowFailure { row: self.members, reason });
        }
        let first = nodes.first();
        self.rows += first.map_or(0, |node| self.of.layout.node_rows(&self.of.programs, self.cell, node));
        self.members += 1;
        Ok(())
    }

    /// Adds one node; returns why it fails, if it does.
    fn node(
        &mut self,
        span: &RowSpan,
        step: usize,
        node: Node<'_>,
        sequence: OfSequence,
    ) -> Result<Option<String>, String> {
        let (of, layout, slot) = (self.of, self.layout, span.slot);
        if of.has_state() && !of.slots.has(slot) {
            return Err(format!("slot {slot} does not exist"));
        }
        let is_step = matches!(node.segment().nodes, Nodes::Chain { .. } | Nodes::Decode { .. });
        // Steps must run in order even where they do not read one another, because the host keeps their outputs in that
        // order.
        if is_step && step == 0 && node.place.node > 0 && !of.slots.holds(slot, span.req, span.start - 1) {
            return Err(format!("node {} of {:?} has not run", span.start - 1, span.req));
        }
        let rows = of.layout.node_rows(&of.programs, self.cell, &node);
        let mut placed = Placed {
            node,
            span,
            step,
            at: step * self.size.run.rows as usize + self.rows,
            rows,
            sequence: sequence.slot(),
            fault: None,
            read_tables: SmallVec::new(),
            read_pools: SmallVec::new(),
        };
        self.name_lengths(&mut placed);
        for (number, (input, source)) in layout.inputs.iter().zip(&node.node_type().inputs).enumerate() {
            self.input(&mut placed, number, input, source)?;
        }
        let first_host_row = self.section.first_row as i32;
        for row in placed.own_rows() {
            self.parameters.name(SLOTS, row, slot as i32);
            self.parameters.name(HOST_ROWS, row, first_host_row + row as i32);
        }
        self.outputs(&placed, first_host_row);
        Ok(placed.fault)
    }

    /// Returns the task, ready for its launch.
    pub(super) fn finish(self) -> Filled {
        let Self { parameters, section, mut filled, touched, .. } = self;
        filled.parameters = parameters.finish(section, false);
        filled.accesses = touched.accesses();
        filled
    }

    /// Sets the length of the node's row along each axis, and checks that inputs of one axis agree on it.
    fn name_lengths(&mut self, placed: &mut Placed<'_>) {
        let (of, layout, node) = (self.of, self.layout, placed.node);
        if layout.axes == 0 {
            return;
        }
        let own = of.layout.own_lengths(&of.programs, self.cell, &node);
        for (axis, own) in own.iter().enumerate() {
            self.parameters.name(layout.count(axis), placed.at, *own as i32);
        }
        for (number, (input, source)) in layout.inputs.iter().zip(&node.node_type().inputs).enumerate() {
            let read = of.layout.length_read(&of.programs, node.unfolded_state, source, node.place.node as u32);
            let Some((axis, read)) = input.axis.zip(read) else { continue };
            if own[axis] != read {
                let (name, own) = (&self.spec(number).name, own[axis]);
                let fault = format!("input '{name}' has {read} entries, others of the same axis {own}");
                placed.fault.get_or_insert(fault);
            }
        }
    }

    fn spec(&self, input: usize) -> &'a TensorSpec {
        &self.of.programs.unfolding.cells[self.cell].inputs[input]
    }

    /// Sets where a node reads an input, or writes the input's value to host memory.
    fn input(
        &mut self,
        placed: &mut Placed<'_>,
        number: usize,
        input: &Input,
        source: &CellInputSource,
    ) -> Result<(), String> {
        let of = self.of;
        let (node, req, slot) = (placed.node, placed.span.req, placed.span.slot);
        match (input.from, source) {
            (ReadFrom::Child { table, list }, CellInputSource::Child { child, none, .. }) => {
                let at = match node.unfolded_state.children(node.place).get(*child) {
                    Some(&child) => {
                        let slot = of.slots.of(req, child);
                        let slot = slot.ok_or_else(|| format!("node {child} of {req:?} has not run"))?;
                        self.touched.read(of.tables[table].buffer, slot);
                        slot
                    }
                    None => {
                        let constants = &of.layout.tables[table].constants;
                        let at = constants.iter().position(|constant| constant == none).unwrap_or_default();
                        of.tables[table].constant(at)
                    }
                };
                self.parameters.name(list, placed.at, at as i32);
            }
            (ReadFrom::Own { table }, CellInputSource::Carried { output, start, is_kept }) if node.place.node == 0 => {
                if *is_kept {
                    node.unfolded_state.begin_in_sequence();
                }
                let on_card = placed.sequence.filter(|_| *is_kept).and_then(|sequence| {
                    let row = node.unfolded_state.kept_on_card(node.place.segment, *output)?;
                    Some(of.tables[table].of_sequence(sequence, row))
                });
                if let Some(row) = on_card {
                    self.touched.read(of.tables[table].buffer, row);
                    self.begin(placed, number, of.tables[table].row(row));
                    return Ok(());
                }
                let is_kept = *is_kept && node.unfolded_state.kept(node.place.segment, *output).is_some();
                // A first step starts from the state that its sequence kept, else from an earlier segment's state,
                // which may be in its slot already, else from a value that the host writes.
                let begins_in = of.layout.begins_in(&of.programs, start).filter(|_| !is_kept);
                let from = match begins_in {
                    Some(other) if other == table => {
                        placed.read_tables.push(table);
                        return Ok(());
                    }
                    Some(other) => {
                        self.touched.read(of.tables[other].buffer, slot);
                        of.tables[other].row(slot)
                    }
                    None => {
                        self.bring(placed, number, input, source);
                        let ring = &self.section.brought[input.ring.unwrap_or_default()];
                        ring.address().offset(placed.at * input.row_bytes.pitch())
                    }
                };
                self.begin(placed, number, from);
            }
            (ReadFrom::Own { table }, _) => placed.read_tables.push(table),
            (ReadFrom::Span { pool, list, reading }, _) => {
                self.read_span(placed, number, source, (pool, list, reading));
            }
            _ => self.bring(placed, number, input, source),
        }
        Ok(())
    }

    /// Makes a node read the state that its request begins with at `from`, in place of its slot.
    fn begin(&mut self, placed: &Placed<'_>, input: usize, from: Address) {
        self.parameters.place(Ring::Begins(self.layout.begins(input)), placed.at, from);
    }

    /// Sets which entries of a span a node reads.
    fn read_span(
        &mut self,
        placed: &mut Placed<'_>,
        number: usize,
        source: &CellInputSource,
        (pool, list, reading): (usize, usize, Reading),
    ) {
        let (of, node, spec) = (self.of, placed.node, self.spec(number));
        let origin = origin_of(&of.programs, node.place.segment, spec, source);
        let Some(span) = origin.and_then(|origin| of.layout.spans.of(origin)) else {
            placed.fault.get_or_insert(format!("input '{}' reads what no step leaves", spec.name));
            return;
        };
        let first = of.pools[pool].entry(placed.span.slot, span);
        if reading == Reading::Whole {
            let number = node.place.node as u32;
            if of.layout.length_read(&of.programs, node.unfolded_state, source, number) != Some(0) {
                placed.read_pools.push(pool);
            }
            return self.parameters.name(list, placed.at, first as i32);
        }
        placed.read_pools.push(pool);
        let (tensor, entry) = match source {
            CellInputSource::Step { of: tensor, reversed: true } => (tensor, node.place.nodes - 1 - node.place.node),
            CellInputSource::Step { of: tensor, .. } => (tensor, node.place.node),
            CellInputSource::Rows(tensor) => (tensor, 0),
            _ => return,
        };
        let left = of.layout.length_of(&of.programs, node.unfolded_state, *tensor).unwrap_or(span.most) as usize;
        for (row, entry) in placed.own_rows().zip(entry..) {
            if entry >= left {
                placed.fault.get_or_insert(format!("input '{}' has no row {entry}, but {left}", spec.name));
            }
            // A faulty row must still name an entry that exists, because the graph reads it.
            let entry = entry.min(span.most.saturating_sub(1) as usize);
            self.parameters.name(list, row, (first as usize + entry) as i32);
        }
    }

    /// Writes the value of a node's input to its rows of the input's ring.
    fn bring(&mut self, placed: &mut Placed<'_>, number: usize, input: &Input, source: &CellInputSource) {
        let spec = self.spec(number);
        let (pitch, row_bytes) = (input.row_bytes.pitch(), input.row_bytes.at(self.size.run.lengths));
        let found = self.found(placed, spec, source);
        let ring = &mut self.section.brought[input.ring.unwrap_or_default()];
        let to = &mut ring.bytes_mut()[placed.at * pitch..][..placed.rows * pitch];
        let room = if self.layout.by_rows { to.len() } else { row_bytes };
        match found {
            Ok(found) if found.len <= room => {
                let (own, behind) = to.split_at_mut(found.len);
                own.copy_from_slice(found.as_slice());
                // Only the bytes within the padded lengths are read; the rest of the pitch stays as it is.
                let zeros = room - found.len;
                behind[..zeros].fill(0);
            }
            Ok(found) => {
                let fault = format!("input '{}' has {} bytes a row, expected at most {room}", spec.name, found.len);
                to.fill(0);
                placed.fault.get_or_insert(fault);
            }
            Err(reason) => {
                to.fill(0);
                placed.fault.get_or_insert(reason);
            }
        }
    }

    /// Returns the value of an input that the host writes.
    fn found(&self, placed: &Placed<'_>, spec: &TensorSpec, source: &CellInputSource) -> Result<Row, String> {
        let of = self.of;
        if let CellInputSource::Length(tensor @ Tensor::Emitted(_)) = source
            && let Some(known) = of.layout.length_of(&of.programs, placed.node.unfolded_state, *tensor)
        {
            return Ok(Row::alone(spec.dims.clone(), length(spec, i64::from(known))));
        }
        let found = placed.node.input(spec, source)?;
        if !self.layout.by_rows {
            return fits(spec, &found).map(|()| found);
        }
        let rows = found.dims.first().copied().unwrap_or(0);
        if usize::try_from(rows) != Ok(placed.rows) || rows == 0 {
            return Err(format!("input '{}': expected {} rows, but found {rows}", spec.name, placed.rows));
        }
        fits(spec, &found.clone().part(0, placed.rows))?;
        Ok(found)
    }

    /// Sets where a node's outputs are written.
    fn outputs(&mut self, placed: &Placed<'_>, first_host_row: i32) {
        let (of, layout, slot) = (self.of, self.layout, placed.span.slot);
        let node = &placed.node;
        let segment = node.place.segment;
        let role = node.unfolded_state.role(node.place);
        let is_last = is_last(node);
        for fetched in &layout.fetched {
            let is_taken = of.layout.host_reads.is_taken(&of.programs, segment, role, fetched.output, is_last);
            for row in placed.own_rows() {
                let to = if is_taken { first_host_row + row as i32 } else { -1 };
                self.parameters.name(fetched.list, row, to);
            }
            self.filled.is_taken |= is_taken;
        }
        // Later steps touch what the first one does.
        let is_first = placed.step == 0;
        for &(_, table) in layout.kept.iter().filter(|_| is_first) {
            self.touched.write(of.tables[table].buffer, slot, placed.read_tables.contains(&table));
        }
        for left in &layout.left {
            let to = placed.sequence.filter(|_| is_last).and_then(|sequence| {
                let mut keeps = keeps_of(&of.programs, segment, role, left.output).map(|keep| keep.outputs[0]);
                let output = keeps.find(|output| outlives(&of.programs, segment, *output))?;
                let row = node.unfolded_state.leave_on_card(segment, output)?;
                Some(of.tables[left.table].of_sequence(sequence, row))
            });
            for row in placed.own_rows() {
                self.parameters.name(left.list, row, to.map_or(-1, |to| to as i32));
            }
            if let Some(to) = to {
                self.touched.write(of.tables[left.table].buffer, to, false);
            }
        }
        let mut written: SmallVec<[usize; 4]> = SmallVec::new();
        for appended in &layout.appended {
            let span = of.layout.span_written(&of.programs, segment, role, appended.output);
            let entry = span.and_then(|span| Some((span, entry_of(node, span)?)));
            for (number, row) in placed.own_rows().enumerate() {
                let to = entry.map(|(span, entry)| of.pools[span.pool].entry(slot, span) + entry + number as u32);
                self.parameters.name(appended.list, row, to.map_or(-1, |to| to as i32));
            }
            if entry.is_some() && !written.contains(&appended.pool) {
                written.push(appended.pool);
            }
        }
        if !is_first {
            return;
        }
        for &pool in &written {
            self.touched.write(of.pools[pool].buffer, slot, placed.read_pools.contains(&pool));
        }
        // The device takes one access for each slot: a pool that is both read and written was added above as an update.
        let mut only_read: SmallVec<[usize; 4]> = placed.read_pools.clone();
        only_read.sort_unstable();
        only_read.dedup();
        for pool in only_read.into_iter().filter(|pool| !written.contains(pool)) {
            self.touched.read(of.pools[pool].buffer, slot);
        }
    }
}

impl Placed<'_> {
    /// Returns its rows in the task.
    fn own_rows(&self) -> std::ops::Range<usize> {
        self.at..self.at + self.rows
    }
}

/// Returns the first entry of a span that a node writes; `None` if it lies beyond the span.
fn entry_of(node: &Node<'_>, span: Span) -> Option<u32> {
    let entry = match node.segment().nodes {
        Nodes::Stage => 0,
        // Entries lie in the order of the rows that the chain goes over, also where it goes backwards.
        _ if node.segment().runs_backwards() => node.place.nodes - 1 - node.place.node,
        _ => node.place.node,
    };
    u32::try_from(entry).ok().filter(|entry| *entry < span.most)
}

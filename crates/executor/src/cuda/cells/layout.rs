//! Where the cells of a version read and write on a card. State that a request carries from node to node lies in tables
//! of slots (BatchMaker section 5). What its nodes append lies in spans. Everything else comes from the host or goes
//! there.

use std::collections::BTreeMap;

use bytes::Bytes;
use paternoster_engine::CardProgram;
use paternoster_model::{
    Lengths, TensorSpec,
    unfold::{CellInputSource, EmitRange, Emitted, Nodes, Start, Tensor},
};

use super::{
    node_types::{axis_of, types_of},
    sequences,
    spans::{Origin, Reading, Spans, reading, spans_of},
    tables::tables_of,
    taking::HostReads,
};
use crate::{
    cells::CellPrograms,
    cuda::row_bytes::{RowBytes, least_that_holds},
};

/// Where a version's cells read and write.
#[derive(Debug)]
pub(super) struct Layout {
    /// Slot tables.
    pub(super) tables: Vec<Table>,
    pub(super) spans: Spans,
    /// Indexed by cell.
    pub(super) cells: Vec<CellLayout>,
    /// The table of each state, keyed by the segment and the output of its first node type.
    pub(super) table_of: BTreeMap<(usize, usize), usize>,
    pub(super) host_reads: HostReads,
}

/// A table with a row for each slot, followed by constant rows and the rows of sequences.
#[derive(Debug, Default)]
pub(super) struct Table {
    pub(super) row_bytes: usize,
    /// Values that nodes read in place of a missing child.
    pub(super) constants: Vec<Bytes>,
    /// Whether sequences have rows there, behind the constants.
    pub(super) outlives: bool,
}

/// Where a cell reads and writes. Tasks name rows in lists, which this refers to by index.
#[derive(Debug)]
pub(super) struct CellLayout {
    pub(super) inputs: Vec<Input>,
    /// Outputs that later nodes read from tables: the output and its table.
    pub(super) kept: Vec<(usize, usize)>,
    /// Outputs that the next request of a sequence starts from.
    pub(super) left: Vec<LeftToSequence>,
    /// Outputs that are written to spans.
    pub(super) appended: Vec<Appended>,
    /// Outputs that the host takes from some nodes.
    pub(super) fetched: Vec<Fetched>,
    /// The combinations of axis lengths that its graphs are captured for.
    pub(super) lengths: Vec<Lengths>,
    /// Number of axes whose length varies.
    pub(super) axes: usize,
    /// The list of each row's length along the first of the axes; those of the other axes follow.
    pub(super) first_count: usize,
    /// Indexed by output.
    pub(super) output_lengths: Vec<OutputLength>,
    /// Number of lists.
    pub(super) lists: usize,
    /// Whether a node has one row for each row of the tensors that it goes over.
    pub(super) by_rows: bool,
}

/// An input of a cell.
#[derive(Debug)]
pub(super) struct Input {
    pub(super) row_bytes: RowBytes,
    /// The cell's axis that is this input's first axis, if its length varies.
    pub(super) axis: Option<usize>,
    pub(super) from: ReadFrom,
    /// The ring of host memory, if the host writes the input.
    pub(super) ring: Option<usize>,
}

/// Where an input comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReadFrom {
    /// The host writes it for each task.
    Host,
    /// The slot of the node's own request; its first value may come from the host.
    Own { table: usize },
    /// The slot of a child, or a constant row.
    Child { table: usize, list: usize },
    /// A span of the node's own request.
    Span { pool: usize, list: usize, reading: Reading },
}

/// An output that is written to the rows of sequences.
#[derive(Debug)]
pub(super) struct LeftToSequence {
    pub(super) output: usize,
    pub(super) table: usize,
    /// The list of rows in the table; -1 if the node is not the last of its request.
    pub(super) list: usize,
}

/// An output that is written to spans.
#[derive(Debug)]
pub(super) struct Appended {
    pub(super) output: usize,
    pub(super) row_bytes: RowBytes,
    pub(super) pool: usize,
    /// The list of each row's first entry; -1 if the row has none.
    pub(super) list: usize,
}

/// An output that the host takes.
#[derive(Debug)]
pub(super) struct Fetched {
    pub(super) output: usize,
    pub(super) row_bytes: RowBytes,
    /// The list of rows in its ring; -1 if the host does not take the row.
    pub(super) list: usize,
}

/// The length of an output along its first axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OutputLength {
    /// Given by its dims.
    Fixed,
    /// That of this axis of the cell.
    Axis(usize),
    /// Known only once the output is computed.
    Unknown,
}

impl Layout {
    /// Lays out a version's cells.
    ///
    /// # Errors
    /// If a cell needs something that cards do not support.
    pub(super) fn new(programs: &CellPrograms) -> Result<Self, String> {
        let cells = programs.unfolding.cells.iter().zip(&programs.cells);
        let on_card = cells.map(|(spec, cell)| {
            cell.program.on_card().ok_or_else(|| format!("cell '{}': has no plan for CUDA cards", spec.name))
        });
        let on_card: Vec<&dyn CardProgram> = on_card.collect::<Result<_, _>>()?;
        let lengths: Vec<Vec<Lengths>> = on_card.iter().map(|program| program.lengths()).collect();
        let longest = |cell: usize, input: usize| {
            let axis = axis_of(&programs.unfolding.cells[cell].inputs[input]);
            axis.and_then(|axis| longest_of(&lengths[cell], axis)).unwrap_or(0)
        };
        // Only for stages that make all their rows at once. Other spans are as long as their readers allow.
        let most_left = |(segment, output): Origin| {
            let own = &programs.unfolding.segments[segment];
            let (nodes, is_stage) = (&own.types[0], own.nodes == Nodes::Stage);
            if !is_stage || nodes.goes_over_rows() {
                return 0;
            }
            let spec = &programs.unfolding.cells[nodes.cell].outputs[output];
            let lengths = lengths[nodes.cell].iter().enumerate();
            let left = lengths.map(|(number, own)| {
                let dims = on_card[nodes.cell].output_dims(number, output).unwrap_or_else(|| spec.dims_at(own));
                dims.first().copied().and_then(|length| u32::try_from(length).ok()).unwrap_or(0)
            });
            left.max().unwrap_or(0)
        };
        for segment in &programs.unfolding.segments {
            let grows = segment.sources().any(|source| matches!(source, CellInputSource::Grown { .. }));
            if grows && segment.runs_backwards() {
                let name = &segment.name;
                return Err(format!(
                    "segment '{name}' goes backwards and has state that grows, which cards do not support"
                ));
            }
        }
        let spans = spans_of(programs, longest, most_left)?;
        // What the host reads depends on the tables and spans, and the cells' layout depends on what the host reads.
        let mut layout = Self {
            tables: Vec::new(),
            spans,
            cells: Vec::new(),
            table_of: tables_of(programs),
            host_reads: HostReads::new(programs, &[]),
        };
        layout.host_reads = HostReads::new(programs, &layout.read_by_host(programs)?);
        let count = layout.table_of.values().max().map_or(0, |last| last + 1);
        layout.tables.resize_with(count, Table::default);
        for (number, cell) in programs.unfolding.cells.iter().enumerate() {
            let laid_out = layout.cell(programs, number, on_card[number]);
            layout.cells.push(laid_out.map_err(|fault| format!("cell '{}': {fault}", cell.name))?);
        }
        Ok(layout)
    }

    /// Returns the bytes of a slot in all tables and pools.
    pub(super) fn slot_bytes(&self) -> usize {
        self.tables.iter().map(|table| table.row_bytes).sum::<usize>().saturating_add(self.spans.slot_bytes())
    }

    /// Returns the bytes that a sequence takes.
    pub(super) fn sequence_bytes(&self) -> usize {
        let tables = self.tables.iter().filter(|table| table.outlives);
        tables.map(|table| table.row_bytes * sequences::ROWS as usize).sum()
    }

    /// Returns whether sequences have state on the card.
    pub(super) fn has_sequences(&self) -> bool {
        self.tables.iter().any(|table| table.outlives)
    }

    /// Returns the table of an output of a segment's first node type; `None` if no table holds it.
    pub(super) fn table_of(&self, segment: usize, output: usize) -> Option<usize> {
        self.table_of.get(&(segment, output)).copied()
    }

    /// Returns the table that already holds a request's start value: that of an earlier segment's last step. `None` if
    /// steps beyond the last may have overwritten it.
    pub(super) fn begins_in(&self, programs: &CellPrograms, start: &Start) -> Option<usize> {
        let Start::Tensor(Tensor::Emitted(emitted)) = start else { return None };
        let segment = &programs.unfolding.segments[emitted.segment];
        let emit = &segment.emits[emitted.emit];
        let stays = matches!(segment.nodes, Nodes::Stage | Nodes::Chain { .. } | Nodes::Decode { until: None, .. });
        (stays && emit.which == EmitRange::Last).then(|| self.table_of(emitted.segment, emit.output)).flatten()
    }

    /// Returns the outputs of segments that later segments read through the host.
    fn read_by_host(&self, programs: &CellPrograms) -> Result<Vec<Emitted>, String> {
        let mut read = Vec::new();
        for cell in 0..programs.unfolding.cells.len() {
            for (.., own) in types_of(programs, cell) {
                for (number, source) in own.inputs.iter().enumerate() {
                    let is_brought = || Ok::<_, String>(reading(programs, cell, number)?.is_none());
                    match source {
                        CellInputSource::Whole(Tensor::Emitted(emitted))
                        | CellInputSource::Rows(Tensor::Emitted(emitted))
                            if is_brought()? =>
                        {
                            read.push(*emitted);
                        }
                        CellInputSource::Step { of: Tensor::Emitted(emitted), .. } if is_brought()? => {
                            read.push(*emitted)
                        }
                        CellInputSource::Carried { start: start @ Start::Tensor(Tensor::Emitted(emitted)), .. }
                            if self.begins_in(programs, start).is_none() =>
                        {
                            read.push(*emitted);
                        }
                        CellInputSource::Length(Tensor::Emitted(emitted)) if !self.has_length(programs, *emitted) => {
                            read.push(*emitted);
                        }
                        _ => {}
                    }
                }
            }
        }
        Ok(read)
    }

    /// Returns whether the length of a segment's output follows from the request.
    pub(super) fn has_length(&self, programs: &CellPrograms, Emitted { segment, emit }: Emitted) -> bool {
        let own = &programs.unfolding.segments[segment];
        let output = own.emits[emit].output;
        let nodes = &own.types[0];
        match own.nodes {
            Nodes::Stage if nodes.goes_over_rows() => nodes.inputs.iter().any(|source| match source {
                CellInputSource::Rows(Tensor::Emitted(emitted)) => self.has_length(programs, *emitted),
                source => matches!(source, CellInputSource::Rows(Tensor::Input(_))),
            }),
            Nodes::Stage => {
                let spec = &programs.unfolding.cells[nodes.cell];
                let axis = axis_of(&spec.outputs[output]);
                let is_of_axis = |input: &TensorSpec| axis.is_some() && axis_of(input) == axis;
                spec.inputs.iter().zip(&nodes.inputs).any(|(input, source)| match source {
                    CellInputSource::Whole(Tensor::Emitted(emitted)) => {
                        is_of_axis(input) && self.has_length(programs, *emitted)
                    }
                    source => is_of_axis(input) && matches!(source, CellInputSource::Whole(Tensor::Input(_))),
                })
            }
            Nodes::Chain { .. } | Nodes::Decode { .. } => self.spans.of((segment, output)).is_some(),
            Nodes::Tree { .. } => false,
        }
    }
}

impl CellLayout {
    /// Returns the number of an input among those that read the slot of their own request.
    pub(super) fn begins(&self, input: usize) -> usize {
        self.inputs[..input].iter().filter(|before| matches!(before.from, ReadFrom::Own { .. })).count()
    }

    /// Returns the list of each row's length along an axis.
    pub(super) fn count(&self, axis: usize) -> usize {
        self.first_count + axis
    }

    /// Returns the length of an output along its first axis.
    pub(super) fn output_length(&self, output: usize) -> OutputLength {
        self.output_lengths[output]
    }

    /// Returns the maximum length of an axis over all graphs.
    pub(super) fn longest(&self, axis: usize) -> u32 {
        longest_of(&self.lengths, axis).unwrap_or(0)
    }

    /// Returns the index of the smallest lengths that hold nodes of at most these lengths.
    pub(super) fn lengths_for(&self, longest: &[u32]) -> Option<usize> {
        least_that_holds(&self.lengths, longest)
    }
}

/// Returns the maximum length of an axis.
fn longest_of(lengths: &[Lengths], axis: usize) -> Option<u32> {
    lengths.iter().filter_map(|own| own.get(axis)).copied().max()
}

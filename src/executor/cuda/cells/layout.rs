//! Where the cells of a version read and write on a card: what a request carries from node to node lies in tables of
//! slots (BatchMaker section 5), what its nodes leave one behind the other in spans, all else comes from the host or
//! goes there.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::{
    node_types::{axis_of, types_of},
    spans::{Origin, Reading, Spans, reading, spans_of},
    tables::tables_of,
    taking::HostReads,
};
use crate::{
    batching::Lengths,
    engine::CardProgram,
    executor::{
        cells::CellPrograms,
        cuda::row_bytes::{RowBytes, least_that_holds},
    },
    model::{
        TensorSpec,
        unfold::{Emitted, Nodes, Source, Start, Tensor, Which},
    },
};

/// Where a version's cells read and write.
#[derive(Debug)]
pub(super) struct Layout {
    /// By table: what each of its rows has.
    pub(super) tables: Vec<Table>,
    pub(super) spans: Spans,
    /// By cell.
    pub(super) cells: Vec<CellLayout>,
    /// By segment and the output of its first type: the table that it lies in.
    pub(super) table_of: BTreeMap<(usize, usize), usize>,
    pub(super) host_reads: HostReads,
}

/// A table with a row for each slot, and constant rows behind them.
#[derive(Debug, Default)]
pub(super) struct Table {
    pub(super) row_bytes: usize,
    /// What nodes read that have no such child.
    pub(super) constants: Vec<Bytes>,
}

/// Where a cell reads and writes. Tasks name rows in lists, which are given by number.
#[derive(Debug)]
pub(super) struct CellLayout {
    pub(super) inputs: Vec<Input>,
    /// Outputs that later nodes read from tables: each output with its table.
    pub(super) kept: Vec<(usize, usize)>,
    /// Outputs that are spans, or parts of them.
    pub(super) appended: Vec<Appended>,
    /// Outputs that the host takes of some nodes.
    pub(super) fetched: Vec<Fetched>,
    /// The lengths of axes that its graphs are made for.
    pub(super) lengths: Vec<Lengths>,
    /// How many axes vary.
    pub(super) axes: usize,
    /// The list of how long each row is along the first of the axes.
    pub(super) first_count: usize,
    /// By output.
    pub(super) output_lengths: Vec<OutputLength>,
    /// How many lists there are.
    pub(super) lists: usize,
    /// Each of its nodes has a row for each row of the tensors that it goes over.
    pub(super) by_rows: bool,
}

/// An input of a cell.
#[derive(Debug)]
pub(super) struct Input {
    pub(super) row_bytes: RowBytes,
    /// The axis of the cell that its first axis is, where that varies.
    pub(super) axis: Option<usize>,
    pub(super) from: ReadFrom,
    /// The ring of host memory for what the host brings.
    pub(super) ring: Option<usize>,
}

/// Where an input comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReadFrom {
    /// The host, with each task.
    Host,
    /// The slot of the node's own request; the host brings what it begins with.
    Own { table: usize },
    /// The slot of a child, or a constant row.
    Child { table: usize, list: usize },
    /// A span of the node's own request.
    Span { pool: usize, list: usize, reading: Reading },
}

/// An output whose rows go to spans.
#[derive(Debug)]
pub(super) struct Appended {
    pub(super) output: usize,
    pub(super) row_bytes: RowBytes,
    pub(super) pool: usize,
    /// The list of each row's first entry; -1 where it has none.
    pub(super) list: usize,
}

/// An output that the host takes.
#[derive(Debug)]
pub(super) struct Fetched {
    pub(super) output: usize,
    pub(super) row_bytes: RowBytes,
    /// The list of rows in its ring; -1 where the host does not take it.
    pub(super) list: usize,
}

/// How long an output is along its first axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OutputLength {
    /// As its dims say.
    Fixed,
    /// As this axis of the cell.
    Axis(usize),
    /// It shows in the output.
    Unknown,
}

impl Layout {
    /// Of a version's cells.
    ///
    /// # Errors
    /// When a cell needs what cards do not do.
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
            let grows = segment.sources().any(|source| matches!(source, Source::Grown { .. }));
            if grows && segment.runs_backwards() {
                let name = &segment.name;
                return Err(format!(
                    "segment '{name}' goes backwards and has state that grows, which cards do not have"
                ));
            }
        }
        let spans = spans_of(programs, longest, most_left)?;
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

    /// Bytes that a slot takes.
    pub(super) fn slot_bytes(&self) -> usize {
        self.tables.iter().map(|table| table.row_bytes).sum::<usize>().saturating_add(self.spans.slot_bytes())
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

    /// What segments leave that the host has to bring to later ones.
    fn read_by_host(&self, programs: &CellPrograms) -> Result<Vec<Emitted>, String> {
        let mut read = Vec::new();
        for cell in 0..programs.unfolding.cells.len() {
            for (.., own) in types_of(programs, cell) {
                for (number, source) in own.inputs.iter().enumerate() {
                    let is_brought = || Ok::<_, String>(reading(programs, cell, number)?.is_none());
                    match source {
                        Source::Whole(Tensor::Emitted(emitted)) | Source::Rows(Tensor::Emitted(emitted))
                            if is_brought()? =>
                        {
                            read.push(*emitted);
                        }
                        Source::Step { of: Tensor::Emitted(emitted), .. } if is_brought()? => read.push(*emitted),
                        Source::Carried { start: start @ Start::Tensor(Tensor::Emitted(emitted)), .. }
                            if self.begins_in(programs, start).is_none() =>
                        {
                            read.push(*emitted);
                        }
                        Source::Length(Tensor::Emitted(emitted)) if !self.has_length(programs, *emitted) => {
                            read.push(*emitted);
                        }
                        _ => {}
                    }
                }
            }
        }
        Ok(read)
    }

    /// Whether it follows from a request how long what a segment leaves is.
    pub(super) fn has_length(&self, programs: &CellPrograms, Emitted { segment, emit }: Emitted) -> bool {
        let own = &programs.unfolding.segments[segment];
        let output = own.emits[emit].output;
        let nodes = &own.types[0];
        match own.nodes {
            Nodes::Stage if nodes.goes_over_rows() => nodes.inputs.iter().any(|source| match source {
                Source::Rows(Tensor::Emitted(emitted)) => self.has_length(programs, *emitted),
                source => matches!(source, Source::Rows(Tensor::Input(_))),
            }),
            Nodes::Stage => {
                let spec = &programs.unfolding.cells[nodes.cell];
                let axis = axis_of(&spec.outputs[output]);
                let is_of_axis = |input: &TensorSpec| axis.is_some() && axis_of(input) == axis;
                spec.inputs.iter().zip(&nodes.inputs).any(|(input, source)| match source {
                    Source::Whole(Tensor::Emitted(emitted)) => is_of_axis(input) && self.has_length(programs, *emitted),
                    source => is_of_axis(input) && matches!(source, Source::Whole(Tensor::Input(_))),
                })
            }
            Nodes::Chain { .. } | Nodes::Decode { .. } => self.spans.of((segment, output)).is_some(),
            Nodes::Tree { .. } => false,
        }
    }
}

impl CellLayout {
    /// The list of how long each row is along an axis.
    pub(super) fn count(&self, axis: usize) -> usize {
        self.first_count + axis
    }

    /// How long an output is along its first axis.
    pub(super) fn output_length(&self, output: usize) -> OutputLength {
        self.output_lengths[output]
    }

    /// The longest that an axis is in any graph.
    pub(super) fn longest(&self, axis: usize) -> u32 {
        longest_of(&self.lengths, axis).unwrap_or(0)
    }

    /// Which of the lengths nodes are padded to of which the longest are these: the least that hold them.
    pub(super) fn lengths_for(&self, longest: &[u32]) -> Option<usize> {
        least_that_holds(&self.lengths, longest)
    }
}

/// The longest of the lengths of an axis.
fn longest_of(lengths: &[Lengths], axis: usize) -> Option<u32> {
    lengths.iter().filter_map(|own| own.get(axis)).copied().max()
}

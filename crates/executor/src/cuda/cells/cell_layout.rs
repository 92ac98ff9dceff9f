//! Where one cell reads and writes on a card: the sources of its inputs, the destinations of its outputs, and the lists
//! of row numbers that tasks fill.

use paternoster_engine::CardProgram;
use paternoster_model::{
    TensorSpec,
    unfold::{CellInputSource, Nodes, Tensor},
};

use super::{
    HOST_ROWS,
    layout::{Appended, CellLayout, Fetched, Input, Layout, LeftToSequence, OutputLength, ReadFrom},
    node_types::{axis_of, types_of},
    sequences::outlives,
    spans::{Origin, Reading, bytes_behind_first, origin_of, reading},
    taking::keeps_of,
};
use crate::{
    cells::CellPrograms,
    cuda::{
        parameters::rows_of,
        row_bytes::{RowBytes, fixed_row_bytes, row_bytes, row_bytes_of},
    },
};

/// Maximum steps that a graph runs one after another.
const GRAPH_MAX_STEPS: u32 = 16;

/// Maximum bytes of host memory for the rows of a task of several steps.
const SECTION_MAX_BYTES: usize = 4 << 20;

/// Where the outputs of a cell go.
#[derive(Default)]
struct OutputPlaces {
    /// Outputs and the tables that keep them.
    kept: Vec<(usize, usize)>,
    left: Vec<LeftToSequence>,
    appended: Vec<Appended>,
    fetched: Vec<Fetched>,
}

impl Layout {
    /// Returns where a cell reads and writes. Also sets the row sizes and constants of the tables that it uses.
    ///
    /// # Errors
    /// If the cell needs something that cards do not support.
    pub(super) fn cell(
        &mut self,
        programs: &CellPrograms,
        cell: usize,
        program: &dyn CardProgram,
    ) -> Result<CellLayout, String> {
        let spec = &programs.unfolding.cells[cell];
        let chunked = types_of(programs, cell).map(|(segment, ..)| &programs.unfolding.segments[segment]);
        if let Some(segment) = chunked.into_iter().find(|segment| segment.runs_chunks()) {
            let name = &segment.name;
            return Err(format!("runs several steps at a time in the segment '{name}' ('chunk'), which plans do not"));
        }
        let lengths = program.lengths();
        let axes = lengths.first().map_or(0, |own| own.len());
        let by_rows = types_of(programs, cell).any(|(.., own)| own.goes_over_rows());
        if by_rows && !types_of(programs, cell).all(|(.., own)| own.goes_over_rows()) {
            return Err("goes over the rows of a tensor in one segment and not in another".to_owned());
        }
        let mut lists = HOST_ROWS + 1;
        let mut list = || {
            lists += 1;
            lists - 1
        };
        let mut rings = 0;
        let mut inputs = Vec::with_capacity(spec.inputs.len());
        for (number, input) in spec.inputs.iter().enumerate() {
            let axis = varying_axis(programs, cell, number, axes)?;
            if axis.is_some() {
                self.check_lengths(programs, cell, number)?;
            }
            let row_bytes = row_bytes(input, &lengths)?;
            let from = match reading(programs, cell, number)? {
                Some(reading) => self.span(programs, cell, number, reading, list())?,
                None => self.state(programs, cell, number, &row_bytes, &mut list)?,
            };
            let is_brought = matches!(from, ReadFrom::Host | ReadFrom::Own { .. });
            let ring = is_brought.then_some(rings);
            rings += usize::from(is_brought);
            inputs.push(Input { row_bytes, axis, from, ring });
        }
        let outputs = self.outputs(programs, cell, program, &mut list)?;
        // The lists of lengths, one for each axis, follow the others.
        let first_count = lists;
        let output_length = |output: &TensorSpec| match (axis_of(output), output.dims.first()) {
            (Some(axis), _) if axis < axes => OutputLength::Axis(axis),
            (_, Some(..0)) => OutputLength::Unknown,
            _ => OutputLength::Fixed,
        };
        let output_lengths: Vec<OutputLength> = spec.outputs.iter().map(output_length).collect();
        if let Some(fetched) = outputs.fetched.iter().find(|own| output_lengths[own.output] == OutputLength::Unknown) {
            let name = &spec.outputs[fetched.output].name;
            return Err(format!("the length of the output '{name}' does not follow from its inputs"));
        }
        let lists = lists + axes;
        let OutputPlaces { kept, left, appended, fetched } = outputs;
        Ok(CellLayout {
            inputs,
            kept,
            left,
            appended,
            fetched,
            lengths,
            axes,
            first_count,
            output_lengths,
            lists,
            by_rows,
        })
    }

    /// Returns where a cell's outputs go: to a table, to the rows of sequences, to a span, to the host, or to several
    /// of these. An output that nothing reads is left out. `list` numbers the lists that they are written by.
    fn outputs(
        &mut self,
        programs: &CellPrograms,
        cell: usize,
        program: &dyn CardProgram,
        list: &mut dyn FnMut() -> usize,
    ) -> Result<OutputPlaces, String> {
        let lengths = program.lengths();
        let mut places = OutputPlaces::default();
        for (number, output) in programs.unfolding.cells[cell].outputs.iter().enumerate() {
            let origins = types_of(programs, cell).flat_map(|(segment, role, _)| {
                keeps_of(programs, segment, role, number).map(move |keep| (segment, keep.outputs[0]))
            });
            let origins: Vec<Origin> = origins.collect();
            let is_fetched = types_of(programs, cell)
                .any(|(segment, role, _)| self.host_reads.is_fetched(programs, segment, role, number));
            let table = origins.iter().find_map(|&(segment, output)| self.table_of(segment, output));
            let pool = origins.iter().find_map(|&origin| self.spans.of(origin)).map(|span| span.pool);
            if let Some(table) = table {
                self.tables[table].row_bytes = fixed_row_bytes(output)?;
                places.kept.push((number, table));
                if origins.iter().any(|&(segment, output)| outlives(programs, segment, output)) {
                    self.tables[table].outlives = true;
                    places.left.push(LeftToSequence { output: number, table, list: list() });
                }
            }
            if table.is_none() && pool.is_none() && !is_fetched {
                continue;
            }
            let dims = lengths
                .iter()
                .enumerate()
                .map(|(at, own)| program.output_dims(at, number).unwrap_or_else(|| output.dims_at(own)));
            let row_bytes = row_bytes_of(output, dims)?;
            if let Some(pool) = pool {
                places.appended.push(Appended { output: number, row_bytes: row_bytes.clone(), pool, list: list() });
            }
            if is_fetched {
                places.fetched.push(Fetched { output: number, row_bytes, list: list() });
            }
        }
        Ok(places)
    }

    /// Returns how many steps of a cell a graph may run one after another, in tasks of up to `max_rows` rows whose
    /// parameters have at most `parameter_bytes` bytes: a power of two, 1 if its segments are not all chains.
    pub(super) fn most_steps(
        &self,
        programs: &CellPrograms,
        cell: usize,
        max_rows: u32,
        parameter_bytes: usize,
    ) -> u32 {
        let layout = &self.cells[cell];
        // A segment that streams answers each step when it is done.
        let is_chain = |segment: usize| {
            let own = &programs.unfolding.segments[segment];
            matches!(own.nodes, Nodes::Chain { .. }) && !own.streams
        };
        if layout.by_rows || layout.axes > 0 || !types_of(programs, cell).all(|(segment, ..)| is_chain(segment)) {
            return 1;
        }
        let brought = layout.inputs.iter().filter(|input| input.ring.is_some()).map(|input| &input.row_bytes);
        let fetched = layout.fetched.iter().map(|fetched| &fetched.row_bytes);
        let row_bytes: usize = brought.chain(fetched).map(RowBytes::pitch).sum();
        let most_rows = SECTION_MAX_BYTES.checked_div(row_bytes).unwrap_or(usize::MAX);
        let most_rows = most_rows.min(rows_of(parameter_bytes, layout.lists) as usize);
        let fits = |steps: &u32| (*steps as usize).saturating_mul(max_rows as usize) <= most_rows;
        let powers = (0..=GRAPH_MAX_STEPS.ilog2()).map(|power| 1 << power);
        powers.take_while(fits).last().unwrap_or(1)
    }

    /// Checks that the length of what an input reads is known before its task runs.
    ///
    /// # Errors
    /// If it is not.
    fn check_lengths(&self, programs: &CellPrograms, cell: usize, number: usize) -> Result<(), String> {
        for (.., own) in types_of(programs, cell) {
            if let CellInputSource::Whole(Tensor::Emitted(emitted)) = &own.inputs[number]
                && !self.has_length(programs, *emitted)
            {
                let name = &programs.unfolding.cells[cell].inputs[number].name;
                return Err(format!("the length of what the input '{name}' reads does not follow from the request"));
            }
        }
        Ok(())
    }

    /// Returns the source of an input that reads spans.
    fn span(
        &self,
        programs: &CellPrograms,
        cell: usize,
        number: usize,
        reading: Reading,
        list: usize,
    ) -> Result<ReadFrom, String> {
        let input = &programs.unfolding.cells[cell].inputs[number];
        let mut origins = types_of(programs, cell)
            .filter_map(|(segment, _, own)| origin_of(programs, segment, input, &own.inputs[number]));
        let span = origins.find_map(|origin| self.spans.of(origin));
        let span = span.ok_or_else(|| format!("input '{}' reads what no step leaves", input.name))?;
        Ok(ReadFrom::Span { pool: span.pool, list, reading })
    }

    /// Returns the source of an input that reads a single row.
    fn state(
        &mut self,
        programs: &CellPrograms,
        cell: usize,
        number: usize,
        row_bytes: &RowBytes,
        list: &mut impl FnMut() -> usize,
    ) -> Result<ReadFrom, String> {
        let mut from: Option<ReadFrom> = None;
        let mut child_list = None;
        for (segment, _, own) in types_of(programs, cell) {
            let mut table = |output: usize| {
                let table = self.table_of[&(segment, output)];
                self.tables[table].row_bytes = row_bytes.pitch();
                table
            };
            let found = match &own.inputs[number] {
                CellInputSource::Carried { output, .. } => ReadFrom::Own { table: table(*output) },
                CellInputSource::Child { output, none, .. } => {
                    let table = table(*output);
                    let constants = &mut self.tables[table].constants;
                    if !constants.contains(none) {
                        constants.push(none.clone());
                    }
                    ReadFrom::Child { table, list: *child_list.get_or_insert_with(&mut *list) }
                }
                _ => ReadFrom::Host,
            };
            if *from.get_or_insert(found) != found {
                let name = &programs.unfolding.cells[cell].inputs[number].name;
                return Err(format!("input '{name}' is carried in one segment and brought in another"));
            }
        }
        Ok(from.unwrap_or(ReadFrom::Host))
    }
}

/// Returns the cell's axis along which an input's length varies; `None` if its dims are fixed.
///
/// # Errors
/// If graphs are not prepared for lengths of that axis, or nodes are not padded along it.
fn varying_axis(programs: &CellPrograms, cell: usize, number: usize, axes: usize) -> Result<Option<usize>, String> {
    let input = &programs.unfolding.cells[cell].inputs[number];
    if input.dims.iter().all(|&dim| dim >= 0) {
        return Ok(None);
    }
    let axis = axis_of(input).filter(|&axis| axis < axes && bytes_behind_first(input).is_some());
    let Some(axis) = axis else {
        let dims = input.dims.as_slice();
        return Err(format!(
            "input '{}' has the dims {dims:?}, expected lengths that vary along the first alone",
            input.name
        ));
    };
    if !programs.cells[cell].pads[number] {
        let name = &input.name;
        return Err(format!("input '{name}' varies in its length, which the cell is not told ('length')"));
    }
    Ok(Some(axis))
}

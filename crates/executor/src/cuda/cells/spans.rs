//! Spans: outputs that nodes append on a card. They are state that grows, outputs that all steps of a segment emit, and
//! rows that a stage makes at once. Each slot has a fixed number of *entries* for each such tensor of its version (its
//! *span*). Steps append to a span; others read one entry of it, or all.

use std::collections::BTreeMap;

use paternoster_model::{
    TensorSpec, element_count,
    unfold::{CellInputSource, EmitRange, Emitted, Nodes, Tensor},
};

use super::node_types::types_of;
use crate::cells::CellPrograms;

/// Bytes of a word. Kernels move rows in whole words.
const WORD_BYTES: usize = 4;

/// The tensor of a span: the segment, and the output of its first node type.
pub(super) type Origin = (usize, usize);

/// How an input reads a span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reading {
    /// The entry of its own step.
    Entry,
    /// All entries.
    Whole,
}

/// The spans of a version.
#[derive(Debug, Default)]
pub(super) struct Spans {
    /// One for each entry size: spans with entries of that size lie together, slot by slot.
    pub(super) pools: Vec<Pool>,
    of: BTreeMap<Origin, Span>,
}

/// A pool of entries of one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pool {
    pub(super) entry_bytes: usize,
    /// Number of entries in each slot.
    pub(super) entries: u32,
}

/// The entries of one tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) pool: usize,
    /// Index of the first, among the entries of a slot.
    pub(super) first: u32,
    /// Maximum number of entries.
    pub(super) most: u32,
}

impl Spans {
    /// Returns the span of an output of a segment's first node type; `None` if the output is not a span.
    pub(super) fn of(&self, origin: Origin) -> Option<Span> {
        self.of.get(&origin).copied()
    }

    /// Returns all spans with their tensors, ordered by tensor.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Origin, Span)> + '_ {
        self.of.iter().map(|(origin, span)| (*origin, *span))
    }

    /// Returns the pool whose entries have this size.
    pub(super) fn pool_of(&self, entry_bytes: usize) -> Option<usize> {
        self.pools.iter().position(|pool| pool.entry_bytes == entry_bytes)
    }

    /// Returns the bytes of a slot in all pools.
    pub(super) fn slot_bytes(&self) -> usize {
        self.pools.iter().map(|pool| pool.entry_bytes.saturating_mul(pool.entries as usize)).sum()
    }

    /// Adds a span of up to `most` entries, or extends the existing one to that. Call it for all spans before
    /// [`Self::place`].
    fn add(&mut self, origin: Origin, entry_bytes: usize, most: u32) {
        let pool = self.pool_of(entry_bytes).unwrap_or_else(|| {
            self.pools.push(Pool { entry_bytes, entries: 0 });
            self.pools.len() - 1
        });
        let span = self.of.entry(origin).or_insert(Span { pool, first: 0, most: 0 });
        span.most = span.most.max(most);
    }

    /// Assigns each span its entries of a slot.
    ///
    /// # Errors
    /// If the entries of a slot exceed 32 bits.
    fn place(&mut self) -> Result<(), String> {
        for span in self.of.values_mut() {
            let pool = &mut self.pools[span.pool];
            span.first = pool.entries;
            let entries = pool.entries.checked_add(span.most);
            pool.entries = entries.ok_or("its steps leave more than can be counted")?;
        }
        Ok(())
    }
}

/// Returns how an input of a cell reads spans, which must be the same in all segments; `None` if the host writes the
/// input.
///
/// # Errors
/// If the input grows in one segment and not in another.
pub(super) fn reading(programs: &CellPrograms, cell: usize, input: usize) -> Result<Option<Reading>, String> {
    let spec = &programs.unfolding.cells[cell].inputs[input];
    let readings =
        types_of(programs, cell).map(|(segment, _, own)| read_by(programs, segment, spec, &own.inputs[input]));
    let readings: Vec<Option<(Origin, Reading)>> = readings.collect();
    let first = readings.first().copied().flatten().map(|(_, reading)| reading);
    if readings.iter().all(|own| own.map(|(_, reading)| reading) == first) {
        return Ok(first);
    }
    let grows = types_of(programs, cell).any(|(.., own)| matches!(own.inputs[input], CellInputSource::Grown { .. }));
    if grows {
        return Err(format!("input '{}' grows in one segment and not in another", spec.name));
    }
    Ok(None)
}

/// Returns the span that an input reads from a source and how; `None` if cards cannot hold it.
fn read_by(
    programs: &CellPrograms,
    segment: usize,
    input: &TensorSpec,
    source: &CellInputSource,
) -> Option<(Origin, Reading)> {
    let (origin, reading) = match source {
        CellInputSource::Grown { output } => ((segment, *output), Reading::Whole),
        CellInputSource::Whole(Tensor::Emitted(emitted)) => (left_by(programs, *emitted)?, Reading::Whole),
        CellInputSource::Step { of: Tensor::Emitted(emitted), .. }
        | CellInputSource::Rows(Tensor::Emitted(emitted)) => (left_by(programs, *emitted)?, Reading::Entry),
        _ => return None,
    };
    let bytes = match reading {
        Reading::Entry => entry_bytes(input),
        Reading::Whole => bytes_behind_first(input),
    };
    (bytes.is_some() && bytes == left_bytes(programs, origin)).then_some((origin, reading))
}

/// Returns the segment and output of an emit that emits all values; `None` for other emits.
fn left_by(programs: &CellPrograms, Emitted { segment, emit }: Emitted) -> Option<Origin> {
    let own = &programs.unfolding.segments[segment];
    let emit = &own.emits[emit];
    let are_all = match own.nodes {
        Nodes::Stage => true,
        Nodes::Chain { .. } | Nodes::Decode { .. } => emit.which == EmitRange::All,
        Nodes::Tree { .. } => false,
    };
    are_all.then_some((segment, emit.output))
}

/// Returns the bytes of an entry of a segment's output.
fn left_bytes(programs: &CellPrograms, (segment, output): Origin) -> Option<usize> {
    let own = &programs.unfolding.segments[segment];
    let spec = &programs.unfolding.cells[own.types[0].cell].outputs[output];
    if own.nodes == Nodes::Stage && !own.types[0].goes_over_rows() {
        return bytes_behind_first(spec);
    }
    entry_bytes(spec)
}

/// Returns the bytes of a tensor whose dims are fixed.
fn entry_bytes(spec: &TensorSpec) -> Option<usize> {
    bytes_of(spec, &spec.dims)
}

/// Returns the bytes of one entry along a tensor's first axis, whose length varies.
pub(super) fn bytes_behind_first(spec: &TensorSpec) -> Option<usize> {
    let (first, dims) = spec.dims.split_first()?;
    (*first < 0).then(|| bytes_of(spec, dims)).flatten()
}

fn bytes_of(spec: &TensorSpec, dims: &[i64]) -> Option<usize> {
    let bytes = element_count(dims)?.checked_mul(spec.datatype.size_bytes()?)?;
    (bytes > 0 && bytes.is_multiple_of(WORD_BYTES)).then_some(bytes)
}

/// Returns the spans of a version. `longest` returns the maximum entries of an input that reads a whole span, by cell
/// and input; `most_left` returns the maximum entries of a stage's output.
///
/// # Errors
/// If the entries of a slot exceed 32 bits, or an input grows in one segment and not in another.
pub(super) fn spans_of(
    programs: &CellPrograms,
    longest: impl Fn(usize, usize) -> u32,
    most_left: impl Fn(Origin) -> u32,
) -> Result<Spans, String> {
    let mut spans = Spans::default();
    for (cell, spec) in programs.unfolding.cells.iter().enumerate() {
        for (number, input) in spec.inputs.iter().enumerate() {
            let Some(reading) = reading(programs, cell, number)? else { continue };
            for (segment, _, own) in types_of(programs, cell) {
                let Some((origin, _)) = read_by(programs, segment, input, &own.inputs[number]) else { continue };
                let Some(bytes) = left_bytes(programs, origin) else { continue };
                let most = match reading {
                    Reading::Whole => longest(cell, number),
                    Reading::Entry => programs.most_steps,
                };
                spans.add(origin, bytes, most.max(most_left(origin)));
            }
        }
    }
    spans.place()?;
    Ok(spans)
}

/// Returns the tensor of the span that an input of a cell reads in a segment.
pub(super) fn origin_of(
    programs: &CellPrograms,
    segment: usize,
    input: &TensorSpec,
    source: &CellInputSource,
) -> Option<Origin> {
    read_by(programs, segment, input, source).map(|(origin, _)| origin)
}

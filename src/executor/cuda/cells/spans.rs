//! What nodes leave one behind the other on a card: state that grows, what all steps of a segment emit, and rows that a
//! stage makes at once. Each slot has so many *entries* for each such tensor of its version (its *span*), which steps
//! append to, and which others read: one entry, or all of them.

use std::collections::BTreeMap;

use super::node_types::types_of;
use crate::{
    executor::cells::CellPrograms,
    model::{
        TensorSpec, element_count,
        unfold::{Emitted, Nodes, Source, Tensor, Which},
    },
};

/// Bytes that all moved rows are a multiple of.
const WORD_BYTES: usize = 4;

/// What a span is of: the segment, and the output of its first type.
pub(super) type Origin = (usize, usize);

/// How an input reads spans.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reading {
    /// An entry of its own step.
    Entry,
    /// All entries.
    Whole,
}

/// The spans of a version.
#[derive(Debug, Default)]
pub(super) struct Spans {
    /// By bytes of an entry: those of all spans whose entries are of this size lie together, slot by slot.
    pub(super) pools: Vec<Pool>,
    of: BTreeMap<Origin, Span>,
}

/// Entries of one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pool {
    pub(super) entry_bytes: usize,
    /// Entries of a slot.
    pub(super) entries: u32,
}

/// Where the entries of one tensor lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) pool: usize,
    /// The first of them among those of a slot.
    pub(super) first: u32,
    /// How many there may be.
    pub(super) most: u32,
}

impl Spans {
    /// Where what a segment leaves at an output of its first type lies, if it is a span.
    pub(super) fn of(&self, origin: Origin) -> Option<Span> {
        self.of.get(&origin).copied()
    }

    /// All of them, by what they are of.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Origin, Span)> + '_ {
        self.of.iter().map(|(origin, span)| (*origin, *span))
    }

    /// The pool of entries of a size.
    pub(super) fn pool_of(&self, entry_bytes: usize) -> Option<usize> {
        self.pools.iter().position(|pool| pool.entry_bytes == entry_bytes)
    }

    /// Bytes that a slot takes.
    pub(super) fn slot_bytes(&self) -> usize {
        self.pools.iter().map(|pool| pool.entry_bytes.saturating_mul(pool.entries as usize)).sum()
    }

    /// Adds a span of so many entries, or makes room for more in one that is there. All spans are known before any is
    /// placed.
    fn add(&mut self, origin: Origin, entry_bytes: usize, most: u32) {
        let pool = self.pool_of(entry_bytes).unwrap_or_else(|| {
            self.pools.push(Pool { entry_bytes, entries: 0 });
            self.pools.len() - 1
        });
        let span = self.of.entry(origin).or_insert(Span { pool, first: 0, most: 0 });
        span.most = span.most.max(most);
    }

    /// Gives each span its place among the entries of a slot.
    ///
    /// # Errors
    /// When a slot has more entries than can be counted.
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

/// How an input of a cell reads spans, in whichever segment; none where the host brings it.
///
/// # Errors
/// When it grows in one segment and not in another.
pub(super) fn reading(programs: &CellPrograms, cell: usize, input: usize) -> Result<Option<Reading>, String> {
    let spec = &programs.unfolding.cells[cell].inputs[input];
    let readings =
        types_of(programs, cell).map(|(segment, _, own)| read_by(programs, segment, spec, &own.inputs[input]));
    let readings: Vec<Option<(Origin, Reading)>> = readings.collect();
    let first = readings.first().copied().flatten().map(|(_, reading)| reading);
    if readings.iter().all(|own| own.map(|(_, reading)| reading) == first) {
        return Ok(first);
    }
    let grows = types_of(programs, cell).any(|(.., own)| matches!(own.inputs[input], Source::Grown { .. }));
    if grows {
        return Err(format!("input '{}' grows in one segment and not in another", spec.name));
    }
    Ok(None)
}

/// What of a span an input reads from a source, if cards can hold that.
fn read_by(programs: &CellPrograms, segment: usize, input: &TensorSpec, source: &Source) -> Option<(Origin, Reading)> {
    let (origin, reading) = match source {
        Source::Grown { output } => ((segment, *output), Reading::Whole),
        Source::Whole(Tensor::Emitted(emitted)) => (left_by(programs, *emitted)?, Reading::Whole),
        Source::Step { of: Tensor::Emitted(emitted), .. } | Source::Rows(Tensor::Emitted(emitted)) => {
            (left_by(programs, *emitted)?, Reading::Entry)
        }
        _ => return None,
    };
    let bytes = match reading {
        Reading::Entry => entry_bytes(input),
        Reading::Whole => bytes_behind_first(input),
    };
    (bytes.is_some() && bytes == left_bytes(programs, origin)).then_some((origin, reading))
}

/// The segment and output of an emit all of whose values there are.
fn left_by(programs: &CellPrograms, Emitted { segment, emit }: Emitted) -> Option<Origin> {
    let own = &programs.unfolding.segments[segment];
    let emit = &own.emits[emit];
    let are_all = match own.nodes {
        Nodes::Stage => true,
        Nodes::Chain { .. } | Nodes::Decode { .. } => emit.which == Which::All,
        Nodes::Tree { .. } => false,
    };
    are_all.then_some((segment, emit.output))
}

/// Bytes of an entry of what a segment leaves.
fn left_bytes(programs: &CellPrograms, (segment, output): Origin) -> Option<usize> {
    let own = &programs.unfolding.segments[segment];
    let spec = &programs.unfolding.cells[own.types[0].cell].outputs[output];
    if own.nodes == Nodes::Stage && !own.types[0].goes_over_rows() {
        return bytes_behind_first(spec);
    }
    entry_bytes(spec)
}

/// Bytes of a tensor whose dims are fixed.
fn entry_bytes(spec: &TensorSpec) -> Option<usize> {
    bytes_of(spec, &spec.dims)
}

/// Bytes of what lies along the first axis of a tensor, whose length varies.
pub(super) fn bytes_behind_first(spec: &TensorSpec) -> Option<usize> {
    let (first, dims) = spec.dims.split_first()?;
    (*first < 0).then(|| bytes_of(spec, dims)).flatten()
}

fn bytes_of(spec: &TensorSpec, dims: &[i64]) -> Option<usize> {
    let bytes = element_count(dims)?.checked_mul(spec.datatype.size_bytes()?)?;
    (bytes > 0 && bytes.is_multiple_of(WORD_BYTES)).then_some(bytes)
}

/// The spans of a version. `longest` says how many entries an input takes that reads all of a span, by cell and input,
/// and `most_left` how many entries a stage may leave at an output.
///
/// # Errors
/// When they have more entries than can be counted, or an input grows in one segment and not in another.
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

/// The span that an input of a cell reads in a segment.
pub(super) fn origin_of(
    programs: &CellPrograms,
    segment: usize,
    input: &TensorSpec,
    source: &Source,
) -> Option<Origin> {
    read_by(programs, segment, input, source).map(|(origin, _)| origin)
}

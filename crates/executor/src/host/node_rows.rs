//! Groups the rows that nodes read, and gathers them into the inputs of a run.

use std::sync::Arc;

use paternoster_device::BufferPool;
use paternoster_model::{Dims, TensorSpec, element_count, unfold::CellSpec};
use paternoster_observe::budget::Reservation;
use smallvec::SmallVec;

use crate::gather::{Data, Gathered, Rows, copy_rows, pads_too_much, with_rows};
use crate::{cells::Row, strings::Elements};

/// Bytes of padding that a run may add beside as many as its rows have.
const FREE_PADDING: usize = 8 << 20;

/// The rows of a run that one node provides: one, or one for each row of the tensors that it iterates over.
pub(super) struct NodeRows {
    /// Index of the node in the task.
    pub(super) node: usize,
    /// Number of rows.
    pub(super) count: usize,
    /// The first row, by input of the cell. The others follow it in the same memory.
    pub(super) inputs: SmallVec<[Row; 4]>,
}

/// Rows that run together.
pub(super) struct Group {
    /// By node.
    pub(super) nodes: Vec<NodeRows>,
    /// Number of rows of all nodes.
    pub(super) count: usize,
    /// For each input of the cell: the longest dimensions, and the bytes of all rows without padding.
    pub(super) inputs: SmallVec<[(Dims, usize); 4]>,
}

impl Group {
    fn new(rows: NodeRows) -> Self {
        let count = rows.count;
        let inputs = rows.inputs.iter().map(|own| (own.dims.clone(), own.len * count)).collect();
        Self { nodes: vec![rows], count, inputs }
    }

    /// Returns the bytes of all rows with those of a node, without padding and with it.
    fn bytes_with(&self, rows: &NodeRows, cell: &CellSpec) -> (usize, usize) {
        let inputs = self.inputs.iter().zip(&rows.inputs).zip(&cell.inputs);
        let bytes = inputs.map(|(((dims, bytes), own), spec)| {
            let row = element_count(&longest(dims, &own.dims)).unwrap_or(usize::MAX);
            let row = row.saturating_mul(spec.datatype.size_bytes().unwrap_or(1));
            (bytes + own.len * rows.count, row.saturating_mul(self.count + rows.count))
        });
        bytes.fold((0, 0), |(one, two), (bytes, padded)| (one + bytes, padded.saturating_add(two)))
    }

    /// Whether a node may join: its inputs have the same dimensions, or can be padded to common ones without one long
    /// row making many short ones too large.
    fn accepts(&self, rows: &NodeRows, cell: &CellSpec, pads: &[bool]) -> bool {
        let inputs = self.inputs.iter().zip(&rows.inputs).zip(cell.inputs.iter().zip(pads));
        let is_shared = |((spec, own), first): ((&TensorSpec, &Row), &Row)| {
            spec.reshape.is_none() || own.as_slice() == first.as_slice()
        };
        let mut rows_of_both = cell.inputs.iter().zip(&rows.inputs).zip(&self.nodes[0].inputs);
        // A scalar of the graph has one value for the whole run.
        rows_of_both.all(is_shared)
            && inputs.into_iter().all(|(((dims, bytes), own), (spec, pads))| {
                let padded = || {
                    let row_bytes =
                        element_count(&longest(dims, &own.dims))?.checked_mul(spec.datatype.size_bytes()?)?;
                    row_bytes.checked_mul(self.count + rows.count)
                };
                let payload_bytes = bytes + own.len * rows.count;
                own.dims == *dims || (*pads && padded().is_some_and(|padded| !pads_too_much(padded, payload_bytes)))
            })
    }

    fn push(&mut self, rows: NodeRows) {
        for ((dims, bytes), own) in self.inputs.iter_mut().zip(&rows.inputs) {
            if own.dims != *dims {
                *dims = longest(dims, &own.dims);
            }
            *bytes += own.len * rows.count;
        }
        self.count += rows.count;
        self.nodes.push(rows);
    }
}

/// Returns the longer length along each axis.
fn longest(one: &[i64], two: &[i64]) -> Dims {
    one.iter().zip(two).map(|(one, two)| *one.max(two)).collect()
}

/// Partitions nodes into groups whose rows can run together. Groups run one after the other. The padding of a group
/// that is more than its rows and [`FREE_PADDING`] is taken from `room`; rows for which there is none run apart.
pub(super) fn groups(
    cell: &CellSpec,
    pads: &[bool],
    nodes: Vec<NodeRows>,
    room: Option<&mut Reservation>,
) -> SmallVec<[Group; 1]> {
    let mut groups: SmallVec<[Group; 1]> = SmallVec::new();
    let mut room = room;
    for rows in nodes {
        let mut has_room = |group: &Group| {
            let Some(room) = room.as_deref_mut() else { return true };
            let (bytes, padded) = group.bytes_with(&rows, cell);
            let more = padded.saturating_sub(bytes.saturating_mul(2)).saturating_sub(FREE_PADDING);
            room.try_grow(more.saturating_sub(room.amount()))
        };
        match groups.iter_mut().find(|group| group.accepts(&rows, cell, pads) && has_room(group)) {
            Some(group) => group.push(rows),
            None => groups.push(Group::new(rows)),
        }
    }
    groups
}

/// Returns one input of all rows of a group: in place if a task wrote them contiguously; otherwise copied, and padded
/// to the longest dimensions. `input` is its index.
pub(super) fn gather<'a>(
    spec: &TensorSpec,
    input: usize,
    group: &'a Group,
    buffers: &Arc<BufferPool>,
) -> Result<Gathered<'a>, String> {
    let (dims, first) = (&group.inputs[input].0, &group.nodes[0].inputs[input]);
    let shape = with_rows(group.count, dims);
    let Some(size) = spec.datatype.size_bytes() else {
        let rows = group.nodes.iter().map(|rows| rows.inputs[input].as_slice());
        return Ok(Gathered::Strings { shape, elements: rows.flat_map(|rest| Elements { rest }).collect() });
    };
    // The payload of a message may have any alignment.
    let is_aligned = first.as_slice().as_ptr().addr().is_multiple_of(size);
    let mut end = first.at;
    let mut adjoin = |NodeRows { count, inputs, .. }: &NodeRows| {
        let row = &inputs[input];
        let adjoins = row.of.as_ptr() == first.of.as_ptr() && row.of.len() == first.of.len() && row.at == end;
        end += count * row.len;
        adjoins && row.dims == *dims
    };
    if is_aligned && first.len > 0 && group.nodes.iter().all(&mut adjoin) {
        return Ok(Gathered::Dense { shape, data: Data::Shared(first.of.slice(first.at..end)) });
    }
    let row_bytes = element_count(dims).and_then(|count| count.checked_mul(size));
    let row_bytes = row_bytes.ok_or_else(|| format!("input '{}' would be too large", spec.name))?;
    let buffer = BufferPool::take(buffers, group.count * row_bytes);
    let mut buffer = buffer.map_err(|error| format!("input '{}': {error}", spec.name))?;
    let rows = group.nodes.iter().map(|NodeRows { count, inputs, .. }| {
        let row = &inputs[input];
        Rows { count: *count, dims: &row.dims, data: &row.of[row.at..row.at + count * row.len] }
    });
    copy_rows(rows, spec, (dims, size), buffer.as_mut_slice());
    Ok(Gathered::Dense { shape, data: Data::Copied(buffer) })
}

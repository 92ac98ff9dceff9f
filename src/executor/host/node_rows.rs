//! The rows that nodes read, made into the inputs of a run.

use std::sync::Arc;

use smallvec::SmallVec;

use super::gather::{Data, Gathered, Rows, copy_rows, pads_too_much, with_rows};
use crate::{
    device::BufferPool,
    executor::cells::Row,
    model::{Dims, TensorSpec, element_count, unfold::CellSpec},
};

/// A row of a run.
pub(super) struct NodeRow {
    /// The node among those of the task. One that goes over the rows of tensors has several rows, one behind the other.
    pub(super) node: usize,
    /// By the cell's inputs.
    pub(super) inputs: SmallVec<[Row; 4]>,
}

/// Rows that run together.
pub(super) struct Group {
    pub(super) rows: Vec<NodeRow>,
    /// By the cell's inputs: the longest along each axis, and the bytes of all rows without padding.
    pub(super) inputs: SmallVec<[(Dims, usize); 4]>,
}

impl Group {
    fn new(row: NodeRow) -> Self {
        let inputs = row.inputs.iter().map(|own| (own.dims.clone(), own.len)).collect();
        Self { rows: vec![row], inputs }
    }

    /// Whether a row may join: its inputs have the same dims, or can be padded to one another, and one long row does
    /// not make too much of many short ones.
    fn accepts(&self, row: &NodeRow, cell: &CellSpec, pads: &[bool]) -> bool {
        let inputs = self.inputs.iter().zip(&row.inputs).zip(cell.inputs.iter().zip(pads));
        inputs.into_iter().all(|(((dims, bytes), own), (spec, pads))| {
            let padded = || {
                let row_bytes = element_count(&longest(dims, &own.dims))?.checked_mul(spec.datatype.size_bytes()?)?;
                row_bytes.checked_mul(self.rows.len() + 1)
            };
            own.dims == *dims || (*pads && padded().is_some_and(|padded| !pads_too_much(padded, bytes + own.len)))
        })
    }

    fn push(&mut self, row: NodeRow) {
        for ((dims, bytes), own) in self.inputs.iter_mut().zip(&row.inputs) {
            *dims = longest(dims, &own.dims);
            *bytes += own.len;
        }
        self.rows.push(row);
    }
}

/// The longer along each axis.
fn longest(one: &[i64], two: &[i64]) -> Dims {
    one.iter().zip(two).map(|(one, two)| *one.max(two)).collect()
}

/// Rows in groups that may each run together.
pub(super) fn groups(cell: &CellSpec, pads: &[bool], rows: Vec<NodeRow>) -> SmallVec<[Group; 1]> {
    let mut groups: SmallVec<[Group; 1]> = SmallVec::new();
    for row in rows {
        match groups.iter_mut().find(|group| group.accepts(&row, cell, pads)) {
            Some(group) => group.push(row),
            None => groups.push(Group::new(row)),
        }
    }
    groups
}

/// One input of all rows: where they lie, if a task wrote them side by side; else copied, and padded to `dims`, the
/// longest along each axis.
pub(super) fn gather(
    spec: &TensorSpec,
    dims: &Dims,
    rows: &[&Row],
    buffers: &Arc<BufferPool>,
) -> Result<Gathered<'static>, String> {
    let first = rows[0];
    let shape = with_rows(rows.len(), dims);
    let adjoin = |(at, row): (usize, &&Row)| {
        row.of.as_ptr() == first.of.as_ptr() && row.of.len() == first.of.len() && row.at == first.at + at * first.len
    };
    let size = spec.datatype.size_bytes().ok_or("strings cannot be gathered")?;
    // A message's payload may lie anywhere.
    let is_aligned = first.as_slice().as_ptr().addr().is_multiple_of(size);
    let is_alike = rows.iter().all(|row| row.dims == *dims);
    if is_aligned && is_alike && first.len > 0 && rows.iter().enumerate().all(adjoin) {
        let data = Data::Shared(first.of.slice(first.at..first.at + rows.len() * first.len));
        return Ok(Gathered::Dense { shape, data });
    }
    let row_bytes = element_count(dims).and_then(|count| count.checked_mul(size));
    let row_bytes = row_bytes.ok_or_else(|| format!("input '{}' would be too large", spec.name))?;
    let mut buffer = BufferPool::take(buffers, rows.len() * row_bytes);
    let rows = rows.iter().map(|row| Rows { count: 1, dims: &row.dims, data: row.as_slice() });
    copy_rows(rows, spec, (dims, size), buffer.as_mut_slice());
    Ok(Gathered::Dense { shape, data: Data::Copied(buffer) })
}

//! The rows that nodes read, made into the inputs of a run.

use std::sync::Arc;

use smallvec::SmallVec;

use super::row::Row;
use crate::{
    device::BufferPool,
    executor::gather::{Data, Gathered, Rows, copy_rows, with_rows},
    model::{TensorSpec, element_count},
};

/// A row of a run.
pub(super) struct NodeRow {
    /// The node among those of the task. One that goes over the rows of tensors has several rows, one behind the other.
    pub(super) node: usize,
    /// By the cell's inputs.
    pub(super) inputs: SmallVec<[Row; 4]>,
}

/// Rows that may run together: those whose inputs have the same dims, or are padded to one another.
pub(super) fn groups(pads: &[bool], rows: Vec<NodeRow>) -> SmallVec<[Vec<NodeRow>; 1]> {
    let alike = |one: &NodeRow, two: &NodeRow| {
        let inputs = one.inputs.iter().zip(&two.inputs).zip(pads);
        inputs.into_iter().all(|((one, two), pads)| *pads || one.dims == two.dims)
    };
    let mut groups: SmallVec<[Vec<NodeRow>; 1]> = SmallVec::new();
    for row in rows {
        match groups.iter_mut().find(|group| alike(&group[0], &row)) {
            Some(group) => group.push(row),
            None => groups.push(vec![row]),
        }
    }
    groups
}

/// One input of all rows: where they lie, if a task wrote them side by side; else copied, and padded to the longest.
pub(super) fn gather(spec: &TensorSpec, rows: &[&Row], buffers: &Arc<BufferPool>) -> Result<Gathered<'static>, String> {
    let first = rows[0];
    let mut dims = first.dims.clone();
    for row in rows {
        dims.iter_mut().zip(&row.dims).for_each(|(longest, own)| *longest = (*longest).max(*own));
    }
    let shape = with_rows(rows.len(), &dims);
    let adjoin = |(at, row): (usize, &&Row)| {
        row.of.as_ptr() == first.of.as_ptr() && row.of.len() == first.of.len() && row.at == first.at + at * first.len
    };
    let size = spec.datatype.size_bytes().ok_or("strings cannot be gathered")?;
    // A message's payload may lie anywhere.
    let is_aligned = first.as_slice().as_ptr().addr().is_multiple_of(size);
    let is_alike = rows.iter().all(|row| row.dims == dims);
    if is_aligned && is_alike && first.len > 0 && rows.iter().enumerate().all(adjoin) {
        let data = Data::Shared(first.of.slice(first.at..first.at + rows.len() * first.len));
        return Ok(Gathered::Dense { shape, data });
    }
    let row_bytes = element_count(&dims).and_then(|count| count.checked_mul(size));
    let row_bytes = row_bytes.ok_or_else(|| format!("input '{}' would be too large", spec.name))?;
    let mut buffer = BufferPool::take(buffers, rows.len() * row_bytes);
    let rows = rows.iter().map(|row| Rows { count: 1, dims: &row.dims, data: row.as_slice() });
    copy_rows(rows, spec, (&dims, size), buffer.as_mut_slice());
    Ok(Gathered::Dense { shape, data: Data::Copied(buffer) })
}

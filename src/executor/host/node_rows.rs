//! Groups the rows that nodes read, and gathers them into the inputs of a run.

use std::sync::Arc;

use smallvec::SmallVec;

use super::gather::{Data, Gathered, Rows, copy_rows, pads_too_much, with_rows};
use crate::{
    device::BufferPool,
    executor::cells::Row,
    model::{Dims, TensorSpec, element_count, unfold::CellSpec},
};

/// One row of a run.
pub(super) struct NodeRow {
    /// Index of its node in the task. A node that iterates over the rows of tensors has several consecutive rows.
    pub(super) node: usize,
    /// By input of the cell.
    pub(super) inputs: SmallVec<[Row; 4]>,
}

/// Rows that run together.
pub(super) struct Group {
    pub(super) rows: Vec<NodeRow>,
    /// For each input of the cell: the longest dimensions, and the bytes of all rows without padding.
    pub(super) inputs: SmallVec<[(Dims, usize); 4]>,
}

impl Group {
    fn new(row: NodeRow) -> Self {
        let inputs = row.inputs.iter().map(|own| (own.dims.clone(), own.len)).collect();
        Self { rows: vec![row], inputs }
    }

    /// Whether a row may join: its inputs have the same dimensions, or can be padded to common ones without one long
    /// row making many short ones too large.
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

/// Returns the longer length along each axis.
fn longest(one: &[i64], two: &[i64]) -> Dims {
    one.iter().zip(two).map(|(one, two)| *one.max(two)).collect()
}

/// Partitions rows into groups that can each run together.
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

/// Returns one input of all rows: in place if a task wrote them contiguously; otherwise copied, and padded to `dims`,
/// the longest dimensions.
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
    // The payload of a message may have any alignment.
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

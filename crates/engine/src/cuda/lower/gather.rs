//! Entries of tensors by index, such as embeddings.

use super::{Call, Lowering, Outcome, Rule, Value, axis_of};
use crate::cuda::{
    ir::{Dims, Kind, Lookup, Node, Strides, Tensor, View},
    views,
};

pub(super) fn rule(op: &str) -> Option<Rule> {
    match op {
        "Gather" => Some(gather),
        _ => None,
    }
}

/// Replaces the indexed axis by the axes of the indices: data `[a…, n, b…]` and indices `[i…]` give `[a…, i…, b…]`. A
/// single known index becomes a view; other indices are read where an element is computed.
fn gather(lowering: &mut Lowering<'_>, call: &Call<'_>) -> Outcome {
    let data = lowering.tensor(call, 0)?;
    let axis = axis_of(call.int("axis").unwrap_or(0), data.dims.len())?;
    let length = data.dims[axis];
    if data.by_rows && axis == 0 {
        return Err("it takes some rows of a batch".to_owned());
    }
    let known = call.operand(1).and_then(|name| lowering.known_of(name));
    let rank = known.as_ref().map_or(0, |known| known.dims.len());
    let known = known.and_then(|known| known.fixed()).unwrap_or_default();
    let end = length as i64;
    if let Some(index) = known.iter().find(|index| **index >= end || **index < -end) {
        return Err(format!("its index {index} is beyond an axis of {length}"));
    }
    if let &[index] = known.as_slice() {
        let index = if index < 0 { index + end } else { index };
        let expressions = &mut lowering.work.expressions;
        let mut picked = views::sliced(expressions, &data, axis, (index, 1, 1));
        match rank {
            0 => picked = views::without_axes(expressions, &picked, |at| at == axis),
            rank => (1..rank).for_each(|_| picked = views::with_axis(expressions, &picked, axis)),
        }
        return Ok(vec![Value::Tensor(picked)]);
    }
    let indices = lowering.tensor(call, 1)?;
    if !matches!(lowering.work.kind(&indices), Kind::I64 | Kind::I32) {
        return Err(format!("its indices are of {:?}", lowering.work.kind(&indices)));
    }
    if indices.by_rows && (data.by_rows || axis != 0) {
        return Err("it mixes or moves the rows of a batch".to_owned());
    }
    // Lookups read by strides, so the table must be stored.
    let (_, data) = lowering.stored(call, 0)?;
    let view = lowering.work.expressions.stored(data.node).ok_or("its data are not stored")?.clone();
    let (before, after) = (&data.dims[..axis], &data.dims[axis + 1..]);
    let dims: Dims = before.iter().chain(&indices.dims).chain(after).copied().collect();
    let spread = |own: &Strides| -> Strides {
        let zeros = |count: usize| std::iter::repeat_n(0, count);
        zeros(before.len()).chain(own.iter().copied()).chain(zeros(after.len())).collect()
    };
    let index = lowering.work.expressions.with_strides(indices.node, &|strides, _| Some(spread(strides)));
    let index = index.ok_or("its indices are not stored")?;
    let (own, rest) = view.strides.split_at(axis);
    let strides = own.iter().copied().chain(indices.dims.iter().map(|_| 0)).chain(rest[1..].iter().copied()).collect();
    let kind = lowering.work.kind(&data);
    let table = View { buffer: view.buffer, offset: view.offset, strides };
    let lookup = Lookup { table, stride: rest[0], length: length as i64, index };
    let node = lowering.work.expressions.add(kind, Node::Lookup(lookup));
    Ok(vec![Value::Tensor(Tensor { by_rows: data.by_rows || indices.by_rows, dims, node })])
}

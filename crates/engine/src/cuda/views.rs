//! Views of tensors: other axes over the same elements, without moving them. A tensor that is not computed yet is
//! computed at the places of the view.

use super::ir::{Dims, Expressions, NodeId, Strides, Tensor};

/// Returns the tensor with its axes in another order.
pub(super) fn transposed(expressions: &mut Expressions, tensor: &Tensor, order: &[usize]) -> Tensor {
    let node = changed(expressions, tensor.node, |strides, _| order.iter().map(|&axis| strides[axis]).collect());
    Tensor { by_rows: tensor.by_rows, dims: order.iter().map(|&axis| tensor.dims[axis]).collect(), node }
}

/// Returns `length` entries of an axis, `step` apart, from `start` on.
pub(super) fn sliced(
    expressions: &mut Expressions,
    tensor: &Tensor,
    axis: usize,
    (start, step, length): (i64, i64, usize),
) -> Tensor {
    let node = changed(expressions, tensor.node, |strides, offset| {
        *offset += start * strides[axis];
        let mut strides = Strides::from_slice(strides);
        strides[axis] *= step;
        strides
    });
    let mut dims = tensor.dims.clone();
    dims[axis] = length;
    Tensor { by_rows: tensor.by_rows, dims, node }
}

/// Returns the tensor without the axes that `goes` selects, all of which have length 1.
pub(super) fn without_axes(expressions: &mut Expressions, tensor: &Tensor, goes: impl Fn(usize) -> bool) -> Tensor {
    let node = changed(expressions, tensor.node, |strides, _| {
        strides.iter().enumerate().filter(|(axis, _)| !goes(*axis)).map(|(_, &stride)| stride).collect()
    });
    let dims = tensor.dims.iter().enumerate().filter(|(axis, _)| !goes(*axis)).map(|(_, &length)| length).collect();
    Tensor { by_rows: tensor.by_rows, dims, node }
}

/// Returns the tensor with a new axis of length 1 before axis `at`.
pub(super) fn with_axis(expressions: &mut Expressions, tensor: &Tensor, at: usize) -> Tensor {
    let node = changed(expressions, tensor.node, |strides, _| {
        let mut strides = Strides::from_slice(strides);
        strides.insert(at, 0);
        strides
    });
    let mut dims = tensor.dims.clone();
    dims.insert(at, 1);
    Tensor { by_rows: tensor.by_rows, dims, node }
}

/// Returns the tensor with its axes of length 1 repeated to `dims`, which has as many axes.
pub(super) fn expanded(expressions: &mut Expressions, tensor: &Tensor, dims: &[usize], by_rows: bool) -> Tensor {
    let own = &tensor.dims;
    let node = changed(expressions, tensor.node, |strides, _| {
        strides
            .iter()
            .zip(own.iter().zip(dims))
            .map(|(&stride, (own, to))| if own == to { stride } else { 0 })
            .collect()
    });
    Tensor { by_rows, dims: Dims::from_slice(dims), node }
}

/// Returns the tensor with other axes over the same elements in the same order; `None` if no strides describe that.
pub(super) fn reshaped(expressions: &mut Expressions, tensor: &Tensor, dims: &[usize]) -> Option<Tensor> {
    let own = &tensor.dims;
    let node = expressions.with_strides(tensor.node, &|strides, _| split_strides(own, strides, dims))?;
    Some(Tensor { by_rows: tensor.by_rows, dims: Dims::from_slice(dims), node })
}

fn changed(expressions: &mut Expressions, node: NodeId, change: impl Fn(&[i64], &mut i64) -> Strides) -> NodeId {
    let changed = expressions.with_strides(node, &|strides, offset| Some(change(strides, offset)));
    // The change is never `None`.
    changed.unwrap_or(node)
}

/// Returns the strides that traverse the same elements with axes `to`; `None` if there are none.
fn split_strides(from: &[usize], strides: &[i64], to: &[usize]) -> Option<Strides> {
    let runs = merged(from, strides);
    if to.contains(&0) {
        return Some(to.iter().map(|_| 0).collect());
    }
    let mut result: Strides = to.iter().map(|_| 0).collect();
    let mut axis = to.len();
    // From the innermost axis outwards: each new axis must divide what is left of a contiguous run.
    for &(length, stride) in runs.iter().rev() {
        let (mut rest, mut step) = (length, stride);
        while rest > 1 {
            axis = axis.checked_sub(1)?;
            if to[axis] == 1 {
                continue;
            }
            if rest % to[axis] != 0 {
                return None;
            }
            result[axis] = step;
            step *= to[axis] as i64;
            rest /= to[axis];
        }
    }
    Some(result)
}

/// Merges axes that can be traversed as one, and leaves out axes of length 1. Returns lengths and strides.
pub(super) fn merged(dims: &[usize], strides: &[i64]) -> Vec<(usize, i64)> {
    let mut runs: Vec<(usize, i64)> = Vec::new();
    for (&length, &stride) in dims.iter().zip(strides).filter(|(length, _)| **length != 1) {
        match runs.last_mut() {
            Some((before, over)) if *over == stride * length as i64 => {
                *before *= length;
                *over = stride;
            }
            _ => runs.push((length, stride)),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(from: &[usize], strides: &[i64], to: &[usize]) -> Option<Vec<i64>> {
        split_strides(from, strides, to).map(|strides| strides.to_vec())
    }

    #[test]
    fn axes_that_lie_behind_one_another_can_be_cut_otherwise() {
        assert_eq!(split(&[2, 12], &[12, 1], &[2, 3, 4]), Some(vec![12, 4, 1]));
        assert_eq!(split(&[2, 3, 4], &[12, 4, 1], &[24]), Some(vec![1]));
        assert_eq!(split(&[2, 3, 4], &[12, 4, 1], &[1, 6, 1, 4]), Some(vec![0, 4, 0, 1]));
        assert_eq!(split(&[5], &[0], &[5, 1]), Some(vec![0, 0]), "what is repeated stays so");
    }

    #[test]
    fn axes_with_gaps_or_in_another_order_cannot_be_merged() {
        assert_eq!(split(&[2, 3], &[1, 2], &[6]), None, "transposed");
        assert_eq!(split(&[2, 3], &[8, 1], &[6]), None, "a gap behind each row");
        assert_eq!(split(&[2, 3], &[8, 1], &[2, 3, 1]), Some(vec![8, 1, 0]), "the gap stays where it is");
        assert_eq!(split(&[2, 6], &[8, 1], &[2, 2, 3]), Some(vec![8, 3, 1]));
        assert_eq!(split(&[3, 2], &[8, 1], &[2, 3]), None);
    }
}

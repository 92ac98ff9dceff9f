//! Rules of matrix products.

use crate::infer::{
    call::{Call, Outcome, Outcomes, Track},
    meet::{Rows, broadcast},
    size::{Dim, Size},
};

const SUMMED: &str = "multiplies over the batch";

/// A factor of a product: its shape, with the axis that a vector lacks added, and the axis of its rows.
struct Factor {
    dims: Vec<Dim>,
    rows: Option<usize>,
}

/// Infers a matrix product. `left` and `right` are the operand indices of the factors.
pub(super) fn product(call: &Call<'_>, left: usize, right: usize) -> Outcomes {
    let (own_left, own_right) = (call.dims(left)?, call.dims(right)?);
    let one = || Some(Size::from(1));
    let (row_vector, column_vector) = (own_left.len() == 1, own_right.len() == 1);
    let mut a = Factor { dims: own_left.to_vec(), rows: call.rows(left) };
    let mut b = Factor { dims: own_right.to_vec(), rows: call.rows(right) };
    if row_vector {
        a.dims.insert(0, one());
        a.rows = a.rows.map(|rows| rows + 1);
    }
    if column_vector {
        b.dims.push(one());
    }
    let (batch_a, [height, _]) = a.dims.split_last_chunk::<2>()?;
    let (batch_b, [_, width]) = b.dims.split_last_chunk::<2>()?;
    let mut dims = broadcast(&[batch_a, batch_b])?;
    dims.extend([height.clone(), width.clone()]);
    let track = rows_of_product(&a, &b, dims.len());
    let gone = |axis: usize| (row_vector && axis + 2 == dims.len()) || (column_vector && axis + 1 == dims.len());
    let track = match track {
        Ok(Some(axis)) if gone(axis) => Err(SUMMED),
        Ok(Some(axis)) if row_vector && axis + 1 == dims.len() => Ok(Some(axis - 1)),
        track => track,
    };
    let dims = (0..dims.len()).filter(|&axis| !gone(axis)).map(|axis| dims[axis].clone()).collect();
    Some(vec![Outcome::new(dims, track)])
}

/// Returns the axis of the rows: an axis that both factors share, the height of the left factor, or the width of the
/// right one.
fn rows_of_product(a: &Factor, b: &Factor, rank: usize) -> Track {
    // Replaces the axis that is summed over by 1 in both factors, because it does not appear in the product.
    let mut lengths_a = a.dims.clone();
    let mut lengths_b = b.dims.clone();
    if a.rows == Some(a.dims.len() - 1) || b.rows == Some(b.dims.len() - 2) {
        return Err(SUMMED);
    }
    lengths_a.last_mut().into_iter().for_each(|length| *length = Some(Size::from(1)));
    if let [.., length, _] = lengths_b.as_mut_slice() {
        *length = Some(Size::from(1));
    }
    Rows::default().with(&lengths_a, a.rows).with(&lengths_b, b.rows).track(rank)
}

pub(super) fn gemm(call: &Call<'_>) -> Outcomes {
    let [a0, a1] = call.dims(0)? else { return None };
    let [b0, b1] = call.dims(1)? else { return None };
    let turn = |name: &str| call.int_or(name, 0) != 0;
    let turned = |rows: Option<usize>, turn: bool| rows.map(|rows| if turn { 1 - rows.min(1) } else { rows });
    let height = if turn("transA") { a1 } else { a0 };
    let width = if turn("transB") { b0 } else { b1 };
    let one = Some(Size::from(1));
    let (left, right) = ([height.clone(), one.clone()], [one, width.clone()]);
    let (rows_a, rows_b) = (turned(call.rows(0), turn("transA")), turned(call.rows(1), turn("transB")));
    let dims = vec![height.clone(), width.clone()];
    if rows_a == Some(1) || rows_b == Some(0) {
        return Some(vec![Outcome::new(dims, Err(SUMMED))]);
    }
    let mut rows = Rows::default().with(&left, rows_a).with(&right, rows_b);
    if let Some(bias) = call.operand(2) {
        rows = rows.with(bias.dims.as_deref()?, bias.rows());
    }
    let track = rows.track(2);
    Some(vec![Outcome::new(dims, track)])
}

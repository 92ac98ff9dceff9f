//! Matrix products: the layout of their operands, and their batch axes.

use super::{Call, Lowering, Outcome, Reason, Rule, Value};
use crate::cuda::{
    ir::{Count, Dims, Factor, Function, Kind, Operation, Product, Tensor, elements},
    views,
};

pub(super) fn rule(op: &str) -> Option<Rule> {
    match op {
        "MatMul" => Some(matmul),
        "Gemm" => Some(gemm),
        _ => None,
    }
}

/// Lowers a product of batches of matrices, `[…, m, k] · […, k, n]`.
fn matmul(lowering: &mut Lowering<'_>, call: &Call<'_>) -> Outcome {
    let (a, b) = lowering.factors(call)?;
    if a.dims.is_empty() || b.dims.is_empty() {
        return Err("it multiplies a scalar".to_owned());
    }
    let expressions = &mut lowering.work.expressions;
    let (is_row, is_column) = (a.dims.len() == 1, b.dims.len() == 1);
    if is_row && a.by_rows || is_column && b.by_rows {
        return Err("it mixes the rows of a batch".to_owned());
    }
    let a = if is_row { views::with_axis(expressions, &a, 0) } else { a };
    let b = if is_column { views::with_axis(expressions, &b, 1) } else { b };
    let product = lowering.multiply(&a, &b, 1.0, None, if is_row || is_column { "" } else { call.result(0) })?;
    let rank = product.dims.len();
    let goes = |axis: usize| is_column && axis + 1 == rank || is_row && axis + 2 == rank;
    Ok(vec![Value::Tensor(views::without_axes(&mut lowering.work.expressions, &product, goes))])
}

/// Lowers `alpha · a · b + beta · c` with matrices that may be transposed.
fn gemm(lowering: &mut Lowering<'_>, call: &Call<'_>) -> Outcome {
    let (mut a, mut b) = lowering.factors(call)?;
    if a.dims.len() != 2 || b.dims.len() != 2 {
        return Err("its operands are not matrices".to_owned());
    }
    for (attribute, factor) in [("transA", &mut a), ("transB", &mut b)] {
        if call.int(attribute).unwrap_or(0) != 0 {
            if factor.by_rows {
                return Err("it mixes the rows of a batch".to_owned());
            }
            *factor = views::transposed(&mut lowering.work.expressions, factor, &[1, 0]);
        }
    }
    let (alpha, beta) = (call.float("alpha").unwrap_or(1.0), call.float("beta").unwrap_or(1.0));
    let more = call.operand(2).map(|_| lowering.tensor(call, 2)).transpose()?;
    let Some(more) = more.filter(|_| beta != 0.0) else {
        return Ok(vec![Value::Tensor(lowering.multiply(&a, &b, alpha, None, call.result(0))?)]);
    };
    let bias = lowering.constant_vector(&more, b.dims[1]).filter(|_| beta.to_bits() == 1.0_f32.to_bits());
    if bias.is_some() {
        return Ok(vec![Value::Tensor(lowering.multiply(&a, &b, alpha, bias, call.result(0))?)]);
    }
    let product = lowering.multiply(&a, &b, alpha, None, "")?;
    let scaled = if beta.to_bits() == 1.0_f32.to_bits() {
        more
    } else {
        let beta = lowering.number(Kind::F32, beta.to_bits().into(), false, &[]);
        lowering.apply(Function::Mul, Kind::F32, &[more, beta])?
    };
    Ok(vec![Value::Tensor(lowering.apply(Function::Add, Kind::F32, &[product, scaled])?)])
}

/// A batch axis of a product: its length, and its stride in each operand.
#[derive(Clone, Copy, Debug)]
struct Axis {
    count: Count,
    a: i64,
    b: i64,
}

impl Lowering<'_> {
    /// Returns the operands of a product. A left operand that is not stored yet, and whose rows all use the same right
    /// one, is stored under its own name, so that later nodes read it from there.
    fn factors(&mut self, call: &Call<'_>) -> Result<(Tensor, Tensor), Reason> {
        let (a, b) = (self.tensor(call, 0)?, self.tensor(call, 1)?);
        if self.work.expressions.stored(a.node).is_none() && b.dims.len() <= 2 && !b.by_rows {
            return Ok((self.stored(call, 0)?.1, b));
        }
        Ok((a, b))
    }

    /// Returns the buffer of a constant vector of `length` elements, which a product can add as its bias.
    fn constant_vector(&self, tensor: &Tensor, length: usize) -> Option<usize> {
        let fits = tensor.elements() == length && !tensor.by_rows && self.work.kind(tensor) == Kind::F32;
        let buffer = self.whole_buffer(tensor).filter(|_| fits)?;
        tensor.dims.last().is_some_and(|&last| last == length).then_some(buffer)
    }

    /// Returns the product of `[…, m, k]` and `[…, k, n]`, whose leading axes are broadcast.
    fn multiply(
        &mut self,
        a: &Tensor,
        b: &Tensor,
        alpha: f32,
        bias: Option<usize>,
        name: &str,
    ) -> Result<Tensor, Reason> {
        for tensor in [a, b] {
            if self.work.kind(tensor) != Kind::F32 {
                return Err(format!("it multiplies {:?}", self.work.kind(tensor)));
            }
        }
        let (&[m, k], &[rows, n]) = (last_two(a), last_two(b));
        if k != rows {
            return Err(format!("its operands are [{m}, {k}] and [{rows}, {n}]"));
        }
        let rank = a.dims.len().max(b.dims.len());
        // If the rows of the batch are rows of the left matrices, all of them must use the same right operand.
        if a.by_rows && a.dims.len() == 2 && (b.by_rows || rank > 2) || b.by_rows && b.dims.len() == 2 {
            return Err("it mixes the rows of a batch".to_owned());
        }
        let mut dims = self.batch_dims(a, b, rank)?;
        dims.extend([m, n]);
        let by_rows = a.by_rows || b.by_rows;
        let all = elements(&dims).ok_or("its result is too large")?;
        // A right operand without batch axes makes a single large product, which is faster than many small ones.
        let is_shared = b.dims.iter().rev().skip(2).all(|&length| length == 1) && !b.by_rows;
        let product = if is_shared { self.by_one_matrix(a, b, &dims)? } else { self.by_batches(a, b, &dims, by_rows)? };
        let d = self.buffer_for(name, Kind::F32, by_rows, all);
        self.work.operations.push(Operation::Product(Product { alpha, bias, d, ..product }));
        Ok(self.work.whole(d, &dims))
    }

    /// Returns the leading axes of a product.
    fn batch_dims(&mut self, a: &Tensor, b: &Tensor, rank: usize) -> Result<Dims, Reason> {
        let leading = |tensor: &Tensor| Tensor {
            by_rows: tensor.by_rows && tensor.dims.len() > 2,
            dims: Dims::from_slice(&tensor.dims[..tensor.dims.len() - 2]),
            node: 0,
        };
        let like = [leading(a), leading(b)].map(|leading| self.number(Kind::F32, 0, leading.by_rows, &leading.dims));
        let dims = self.broadcast(&like)?.swap_remove(0).dims;
        debug_assert_eq!(dims.len() + 2, rank, "the longer of both has them");
        Ok(dims)
    }

    /// Multiplies all rows of the left operand by one matrix, in a single product regardless of the number of axes.
    fn by_one_matrix(&mut self, a: &Tensor, b: &Tensor, dims: &[usize]) -> Result<Product, Reason> {
        let (k, n) = (last_two(b)[0], dims[dims.len() - 1]);
        let rows = &dims[..dims.len() - 1];
        let m = Count { factor: rows.iter().product(), by_rows: a.by_rows };
        let b = self.factor(b)?;
        let found = self.as_rows(a);
        let a = match found {
            Some(factor) => factor,
            None => {
                let (buffer, _) = self.store(a, "");
                Factor { buffer, offset: 0, leading: k, is_transposed: false, batch_stride: 0 }
            }
        };
        let batches = Count { factor: 1, by_rows: false };
        Ok(Product { m, n, k, batches, a, b, bias: None, alpha: 1.0, d: 0 })
    }

    /// Returns a tensor as one matrix with all axes but the last as rows, if its layout allows that.
    fn as_rows(&self, tensor: &Tensor) -> Option<Factor> {
        let view = self.work.expressions.stored(tensor.node)?;
        let (k, rows) = (last_two(tensor)[1], &tensor.dims[..tensor.dims.len() - 1]);
        let along = *view.strides.last()?;
        let mut runs = views::merged(rows, &view.strides[..rows.len()]);
        let buffer = &self.work.buffers[view.buffer];
        if tensor.by_rows {
            let stride = if buffer.by_rows { buffer.elements as i64 } else { 0 };
            match runs.first() {
                // The rows of one batch row must continue in the next.
                Some(&(length, step)) if step * length as i64 == stride => {}
                Some(_) => return None,
                None => runs.push((1, stride)),
            }
        }
        let leading = match runs.as_slice() {
            [] => k as i64,
            &[(_, step)] => step,
            _ => return None,
        };
        let is_matrix = (along == 1 || k == 1) && leading >= k as i64;
        is_matrix.then_some(Factor {
            buffer: view.buffer,
            offset: view.offset,
            leading: leading as usize,
            is_transposed: false,
            batch_stride: 0,
        })
    }

    /// Returns an operand that all products share as a matrix.
    fn factor(&mut self, tensor: &Tensor) -> Result<Factor, Reason> {
        let axes = tensor.dims.len();
        let matrix = views::without_axes(&mut self.work.expressions, tensor, |axis| axis + 2 < axes);
        if let Some(found) = self.as_matrix(&matrix) {
            return Ok(found);
        }
        let (_, stored) = self.store_as_matrices(&matrix);
        self.as_matrix(&stored).ok_or_else(|| "its operand is not laid out as a matrix".to_owned())
    }

    /// Returns the last two axes of a stored tensor as a row-major or column-major matrix, if its layout allows that.
    fn as_matrix(&self, tensor: &Tensor) -> Option<Factor> {
        let view = self.work.expressions.stored(tensor.node)?;
        let &[rows, columns] = last_two(tensor);
        let &[down, along] = view.strides.last_chunk::<2>()?;
        let lies = |along: i64, length: usize, down: i64, count: usize| {
            let leading = if count == 1 { length as i64 } else { down };
            ((along == 1 || length == 1) && leading >= length as i64).then_some(leading as usize)
        };
        let by_rows = lies(along, columns, down, rows).map(|leading| (leading, false));
        let (leading, is_transposed) = by_rows.or_else(|| lies(down, rows, along, columns).map(|it| (it, true)))?;
        Some(Factor { buffer: view.buffer, offset: view.offset, leading, is_transposed, batch_stride: 0 })
    }

    /// Stores a tensor with matrices as its last two axes, column-major if an operand of its expression is.
    fn store_as_matrices(&mut self, tensor: &Tensor) -> (usize, Tensor) {
        let rank = tensor.dims.len();
        let by_columns = self.work.expressions.views(tensor.node).iter().any(|view| {
            matches!(view.strides.last_chunk::<2>(), Some(&[1, along]) if along != 1) && tensor.dims[rank - 1] > 1
        });
        if !by_columns {
            return self.store(tensor, "");
        }
        let mut order: Vec<usize> = (0..rank).collect();
        order.swap(rank - 2, rank - 1);
        let turned = views::transposed(&mut self.work.expressions, tensor, &order);
        let (buffer, stored) = self.store(&turned, "");
        (buffer, views::transposed(&mut self.work.expressions, &stored, &order))
    }

    /// Multiplies the matrices of two batches, each with a constant distance between its matrices.
    fn by_batches(&mut self, a: &Tensor, b: &Tensor, dims: &[usize], by_rows: bool) -> Result<Product, Reason> {
        let (batch, &[m, n]) = (&dims[..dims.len() - 2], dims.last_chunk::<2>().ok_or("it has no matrices")?);
        let k = last_two(b)[0];
        let spread = |lowering: &mut Self, tensor: &Tensor| {
            let mut wide = tensor.clone();
            while wide.dims.len() < dims.len() {
                wide = views::with_axis(&mut lowering.work.expressions, &wide, 0);
            }
            let all: Vec<usize> = batch.iter().copied().chain(*last_two(tensor)).collect();
            views::expanded(&mut lowering.work.expressions, &wide, &all, by_rows)
        };
        let (mut a, mut b) = (spread(self, a), spread(self, b));
        // An operand without a constant distance is stored with one. Even then the two operands may not match.
        for tensor in [&mut a, &mut b] {
            let is_even = self.batches(tensor, tensor, batch, by_rows).is_some();
            if self.as_matrix(tensor).is_none() || !is_even {
                *tensor = self.store_as_matrices(tensor).1;
            }
        }
        if self.batches(&a, &b, batch, by_rows).is_none() {
            for tensor in [&mut a, &mut b] {
                if self.whole_buffer(tensor).is_none() {
                    *tensor = self.store_as_matrices(tensor).1;
                }
            }
        }
        let found = self.batches(&a, &b, batch, by_rows);
        let (batches, [left, right]) = found.ok_or("its operands are not laid out as batches")?;
        let factor = |tensor: &Tensor, batch_stride: usize| {
            let factor = self.as_matrix(tensor).ok_or("its operands are not laid out as matrices")?;
            Ok::<_, Reason>(Factor { batch_stride, ..factor })
        };
        let m = Count { factor: m, by_rows: false };
        let (a, b) = (factor(&a, left)?, factor(&b, right)?);
        Ok(Product { m, n, k, batches, a, b, bias: None, alpha: 1.0, d: 0 })
    }

    /// Returns the number of matrices, and the distance between the matrices of each operand if it is constant.
    fn batches(&self, a: &Tensor, b: &Tensor, batch: &[usize], by_rows: bool) -> Option<(Count, [usize; 2])> {
        let views = [a, b].map(|tensor| self.work.expressions.stored(tensor.node));
        let [Some(a), Some(b)] = views else { return None };
        let row_stride = |buffer: usize| {
            let buffer = &self.work.buffers[buffer];
            if buffer.by_rows { buffer.elements as i64 } else { 0 }
        };
        let of_rows =
            Axis { count: Count { factor: 1, by_rows: true }, a: row_stride(a.buffer), b: row_stride(b.buffer) };
        let fixed = batch.iter().enumerate().map(|(axis, &length)| Axis {
            count: Count { factor: length, by_rows: false },
            a: a.strides[axis],
            b: b.strides[axis],
        });
        let axes = by_rows.then_some(of_rows).into_iter().chain(fixed.filter(|axis| axis.count.factor != 1));
        let mut whole: Option<Axis> = None;
        for axis in axes {
            whole = Some(match whole {
                None => axis,
                Some(outer) => {
                    let length = axis.count.factor as i64;
                    if outer.a != axis.a * length || outer.b != axis.b * length {
                        return None;
                    }
                    let factor = outer.count.factor * axis.count.factor;
                    Axis { count: Count { factor, by_rows: outer.count.by_rows }, ..axis }
                }
            });
        }
        let none = Axis { count: Count { factor: 1, by_rows: false }, a: 0, b: 0 };
        let Axis { count, a, b } = whole.unwrap_or(none);
        Some((count, [usize::try_from(a).ok()?, usize::try_from(b).ok()?]))
    }
}

fn last_two(tensor: &Tensor) -> &[usize; 2] {
    tensor.dims.last_chunk::<2>().unwrap_or(&[1, 1])
}

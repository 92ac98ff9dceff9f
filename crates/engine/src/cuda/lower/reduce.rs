//! Operators that reduce axes: sums, means and extrema, softmax, layer normalization, and the index of the maximum.

use super::{Call, Lowering, Outcome, Reason, Rule, Value, inner_axis};
use crate::cuda::{
    ir::{Count, Dims, Function, Kind, Operation, Reduce, Reduction, RowKernel, Rowwise, Tensor},
    views,
};

pub(super) fn rule(op: &str) -> Option<Rule> {
    Some(match op {
        "Softmax" => softmax,
        "LayerNormalization" => layer_norm,
        "ArgMax" => argmax,
        "ReduceSum" | "ReduceMean" | "ReduceMax" | "ReduceMin" | "ReduceL2" | "ReduceSumSquare" | "ReduceL1" => reduce,
        _ => return None,
    })
}

fn given(tensor: Tensor) -> Outcome {
    Ok(vec![Value::Tensor(tensor)])
}

/// Lowers Softmax: along one axis from opset 13 on, and over all axes from `axis` on before that.
fn softmax(lowering: &mut Lowering<'_>, call: &Call<'_>) -> Outcome {
    let tensor = lowering.tensor(call, 0)?;
    let rank = tensor.dims.len();
    let axis = inner_axis(call.int("axis").unwrap_or(if call.opset < 13 { 1 } else { -1 }), &tensor, rank)?;
    let is_last = call.opset < 13 || axis + 1 == rank;
    let columns = if call.opset < 13 { tensor.dims[axis..].iter().product() } else { tensor.dims[axis] };
    if is_last {
        let (from, _) = lowering.stored(call, 0)?;
        return given(lowering.rowwise(RowKernel::Softmax, &tensor, from, columns, call.result(0))?);
    }
    // The kernel works along the last axis, so the axis is swapped there and back.
    let mut order: Vec<usize> = (0..rank).collect();
    order.swap(axis, rank - 1);
    let turned = views::transposed(&mut lowering.work.expressions, &tensor, &order);
    let (from, stored) = lowering.store(&turned, "");
    let result = lowering.rowwise(RowKernel::Softmax, &stored, from, columns, "")?;
    given(views::transposed(&mut lowering.work.expressions, &result, &order))
}

fn layer_norm(lowering: &mut Lowering<'_>, call: &Call<'_>) -> Outcome {
    let tensor = lowering.tensor(call, 0)?;
    let axis = inner_axis(call.int("axis").unwrap_or(-1), &tensor, tensor.dims.len())?;
    let columns: usize = tensor.dims[axis..].iter().product();
    if call.node.output.len() > 1 {
        return Err("it outputs mean and deviation too".to_owned());
    }
    let (from, _) = lowering.stored(call, 0)?;
    let mut vectors = [None; 2];
    for (vector, index) in vectors.iter_mut().zip([1, 2]) {
        if call.operand(index).is_none() {
            continue;
        }
        let (buffer, stored) = lowering.stored(call, index)?;
        if stored.by_rows || stored.elements() != columns {
            return Err(format!("its scale or bias has the axes {:?}, expected {columns} elements", stored.dims));
        }
        lowering.check_f32(buffer)?;
        *vector = Some(buffer);
    }
    let [scale, bias] = vectors;
    let epsilon = call.float("epsilon").unwrap_or(1e-5);
    let kernel =
        RowKernel::LayerNorm { epsilon, scale: scale.ok_or("it has no scale")?, bias, residual: None, sum: None };
    given(lowering.rowwise(kernel, &tensor, from, columns, call.result(0))?)
}

fn argmax(lowering: &mut Lowering<'_>, call: &Call<'_>) -> Outcome {
    let tensor = lowering.tensor(call, 0)?;
    let rank = tensor.dims.len();
    let axis = inner_axis(call.int("axis").unwrap_or(0), &tensor, rank)?;
    if call.int("select_last_index").unwrap_or(0) != 0 {
        return Err("it takes the last of equal elements".to_owned());
    }
    let keeps = call.int("keepdims").unwrap_or(1) != 0;
    let columns = tensor.dims[axis];
    let mut order: Vec<usize> = (0..rank).filter(|&at| at != axis).collect();
    order.push(axis);
    let from = if axis + 1 == rank {
        lowering.stored(call, 0)?.0
    } else {
        let turned = views::transposed(&mut lowering.work.expressions, &tensor, &order);
        lowering.store(&turned, "").0
    };
    lowering.check_f32(from)?;
    let dims: Dims = order[..rank - 1].iter().map(|&at| tensor.dims[at]).collect();
    let rows = Count { factor: dims.iter().product(), by_rows: tensor.by_rows };
    let to = lowering.buffer_for(call.result(0), Kind::I64, tensor.by_rows, rows.factor);
    let done = lowering.buffer_for("", Kind::I32, tensor.by_rows, rows.factor);
    let kernel = RowKernel::ArgMax { done };
    lowering.work.operations.push(Operation::Rowwise(Rowwise { kernel, rows, columns, from, to }));
    let result = lowering.work.whole(to, &dims);
    given(if keeps { views::with_axis(&mut lowering.work.expressions, &result, axis) } else { result })
}

fn reduce(lowering: &mut Lowering<'_>, call: &Call<'_>) -> Outcome {
    let tensor = lowering.tensors(call)?.swap_remove(0);
    let (rank, kind) = (tensor.dims.len(), lowering.work.kind(&tensor));
    let axes = match lowering.listed(call, "axes", 1)?.filter(|axes| !axes.is_empty()) {
        Some(axes) => axes.iter().map(|&axis| inner_axis(axis, &tensor, rank)).collect::<Result<Vec<_>, _>>()?,
        None if call.int("noop_with_empty_axes").unwrap_or(0) != 0 => return given(tensor),
        None if tensor.by_rows => return Err("it mixes or moves the rows of a batch".to_owned()),
        None => (0..rank).collect(),
    };
    let keeps = call.int("keepdims").unwrap_or(1) != 0;
    let of_f32 = kind == Kind::F32;
    if kind == Kind::Bool || !of_f32 && !matches!(call.op(), "ReduceSum" | "ReduceMax" | "ReduceMin") {
        return Err(format!("it reduces {kind:?}"));
    }
    let (reduction, before) = match call.op() {
        "ReduceMax" => (Reduction::Max, None),
        "ReduceMin" => (Reduction::Min, None),
        "ReduceL2" | "ReduceSumSquare" => (Reduction::Sum, Some(Function::Mul)),
        "ReduceL1" => (Reduction::Sum, Some(Function::Abs)),
        _ => (Reduction::Sum, None),
    };
    let operand = match before {
        Some(Function::Mul) => lowering.apply(Function::Mul, kind, &[tensor.clone(), tensor.clone()])?,
        Some(function) => lowering.apply(function, kind, std::slice::from_ref(&tensor))?,
        None => tensor.clone(),
    };
    let has_after = matches!(call.op(), "ReduceMean" | "ReduceL2");
    let name = if has_after { "" } else { call.result(0) };
    let reduced = lowering.reduced(&operand, &axes, reduction, name);
    let count: usize = axes.iter().map(|&axis| tensor.dims[axis]).product();
    let after = match call.op() {
        "ReduceMean" => {
            let count = lowering.number(kind, (count as f32).to_bits().into(), false, &[]);
            lowering.apply(Function::Div, kind, &[reduced, count])?
        }
        "ReduceL2" => lowering.apply(Function::Sqrt, kind, &[reduced])?,
        _ => reduced,
    };
    let mut result = after;
    if !keeps {
        result = views::without_axes(&mut lowering.work.expressions, &result, |axis| axes.contains(&axis));
    }
    given(result)
}

impl Lowering<'_> {
    fn check_f32(&self, buffer: usize) -> Result<(), Reason> {
        let kind = self.work.buffers[buffer].kind;
        if kind == Kind::F32 { Ok(()) } else { Err(format!("it has elements of {kind:?}")) }
    }

    /// Runs a row kernel over a stored tensor, with `columns` elements per row.
    fn rowwise(
        &mut self,
        kernel: RowKernel,
        tensor: &Tensor,
        from: usize,
        columns: usize,
        name: &str,
    ) -> Result<Tensor, Reason> {
        self.check_f32(from)?;
        let rows = Count { factor: tensor.elements() / columns.max(1), by_rows: tensor.by_rows };
        let to = self.buffer_for(name, Kind::F32, tensor.by_rows, tensor.elements());
        self.work.operations.push(Operation::Rowwise(Rowwise { kernel, rows, columns, from, to }));
        Ok(self.work.whole(to, &tensor.dims))
    }

    /// Reduces axes to length 1.
    pub(crate) fn reduced(&mut self, tensor: &Tensor, axes: &[usize], reduction: Reduction, name: &str) -> Tensor {
        let rank = tensor.dims.len();
        let outer: Vec<usize> = (0..rank).filter(|axis| !axes.contains(axis)).collect();
        let order: Vec<usize> = outer.iter().chain(axes).copied().collect();
        let turned = views::transposed(&mut self.work.expressions, tensor, &order);
        let lengths = |axes: &[usize]| -> Dims { axes.iter().map(|&axis| tensor.dims[axis]).collect() };
        let (outer, inner) = (lengths(&outer), lengths(axes));
        let kind = self.work.kind(tensor);
        let to = self.buffer_for(name, kind, tensor.by_rows, outer.iter().product());
        let by_rows = tensor.by_rows;
        let node = turned.node;
        self.work.operations.push(Operation::Reduce(Reduce { reduction, by_rows, outer, inner, node, to }));
        let mut dims = tensor.dims.clone();
        axes.iter().for_each(|&axis| dims[axis] = 1);
        self.work.whole(to, &dims)
    }
}

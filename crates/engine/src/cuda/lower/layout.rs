//! Operators that compute nothing: reshaping, slicing, repeating and concatenating.

use super::{
    Call, Lowering, Outcome, Reason, Rule, Value, axis_of, inner_axis,
    numbers::{Known, Number, range},
};
use crate::cuda::{
    ir::{Dims, Kind, Tensor, View, contiguous, elements},
    views,
};

/// End of a slice that no batch reaches. Exporters write the largest 32-bit or 64-bit integer.
const TO_THE_END: i64 = i32::MAX as i64;

pub(super) fn rule(op: &str) -> Option<Rule> {
    Some(match op {
        "Constant" => constant,
        "Shape" => shape,
        "Reshape" => reshape,
        "Flatten" => flatten,
        "Squeeze" => squeeze,
        "Unsqueeze" => unsqueeze,
        "Transpose" => transpose,
        "Slice" => slice,
        "Split" => split,
        "Expand" => expand,
        "Concat" => concat,
        "ConstantOfShape" => constant_of_shape,
        // `numbers` evaluates these if their operands are known.
        "Range" | "Size" => unknown,
        _ => return None,
    })
}

fn given(tensor: Tensor) -> Outcome {
    Ok(vec![Value::Tensor(tensor)])
}

fn unknown(_: &mut Lowering<'_>, _: &Call<'_>) -> Outcome {
    Err("its operands are not known when the plan is made".to_owned())
}

fn constant(lowering: &mut Lowering<'_>, call: &Call<'_>) -> Outcome {
    if let Some(tensor) = call.attribute("value").and_then(|attribute| attribute.t.as_deref()) {
        let (kind, dims, bytes) = crate::cuda::constants::of(tensor, None)?;
        let buffer = lowering.work.constant(kind, bytes);
        return given(lowering.work.whole(buffer, &dims));
    }
    if let Some(number) = call.float("value_float") {
        return given(lowering.number(Kind::F32, number.to_bits().into(), false, &[]));
    }
    if let Some(number) = call.int("value_int") {
        return Ok(vec![Value::Known(Known::fixed_of(&[], &[number]))]);
    }
    if let Some(numbers) = call.ints("value_ints") {
        return Ok(vec![Value::Known(Known::fixed_of(&[numbers.len()], numbers))]);
    }
    if let Some(numbers) = call.attribute("value_floats").map(|attribute| &attribute.floats) {
        let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        let buffer = lowering.work.constant(Kind::F32, bytes.into());
        return given(lowering.work.whole(buffer, &[numbers.len()]));
    }
    Err("its value has a type that no kernel supports".to_owned())
}

fn shape(lowering: &mut Lowering<'_>, call: &Call<'_>) -> Outcome {
    let tensor = lowering.tensor(call, 0)?;
    let rank = tensor.dims.len() as i64;
    let bound = |name: &str, default: i64| {
        let place = call.int(name).unwrap_or(default);
        (if place < 0 { place + rank } else { place }).clamp(0, rank) as usize
    };
    let (start, end) = (bound("start", 0), bound("end", rank));
    let length = |axis: usize| Number { factor: tensor.dims[axis] as i64, by_rows: tensor.by_rows && axis == 0 };
    let elements: Vec<Number> = (start..end).map(length).collect();
    Ok(vec![Value::Known(Known { kind: Kind::I64, dims: Dims::from_slice(&[elements.len()]), elements })])
}

fn reshape(lowering: &mut Lowering<'_>, call: &Call<'_>) -> Outcome {
    let tensor = lowering.tensor(call, 0)?;
    let known = call.operand(1).and_then(|name| lowering.known_of(name));
    let wanted = known.ok_or("its shape is not known when the plan is made")?.elements;
    let keeps_zero = call.int("allowzero").unwrap_or(0) == 0;
    let mut dims = Dims::new();
    let mut open = None;
    for (axis, number) in wanted.iter().enumerate() {
        let counts_rows = number.by_rows || number.factor == 0 && keeps_zero && tensor.by_rows && axis == 0;
        if counts_rows != (tensor.by_rows && axis == 0) && !(axis == 0 && number.factor == -1) {
            return Err("it mixes or moves the rows of a batch".to_owned());
        }
        dims.push(match number.factor {
            -1 if open.replace(axis).is_some() => return Err("its shape has two open axes".to_owned()),
            -1 => 1,
            0 if keeps_zero => {
                *tensor.dims.get(axis).ok_or("its shape keeps an axis that its operand does not have")?
            }
            length => usize::try_from(length).map_err(|_| format!("its shape has an axis of {length}"))?,
        });
    }
    if tensor.by_rows && dims.is_empty() {
        return Err("it mixes or moves the rows of a batch".to_owned());
    }
    let all = tensor.elements();
    let others = elements(&dims).ok_or_else(|| format!("{all} elements a row do not fill the shape {dims:?}"))?;
    if let Some(axis) = open {
        if others == 0 || all % others != 0 {
            return Err(format!("{all} elements a row do not fill the shape {dims:?}"));
        }
        dims[axis] = all / others;
    } else if all != others {
        return Err(format!("{all} elements a row do not fill the shape {dims:?}"));
    }
    given(lowering.reshaped(call, 0, &dims)?)
}

fn flatten(lowering: &mut Lowering<'_>, call: &Call<'_>) -> Outcome {
    let tensor = lowering.tensor(call, 0)?;
    let rank = tensor.dims.len();
    let axis = match call.int("axis").unwrap_or(1) {
        axis if axis == rank as i64 => rank,
        axis => axis_of(axis, rank)?,
    };
    if tensor.by_rows && axis == 0 {
        return Err("it mixes or moves the rows of a batch".to_owned());
    }
    let (before, after) = tensor.dims.split_at(axis);
    let dims = [before.iter().product(), after.iter().product()];
    given(lowering.reshaped(call, 0, &dims)?)
}

fn squeeze(lowering: &mut Lowering<'_>, call: &Call<'_>) -> Outcome {
    let tensor = lowering.tensor(call, 0)?;
    let rank = tensor.dims.len();
    let axes = match lowering.listed(call, "axes", 1)? {
        Some(axes) => axes.iter().map(|&axis| inner_axis(axis, &tensor, rank)).collect::<Result<Vec<_>, _>>()?,
        None if tensor.by_rows => return Err("it may remove the axis of the rows".to_owned()),
        None => (0..rank).filter(|&axis| tensor.dims[axis] == 1).collect(),
    };
    if axes.iter().any(|&axis| tensor.dims[axis] != 1) {
        return Err(format!("its operand has the axes {:?}, of which {axes:?} are not all of length 1", tensor.dims));
    }
    given(views::without_axes(&mut lowering.work.expressions, &tensor, |axis| axes.contains(&axis)))
}

fn unsqueeze(lowering: &mut Lowering<'_>, call: &Call<'_>) -> Outcome {
    let mut tensor = lowering.tensor(call, 0)?;
    let axes = lowering.listed(call, "axes", 1)?.ok_or("it has no axes")?;
    let rank = tensor.dims.len() + axes.len();
    let mut axes = axes.iter().map(|&axis| inner_axis(axis, &tensor, rank)).collect::<Result<Vec<_>, _>>()?;
    axes.sort_unstable();
    for axis in axes {
        tensor = views::with_axis(&mut lowering.work.expressions, &tensor, axis);
    }
    given(tensor)
}

fn transpose(lowering: &mut Lowering<'_>, call: &Call<'_>) -> Outcome {
    let tensor = lowering.tensor(call, 0)?;
    let rank = tensor.dims.len();
    let order: Vec<usize> = match call.ints("perm") {
        Some(order) => order.iter().map(|&axis| axis_of(axis, rank)).collect::<Result<_, _>>()?,
        None => (0..rank).rev().collect(),
    };
    let mut sorted = order.clone();
    sorted.sort_unstable();
    if !sorted.into_iter().eq(0..rank) {
        return Err(format!("its perm {order:?} is not a permutation of {rank} axes"));
    }
    if tensor.by_rows && order.first() != Some(&0) {
        return Err("it mixes or moves the rows of a batch".to_owned());
    }
    given(views::transposed(&mut lowering.work.expressions, &tensor, &order))
}

fn slice(lowering: &mut Lowering<'_>, call: &Call<'_>) -> Outcome {
    let mut tensor = lowering.tensor(call, 0)?;
    let rank = tensor.dims.len();
    let starts = lowering.listed(call, "starts", 1)?.ok_or("it has no starts")?;
    let ends = lowering.listed(call, "ends", 2)?.ok_or("it has no ends")?;
    let axes = lowering.listed(call, "axes", 3)?.unwrap_or_else(|| (0..starts.len() as i64).collect());
    let steps = lowering.listed(call, "steps", 4)?.unwrap_or_else(|| vec![1; starts.len()]);
    if [ends.len(), axes.len(), steps.len()].iter().any(|&count| count != starts.len()) {
        return Err("its starts, ends, axes and steps differ in number".to_owned());
    }
    for (index, &axis) in axes.iter().enumerate() {
        let axis = axis_of(axis, rank)?;
        if tensor.by_rows && axis == 0 {
            match (starts[index], ends[index], steps[index]) {
                (0, TO_THE_END.., 1) => continue,
                _ => return Err("it takes some rows of a batch".to_owned()),
            }
        }
        let (start, step, length) = range(starts[index], ends[index], steps[index], tensor.dims[axis])?;
        if length == 0 {
            return Err("its result is empty".to_owned());
        }
        tensor = views::sliced(&mut lowering.work.expressions, &tensor, axis, (start, step, length));
    }
    given(tensor)
}

fn split(lowering: &mut Lowering<'_>, call: &Call<'_>) -> Outcome {
    let tensor = lowering.tensor(call, 0)?;
    let axis = inner_axis(call.int("axis").unwrap_or(0), &tensor, tensor.dims.len())?;
    let length = tensor.dims[axis];
    let count = call.node.output.len();
    let lengths: Vec<usize> = match lowering.listed(call, "split", 1)? {
        Some(lengths) => lengths.iter().map(|&length| usize::try_from(length).unwrap_or(usize::MAX)).collect(),
        None => {
            let each = length.div_ceil(count.max(1));
            (0..count).map(|index| each.min(length.saturating_sub(index * each))).collect()
        }
    };
    let sum = lengths.iter().try_fold(0_usize, |sum, &length| sum.checked_add(length));
    if sum != Some(length) || lengths.len() != count {
        return Err(format!("{count} parts of {lengths:?} are not the axis of {length}"));
    }
    let mut start = 0;
    let parts = lengths.into_iter().map(|length| {
        let part = views::sliced(&mut lowering.work.expressions, &tensor, axis, (start, 1, length));
        start += length as i64;
        Value::Tensor(part)
    });
    Ok(parts.collect())
}

fn expand(lowering: &mut Lowering<'_>, call: &Call<'_>) -> Outcome {
    let tensor = lowering.tensor(call, 0)?;
    let shape = lowering.shape_of(call, 1)?;
    // A scalar of this shape represents it for broadcasting.
    let kind = lowering.work.kind(&tensor);
    let like = lowering.number(kind, 0, shape.1, &shape.0);
    given(lowering.broadcast(&[tensor, like])?.swap_remove(0))
}

fn constant_of_shape(lowering: &mut Lowering<'_>, call: &Call<'_>) -> Outcome {
    let (dims, by_rows) = lowering.shape_of(call, 0)?;
    let Some(tensor) = call.attribute("value").and_then(|attribute| attribute.t.as_deref()) else {
        return given(lowering.number(Kind::F32, 0, by_rows, &dims));
    };
    let (kind, _, bytes) = crate::cuda::constants::of(tensor, None)?;
    let bits = crate::cuda::constants::bits(kind, &bytes, 0).ok_or("its value is empty")?;
    given(lowering.number(kind, bits, by_rows, &dims))
}

fn concat(lowering: &mut Lowering<'_>, call: &Call<'_>) -> Outcome {
    let tensors: Vec<Tensor> =
        (0..call.node.input.len()).map(|index| lowering.tensor(call, index)).collect::<Result<_, _>>()?;
    let first = tensors.first().ok_or("it has no operand")?;
    let (rank, by_rows, kind) = (first.dims.len(), first.by_rows, lowering.work.kind(first));
    let axis = inner_axis(call.int("axis").unwrap_or(0), first, rank)?;
    let mut dims = first.dims.clone();
    dims[axis] = 0;
    for tensor in &tensors {
        let fits = tensor.dims.len() == rank && (0..rank).all(|at| at == axis || tensor.dims[at] == first.dims[at]);
        if !fits || tensor.by_rows != by_rows || lowering.work.kind(tensor) != kind {
            return Err("its operands do not fit side by side".to_owned());
        }
        dims[axis] += tensor.dims[axis];
    }
    let all = elements(&dims).ok_or("its result is too large")?;
    let buffer = lowering.buffer_for(call.result(0), kind, by_rows, all);
    let strides = contiguous(&dims);
    // Each operand is stored into its part of one buffer, so the concatenation itself costs nothing.
    let mut offset = 0;
    for tensor in &tensors {
        lowering.store_to(tensor, View { buffer, offset, strides: strides.clone() });
        offset += strides[axis] * tensor.dims[axis] as i64;
    }
    given(lowering.work.whole(buffer, &dims))
}

impl Lowering<'_> {
    /// Returns an operand with other axes. Stores it first if its elements are not in order.
    fn reshaped(&mut self, call: &Call<'_>, index: usize, dims: &[usize]) -> Result<Tensor, Reason> {
        let tensor = self.tensor(call, index)?;
        if let Some(reshaped) = views::reshaped(&mut self.work.expressions, &tensor, dims) {
            return Ok(reshaped);
        }
        let (buffer, _) = self.stored(call, index)?;
        Ok(self.work.whole(buffer, dims))
    }

    /// Returns the shape that an operand holds: the dims of a row, and whether it is per row.
    fn shape_of(&self, call: &Call<'_>, index: usize) -> Result<(Dims, bool), Reason> {
        let known = call.operand(index).and_then(|name| self.known_of(name));
        let known = known.ok_or("its shape is not known when the plan is made")?;
        let by_rows = known.elements.first().is_some_and(|number| number.by_rows);
        if known.elements.iter().skip(1).any(|number| number.by_rows) {
            return Err("it mixes or moves the rows of a batch".to_owned());
        }
        let length = |number: &Number| usize::try_from(number.factor).map_err(|_| "its shape is negative".to_owned());
        Ok((known.elements.iter().map(length).collect::<Result<_, _>>()?, by_rows))
    }
}

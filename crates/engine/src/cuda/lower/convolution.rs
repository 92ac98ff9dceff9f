//! Convolutions: by cuDNN, or as expressions if each channel is convolved by itself.

use std::collections::HashSet;

use super::{
    Call, Lowering, Outcome, Reason, Rule, Value,
    fetch::window_space,
    window::{AutoPad, Window, by_axis, given_pads, windows},
};
use crate::cuda::{
    ir::{Convolution, Count, Dims, Function, Kind, Node, Operation, Tensor, WEIGHT_MAX, elements},
    views,
};

/// Largest window, in entries, for which a depthwise convolution becomes an expression. cuDNN has no fast fp32 kernel
/// for these, since it treats each channel as a group. As an expression, a thread reads its window once, and what
/// follows goes into the same kernel.
const DEPTHWISE_MAX: usize = 49;

/// Operators per entry of a window, in addition to those that compute the entry: the bounds check and the weight.
const OF_AN_ENTRY: u32 = 10;

pub(super) fn rule(op: &str) -> Option<Rule> {
    match op {
        "Conv" => Some(convolution),
        "ConvTranspose" => Some(transposed),
        _ => None,
    }
}

/// Lowers `[batch, inputs, …]` with a filter `[outputs, inputs / groups, …]`.
fn convolution(lowering: &mut Lowering<'_>, call: &Call<'_>) -> Outcome {
    let operands = lowering.convolved(call)?;
    let Operands { x, w, groups, .. } = &operands;
    let (inputs, outputs) = (x.dims[1], w.dims[0]);
    if w.dims[1].checked_mul(*groups) != Some(inputs) || outputs % groups != 0 {
        return Err(format!("its weights are {:?} in {groups} groups, for {inputs} channels", w.dims));
    }
    let windows = windows(call, &x.dims[2..], Some(&w.dims[2..]))?;
    let entries: usize = windows.iter().map(|window| window.kernel).product();
    if *groups == inputs && outputs == inputs && entries <= DEPTHWISE_MAX {
        let sum = lowering.depthwise(call, x, w, &windows)?;
        return lowering.biased(call, sum);
    }
    // cuDNN pads both sides equally, so the excess of one side is added to the operand first.
    let uneven = windows.iter().any(|window| window.pads.0 != window.pads.1);
    let (buffer, size, even) = if uneven {
        let (_, stored) = lowering.stored(call, 0)?;
        let even: Vec<usize> = windows.iter().map(|window| window.pads.0.min(window.pads.1)).collect();
        let more = windows.iter().zip(&even).map(|(window, &even)| {
            let (before, after) = window.pads;
            ((before - even) as i64, (after - even) as i64)
        });
        let pads: Vec<(i64, i64)> = [(0, 0); 2].into_iter().chain(more).collect();
        let padded = lowering.padded(&stored, &pads, 0)?;
        let (buffer, padded) = lowering.store(&padded, "");
        (buffer, padded.dims[2..].to_vec(), even)
    } else {
        let (buffer, stored) = lowering.stored(call, 0)?;
        (buffer, stored.dims[2..].to_vec(), windows.iter().map(|window| window.pads.0).collect())
    };
    let out: Dims = windows.iter().map(|window| window.out).collect();
    // With a bias, the node's output is the sum, not the convolution's own result.
    let name = if call.operand(2).is_some() { "" } else { call.result(0) };
    let moved = Moved { is_transposed: false, x: buffer, size, out, pads: even };
    let sum = lowering.convolve(&operands, &windows, moved, name)?;
    lowering.biased(call, sum)
}

/// Lowers `[batch, inputs, …]` with a filter `[inputs, outputs / groups, …]`, the gradient of a convolution.
fn transposed(lowering: &mut Lowering<'_>, call: &Call<'_>) -> Outcome {
    let operands = lowering.convolved(call)?;
    let Operands { x, w, groups, .. } = &operands;
    let inputs = x.dims[1];
    if w.dims[0] != inputs || inputs % groups != 0 {
        return Err(format!("its weights are {:?} in {groups} groups, for {inputs} channels", w.dims));
    }
    let spreads = spreads(call, &x.dims[2..], &w.dims[2..])?;
    let windows: Vec<Window> = spreads.iter().map(|spread| spread.window).collect();
    let (buffer, stored) = lowering.stored(call, 0)?;
    let (size, out) = (stored.dims[2..].to_vec(), windows.iter().map(|window| window.length).collect());
    let pads = windows.iter().map(|window| window.pads.0).collect();
    let moved = Moved { is_transposed: true, x: buffer, size, out, pads };
    let is_cut = spreads.iter().any(|spread| spread.length != spread.window.length);
    let name = if is_cut || call.operand(2).is_some() { "" } else { call.result(0) };
    let mut result = lowering.convolve(&operands, &windows, moved, name)?;
    for (axis, Spread { start, length, .. }) in spreads.into_iter().enumerate() {
        result = views::sliced(&mut lowering.work.expressions, &result, axis + 2, (start as i64, 1, length));
    }
    lowering.biased(call, result)
}

/// An axis that a transposed convolution writes.
struct Spread {
    /// The window of the convolution that is transposed: its axis is written, and its windows are read.
    window: Window,
    /// The part of the axis that is the result.
    start: usize,
    length: usize,
}

/// Returns what a transposed convolution writes along each axis.
fn spreads(call: &Call<'_>, lengths: &[usize], kernel: &[usize]) -> Result<Vec<Spread>, Reason> {
    let axes = lengths.len();
    let (strides, dilations) = (by_axis(call, "strides", axes, 1, 1)?, by_axis(call, "dilations", axes, 1, 1)?);
    let more = by_axis(call, "output_padding", axes, 0, 0)?;
    let (auto, pads) = (AutoPad::of(call)?, given_pads(call, axes)?);
    let wanted = call.ints("output_shape").map(|_| by_axis(call, "output_shape", axes, 1, 1)).transpose()?;
    if call.ints("kernel_shape").is_some() && by_axis(call, "kernel_shape", axes, 1, 1)? != kernel {
        return Err(format!("its kernel_shape is not that of its weights, {kernel:?}"));
    }
    let mut spreads = Vec::new();
    for axis in 0..axes {
        let (length, kernel, stride, dilation) = (lengths[axis], kernel[axis], strides[axis], dilations[axis]);
        if kernel == 0 || length == 0 {
            return Err(format!("its window has {kernel} entries over an axis of {length}"));
        }
        let mut window = Window { length: 0, kernel, stride, dilation, pads: (0, 0), out: length };
        // Entries that the windows cover, without pads.
        let reached = (length - 1) * stride + window.span();
        let asked = match (&wanted, auto) {
            (Some(wanted), _) => Some(wanted[axis]),
            (None, AutoPad::SameUpper | AutoPad::SameLower) => Some(length * stride),
            (None, AutoPad::Given | AutoPad::Valid) => None,
        };
        let (before, out) = match asked {
            Some(out) => {
                let total = (reached + more[axis]).saturating_sub(out);
                // An odd pad goes to the beginning, except with SAME_UPPER.
                (if auto == AutoPad::SameUpper { total / 2 } else { total - total / 2 }, out)
            }
            None => {
                let (before, after) = if auto == AutoPad::Valid { (0, 0) } else { pads[axis] };
                let out = (reached + more[axis]).checked_sub(before + after).filter(|&out| out > 0);
                (before, out.ok_or_else(|| format!("its pads leave nothing of an axis of {reached}"))?)
            }
        };
        // cuDNN removes the same number from both ends, and can add up to `stride - 1` entries at the end. If the
        // result does not fit that, more is computed and a part of it is taken.
        let at_least = reached.saturating_sub(2 * before);
        let is_direct = reached >= 2 * before && (at_least..at_least + stride).contains(&out);
        let (pad, start) = if is_direct { (before, 0) } else { (0, before) };
        window.pads = (pad, pad);
        window.length = if is_direct { out } else { reached.max(start + out) };
        if window.length >= reached - 2 * pad + stride {
            return Err(format!("its output_padding or output_shape gives {out} entries of at most {reached}"));
        }
        spreads.push(Spread { window, start, length: out });
    }
    Ok(spreads)
}

/// Operands of a convolution.
struct Operands {
    x: Tensor,
    w: Tensor,
    /// Buffer of the filter.
    filter: usize,
    groups: usize,
}

/// Geometry of a convolution as cuDNN needs it, by spatial axis.
struct Moved {
    is_transposed: bool,
    x: usize,
    size: Vec<usize>,
    out: Dims,
    pads: Vec<usize>,
}

impl Lowering<'_> {
    fn convolved(&mut self, call: &Call<'_>) -> Result<Operands, Reason> {
        let x = self.tensor(call, 0)?;
        self.check_images(&x)?;
        let (filter, w) = self.stored(call, 1)?;
        if w.by_rows || self.work.kind(&w) != Kind::F32 {
            return Err("its weights are not the same for all rows, or not F32".to_owned());
        }
        let axes = x.dims.len() - 2;
        if w.dims.len() != x.dims.len() || axes > 2 {
            return Err(format!("it has {axes} spatial axes and weights {:?}, expected 1 or 2", w.dims));
        }
        let groups = usize::try_from(call.int("group").unwrap_or(1)).ok().filter(|&groups| groups > 0);
        let groups = groups.ok_or("its group is not a number from 1 on")?;
        Ok(Operands { x, w, filter, groups })
    }

    /// Adds a convolution to the operations. A `name` is that of the node's output, if this is its result.
    fn convolve(
        &mut self,
        operands: &Operands,
        windows: &[Window],
        moved: Moved,
        name: &str,
    ) -> Result<Tensor, Reason> {
        let Operands { x, w, filter, groups } = operands;
        let outputs = if moved.is_transposed { w.dims[1] * groups } else { w.dims[0] };
        let dims: Dims = [x.dims[0], outputs].into_iter().chain(moved.out.iter().copied()).collect();
        let all = elements(&dims).ok_or("its result is too large")?;
        // A single spatial axis is the width of images of height 1.
        let pair = |numbers: &[usize], single: usize| match numbers {
            &[width] => [single, width],
            numbers => [numbers[0], numbers[1]],
        };
        let of_windows = |number: fn(&Window) -> usize| windows.iter().map(number).collect::<Vec<_>>();
        let y = self.buffer_for(name, Kind::F32, x.by_rows, all);
        self.work.operations.push(Operation::Convolution(Convolution {
            is_transposed: moved.is_transposed,
            images: Count { factor: x.dims[0], by_rows: x.by_rows },
            inputs: x.dims[1],
            outputs,
            groups: *groups,
            size: pair(&moved.size, 1),
            out: pair(&moved.out, 1),
            kernel: pair(&of_windows(|window| window.kernel), 1),
            pads: pair(&moved.pads, 0),
            strides: pair(&of_windows(|window| window.stride), 1),
            dilations: pair(&of_windows(|window| window.dilation), 1),
            x: moved.x,
            w: *filter,
            rectified: None,
            y,
        }));
        Ok(self.work.whole(y, &dims))
    }

    /// Adds the bias of a convolution to its channels.
    fn biased(&mut self, call: &Call<'_>, sum: Tensor) -> Outcome {
        if call.operand(2).is_none() {
            return Ok(vec![Value::Tensor(sum)]);
        }
        let bias = self.tensor(call, 2)?;
        if bias.by_rows || bias.dims.as_slice() != [sum.dims[1]] {
            return Err(format!("its bias has the axes {:?}, expected [{}]", bias.dims, sum.dims[1]));
        }
        let bias = self.by_channel(&bias, sum.dims.len());
        Ok(vec![Value::Tensor(self.apply(Function::Add, Kind::F32, &[sum, bias])?)])
    }

    /// Returns a vector as `[channels, 1, …]`, to be broadcast over tensors `[batch, channels, …]` of this rank.
    pub(crate) fn by_channel(&mut self, vector: &Tensor, rank: usize) -> Tensor {
        let mut wide = vector.clone();
        while wide.dims.len() + 1 < rank {
            let last = wide.dims.len();
            wide = views::with_axis(&mut self.work.expressions, &wide, last);
        }
        wide
    }

    /// Returns whether a tensor is not stored yet and is cheap to compute again for every entry of a window.
    fn is_light(&self, tensor: &Tensor, windows: &[Window]) -> bool {
        use Function::{Add, Max, Min, Mul, Relu, Sub};
        let expressions = &self.work.expressions;
        let mut is_simple = expressions.stored(tensor.node).is_none();
        expressions.visit(tensor.node, &mut HashSet::new(), &mut |node| {
            if let Node::Apply(function, _) = expressions.node(node) {
                is_simple &= matches!(function, Add | Sub | Mul | Max | Min | Relu);
            }
        });
        let entries = windows.iter().fold(1_usize, |count, window| count.saturating_mul(window.kernel));
        let weight = (expressions.weight(tensor.node) + OF_AN_ENTRY) as usize;
        is_simple && weight.saturating_mul(entries) <= WEIGHT_MAX as usize
    }

    /// Returns the sum over each channel's window, weighted by the channel's own filter.
    fn depthwise(&mut self, call: &Call<'_>, x: &Tensor, w: &Tensor, windows: &[Window]) -> Result<Tensor, Reason> {
        let count = windows.len();
        let (dims, along) = window_space(x, windows)?;
        // A cheap operand is computed again for each window, which saves a pass over memory.
        let again = if self.is_light(x, windows) { self.fetched_unstored(x, &dims, &along) } else { None };
        let entries = match again {
            Some(entries) => entries,
            None => {
                let (_, stored) = self.stored(call, 0)?;
                self.fetched(&stored, &dims, &along, 0)?
            }
        };
        // The filters as [channels, 1 per window axis, entries per window axis].
        let mut filters = views::without_axes(&mut self.work.expressions, w, |axis| axis == 1);
        for _ in 0..count {
            filters = views::with_axis(&mut self.work.expressions, &filters, 1);
        }
        let products = self.apply(Function::Mul, Kind::F32, &[entries, filters])?;
        let first = products.dims.len() - count;
        let mut sums = vec![products];
        for axis in (first..first + count).rev() {
            let mut next = Vec::new();
            for tensor in &sums {
                for entry in 0..tensor.dims[axis] {
                    let picked = views::sliced(&mut self.work.expressions, tensor, axis, (entry as i64, 1, 1));
                    next.push(views::without_axes(&mut self.work.expressions, &picked, |at| at == axis));
                }
            }
            sums = next;
        }
        let mut sums = sums.into_iter();
        let first = sums.next().ok_or("its window has no entries")?;
        sums.try_fold(first, |sum, product| self.apply(Function::Add, Kind::F32, &[sum, product]))
    }
}

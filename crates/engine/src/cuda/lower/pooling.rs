//! Pooling: the maximum or mean of each window.

use super::{
    Call, Lowering, Outcome, Reason, Rule, Value,
    window::{AutoPad, Window, windows},
};
use crate::cuda::ir::{Function, Kind, Reduction, Tensor};

pub(super) fn rule(op: &str) -> Option<Rule> {
    Some(match op {
        "MaxPool" => max_pool,
        "AveragePool" => average_pool,
        "GlobalMaxPool" | "GlobalAveragePool" => global_pool,
        _ => return None,
    })
}

fn max_pool(lowering: &mut Lowering<'_>, call: &Call<'_>) -> Outcome {
    if !call.result(1).is_empty() {
        return Err("it outputs the indices of the maxima too".to_owned());
    }
    let (tensor, windows) = lowering.pooled(call)?;
    let lowest = f32::NEG_INFINITY.to_bits().into();
    let entries = lowering.windowed(&tensor, &windows, lowest)?;
    let reduced = lowering.of_windows(&entries, windows.len(), Reduction::Max, call.result(0))?;
    Ok(vec![Value::Tensor(reduced)])
}

/// Divides the sum of a window by its number of entries. With `count_include_pad`, entries in the padding count too,
/// but never those beyond it, which a window may reach with `ceil_mode`.
fn average_pool(lowering: &mut Lowering<'_>, call: &Call<'_>) -> Outcome {
    let (tensor, windows) = lowering.pooled(call)?;
    let counts_pads = call.int("count_include_pad").unwrap_or(0) != 0 && AutoPad::of(call)? != AutoPad::Valid;
    let entries = lowering.windowed(&tensor, &windows, 0)?;
    let shares: Vec<Vec<f32>> = windows.iter().map(|window| shares_of(window, counts_pads)).collect();
    let is_the_same = shares.iter().all(|shares| shares.iter().all(|share| share.to_bits() == shares[0].to_bits()));
    if is_the_same {
        let share: f32 = shares.iter().map(|shares| shares[0]).product();
        let scaled = lowering.with_number(Function::Mul, &entries, share)?;
        let mean = lowering.of_windows(&scaled, windows.len(), Reduction::Sum, call.result(0))?;
        return Ok(vec![Value::Tensor(mean)]);
    }
    let mut mean = lowering.of_windows(&entries, windows.len(), Reduction::Sum, "")?;
    for (axis, shares) in shares.iter().enumerate() {
        let behind = windows.len() - 1 - axis;
        let dims: Vec<usize> = [shares.len()].into_iter().chain(std::iter::repeat_n(1, behind)).collect();
        let shares = lowering.constant(shares, &dims);
        mean = lowering.apply(Function::Mul, Kind::F32, &[mean, shares])?;
    }
    Ok(vec![Value::Tensor(mean)])
}

/// Returns the reciprocal of the number of entries in each window along an axis.
fn shares_of(window: &Window, counts_pads: bool) -> Vec<f32> {
    let (before, after) = window.pads;
    let (first, end) = if counts_pads { (0, before + window.length + after) } else { (before, before + window.length) };
    // Number of entries of the window at `window_at` that are before `place`.
    let before_place =
        |window_at: usize, place: usize| place.saturating_sub(window_at).div_ceil(window.dilation).min(window.kernel);
    let entries = |place: usize| {
        let window_at = place * window.stride;
        before_place(window_at, end) - before_place(window_at, first)
    };
    (0..window.out).map(|place| 1.0 / entries(place).max(1) as f32).collect()
}

fn global_pool(lowering: &mut Lowering<'_>, call: &Call<'_>) -> Outcome {
    let tensor = lowering.tensors(call)?.swap_remove(0);
    lowering.check_images(&tensor)?;
    let axes: Vec<usize> = (2..tensor.dims.len()).collect();
    let count: usize = tensor.dims[2..].iter().product();
    let reduced = if call.op() == "GlobalMaxPool" {
        lowering.reduced(&tensor, &axes, Reduction::Max, call.result(0))
    } else {
        let scaled = lowering.with_number(Function::Mul, &tensor, 1.0 / count as f32)?;
        lowering.reduced(&scaled, &axes, Reduction::Sum, call.result(0))
    };
    Ok(vec![Value::Tensor(reduced)])
}

impl Lowering<'_> {
    /// Rejects tensors other than images: `[batch, channels, …]` in fp32.
    pub(crate) fn check_images(&self, tensor: &Tensor) -> Result<(), Reason> {
        if self.work.kind(tensor) != Kind::F32 {
            return Err(format!("it has elements of {:?}", self.work.kind(tensor)));
        }
        match tensor.dims.len() {
            3.. => Ok(()),
            rank => Err(format!("its operand has {rank} axes, expected at least 3")),
        }
    }

    /// Returns the stored operand of a pooling node, and its windows.
    fn pooled(&mut self, call: &Call<'_>) -> Result<(Tensor, Vec<Window>), Reason> {
        let (_, tensor) = self.stored(call, 0)?;
        self.check_images(&tensor)?;
        let windows = windows(call, &tensor.dims[2..], None)?;
        Ok((tensor, windows))
    }

    /// Reduces the entries of windows, which are the last `axes` axes.
    fn of_windows(
        &mut self,
        entries: &Tensor,
        axes: usize,
        reduction: Reduction,
        name: &str,
    ) -> Result<Tensor, Reason> {
        let rank = entries.dims.len();
        let last: Vec<usize> = (rank - axes..rank).collect();
        let reduced = self.reduced(entries, &last, reduction, name);
        Ok(crate::cuda::views::without_axes(&mut self.work.expressions, &reduced, |axis| axis >= rank - axes))
    }
}

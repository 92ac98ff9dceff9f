//! Rules of operators that reshape tensors or create tensors from shapes.

use crate::infer::{
    call::{Call, Outcome, Outcomes, Track, axes_of, axis_of},
    fact::{Fact, RANK_MAX, VALUES_MAX},
    meet::broadcast,
    size::{Dim, Size, Symbols, product},
};

const REGROUPED: &str = "regroups rows in a way that cannot be followed";
const COUNTED: &str = "makes a tensor as long as there are rows";

pub(super) fn shape(call: &Call<'_>) -> Outcomes {
    let dims = call.dims(0)?;
    let rank = i64::try_from(dims.len()).ok()?;
    let clamp = |at: i64| (if at < 0 { at.saturating_add(rank) } else { at }).clamp(0, rank) as usize;
    let (start, end) = (clamp(call.int_or("start", 0)), clamp(call.int_or("end", rank)));
    Some(vec![Outcome::values(1, dims.get(start..end).unwrap_or_default().to_vec())])
}

pub(super) fn size(call: &Call<'_>) -> Outcomes {
    Some(vec![Outcome::values(0, vec![product(call.dims(0)?)])])
}

pub(super) fn reshape(call: &Call<'_>, symbols: &Symbols) -> Outcomes {
    let own = call.dims(0);
    let wanted = match (call.operand(1), call.ints("shape")) {
        (Some(operand), _) => target(operand)?,
        (None, ints) => ints?.iter().map(|&length| Some(Size::from(length))).collect(),
    };
    let keeps_zero = call.int_or("allowzero", 0) != 0;
    let mut dims = Vec::with_capacity(wanted.len());
    let mut open = None;
    for (axis, length) in wanted.into_iter().enumerate() {
        let number = length.as_ref().and_then(Size::known);
        dims.push(match number {
            Some(0) if !keeps_zero => own.and_then(|own| own.get(axis)).cloned().flatten(),
            Some(-1) if open.is_none() => {
                open = Some(axis);
                None
            }
            Some(..0) => return None,
            _ => length,
        });
    }
    if let (Some(open), Some(own)) = (open, own) {
        dims[open] = remaining(own, &dims, open);
    }
    let track = own.map_or(Err(REGROUPED), |own| regrouped(own, call.rows(0), &dims, symbols));
    let value = call.value(0).filter(|_| dims.len() <= 1).map(<[Dim]>::to_vec);
    Some(vec![Outcome { dims: Some(dims), value, track }])
}

/// Returns the lengths in a shape operand; unknown lengths if only their number is known.
fn target(operand: &Fact) -> Option<Vec<Dim>> {
    if let Some(value) = &operand.value {
        return Some(value.clone());
    }
    match operand.dims.as_deref()? {
        [Some(count)] => {
            let count = usize::try_from(count.known()?).ok().filter(|count| *count <= RANK_MAX)?;
            Some(vec![None; count])
        }
        _ => None,
    }
}

/// Returns the length at index `open` that preserves the number of elements. Lengths that occur on both sides cancel.
fn remaining(own: &[Dim], dims: &[Dim], open: usize) -> Dim {
    let mut rest: Vec<&Dim> = own.iter().collect();
    let mut divisor = Size::from(1);
    for (_, length) in dims.iter().enumerate().filter(|(axis, _)| *axis != open) {
        match rest.iter().position(|other| *other == length && length.is_some()) {
            Some(at) => drop(rest.swap_remove(at)),
            None => divisor = divisor.times(length.as_ref()?)?,
        }
    }
    product(rest)?.exact_quotient(&divisor)
}

/// Returns the axis of the rows after a reshape: the axis before which there are as many entries as before the rows'
/// axis, and whose length is a multiple of their number.
fn regrouped(own: &[Dim], rows: Option<usize>, dims: &[Dim], symbols: &Symbols) -> Track {
    let Some(axis) = rows else { return Ok(None) };
    let before = product(own.get(..axis).ok_or(REGROUPED)?).ok_or(REGROUPED)?;
    let mut passed = Size::from(1);
    for (place, length) in dims.iter().enumerate() {
        let length = length.as_ref().ok_or(REGROUPED)?;
        if passed == before && length.is_batch_multiple(symbols) {
            return Ok(Some(place));
        }
        passed = passed.times(length).ok_or(REGROUPED)?;
    }
    Err(REGROUPED)
}

pub(super) fn flatten(call: &Call<'_>, symbols: &Symbols) -> Outcomes {
    let own = call.dims(0)?;
    let axis = call.int_or("axis", 1);
    let at = if axis == own.len() as i64 { own.len() } else { axis_of(axis, own.len())? };
    let (before, after) = own.split_at_checked(at)?;
    let dims = vec![product(before), product(after)];
    let track = regrouped(own, call.rows(0), &dims, symbols);
    Some(vec![Outcome::new(dims, track)])
}

pub(super) fn unsqueeze(call: &Call<'_>) -> Outcomes {
    let own = call.dims(0)?;
    let axes = call.numbers_or_ints(1, "axes").ok()??;
    let rank = own.len().checked_add(axes.len()).filter(|rank| *rank <= RANK_MAX)?;
    let added = axes_of(&axes, rank)?;
    let mut rest = own.iter().cloned().enumerate();
    let mut rows = None;
    let mut dims = Vec::with_capacity(rank);
    for axis in 0..rank {
        if added.contains(&axis) {
            dims.push(Some(Size::from(1)));
            continue;
        }
        let (from, length) = rest.next()?;
        if call.rows(0) == Some(from) {
            rows = Some(axis);
        }
        dims.push(length);
    }
    let value = call.value(0).filter(|_| rank <= 1).map(<[Dim]>::to_vec);
    Some(vec![Outcome { dims: Some(dims), value, track: Ok(rows) }])
}

pub(super) fn squeeze(call: &Call<'_>) -> Outcomes {
    let own = call.dims(0)?;
    let removed = match call.numbers_or_ints(1, "axes").ok()? {
        Some(axes) => axes_of(&axes, own.len())?,
        // Without explicit axes, all lengths must be known to determine the ones of 1.
        None => {
            let lengths = own.iter().map(|length| length.as_ref()?.known()).collect::<Option<Vec<i64>>>()?;
            (0..own.len()).filter(|&axis| lengths[axis] == 1).collect()
        }
    };
    let dims = own.iter().enumerate().filter(|(axis, _)| !removed.contains(axis)).map(|(_, length)| length.clone());
    let track = match call.rows(0) {
        Some(axis) if removed.contains(&axis) => Err("removes the batch axis"),
        Some(axis) => Ok(Some(axis - removed.iter().filter(|&&gone| gone < axis).count())),
        None => Ok(None),
    };
    let dims: Vec<Dim> = dims.collect();
    let value = call.value(0).filter(|_| dims.len() <= 1).map(<[Dim]>::to_vec);
    Some(vec![Outcome { dims: Some(dims), value, track }])
}

pub(super) fn expand(call: &Call<'_>, symbols: &Symbols) -> Outcomes {
    let own = call.dims(0)?;
    let wanted = target(call.operand(1)?)?;
    let dims = broadcast(&[own, &wanted])?;
    let lifted = |axis: usize| axis + dims.len() - own.len();
    let track = match call.rows(0) {
        Some(axis) if dims.get(lifted(axis)) == own.get(axis) => Ok(Some(lifted(axis))),
        Some(_) => Err(REGROUPED),
        None => repeated(&dims, symbols, |axis| {
            let own = (axis + own.len()).checked_sub(dims.len()).and_then(|at| own.get(at));
            own.is_none_or(|length| length.as_ref().is_some_and(|size| size.is(1)))
        }),
    };
    Some(vec![Outcome::new(dims, track)])
}

/// Returns the rows' axis of a tensor whose entries are the same along every axis for which `is_uniform` returns true.
fn repeated(dims: &[Dim], symbols: &Symbols, is_uniform: impl Fn(usize) -> bool) -> Track {
    let counts = |dim: &Dim| dim.as_ref().is_some_and(|length| length.counts_rows(symbols));
    match dims.iter().position(counts) {
        Some(axis) if is_uniform(axis) => Ok(Some(axis)),
        Some(_) => Err(COUNTED),
        None => Ok(None),
    }
}

pub(super) fn tile(call: &Call<'_>, symbols: &Symbols) -> Outcomes {
    let (own, times) = (call.dims(0)?, call.value(1)?);
    if own.len() != times.len() {
        return None;
    }
    let dims: Vec<Dim> = own.iter().zip(times).map(|(own, times)| own.as_ref()?.times(times.as_ref()?)).collect();
    let track = match call.rows(0) {
        Some(axis) if times[axis].as_ref().is_some_and(|times| times.is(1)) => Ok(Some(axis)),
        Some(_) => Err("repeats the batch"),
        None => repeated(&dims, symbols, |axis| own[axis].as_ref().is_some_and(|length| length.is(1))),
    };
    Some(vec![Outcome::new(dims, track)])
}

pub(super) fn constant_of_shape(call: &Call<'_>, symbols: &Symbols) -> Outcomes {
    let dims = target(call.operand(0)?)?;
    let track = repeated(&dims, symbols, |_| true);
    let filled = match call.attribute("value").and_then(|attribute| attribute.t.as_ref()) {
        Some(tensor) => Fact::of_tensor(tensor).numbers().and_then(|numbers| numbers.first().copied()),
        None => None,
    };
    let count = match dims.as_slice() {
        [length] => length.as_ref().and_then(Size::known).and_then(|count| usize::try_from(count).ok()),
        _ => None,
    };
    let value = filled.zip(count.filter(|count| *count <= VALUES_MAX));
    let value = value.map(|(number, count)| vec![Some(Size::from(number)); count]);
    Some(vec![Outcome { dims: Some(dims), value, track }])
}

pub(super) fn range(call: &Call<'_>, symbols: &mut Symbols) -> Outcomes {
    let single = |index: usize| match call.value(index) {
        Some([Some(size)]) => Some(size.clone()),
        _ => None,
    };
    let (start, limit, step) = (single(0), single(1), single(2));
    let (Some(start), Some(limit), Some(step)) = (start, limit, step) else {
        return Some(vec![Outcome::new(vec![None], Ok(None))]);
    };
    let numbers = (start.known(), limit.known(), step.known());
    if let (Some(start), Some(limit), Some(step @ 1..)) = numbers {
        let count = limit.saturating_sub(start).max(0);
        let count = count / step + i64::from(count % step != 0);
        if count <= VALUES_MAX as i64 {
            let value = (0..count).map(|index| Some(Size::from(start + index * step))).collect();
            return Some(vec![Outcome::values(1, value)]);
        }
        return Some(vec![Outcome::new(vec![Some(Size::from(count))], Ok(None))]);
    }
    let length = if step.is(1) { symbols.difference(&limit, &start) } else { None };
    let counts = [&start, &limit, &step].into_iter().any(|size| size.counts_rows(symbols));
    Some(vec![Outcome::new(vec![length], if counts { Err(COUNTED) } else { Ok(None) })])
}

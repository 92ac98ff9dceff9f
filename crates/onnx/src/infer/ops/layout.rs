//! Rules of operators that move, join, split and select elements.

use crate::infer::{
    call::{Call, Outcome, Outcomes, Track, axis_of},
    size::{Dim, Size, Symbols},
};

pub(super) const CUT_ROWS: &str = "picks rows of the batch";
const SEVERAL: &str = "combines rows with each other";

pub(super) fn transpose(call: &Call<'_>) -> Outcomes {
    let own = call.dims(0)?;
    let order = match call.ints("perm") {
        Some(order) => order.iter().map(|&axis| axis_of(axis, own.len())).collect::<Option<Vec<usize>>>()?,
        None => (0..own.len()).rev().collect(),
    };
    if order.len() != own.len() {
        return None;
    }
    let rows = match call.rows(0) {
        Some(axis) => Some(order.iter().position(|&from| from == axis)?),
        None => None,
    };
    Some(vec![Outcome::new(order.iter().map(|&axis| own[axis].clone()).collect(), Ok(rows))])
}

pub(super) fn concat(call: &Call<'_>, symbols: &mut Symbols) -> Outcomes {
    let shapes = (0..call.operands.len()).map(|index| call.dims(index)).collect::<Option<Vec<_>>>()?;
    let (first, others) = shapes.split_first()?;
    let axis = axis_of(call.int("axis")?, first.len())?;
    if others.iter().any(|other| other.len() != first.len()) {
        return None;
    }
    let mut dims = first.to_vec();
    for other in others {
        for (at, length) in dims.iter_mut().enumerate() {
            *length = match (&*length, &other[at]) {
                (Some(own), Some(other)) if at == axis => symbols.sum(own, other),
                _ if at == axis => None,
                (own, other) => own.clone().filter(|size| size.known().is_some()).or(other.clone()),
            };
        }
    }
    let mut places = (0..call.operands.len()).map(|index| call.rows(index));
    let rows = places.next().flatten();
    let aligned = places.all(|place| place == rows);
    let same_length = rows.is_none_or(|rows| others.iter().all(|other| other.get(rows) == first.get(rows)));
    let track = match rows {
        _ if !aligned || !same_length => Err(SEVERAL),
        Some(rows) if rows == axis => Err("joins tensors along the batch"),
        rows => Ok(rows),
    };
    let value = (first.len() == 1).then(|| {
        let parts = (0..call.operands.len()).map(|index| call.value(index)).collect::<Option<Vec<_>>>()?;
        Some(parts.concat())
    });
    match value.flatten() {
        Some(value) => Some(vec![Outcome { track, ..Outcome::values(1, value) }]),
        None => Some(vec![Outcome::new(dims, track)]),
    }
}

pub(super) fn split(call: &Call<'_>) -> Outcomes {
    let own = call.dims(0)?;
    let axis = axis_of(call.int_or("axis", 0), own.len())?;
    let parts = call.node.output.len();
    let lengths: Vec<Dim> = match call.numbers_or_ints(1, "split") {
        Ok(Some(lengths)) => lengths.into_iter().map(|length| Some(Size::from(length))).collect(),
        Ok(None) => even_parts(own[axis].as_ref(), parts as i64),
        Err(()) => vec![None; parts],
    };
    let track = if call.rows(0) == Some(axis) { Err(CUT_ROWS) } else { Ok(call.rows(0)) };
    let with = |length: &Dim| {
        let mut dims = own.to_vec();
        dims[axis] = length.clone();
        Outcome::new(dims, track)
    };
    Some(lengths.iter().take(parts).map(with).collect())
}

/// Returns the lengths of equal parts; the last part has the remainder.
fn even_parts(whole: Option<&Size>, parts: i64) -> Vec<Dim> {
    let exact = whole.and_then(|whole| whole.exact_quotient(&Size::from(parts)));
    let mut lengths = vec![exact; parts as usize];
    if let (Some(whole), Some(last)) = (whole.and_then(Size::known), lengths.last_mut().filter(|last| last.is_none())) {
        let each = whole / parts + 1;
        *last = Some(Size::from(whole.saturating_sub(each.saturating_mul(parts - 1)).max(0)));
        lengths.iter_mut().rev().skip(1).for_each(|length| *length = Some(Size::from(each)));
    }
    lengths
}

/// Starts, ends, axes and steps of a slice.
struct Bounds {
    starts: Vec<Dim>,
    ends: Vec<Dim>,
    axes: Vec<usize>,
    steps: Vec<Option<i64>>,
}

pub(super) fn slice(call: &Call<'_>, symbols: &mut Symbols) -> Outcomes {
    let own = call.dims(0)?;
    let Bounds { starts, ends, axes, steps } = bounds(call, own.len())?;
    let mut dims = own.to_vec();
    let mut track = Ok(call.rows(0));
    let mut kept: Option<Vec<Dim>> = call.value(0).map(<[Dim]>::to_vec);
    for (index, &axis) in axes.iter().enumerate() {
        let whole = own[axis].as_ref();
        let (start, end, step) = (starts[index].as_ref(), ends[index].as_ref(), steps[index]);
        let end_reaches = |end: &Size| end.known().is_some_and(|end| end >= i64::from(i32::MAX)) || Some(end) == whole;
        let is_all = step == Some(1) && start.is_some_and(|start| start.is(0)) && end.is_some_and(end_reaches);
        if is_all {
            continue;
        }
        if call.rows(0) == Some(axis) {
            track = Err(CUT_ROWS);
        }
        dims[axis] = sliced(symbols, whole, start, end, step);
        let numbers = start.and_then(Size::known).zip(end.and_then(Size::known)).filter(|_| step == Some(1));
        kept = kept.zip(numbers).and_then(|(values, (start, end))| {
            let length = values.len() as i64;
            let clamp = |at: i64| (if at < 0 { at.saturating_add(length) } else { at }).clamp(0, length) as usize;
            values.get(clamp(start)..clamp(end)).map(<[Dim]>::to_vec)
        });
    }
    match kept {
        Some(value) => Some(vec![Outcome { track, ..Outcome::values(own.len(), value) }]),
        None => Some(vec![Outcome::new(dims, track)]),
    }
}

fn bounds(call: &Call<'_>, rank: usize) -> Option<Bounds> {
    let fixed = |numbers: &[i64]| numbers.iter().map(|&number| Some(Size::from(number))).collect::<Vec<Dim>>();
    let (starts, ends, axes) = if call.opset < 10 {
        (fixed(call.ints("starts")?), fixed(call.ints("ends")?), call.ints("axes").map(<[i64]>::to_vec))
    } else {
        let axes = call.numbers_or_ints(3, "axes").ok()?;
        // If the bounds are unknown, their number may still be known.
        let listed = |index: usize| {
            let count = |axes: &Vec<i64>| vec![None; axes.len()];
            call.value(index).map(<[Dim]>::to_vec).or_else(|| axes.as_ref().map(count))
        };
        (listed(1)?, listed(2)?, axes)
    };
    let axes = match axes {
        Some(axes) => axes.iter().map(|&axis| axis_of(axis, rank)).collect::<Option<Vec<usize>>>()?,
        None => (0..starts.len()).collect(),
    };
    let steps = match call.operand(4) {
        Some(operand) => {
            operand.numbers().map_or(vec![None; axes.len()], |steps| steps.into_iter().map(Some).collect())
        }
        None => vec![Some(1); axes.len()],
    };
    let count = axes.len();
    let fits = starts.len() == count && ends.len() == count && steps.len() == count;
    (fits && axes.iter().all(|&axis| axis < rank)).then_some(Bounds { starts, ends, axes, steps })
}

/// Returns the length of a slice.
fn sliced(
    symbols: &mut Symbols,
    whole: Option<&Size>,
    start: Option<&Size>,
    end: Option<&Size>,
    step: Option<i64>,
) -> Dim {
    let (start, end, step) = (start?, end?, step?);
    if let (Some(whole), Some(start), Some(end)) = (whole.and_then(Size::known), start.known(), end.known()) {
        let from_end = |at: i64| if at < 0 { at.saturating_add(whole) } else { at };
        let span = match step {
            1.. => from_end(end).clamp(0, whole) - from_end(start).clamp(0, whole),
            i64::MIN..=-1 => from_end(start).clamp(-1, whole - 1) - from_end(end).clamp(-1, whole - 1),
            0 => return None,
        };
        let stride = step.checked_abs()?;
        return Some(Size::from(span.max(0) / stride + i64::from(span.max(0) % stride != 0)));
    }
    // All entries, turned around.
    if step == -1 && start.is(-1) && end.known().is_some_and(|end| end <= i64::from(i32::MIN)) {
        return whole.cloned();
    }
    if step != 1 {
        // Every few entries, up to the end.
        let (Some(start @ 0..), Some(end)) = (start.known(), end.known()) else { return None };
        if step < 1 || end < i64::from(i32::MAX) {
            return None;
        }
        let reached = symbols.sum(whole?, &Size::from(step.checked_sub(1)?.checked_sub(start)?))?;
        return symbols.quotient(&reached, &Size::from(step));
    }
    match (start.known(), end.known()) {
        // A prefix with a symbolic number of entries; it is shorter only if the axis is.
        (Some(0), None) if end.symbol().is_some() => match whole {
            Some(whole) if whole == end => Some(end.clone()),
            // Assumes that the table is long enough: if it were not, the engine would fail the run at the next
            // operator.
            Some(whole) if whole.known().is_some() => Some(end.clone()),
            _ => None,
        },
        // The first entry. Lengths are assumed to be at least 1.
        (Some(0), Some(1)) => Some(Size::from(1)),
        // The last entry.
        (Some(-1), Some(end)) if end >= i64::from(i32::MAX) => Some(Size::from(1)),
        // All but the last entries, or all but the first.
        (Some(0), Some(end @ i64::MIN..=-1)) => symbols.sum(whole?, &Size::from(end)),
        (Some(start @ 0..), Some(end)) if end >= i64::from(i32::MAX) => symbols.difference(whole?, &Size::from(start)),
        _ => None,
    }
}

pub(super) fn gather(call: &Call<'_>) -> Outcomes {
    let (data, indices) = (call.dims(0)?, call.dims(1)?);
    let axis = axis_of(call.int_or("axis", 0), data.len())?;
    let dims = [&data[..axis], indices, &data[axis + 1..]].concat();
    let track = match (call.rows(0), call.rows(1)) {
        (Some(_), Some(_)) => Err(SEVERAL),
        (Some(rows), None) if rows == axis => Err(CUT_ROWS),
        (Some(rows), None) if rows > axis => Ok(Some(rows + indices.len() - 1)),
        (Some(rows), None) => Ok(Some(rows)),
        (None, rows) => Ok(rows.map(|rows| rows + axis)),
    };
    let picked = call.value(0).filter(|_| data.len() == 1).zip(call.numbers(1)).and_then(|(values, indices)| {
        let at = |&index: &i64| axis_of(index, values.len()).map(|at| values[at].clone());
        indices.iter().map(at).collect::<Option<Vec<Dim>>>()
    });
    match picked {
        Some(value) => Some(vec![Outcome { track, ..Outcome::values(indices.len(), value) }]),
        None => Some(vec![Outcome::new(dims, track)]),
    }
}

/// `GatherElements` indexes within an axis, so an index refers to its own row if data and indices carry the same rows.
pub(super) fn gather_elements(call: &Call<'_>) -> Outcomes {
    let (data, indices) = (call.dims(0)?, call.dims(1)?);
    let axis = axis_of(call.int_or("axis", 0), data.len())?;
    Some(vec![Outcome::new(indices.to_vec(), within_rows(call, &[0, 1], axis))])
}

/// `ScatterElements` replaces entries within an axis.
pub(super) fn scatter_elements(call: &Call<'_>) -> Outcomes {
    let data = call.dims(0)?;
    let axis = axis_of(call.int_or("axis", 0), data.len())?;
    Some(vec![Outcome::new(data.to_vec(), within_rows(call, &[0, 1, 2], axis))])
}

fn within_rows(call: &Call<'_>, operands: &[usize], axis: usize) -> Track {
    let place = |index: &usize| Some((call.rows(*index)?, call.dims(*index)?.get(call.rows(*index)?)?));
    let places: Vec<_> = operands.iter().filter_map(place).collect();
    match places.first() {
        None => Ok(None),
        Some((rows, _)) if *rows == axis => Err(CUT_ROWS),
        Some(first) if places.len() == operands.len() && places.iter().all(|place| place == first) => Ok(Some(first.0)),
        Some(_) => Err(SEVERAL),
    }
}

pub(super) fn pad(call: &Call<'_>, symbols: &mut Symbols) -> Outcomes {
    let own = call.dims(0)?;
    let amounts = match call.operand(1) {
        Some(_) => call.value(1)?.to_vec(),
        None => {
            let ints = call.ints("pads").or_else(|| call.ints("paddings"))?;
            ints.iter().map(|&amount| Some(Size::from(amount))).collect()
        }
    };
    let axes = match call.operand(3) {
        Some(operand) => operand.numbers()?.iter().map(|&axis| axis_of(axis, own.len())).collect::<Option<Vec<_>>>()?,
        None => (0..own.len()).collect(),
    };
    if amounts.len() != 2 * axes.len() {
        return None;
    }
    let mut dims = own.to_vec();
    let mut track = Ok(call.rows(0));
    let (begins, ends) = amounts.split_at(axes.len());
    for ((&axis, begin), end) in axes.iter().zip(begins).zip(ends) {
        let none = |amount: &Dim| amount.as_ref().is_some_and(|amount| amount.is(0));
        if none(begin) && none(end) {
            continue;
        }
        if call.rows(0) == Some(axis) {
            track = Err("adds rows to the batch");
        }
        let added = begin.as_ref().zip(end.as_ref()).and_then(|(begin, end)| symbols.sum(begin, end));
        dims[axis] = dims[axis].as_ref().zip(added).and_then(|(length, added)| symbols.sum(length, &added));
    }
    Some(vec![Outcome::new(dims, track)])
}

pub(super) fn one_hot(call: &Call<'_>) -> Outcomes {
    let own = call.dims(0)?;
    let axis = axis_of(call.int_or("axis", -1), own.len() + 1)?;
    let depth = match call.value(1) {
        Some([depth]) => depth.clone(),
        _ => None,
    };
    let mut dims = own.to_vec();
    dims.insert(axis, depth);
    let rows = call.rows(0).map(|rows| if rows >= axis { rows + 1 } else { rows });
    let constant = call.rows(1).is_none() && call.rows(2).is_none();
    Some(vec![Outcome::new(dims, if constant { Ok(rows) } else { Err(SEVERAL) })])
}

/// Keeps the shape; works on the last two axes.
pub(super) fn triangle(call: &Call<'_>) -> Outcomes {
    let own = call.dims(0)?;
    let track = match call.rows(0) {
        Some(rows) if rows + 2 >= own.len() => Err(CUT_ROWS),
        rows => Ok(rows),
    };
    Some(vec![Outcome::new(own.to_vec(), track)])
}

/// Moves blocks of pixels to channels, or back.
pub(super) fn depth_and_space(call: &Call<'_>, symbols: &mut Symbols) -> Outcomes {
    let [batch, channels, height, width] = call.dims(0)? else { return None };
    let side = Size::from(call.int("blocksize").filter(|side| (1..1 << 16).contains(side))?);
    let square = side.times(&side)?;
    let to_depth = call.node.op_type() == "SpaceToDepth";
    let mut scaled = |dim: &Dim, by: &Size, up: bool| {
        dim.as_ref().and_then(|dim| if up { dim.times(by) } else { symbols.quotient(dim, by) })
    };
    let dims = vec![
        batch.clone(),
        scaled(channels, &square, to_depth),
        scaled(height, &side, !to_depth),
        scaled(width, &side, !to_depth),
    ];
    let track = if call.rows(0).is_none_or(|rows| rows == 0) { Ok(call.rows(0)) } else { Err(CUT_ROWS) };
    Some(vec![Outcome::new(dims, track)])
}

/// The length of each axis, or its factor, is given.
pub(super) fn resize(call: &Call<'_>) -> Outcomes {
    let own = call.dims(0)?;
    let upsample = call.node.op_type() == "Upsample";
    let (scales, sizes) = if upsample || call.opset < 11 { (1, None) } else { (2, Some(3)) };
    let axes = match call.ints("axes") {
        Some(axes) => axes.iter().map(|&axis| axis_of(axis, own.len())).collect::<Option<Vec<usize>>>()?,
        None => (0..own.len()).collect(),
    };
    let stretches = call.text("keep_aspect_ratio_policy").is_none_or(|policy| policy == "stretch");
    if !stretches || call.text("coordinate_transformation_mode") == Some("tf_crop_and_resize") {
        return None;
    }
    let sizes = sizes.and_then(|index| call.operand(index));
    let factors = || match call.operand(scales) {
        Some(operand) => operand.reals.clone(),
        None => call.attribute("scales").map(|attribute| attribute.floats.clone()),
    };
    let lengths: Vec<Dim> = match sizes {
        Some(sizes) => sizes.value.clone()?,
        None => {
            let factors = factors()?;
            let scaled = |(axis, factor): (&usize, &f32)| scaled_length(own[*axis].as_ref()?, *factor);
            (factors.len() == axes.len()).then(|| axes.iter().zip(&factors).map(scaled).collect())?
        }
    };
    if lengths.len() != axes.len() {
        return None;
    }
    let mut dims = own.to_vec();
    axes.iter().zip(lengths).for_each(|(&axis, length)| dims[axis] = length);
    let track = match call.rows(0) {
        Some(rows) if own.get(rows) != dims.get(rows) => Err("changes the number of rows"),
        rows => Ok(rows),
    };
    Some(vec![Outcome::new(dims, track)])
}

fn scaled_length(length: &Size, factor: f32) -> Dim {
    match length.known() {
        Some(length) => Some(Size::from((length as f64 * f64::from(factor)).floor() as i64)),
        None if factor >= 1.0 && factor.fract() == 0.0 => length.times(&Size::from(factor as i64)),
        None => None,
    }
}

//! Rules of operators that reduce, normalize or sort along axes.

use crate::infer::{
    call::{Call, Outcome, Outcomes, Track, axes_of, axis_of},
    meet::Rows,
    size::{Dim, Size},
};

const REDUCED: &str = "reduces over the batch";
const NORMALISED: &str = "normalises over the batch";
const ORDERED: &str = "orders along the batch";

pub(super) fn reduce(call: &Call<'_>) -> Outcomes {
    let own = call.dims(0)?;
    let axes = match call.numbers_or_ints(1, "axes").ok()?.filter(|axes| !axes.is_empty()) {
        Some(axes) => axes_of(&axes, own.len())?,
        None if call.int_or("noop_with_empty_axes", 0) != 0 => Vec::new(),
        None => (0..own.len()).collect(),
    };
    Some(vec![reduced(own, call.rows(0), &axes, call.int_or("keepdims", 1) != 0)])
}

pub(super) fn greatest_index(call: &Call<'_>) -> Outcomes {
    let own = call.dims(0)?;
    let axis = axis_of(call.int_or("axis", 0), own.len())?;
    Some(vec![reduced(own, call.rows(0), &[axis], call.int_or("keepdims", 1) != 0)])
}

fn reduced(own: &[Dim], rows: Option<usize>, axes: &[usize], keep: bool) -> Outcome {
    let track = match rows {
        Some(rows) if axes.contains(&rows) => Err(REDUCED),
        Some(rows) if keep => Ok(Some(rows)),
        Some(rows) => Ok(Some(rows - axes.iter().filter(|&&axis| axis < rows).count())),
        None => Ok(None),
    };
    let shorten = |(axis, length): (usize, &Dim)| {
        if axes.contains(&axis) { keep.then(|| Some(Size::from(1))) } else { Some(length.clone()) }
    };
    Outcome::new(own.iter().enumerate().filter_map(shorten).collect(), track)
}

/// Keeps the shape of the first operand; the operator works along `axis`.
fn along(call: &Call<'_>, axis: usize, cause: &'static str) -> Outcomes {
    let track = if call.rows(0) == Some(axis) { Err(cause) } else { Ok(call.rows(0)) };
    Some(vec![Outcome::new(call.dims(0)?.to_vec(), track)])
}

/// Keeps the shape of the first operand; the operator works along all axes from `axis` on.
fn along_all(call: &Call<'_>, axis: usize) -> Outcomes {
    let track = if call.rows(0).is_some_and(|rows| rows >= axis) { Err(NORMALISED) } else { Ok(call.rows(0)) };
    Some(vec![Outcome::new(call.dims(0)?.to_vec(), track)])
}

pub(super) fn softmax(call: &Call<'_>) -> Outcomes {
    let rank = call.rank(0)?;
    if call.opset < 13 {
        return along_all(call, axis_of(call.int_or("axis", 1), rank)?);
    }
    along(call, axis_of(call.int_or("axis", -1), rank)?, NORMALISED)
}

pub(super) fn running_sum(call: &Call<'_>) -> Outcomes {
    along(call, axis_of(call.number(1)?, call.rank(0)?)?, "sums along the batch")
}

pub(super) fn unit_length(call: &Call<'_>) -> Outcomes {
    along(call, axis_of(call.int_or("axis", -1), call.rank(0)?)?, NORMALISED)
}

/// Normalization over the axes from `axis` on. Further outputs are statistics per row, with length 1 on those axes.
pub(super) fn layer_norm(call: &Call<'_>) -> Outcomes {
    let own = call.dims(0)?;
    let axis = axis_of(call.int_or("axis", -1), own.len())?;
    if (1..call.operands.len()).any(|index| call.rows(index).is_some()) {
        return None;
    }
    let mut outcomes = along_all(call, axis)?;
    let track = outcomes.first()?.track;
    let statistics: Vec<Dim> =
        own.iter().enumerate().map(|(at, dim)| if at < axis { dim.clone() } else { Some(Size::from(1)) }).collect();
    outcomes.extend((1..call.node.output.len().min(3)).map(|_| Outcome::new(statistics.clone(), track)));
    Some(outcomes)
}

/// Normalization of each row's channels, with statistics of the row or, for batch normalization, of the training data.
pub(super) fn channel_norm(call: &Call<'_>) -> Outcomes {
    let own = call.dims(0)?;
    let settings = 1..call.operands.len();
    let training = call.int_or("training_mode", 0) != 0;
    let batch_norm = call.node.op_type() == "BatchNormalization";
    let old_training = batch_norm && call.opset < 14 && call.node.output.len() > 1;
    let apart = call.rows(0).is_none_or(|rows| rows == 0) && settings.into_iter().all(|at| call.rows(at).is_none());
    let track = if apart && !training && !old_training { Ok(call.rows(0)) } else { Err(NORMALISED) };
    Some(vec![Outcome::new(own.to_vec(), track)])
}

/// Quantization with scales along an axis, or a single scale.
pub(super) fn quantize(call: &Call<'_>) -> Outcomes {
    let own = call.dims(0)?;
    let single = call.dims(1).is_some_and(|scale| scale.iter().all(|dim| dim.as_ref().is_some_and(|dim| dim.is(1))));
    if (1..call.operands.len()).any(|index| call.rows(index).is_some()) {
        return None;
    }
    let axis = if single { None } else { Some(axis_of(call.int_or("axis", 1), own.len())?) };
    let track: Track = match call.rows(0) {
        Some(rows) if axis == Some(rows) || call.int_or("block_size", 0) != 0 => Err("scales each row by itself"),
        rows => Ok(rows),
    };
    Some(vec![Outcome::new(own.to_vec(), track)])
}

/// `TopK`: the greatest entries along an axis, and their indices.
pub(super) fn greatest(call: &Call<'_>) -> Outcomes {
    let mut dims = call.dims(0)?.to_vec();
    let axis = axis_of(call.int_or("axis", -1), dims.len())?;
    dims[axis] = match (call.value(1), call.int("k")) {
        (Some([count]), _) => count.clone(),
        (None, Some(count)) if call.operand(1).is_none() => Some(Size::from(count)),
        _ => None,
    };
    let track = if call.rows(0) == Some(axis) { Err(ORDERED) } else { Ok(call.rows(0)) };
    Some(vec![Outcome::new(dims.clone(), track), Outcome::new(dims, track)])
}

/// Recurrent layers (`LSTM`, `GRU`, `RNN`): outputs are the states of all steps, then the last states.
pub(super) fn recurrent(call: &Call<'_>) -> Outcomes {
    const CROSSED: &str = "runs along the batch";
    let [first, second, _] = call.dims(0)? else { return None };
    let rows_first = call.int_or("layout", 0) != 0;
    let (batch, steps) = if rows_first { (first, second) } else { (second, first) };
    let directions = if call.text("direction") == Some("bidirectional") { 2 } else { 1 };
    let hidden = match call.int("hidden_size") {
        Some(hidden) => Some(Size::from(hidden)),
        None => call.dims(2)?.last()?.clone(),
    };
    let directions = Some(Size::from(directions));
    let (every, last) = if rows_first {
        (
            vec![batch.clone(), steps.clone(), directions.clone(), hidden.clone()],
            vec![batch.clone(), directions, hidden],
        )
    } else {
        (
            vec![steps.clone(), directions.clone(), batch.clone(), hidden.clone()],
            vec![directions, batch.clone(), hidden],
        )
    };
    let (own, in_every, in_last) = if rows_first { (0, 0, 0) } else { (1, 2, 1) };
    // Sequence lengths carry the rows on their only axis, initial states on the same axis as the last states.
    let states_fit = [5, 6].into_iter().all(|index| states_fit(call, index, in_last, batch));
    let lengths_fit = call.operand(4).is_none() || call.rows(4) == Some(0);
    let weights_fit = [1, 2, 3, 7].into_iter().all(|index| call.rows(index).is_none());
    if call.follows_steps && runs_along_rows(call) {
        let mut outcomes = vec![Outcome::new(every, Ok(Some(usize::from(rows_first))))];
        outcomes
            .extend((1..call.node.output.len().min(3)).map(|_| Outcome::new(last.clone(), Err("is the last step"))));
        return Some(outcomes);
    }
    let follows = |place: usize| match call.rows(0) {
        None if (1..8).all(|index| call.rows(index).is_none()) => Ok(None),
        Some(rows) if rows == own && states_fit && lengths_fit && weights_fit => Ok(Some(place)),
        _ => Err(CROSSED),
    };
    let mut outcomes = vec![Outcome::new(every, follows(in_every))];
    outcomes.extend((1..call.node.output.len().min(3)).map(|_| Outcome::new(last.clone(), follows(in_last))));
    Some(outcomes)
}

/// Returns whether a recurrent layer has its steps along the axis that is followed.
pub(super) fn runs_along_rows(call: &Call<'_>) -> bool {
    let steps = usize::from(call.int_or("layout", 0) != 0);
    let length = call.dims(0).and_then(|dims| dims.get(steps)).and_then(Option::as_ref);
    length.is_some_and(Size::is_batch)
}

fn states_fit(call: &Call<'_>, index: usize, place: usize, batch: &Dim) -> bool {
    match (call.operand(index), call.dims(index)) {
        (None, _) => true,
        (Some(operand), Some(dims)) => operand.rows() == Some(place) && dims.get(place) == Some(batch),
        (Some(_), None) => false,
    }
}

/// Keeps the shape of the first operand, with the others broadcast to it.
pub(super) fn onto_first(call: &Call<'_>) -> Outcomes {
    let own = call.dims(0)?;
    let operands = call.operands.iter().flatten();
    let rows = operands.into_iter().try_fold(Rows::default(), |rows, fact| {
        Some(rows.with(fact.dims.as_deref().filter(|dims| dims.len() <= own.len())?, fact.rows()))
    })?;
    Some(vec![Outcome::new(own.to_vec(), rows.track(own.len()))])
}

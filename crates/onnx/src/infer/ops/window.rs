//! Rules of operators that move a window over the spatial axes: convolutions and pools. Axis 0 is the batch, axis 1 the
//! channels.

use crate::infer::{
    call::{Call, Outcome, Outcomes, Track},
    size::{Dim, Size, Symbols},
};

/// The window along one axis.
#[derive(Clone, Copy)]
struct Window {
    kernel: i64,
    stride: i64,
    dilation: i64,
    pads: (i64, i64),
    output_padding: i64,
}

impl Window {
    /// Returns the number of entries that the window spans.
    fn span(&self) -> Option<i64> {
        self.kernel.checked_sub(1)?.checked_mul(self.dilation)?.checked_add(1)
    }
}

/// How the borders are padded.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Padding {
    Explicit,
    /// So that the number of positions is the length divided by the stride, rounded up.
    Same,
    /// Not at all.
    Valid,
}

fn padding(call: &Call<'_>) -> Padding {
    match call.text("auto_pad") {
        Some("SAME_UPPER" | "SAME_LOWER") => Padding::Same,
        Some("VALID") => Padding::Valid,
        _ => Padding::Explicit,
    }
}

/// Returns the windows along the spatial axes; `kernel` is the shape if the attribute is missing.
fn windows(call: &Call<'_>, kernel: Option<&[Dim]>, axes: usize) -> Option<Vec<Window>> {
    let kernel = match (call.ints("kernel_shape"), kernel) {
        (Some(kernel), _) => kernel.to_vec(),
        (None, Some(dims)) => dims.iter().map(|dim| dim.as_ref()?.known()).collect::<Option<Vec<i64>>>()?,
        (None, None) => return None,
    };
    let each = |name: &str, default: i64| match call.ints(name) {
        Some(values) => (values.len() == axes).then(|| values.to_vec()),
        None => Some(vec![default; axes]),
    };
    let (strides, dilations, output_padding) = (each("strides", 1)?, each("dilations", 1)?, each("output_padding", 0)?);
    let pads = call.ints("pads").map_or(vec![0; 2 * axes], <[i64]>::to_vec);
    if kernel.len() != axes || pads.len() != 2 * axes {
        return None;
    }
    let window = |axis: usize| Window {
        kernel: kernel[axis],
        stride: strides[axis],
        dilation: dilations[axis],
        pads: (pads[axis], pads[axes + axis]),
        output_padding: output_padding[axis],
    };
    let windows: Vec<Window> = (0..axes).map(window).collect();
    windows.iter().all(|window| window.kernel > 0 && window.stride > 0 && window.dilation > 0).then_some(windows)
}

/// Returns the number of positions of a window along an axis of this length.
fn positions(symbols: &mut Symbols, length: &Dim, window: &Window, padding: Padding, ceil: bool) -> Dim {
    let length = length.as_ref()?;
    let stride = Size::from(window.stride);
    if padding == Padding::Same {
        let reached = symbols.sum(length, &Size::from(window.stride - 1))?;
        return symbols.quotient(&reached, &stride);
    }
    let (begin, end) = if padding == Padding::Valid { (0, 0) } else { window.pads };
    let slack = begin.checked_add(end)?.checked_sub(window.span()?)?;
    let Some(known) = length.known() else {
        if ceil && window.stride != 1 {
            return None;
        }
        let room = symbols.sum(length, &Size::from(slack.checked_add(window.stride)?))?;
        return symbols.quotient(&room, &stride);
    };
    let room = known.checked_add(slack).filter(|room| *room >= 0)?;
    let mut count = room / window.stride + 1;
    // The last window must start within the axis or its leading padding.
    if ceil && room % window.stride != 0 && count.checked_mul(window.stride)? < known.checked_add(begin)? {
        count += 1;
    }
    Some(Size::from(count))
}

fn by_rows(call: &Call<'_>, data: usize, settings: &[usize]) -> Track {
    match call.rows(data) {
        Some(0) | None if settings.iter().any(|&index| call.rows(index).is_some()) => {
            Err("takes its weights from the rows")
        }
        Some(0) => Ok(Some(0)),
        None => Ok(None),
        Some(_) => Err("moves a window over the batch"),
    }
}

/// Infers a convolution. `data` and `weight` are the operand indices.
pub(super) fn convolution(call: &Call<'_>, symbols: &mut Symbols, data: usize, weight: usize) -> Outcomes {
    let (own, weights) = (call.dims(data)?, call.dims(weight)?);
    let ([batch, _, spatial @ ..], [channels, _, kernel @ ..]) = (own, weights) else { return None };
    let track = by_rows(call, data, &[weight]);
    let padding = padding(call);
    let mut dims = vec![batch.clone(), channels.clone()];
    match windows(call, Some(kernel), spatial.len()) {
        Some(windows) => {
            let moved = spatial.iter().zip(&windows);
            dims.extend(moved.map(|(length, window)| positions(symbols, length, window, padding, false)));
        }
        None => dims.extend(vec![None; spatial.len()]),
    }
    Some(vec![Outcome::new(dims, track)])
}

pub(super) fn transposed_convolution(call: &Call<'_>, symbols: &mut Symbols) -> Outcomes {
    let (own, weights) = (call.dims(0)?, call.dims(1)?);
    let ([batch, _, spatial @ ..], [_, channels, kernel @ ..]) = (own, weights) else { return None };
    let track = by_rows(call, 0, &[1]);
    let groups = Size::from(call.int_or("group", 1));
    let mut dims = vec![batch.clone(), channels.as_ref().and_then(|channels| channels.times(&groups))];
    if let Some(lengths) = call.ints("output_shape").filter(|lengths| lengths.len() == spatial.len()) {
        dims.extend(lengths.iter().map(|&length| Some(Size::from(length))));
        return Some(vec![Outcome::new(dims, track)]);
    }
    let padding = padding(call);
    match windows(call, Some(kernel), spatial.len()) {
        Some(windows) => {
            let spread = spatial.iter().zip(&windows);
            dims.extend(spread.map(|(length, window)| spread_length(symbols, length.as_ref()?, window, padding)));
        }
        None => dims.extend(vec![None; spatial.len()]),
    }
    Some(vec![Outcome::new(dims, track)])
}

fn spread_length(symbols: &mut Symbols, length: &Size, window: &Window, padding: Padding) -> Dim {
    let spread = length.times(&Size::from(window.stride))?;
    let (begin, end) = match padding {
        Padding::Same => return Some(spread),
        Padding::Valid => (0, 0),
        Padding::Explicit => window.pads,
    };
    let added = window.output_padding.checked_add(window.span()?)?.checked_sub(window.stride)?;
    symbols.sum(&spread, &Size::from(added.checked_sub(begin)?.checked_sub(end)?))
}

/// Infers a pool. The second output of `MaxPool` has indices into the whole batch, so it is not by rows.
pub(super) fn pool(call: &Call<'_>, symbols: &mut Symbols) -> Outcomes {
    let [batch, channels, spatial @ ..] = call.dims(0)? else { return None };
    let windows = windows(call, None, spatial.len())?;
    let (padding, ceil) = (padding(call), call.int_or("ceil_mode", 0) != 0);
    let mut dims = vec![batch.clone(), channels.clone()];
    let moved = spatial.iter().zip(&windows);
    dims.extend(moved.map(|(length, window)| positions(symbols, length, window, padding, ceil)));
    let track = by_rows(call, 0, &[]);
    let places = track.and_then(|rows| if rows.is_some() { Err("counts places through the batch") } else { Ok(None) });
    Some(vec![Outcome::new(dims.clone(), track), Outcome::new(dims, places)])
}

pub(super) fn global_pool(call: &Call<'_>) -> Outcomes {
    let [batch, channels, spatial @ ..] = call.dims(0)? else { return None };
    let mut dims = vec![batch.clone(), channels.clone()];
    dims.extend(spatial.iter().map(|_| Some(Size::from(1))));
    Some(vec![Outcome::new(dims, by_rows(call, 0, &[]))])
}

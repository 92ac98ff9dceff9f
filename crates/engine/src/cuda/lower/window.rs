//! Windows over the spatial axes of `[batch, channels, …]`, as in ONNX's Conv, MaxPool and AveragePool.

use super::{Call, Reason};

/// Limit on the places along an axis, since kernels count them in 32 bits.
pub(super) const PLACES_MAX: usize = 1 << 31;

/// A window along one axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Window {
    /// Entries of the axis.
    pub length: usize,
    /// Entries of the window.
    pub kernel: usize,
    /// Distance between windows.
    pub stride: usize,
    /// Distance between the entries of a window.
    pub dilation: usize,
    /// Padding before and after the axis.
    pub pads: (usize, usize),
    /// Number of windows.
    pub out: usize,
}

impl Window {
    /// Returns the distance from the first to the last entry of a window, both included.
    pub(crate) fn span(&self) -> usize {
        (self.kernel - 1) * self.dilation + 1
    }
}

/// How pads are given (ONNX, attribute `auto_pad`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AutoPad {
    /// By the attribute `pads`.
    Given,
    /// So that there are ⌈length / stride⌉ windows, with an odd pad at the end.
    SameUpper,
    /// As `SameUpper`, with an odd pad at the beginning.
    SameLower,
    /// No pads.
    Valid,
}

impl AutoPad {
    /// Reads the attribute of a node.
    pub(super) fn of(call: &Call<'_>) -> Result<Self, Reason> {
        match call.text("auto_pad") {
            None | Some(b"" | b"NOTSET") => Ok(Self::Given),
            Some(b"SAME_UPPER") => Ok(Self::SameUpper),
            Some(b"SAME_LOWER") => Ok(Self::SameLower),
            Some(b"VALID") => Ok(Self::Valid),
            Some(other) => Err(format!("its auto_pad is '{}'", String::from_utf8_lossy(other))),
        }
    }

    /// Splits the pads of an axis.
    pub(super) fn divided(self, total: usize) -> (usize, usize) {
        let half = total / 2;
        if self == Self::SameLower { (total - half, half) } else { (half, total - half) }
    }
}

/// Reads an attribute with one number per axis, each at least `least`.
pub(super) fn by_axis(
    call: &Call<'_>,
    name: &str,
    axes: usize,
    least: i64,
    default: usize,
) -> Result<Vec<usize>, Reason> {
    let Some(given) = call.ints(name) else { return Ok(vec![default; axes]) };
    // Numbers that kernels cannot count would fit no tensor.
    let number = |&number: &i64| usize::try_from(number).ok().filter(|_| (least..PLACES_MAX as i64).contains(&number));
    let numbers: Option<Vec<usize>> = given.iter().map(number).collect();
    let fits = numbers.filter(|numbers| numbers.len() == axes);
    fits.ok_or_else(|| format!("its {name} are {given:?}, expected {axes} numbers from {least} on"))
}

/// Returns the attribute `pads` by axis.
pub(super) fn given_pads(call: &Call<'_>, axes: usize) -> Result<Vec<(usize, usize)>, Reason> {
    let pads = by_axis(call, "pads", 2 * axes, 0, 0)?;
    Ok((0..axes).map(|axis| (pads[axis], pads[axes + axis])).collect())
}

/// Returns the windows over spatial axes of these lengths. `kernel` is the shape of the weights, if there are any.
pub(super) fn windows(call: &Call<'_>, lengths: &[usize], kernel: Option<&[usize]>) -> Result<Vec<Window>, Reason> {
    let axes = lengths.len();
    let shape = match (call.ints("kernel_shape"), kernel) {
        (None, Some(kernel)) => kernel.to_vec(),
        (None, None) => return Err("it has no kernel_shape".to_owned()),
        (Some(_), _) => by_axis(call, "kernel_shape", axes, 1, 1)?,
    };
    if let Some(kernel) = kernel.filter(|&kernel| kernel != shape) {
        return Err(format!("its kernel_shape is {shape:?}, its weights have {kernel:?}"));
    }
    let (strides, dilations) = (by_axis(call, "strides", axes, 1, 1)?, by_axis(call, "dilations", axes, 1, 1)?);
    let (auto, pads) = (AutoPad::of(call)?, given_pads(call, axes)?);
    let rounds_up = call.int("ceil_mode").unwrap_or(0) != 0;
    let mut windows = Vec::new();
    for axis in 0..axes {
        let (length, kernel, stride, dilation) = (lengths[axis], shape[axis], strides[axis], dilations[axis]);
        let mut window = Window { length, kernel, stride, dilation, pads: (0, 0), out: 0 };
        if kernel == 0 || length == 0 {
            return Err(format!("its window has {kernel} entries over an axis of {length}"));
        }
        match auto {
            AutoPad::Given => window.pads = pads[axis],
            AutoPad::Valid => {}
            AutoPad::SameUpper | AutoPad::SameLower => {
                let reach = (length.div_ceil(stride) - 1) * stride + window.span();
                window.pads = auto.divided(reach.saturating_sub(length));
            }
        }
        let (before, after) = window.pads;
        let padded = length + before + after;
        if padded + window.span() >= PLACES_MAX {
            let span = window.span();
            return Err(format!("its window of {span} over {padded} entries, expected fewer than {PLACES_MAX} in all"));
        }
        let room = padded.checked_sub(window.span());
        let room = room.ok_or_else(|| format!("its window of {} is beyond an axis of {length}", window.span()))?;
        window.out = room / stride + 1;
        // The last window must begin within the axis or the padding before it.
        if rounds_up && room % stride != 0 && window.out * stride < length + before {
            window.out += 1;
        }
        windows.push(window);
    }
    Ok(windows)
}

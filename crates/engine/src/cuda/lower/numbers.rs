//! Integers that are known when a plan is made: shapes, and what graphs compute from them. One may be a multiple of the
//! number of rows, as the first length of a shape is.

use bytes::Bytes;

use super::{Call, Reason};
use crate::cuda::{
    constants,
    ir::{Dims, Holder, Kind, Tensor, Work},
};

/// Largest tensor whose integers are tracked, in elements.
const ELEMENTS_MAX: usize = 1024;

/// An integer, possibly per row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Number {
    /// The integer, or the integer per row.
    pub factor: i64,
    /// Whether it is per row.
    pub by_rows: bool,
}

impl From<i64> for Number {
    fn from(factor: i64) -> Self {
        Self { factor, by_rows: false }
    }
}

/// A small tensor of integers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Known {
    /// Type of the elements; never F32.
    pub kind: Kind,
    /// Its shape.
    pub dims: Dims,
    /// Elements in row-major order.
    pub elements: Vec<Number>,
}

impl Known {
    /// Creates an INT64 tensor.
    pub(crate) fn fixed_of(dims: &[usize], numbers: &[i64]) -> Self {
        let elements = numbers.iter().map(|&number| number.into()).collect();
        Self { kind: Kind::I64, dims: Dims::from_slice(dims), elements }
    }

    /// Returns the integers if none is per row.
    pub(crate) fn fixed(&self) -> Option<Vec<i64>> {
        self.elements.iter().map(|number| (!number.by_rows).then_some(number.factor)).collect()
    }

    /// Returns the tensor as a constant; `None` if an integer is per row.
    pub(crate) fn constant(&self, work: &mut Work) -> Option<Tensor> {
        let numbers = self.fixed()?;
        let bytes: Bytes = match self.kind {
            Kind::I64 => numbers.iter().flat_map(|number| number.to_le_bytes()).collect(),
            Kind::I32 => numbers.iter().flat_map(|&number| (number as i32).to_le_bytes()).collect(),
            Kind::Bool => numbers.iter().map(|&number| u8::from(number != 0)).collect(),
            Kind::F32 => return None,
        };
        let buffer = work.constant(self.kind, bytes);
        Some(work.whole(buffer, &self.dims))
    }

    fn scalar(&self) -> Option<i64> {
        match self.fixed()?.as_slice() {
            &[number] => Some(number),
            _ => None,
        }
    }
}

/// Reads the integers of a small constant tensor.
pub(super) fn read(work: &Work, tensor: &Tensor) -> Option<Known> {
    let view = work.expressions.stored(tensor.node)?;
    let buffer = &work.buffers[view.buffer];
    let Holder::Constant(bytes) = &buffer.holder else { return None };
    if !buffer.kind.is_whole() || tensor.elements() > ELEMENTS_MAX {
        return None;
    }
    let element = |mut index: usize| {
        let mut place = view.offset;
        for (&length, &stride) in tensor.dims.iter().zip(&view.strides).rev() {
            place += (index % length) as i64 * stride;
            index /= length;
        }
        constants::bits(buffer.kind, bytes, usize::try_from(place).ok()?).map(|bits| bits.cast_signed().into())
    };
    let elements = (0..tensor.elements()).map(element).collect::<Option<_>>()?;
    Some(Known { kind: buffer.kind, dims: tensor.dims.clone(), elements })
}

/// Evaluates a node whose operands are known integers; `None` if it cannot be evaluated.
pub(super) fn folded(call: &Call<'_>, operands: &[Option<Known>]) -> Option<Known> {
    let at = |index: usize| operands.get(index).and_then(Option::as_ref);
    let first = at(0)?;
    match call.op() {
        "Identity" => Some(first.clone()),
        "Cast" => match call.int("to")? {
            7 => Some(Known { kind: Kind::I64, ..first.clone() }),
            _ => None,
        },
        "Unsqueeze" | "Squeeze" | "Reshape" if first.elements.iter().any(|number| number.by_rows) => {
            relaid(call, first, operands)
        }
        "Gather" if call.int("axis").unwrap_or(0) == 0 && first.dims.len() == 1 => gathered(first, at(1)?),
        "Slice" if first.dims.len() == 1 => sliced(call, first, operands),
        "Concat" => joined(operands),
        "Add" | "Sub" | "Mul" | "Div" | "Min" | "Max" if operands.len() == 2 => computed(call.op(), first, at(1)?),
        "Range" => {
            let (start, end, step) = (first.scalar()?, at(1)?.scalar()?, at(2)?.scalar()?);
            let count = match i128::from(step) {
                0 => return None,
                step => (i128::from(end) - i128::from(start) + step - step.signum()) / step,
            };
            let count = usize::try_from(count.max(0)).ok().filter(|&count| count <= ELEMENTS_MAX)?;
            let numbers: Vec<i64> = (0..count as i64).map(|index| start + index * step).collect();
            Some(Known { kind: first.kind, ..Known::fixed_of(&[count], &numbers) })
        }
        _ => None,
    }
}

/// Evaluates a change of axes between a scalar and a single axis.
fn relaid(call: &Call<'_>, known: &Known, operands: &[Option<Known>]) -> Option<Known> {
    let axes = || call.ints("axes").map(<[i64]>::to_vec).or_else(|| operands.get(1)?.as_ref()?.fixed());
    let dims = match (call.op(), known.dims.len(), known.elements.len()) {
        ("Unsqueeze", 0, 1) if axes()?.len() == 1 => Dims::from_slice(&[1]),
        ("Squeeze", 1, 1) => Dims::new(),
        ("Reshape", _, count) if operands.get(1)?.as_ref()?.elements.len() == 1 => Dims::from_slice(&[count]),
        _ => return None,
    };
    Some(Known { dims, ..known.clone() })
}

fn gathered(known: &Known, indices: &Known) -> Option<Known> {
    let length = known.elements.len() as i64;
    let pick =
        |index: &i64| known.elements.get(usize::try_from(if *index < 0 { index + length } else { *index }).ok()?);
    let elements = indices.fixed()?.iter().map(|index| pick(index).copied()).collect::<Option<_>>()?;
    Some(Known { kind: known.kind, dims: indices.dims.clone(), elements })
}

fn sliced(call: &Call<'_>, known: &Known, operands: &[Option<Known>]) -> Option<Known> {
    let listed = |name: &str, index: usize| {
        let attribute = call.ints(name).map(<[i64]>::to_vec);
        attribute.or_else(|| operands.get(index)?.as_ref()?.fixed())
    };
    let (starts, ends) = (listed("starts", 1)?, listed("ends", 2)?);
    let step = match call.operand(4) {
        Some(_) => *listed("steps", 4)?.first()?,
        None => 1,
    };
    let range = range(*starts.first()?, *ends.first()?, step, known.elements.len());
    let (start, step, count) = range.ok()?;
    let pick = |index: usize| known.elements.get(usize::try_from(start + index as i64 * step).ok()?).copied();
    let elements: Vec<Number> = (0..count).map(pick).collect::<Option<_>>()?;
    Some(Known { kind: known.kind, dims: Dims::from_slice(&[elements.len()]), elements })
}

fn joined(operands: &[Option<Known>]) -> Option<Known> {
    let operands: Vec<&Known> = operands.iter().map(Option::as_ref).collect::<Option<_>>()?;
    if operands.iter().any(|known| known.dims.len() != 1) {
        return None;
    }
    let elements: Vec<Number> = operands.iter().flat_map(|known| known.elements.iter().copied()).collect();
    Some(Known { kind: operands.first()?.kind, dims: Dims::from_slice(&[elements.len()]), elements })
}

/// Evaluates arithmetic on two tensors of one shape, or on a tensor and a single integer.
fn computed(op: &str, left: &Known, right: &Known) -> Option<Known> {
    if left.dims.len() > 1 || right.dims.len() > 1 || !matches!(left.kind, Kind::I64 | Kind::I32) {
        return None;
    }
    let count = match (left.elements.len(), right.elements.len()) {
        (left, right) if left == right || right == 1 => left,
        (1, right) => right,
        _ => return None,
    };
    let pick = |known: &Known, index: usize| known.elements[if known.elements.len() == 1 { 0 } else { index }];
    let elements = (0..count).map(|index| number(op, pick(left, index), pick(right, index)));
    let dims =
        if left.dims.len() >= right.dims.len() && left.elements.len() == count { &left.dims } else { &right.dims };
    Some(Known { kind: left.kind, dims: dims.clone(), elements: elements.collect::<Option<_>>()? })
}

fn number(op: &str, left: Number, right: Number) -> Option<Number> {
    let (a, b) = (left.factor, right.factor);
    let factor = match (op, left.by_rows, right.by_rows) {
        ("Add", l, r) if l == r => a.checked_add(b)?,
        ("Sub", l, r) if l == r => a.checked_sub(b)?,
        ("Mul", false, _) | ("Mul", _, false) => a.checked_mul(b)?,
        // A multiple of the rows divided by another one is a plain integer.
        ("Div", true, true) if b != 0 && a % b == 0 => return Some((a / b).into()),
        ("Div", _, false) if b != 0 && (!left.by_rows || a % b == 0) => a.checked_div(b)?,
        ("Min", false, false) => a.min(b),
        ("Max", false, false) => a.max(b),
        _ => return None,
    };
    Some(Number { factor, by_rows: left.by_rows || right.by_rows })
}

/// Returns what a slice takes of an axis, clamped as in ONNX: first entry, step and number of entries.
pub(super) fn range(start: i64, end: i64, step: i64, length: usize) -> Result<(i64, i64, usize), Reason> {
    let length = length as i64;
    let place = |place: i64| if place < 0 { place.saturating_add(length) } else { place };
    let (start, count) = match step {
        0 => return Err("its step is 0".to_owned()),
        1.. => {
            let start = place(start).clamp(0, length);
            (start, (place(end).clamp(0, length) - start).max(0))
        }
        _ => {
            let start = place(start).clamp(0, (length - 1).max(0));
            (start, (start - place(end).clamp(-1, length - 1)).max(0))
        }
    };
    let count = count.unsigned_abs().div_ceil(step.unsigned_abs()) as usize;
    // A step that leaves the axis does not matter for a single entry.
    Ok((start, if count > 1 { step } else { 1 }, count))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(factor: i64) -> Number {
        Number { factor, by_rows: true }
    }

    #[test]
    fn numbers_that_count_rows_stay_so() {
        assert_eq!(number("Mul", rows(2), 12.into()), Some(rows(24)));
        assert_eq!(number("Div", rows(24), 12.into()), Some(rows(2)));
        assert_eq!(number("Div", rows(24), rows(12)), Some(2.into()));
        assert_eq!(number("Div", rows(5), 2.into()), None, "the quotient depends on how many rows there are");
        assert_eq!(number("Add", rows(1), 1.into()), None);
        assert_eq!(number("Mul", rows(1), rows(1)), None);
    }

    #[test]
    fn arithmetic_repeats_a_single_number() {
        let (list, one) = (Known::fixed_of(&[3], &[1, 2, 3]), Known::fixed_of(&[], &[10]));
        assert_eq!(computed("Mul", &list, &one), Some(Known::fixed_of(&[3], &[10, 20, 30])));
        assert_eq!(computed("Sub", &one, &list), Some(Known::fixed_of(&[3], &[9, 8, 7])));
        assert_eq!(computed("Div", &one, &Known::fixed_of(&[], &[0])), None);
    }

    #[test]
    fn slices_are_clamped_as_onnx_says() {
        assert_eq!(range(1, i64::MAX, 1, 5), Ok((1, 1, 4)));
        assert_eq!(range(-2, 5, 1, 5), Ok((3, 1, 2)));
        assert_eq!(range(0, 5, 2, 5), Ok((0, 2, 3)));
        assert_eq!(range(-1, i64::MIN, -1, 5), Ok((4, -1, 5)), "backwards to the beginning");
        assert_eq!(range(4, 0, -2, 5), Ok((4, -2, 2)));
        assert_eq!(range(3, 2, 1, 5), Ok((3, 1, 0)));
        assert_eq!(range(3, i64::MAX, i64::MAX, 5), Ok((3, 1, 1)));
        assert!(range(0, 1, 0, 5).is_err());
    }
}

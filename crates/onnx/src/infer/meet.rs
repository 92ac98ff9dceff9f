//! Broadcasting of operands, and the resulting axis of the rows.

use super::{
    call::Track,
    size::{Dim, Size},
};

/// Returns the broadcast shape; `None` if the shapes are incompatible.
pub(super) fn broadcast(shapes: &[&[Dim]]) -> Option<Vec<Dim>> {
    let rank = shapes.iter().map(|shape| shape.len()).max().unwrap_or(0);
    (0..rank)
        .map(|axis| {
            let lengths = shapes.iter().filter_map(|shape| (axis + shape.len()).checked_sub(rank).map(|at| &shape[at]));
            lengths.into_iter().try_fold(Some(Size::from(1)), |met, length| meet(&met, length))
        })
        .collect()
}

/// Returns the broadcast length of two lengths: `None` if they are incompatible, `Some(None)` if it is unknown.
fn meet(left: &Dim, right: &Dim) -> Option<Dim> {
    let one = |dim: &Dim| dim.as_ref().is_some_and(|size| size.is(1));
    let fixed = |dim: &Dim| dim.as_ref().and_then(Size::known);
    match (left, right) {
        _ if left == right => Some(left.clone()),
        _ if one(left) => Some(right.clone()),
        _ if one(right) => Some(left.clone()),
        _ => match (fixed(left), fixed(right)) {
            (Some(_), Some(_)) => None,
            (Some(_), None) => Some(left.clone()),
            (None, Some(_)) => Some(right.clone()),
            (None, None) => Some(None),
        },
    }
}

/// Tracks the rows of operands that are broadcast together.
#[derive(Debug, Default)]
pub(super) struct Rows<'a> {
    /// Shape and row axis of each operand.
    operands: Vec<(&'a [Dim], Option<usize>)>,
}

impl<'a> Rows<'a> {
    pub(super) fn with(mut self, dims: &'a [Dim], rows: Option<usize>) -> Self {
        self.operands.push((dims, rows));
        self
    }

    /// Returns the axis of the rows in an output of `rank` axes, the last of which are those of the operands. Every
    /// operand must either carry the same rows on that axis or be the same for all rows.
    pub(super) fn track(&self, rank: usize) -> Track {
        const ASIDE: &str = "combines rows with each other";
        let lift = |dims: &[Dim], axis: usize| (axis + rank).checked_sub(dims.len()).ok_or(ASIDE);
        let carried = self.operands.iter().find_map(|(dims, rows)| rows.map(|axis| (*dims, axis)));
        let Some((dims, axis)) = carried else { return Ok(None) };
        let (place, length) = (lift(dims, axis)?, dims.get(axis).ok_or(ASIDE)?);
        for (dims, rows) in &self.operands {
            let own = (place + dims.len()).checked_sub(rank).and_then(|at| dims.get(at));
            let fits = match rows {
                Some(axis) => lift(dims, *axis)? == place && own == Some(length),
                None => own.is_none_or(|own| own.as_ref().is_some_and(|size| size.is(1))),
            };
            if !fits {
                return Err(ASIDE);
            }
        }
        Ok(Some(place))
    }
}

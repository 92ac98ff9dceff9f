//! An operator call, as seen by the inference rules.

use super::{
    fact::{Fact, VALUES_MAX},
    size::{Dim, Size},
};
use crate::pb;

/// A node with the facts about its operands.
pub(super) struct Call<'a> {
    pub node: &'a pb::NodeProto,
    /// Version of the standard operator set.
    pub opset: i64,
    /// Facts about the operands; `None` for an omitted operand.
    pub operands: Vec<Option<&'a Fact>>,
    /// Whether the rows are the steps of a sequence, along which recurrent operators may run.
    pub follows_steps: bool,
}

/// The axis along which an output carries the rows; `Ok(None)` for outputs that do not depend on them, and the cause if
/// the rows are mixed.
pub(super) type Track = Result<Option<usize>, &'static str>;

/// What a rule determines about one output.
#[derive(Debug)]
pub(super) struct Outcome {
    pub dims: Option<Vec<Dim>>,
    pub value: Option<Vec<Dim>>,
    pub track: Track,
}

impl Outcome {
    pub(super) fn new(dims: Vec<Dim>, track: Track) -> Self {
        Self { dims: Some(dims), value: None, track }
    }

    /// Creates the outcome for an integer tensor with individually known elements; unknown elements are `None`.
    pub(super) fn values(rank: usize, value: Vec<Dim>) -> Self {
        let dims = if rank == 0 { Vec::new() } else { vec![Some(Size::from(value.len() as i64))] };
        let value = (value.len() <= VALUES_MAX).then_some(value);
        Self { dims: Some(dims), value, track: Ok(None) }
    }
}

/// Outcomes of all outputs of a call; `None` if the rule cannot determine them.
pub(super) type Outcomes = Option<Vec<Outcome>>;

impl<'a> Call<'a> {
    pub(super) fn operand(&self, index: usize) -> Option<&'a Fact> {
        self.operands.get(index).copied().flatten()
    }

    /// Returns the shape of an operand; `None` if it is omitted or of unknown rank.
    pub(super) fn dims(&self, index: usize) -> Option<&'a [Dim]> {
        self.operand(index)?.dims.as_deref()
    }

    pub(super) fn rank(&self, index: usize) -> Option<usize> {
        self.dims(index).map(<[Dim]>::len)
    }

    /// Returns the axis along which an operand carries the rows.
    pub(super) fn rows(&self, index: usize) -> Option<usize> {
        self.operand(index)?.rows()
    }

    pub(super) fn value(&self, index: usize) -> Option<&'a [Dim]> {
        self.operand(index)?.value.as_deref()
    }

    /// Returns the elements of a constant integer operand.
    pub(super) fn numbers(&self, index: usize) -> Option<Vec<i64>> {
        self.operand(index)?.numbers()
    }

    /// Returns the single element of a constant operand.
    pub(super) fn number(&self, index: usize) -> Option<i64> {
        match self.numbers(index)?.as_slice() {
            &[number] => Some(number),
            _ => None,
        }
    }

    pub(super) fn attribute(&self, name: &str) -> Option<&'a pb::AttributeProto> {
        self.node.attribute.iter().find(|attribute| attribute.name() == name)
    }

    pub(super) fn int(&self, name: &str) -> Option<i64> {
        self.attribute(name)?.i
    }

    pub(super) fn int_or(&self, name: &str, default: i64) -> i64 {
        self.int(name).unwrap_or(default)
    }

    /// Returns a list attribute; `None` if it is missing or empty.
    pub(super) fn ints(&self, name: &str) -> Option<&'a [i64]> {
        self.attribute(name).map(|attribute| attribute.ints.as_slice()).filter(|ints| !ints.is_empty())
    }

    pub(super) fn text(&self, name: &str) -> Option<&'a str> {
        std::str::from_utf8(self.attribute(name)?.s.as_deref()?).ok()
    }

    /// Returns integers that newer operator sets take as an operand and older ones as an attribute. `Err` if the
    /// operand exists but its elements are unknown, `Ok(None)` if both are missing.
    pub(super) fn numbers_or_ints(&self, index: usize, name: &str) -> Result<Option<Vec<i64>>, ()> {
        match self.operand(index) {
            Some(operand) => operand.numbers().map(Some).ok_or(()),
            None => Ok(self.ints(name).map(<[i64]>::to_vec)),
        }
    }
}

/// Resolves an axis; negative numbers count from the end.
pub(crate) fn axis_of(axis: i64, rank: usize) -> Option<usize> {
    let length = i64::try_from(rank).ok()?;
    let at = if axis < 0 { axis.checked_add(length)? } else { axis };
    (0..length).contains(&at).then_some(at as usize)
}

/// Resolves axes and sorts them; `None` if one is out of range or repeated.
pub(super) fn axes_of(axes: &[i64], rank: usize) -> Option<Vec<usize>> {
    let mut found = axes.iter().map(|&axis| axis_of(axis, rank)).collect::<Option<Vec<usize>>>()?;
    let count = found.len();
    found.sort_unstable();
    found.dedup();
    (found.len() == count).then_some(found)
}

//! Index spaces of generated kernels.

use std::fmt::Write as _;

use crate::engine::cuda::ir::Strides;

/// An index space, with axes that all views walk as one made one.
pub(super) struct Space {
    /// Lengths, and which axis of the views each is the last of.
    pub axes: Vec<(usize, usize)>,
}

impl Space {
    /// The space that views with these strides walk.
    pub(super) fn new(dims: &[usize], views: &[&Strides]) -> Self {
        let mut axes: Vec<(usize, usize)> = Vec::new();
        for (axis, &length) in dims.iter().enumerate().filter(|(_, length)| **length != 1) {
            let goes_on = |strides: &&Strides, last: usize| strides[last] == strides[axis] * length as i64;
            match axes.last_mut() {
                Some((before, last)) if views.iter().all(|strides| goes_on(strides, *last)) => {
                    *before *= length;
                    *last = axis;
                }
                _ => axes.push((length, axis)),
            }
        }
        Self { axes }
    }

    /// How many places it has.
    pub(super) fn elements(&self) -> usize {
        self.axes.iter().map(|(length, _)| length).product()
    }

    /// The places along each axis, from one number.
    pub(super) fn places(&self, prefix: &str, index: &str) -> String {
        let mut inner: usize = 1;
        let mut text = String::new();
        for (number, (length, _)) in self.axes.iter().enumerate().rev() {
            let over = if inner == 1 { index.to_owned() } else { format!("{index} / {inner}") };
            let within = if number == 0 { over } else { format!("{over} % {length}") };
            let _ = write!(text, "int {prefix}{number} = {within}; ");
            inner *= length;
        }
        text.trim_end().to_owned()
    }

    /// How far into a view a place is.
    pub(super) fn offset(&self, prefix: &str, strides: &Strides) -> Vec<String> {
        let term = |(number, (_, axis)): (usize, &(usize, usize))| match strides[*axis] {
            0 => None,
            1 => Some(format!("{prefix}{number}")),
            stride => Some(format!("{prefix}{number} * {stride}")),
        };
        self.axes.iter().enumerate().filter_map(term).collect()
    }
}

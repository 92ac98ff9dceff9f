//! Index spaces of generated kernels.

use std::fmt::Write as _;

use crate::cuda::ir::Strides;

/// An index space in which axes that all views traverse as one are merged.
pub(super) struct Space {
    /// Length of each axis, and the last of the views' axes that it merges.
    pub axes: Vec<(usize, usize)>,
}

impl Space {
    /// Returns the space that views with these strides traverse.
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

    /// Returns the number of places.
    pub(super) fn elements(&self) -> usize {
        self.axes.iter().map(|(length, _)| length).product()
    }

    /// Writes code that computes the place along each axis from a linear index.
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

    /// Returns the terms of a view's offset at a place.
    pub(super) fn offset(&self, prefix: &str, strides: &Strides) -> Vec<String> {
        let term = |(number, (_, axis)): (usize, &(usize, usize))| match strides[*axis] {
            0 => None,
            1 => Some(format!("{prefix}{number}")),
            stride => Some(format!("{prefix}{number} * {stride}")),
        };
        self.axes.iter().enumerate().filter_map(term).collect()
    }
}

//! Reads tensors at other places than their own: beyond their borders, by windows, or by computed indices.

use smallvec::SmallVec;

use super::{
    Lowering, Reason,
    window::{PLACES_MAX, Window},
};
use crate::cuda::ir::{
    Dims, ELEMENTS_MAX, Expressions, Fetch, Function, Index, Kind, Node, NodeId, Place, Strides, Tensor, View, elements,
};

/// Which entry of an axis is read at a place of a new index space.
#[derive(Clone, Debug)]
pub(crate) enum Along {
    /// `offset` plus `strides` times the place, which may be out of range.
    Steps {
        /// Entry at the first place.
        offset: i64,
        /// Strides by axis of the new index space.
        strides: Strides,
    },
    /// The value of an i32 expression, which is in range.
    Index(NodeId),
}

impl Along {
    /// Reads the entry with the same index as the place along `axis`, in an index space of `rank` axes.
    pub(crate) fn same(axis: usize, rank: usize) -> Self {
        Self::shifted(axis, rank, 0)
    }

    fn shifted(axis: usize, rank: usize, offset: i64) -> Self {
        let mut strides = Strides::from_elem(0, rank);
        strides[axis] = 1;
        Self::Steps { offset, strides }
    }
}

impl Lowering<'_> {
    /// Reads a stored tensor over an index space with these dims, each axis as `along` says. Out of range, the value
    /// has the bits `outside`. An axis that is never read out of range needs no bounds check.
    pub(crate) fn fetched(
        &mut self,
        tensor: &Tensor,
        dims: &[usize],
        along: &[Along],
        outside: u64,
    ) -> Result<Tensor, Reason> {
        let (kind, expressions) = (self.work.kind(tensor), &mut self.work.expressions);
        let view = expressions.stored(tensor.node).ok_or("its operand is not stored")?.clone();
        let node = fetch(expressions, (kind, &view), &tensor.dims, (dims, along), Some(outside));
        Ok(Tensor { by_rows: tensor.by_rows, dims: dims.into(), node })
    }

    /// As [`Self::fetched`], for a tensor of floats that is not stored and is computed where it is read. Out of range,
    /// the value is 0. `None` if computing it already reads other places.
    pub(crate) fn fetched_unstored(&mut self, tensor: &Tensor, dims: &[usize], along: &[Along]) -> Option<Tensor> {
        let expressions = &mut self.work.expressions;
        if !expressions.tables(tensor.node).is_empty() {
            return None;
        }
        let inner = expressions.rewrite(tensor.node, &mut |expressions, kind, view| {
            Some(fetch(expressions, (kind, view), &tensor.dims, (dims, along), None))
        })?;
        let mut node = inner;
        for (along, &length) in along.iter().zip(&tensor.dims) {
            let Along::Steps { offset, strides } = along else { return None };
            if is_inside(*offset, strides, dims, length as i64) {
                continue;
            }
            let place = Node::Place(Place { offset: *offset, strides: strides.clone() });
            let place = expressions.add(Kind::I32, place);
            let [first, end] = [0, length as u64].map(|number| expressions.add(Kind::I32, Node::Number(number)));
            let zero = expressions.add(Kind::F32, Node::Number(0));
            let mut apply = |kind: Kind, function: Function, operands: &[NodeId]| {
                expressions.add(kind, Node::Apply(function, operands.into()))
            };
            let from_first = apply(Kind::Bool, Function::AtMost, &[first, place]);
            let to_end = apply(Kind::Bool, Function::Less, &[place, end]);
            let within = apply(Kind::Bool, Function::And, &[from_first, to_end]);
            node = apply(Kind::F32, Function::Select, &[within, node, zero]);
        }
        Some(Tensor { by_rows: tensor.by_rows, dims: dims.into(), node })
    }

    /// Adds entries before and after each axis of a stored tensor, or removes them where the number is negative.
    pub(crate) fn padded(&mut self, tensor: &Tensor, pads: &[(i64, i64)], outside: u64) -> Result<Tensor, Reason> {
        let rank = tensor.dims.len();
        let mut dims = Dims::new();
        let most = PLACES_MAX as i64;
        for (&length, &(before, after)) in tensor.dims.iter().zip(pads) {
            let are_counted = [before, after].iter().all(|pad| (-most..most).contains(pad));
            let padded = if are_counted { length as i64 + before + after } else { 0 };
            if !(1..most).contains(&padded) {
                return Err(format!("its pads {before} and {after} do not fit an axis of {length}"));
            }
            dims.push(padded as usize);
        }
        check_size(&dims)?;
        let along: Vec<Along> =
            pads.iter().enumerate().map(|(axis, &(before, _))| Along::shifted(axis, rank, -before)).collect();
        self.fetched(tensor, &dims, &along, outside)
    }

    /// Returns the windows over the last axes of a stored tensor: `[…, windows per axis, entries of a window per
    /// axis]`.
    pub(crate) fn windowed(&mut self, tensor: &Tensor, windows: &[Window], outside: u64) -> Result<Tensor, Reason> {
        let (dims, along) = window_space(tensor, windows)?;
        self.fetched(tensor, &dims, &along, outside)
    }
}

/// Returns the index space of the windows over a tensor's last axes, and how it reads the tensor.
pub(super) fn window_space(tensor: &Tensor, windows: &[Window]) -> Result<(Dims, Vec<Along>), Reason> {
    let (first, count) = (tensor.dims.len() - windows.len(), windows.len());
    let places = windows.iter().map(|window| window.out).chain(windows.iter().map(|window| window.kernel));
    let dims: Dims = tensor.dims[..first].iter().copied().chain(places).collect();
    let rank = dims.len();
    check_size(&dims[..first + count])?;
    check_size(&dims[first + count..])?;
    let of_window = |(place, window): (usize, &Window)| {
        let mut strides = Strides::from_elem(0, rank);
        (strides[first + place], strides[first + count + place]) = (window.stride as i64, window.dilation as i64);
        Along::Steps { offset: -(window.pads.0 as i64), strides }
    };
    let along = (0..first).map(|axis| Along::same(axis, rank)).chain(windows.iter().enumerate().map(of_window));
    let along = along.collect();
    Ok((dims, along))
}

/// Reads a view of a tensor with axes `lengths` over another index space, each axis as `along` says. Out of range, the
/// value is `outside`, or arbitrary if that is `None`.
fn fetch(
    expressions: &mut Expressions,
    (kind, view): (Kind, &View),
    lengths: &[usize],
    (dims, along): (&[usize], &[Along]),
    outside: Option<u64>,
) -> NodeId {
    let mut from = View { strides: Strides::from_elem(0, dims.len()), ..view.clone() };
    let mut indices: SmallVec<[Index; 2]> = SmallVec::new();
    for ((along, &stride), &length) in along.iter().zip(&view.strides).zip(lengths) {
        let length = length as i64;
        match along {
            // A value that does not depend on an axis is the same out of range.
            _ if stride == 0 && outside.is_none() => {}
            Along::Steps { offset, strides } if is_inside(*offset, strides, dims, length) => {
                from.offset += offset * stride;
                from.strides.iter_mut().zip(strides).for_each(|(to, step)| *to += step * stride);
            }
            Along::Steps { offset, strides } => {
                let place = Node::Place(Place { offset: *offset, strides: strides.clone() });
                let node = expressions.add(Kind::I32, place);
                indices.push(Index { node, stride, length });
            }
            Along::Index(node) => indices.push(Index { node: *node, stride, length }),
        }
    }
    if indices.is_empty() {
        return expressions.add(kind, Node::Load(from));
    }
    expressions.add(kind, Node::Fetch(Fetch { from, indices, outside: outside.unwrap_or(0) }))
}

/// Rejects an index space that kernels cannot count.
pub(super) fn check_size(dims: &[usize]) -> Result<(), Reason> {
    let refused = || format!("it goes over the axes {dims:?}, expected fewer than {ELEMENTS_MAX} elements");
    elements(dims).map(|_| ()).ok_or_else(refused)
}

/// Returns whether every place of an index space leads to an entry of the axis.
fn is_inside(offset: i64, strides: &Strides, dims: &[usize], length: i64) -> bool {
    let reach = |&(stride, &length): &(&i64, &usize)| stride * (length as i64 - 1);
    let reaches: Vec<i64> = strides.iter().zip(dims).map(|pair| reach(&pair)).collect();
    let least: i64 = reaches.iter().map(|&reach| reach.min(0)).sum();
    let most: i64 = reaches.iter().map(|&reach| reach.max(0)).sum();
    offset + least >= 0 && offset + most < length
}

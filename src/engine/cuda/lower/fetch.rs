//! Tensors that are read elsewhere than at their own places: beyond their borders, by windows, by computed indices.

use smallvec::SmallVec;

use super::{
    Lowering, Reason,
    window::{PLACES_MAX, Window},
};
use crate::engine::cuda::ir::{Dims, ELEMENTS_MAX, Fetch, Index, Kind, Node, NodeId, Place, Strides, Tensor, elements};

/// Which entry of an axis is read at a place of a new index space.
#[derive(Clone, Debug)]
pub enum Along {
    /// `offset`, and `strides` times the place; it may be outside of the axis.
    Steps {
        /// At the first place.
        offset: i64,
        /// By axis of the new index space.
        strides: Strides,
    },
    /// What an expression says, an i32 that is inside.
    Index(NodeId),
}

impl Along {
    /// The entry of the same number as the place along `axis` of `rank`.
    pub fn same(axis: usize, rank: usize) -> Self {
        Self::shifted(axis, rank, 0)
    }

    fn shifted(axis: usize, rank: usize, offset: i64) -> Self {
        let mut strides = Strides::from_elem(0, rank);
        strides[axis] = 1;
        Self::Steps { offset, strides }
    }
}

impl Lowering<'_> {
    /// Reads a stored tensor over an index space of these dims, each axis as `along` says. Outside of it there is the
    /// number with the bits `outside`. An axis that is read within its bounds alone costs no test.
    pub fn fetched(
        &mut self,
        tensor: &Tensor,
        dims: &[usize],
        along: &[Along],
        outside: u64,
    ) -> Result<Tensor, Reason> {
        let mut from = self.work.expressions.stored(tensor.node).ok_or("its operand is not stored")?.clone();
        let own = std::mem::replace(&mut from.strides, Strides::from_elem(0, dims.len()));
        let mut indices: SmallVec<[Index; 2]> = SmallVec::new();
        for ((along, &stride), &length) in along.iter().zip(&own).zip(&tensor.dims) {
            let length = length as i64;
            match along {
                Along::Steps { offset, strides } if is_inside(*offset, strides, dims, length) => {
                    from.offset += offset * stride;
                    from.strides.iter_mut().zip(strides).for_each(|(to, step)| *to += step * stride);
                }
                Along::Steps { offset, strides } => {
                    let place = Node::Place(Place { offset: *offset, strides: strides.clone() });
                    let node = self.work.expressions.add(Kind::I32, place);
                    indices.push(Index { node, stride, length });
                }
                Along::Index(node) => indices.push(Index { node: *node, stride, length }),
            }
        }
        let kind = self.work.kind(tensor);
        let node = if indices.is_empty() { Node::Load(from) } else { Node::Fetch(Fetch { from, indices, outside }) };
        Ok(Tensor { by_rows: tensor.by_rows, dims: dims.into(), node: self.work.expressions.add(kind, node) })
    }

    /// A stored tensor with so many entries more before and behind each axis, or fewer where the number is negative.
    pub fn padded(&mut self, tensor: &Tensor, pads: &[(i64, i64)], outside: u64) -> Result<Tensor, Reason> {
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

    /// The windows over the last axes of a stored tensor: `[…, windows by axis, entries of a window by axis]`.
    pub fn windowed(&mut self, tensor: &Tensor, windows: &[Window], outside: u64) -> Result<Tensor, Reason> {
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
        let along: Vec<Along> =
            (0..first).map(|axis| Along::same(axis, rank)).chain(windows.iter().enumerate().map(of_window)).collect();
        self.fetched(tensor, &dims, &along, outside)
    }
}

/// Refuses an index space that kernels cannot count.
pub fn check_size(dims: &[usize]) -> Result<(), Reason> {
    let refused = || format!("it goes over the axes {dims:?}, expected fewer than {ELEMENTS_MAX} elements");
    elements(dims).map(|_| ()).ok_or_else(refused)
}

/// Whether all places of an index space lead to entries of an axis.
fn is_inside(offset: i64, strides: &Strides, dims: &[usize], length: i64) -> bool {
    let reach = |&(stride, &length): &(&i64, &usize)| stride * (length as i64 - 1);
    let reaches: Vec<i64> = strides.iter().zip(dims).map(|pair| reach(&pair)).collect();
    let least: i64 = reaches.iter().map(|&reach| reach.min(0)).sum();
    let most: i64 = reaches.iter().map(|&reach| reach.max(0)).sum();
    offset + least >= 0 && offset + most < length
}

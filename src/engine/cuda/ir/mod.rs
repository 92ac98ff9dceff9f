//! What a plan is made of: buffers, expressions over their elements, and operations in order.
//!
//! Everything is said of one row. Of a graph's tensor `[batch, …]`, axis 0 holds `k` entries a row (`k` is 1 but for
//! graphs that merge axes), and the dims here are `[k, …]`; that there is such a row for each request's is `by_rows`.
//! So no shape depends on how many rows there are, and an operation is the same for each of them.

mod expressions;
mod operations;

use bytes::Bytes;
use smallvec::SmallVec;

pub(super) use self::{
    expressions::{Expressions, Fetch, Function, Index, Lookup, Node, Place, View, WEIGHT_MAX},
    operations::{Convolution, Factor, Operation, Product, Rectified, Reduce, Reduction, RowKernel, Rowwise, Store},
};
use crate::model::DataType;

/// Lengths of a tensor's axes, of one row.
pub(super) type Dims = SmallVec<[usize; 4]>;
/// Elements from one entry of an axis to the next.
pub(super) type Strides = SmallVec<[i64; 4]>;

/// What elements are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Kind {
    /// FP32.
    F32,
    /// INT64.
    I64,
    /// INT32.
    I32,
    /// BOOL, a byte each.
    Bool,
}

impl Kind {
    /// That of a datatype; `None` where no kernel knows it.
    pub(super) fn of(datatype: DataType) -> Option<Self> {
        match datatype {
            DataType::Fp32 => Some(Self::F32),
            DataType::Int64 => Some(Self::I64),
            DataType::Int32 => Some(Self::I32),
            DataType::Bool => Some(Self::Bool),
            _ => None,
        }
    }

    /// Bytes of an element.
    pub(super) fn bytes(self) -> usize {
        match self {
            Self::F32 | Self::I32 => 4,
            Self::I64 => 8,
            Self::Bool => 1,
        }
    }

    /// Whether it is a whole number or a truth value.
    pub(super) fn is_whole(self) -> bool {
        self != Self::F32
    }
}

/// A type of 16 bits that the elements of an fp32 buffer may be kept in. They are computed in fp32.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Half {
    /// FP16.
    F16,
    /// BF16.
    Bf16,
}

/// A buffer, by its place in [`Work::buffers`].
pub(super) type BufferId = usize;
/// An expression, by its place in [`Expressions`].
pub(super) type NodeId = usize;

/// Memory for a tensor, row-major without gaps.
#[derive(Clone, Debug)]
pub(super) struct Buffer {
    /// What it holds.
    pub kind: Kind,
    /// What its elements are rounded to when they are stored; none: nothing. The bytes of a constant are not rounded
    /// yet.
    pub half: Option<Half>,
    /// Whether there is one for each row.
    pub by_rows: bool,
    /// Elements of one row, or of all where it is not by rows.
    pub elements: usize,
    /// Where its contents come from.
    pub holder: Holder,
}

impl Buffer {
    /// Bytes of an element in memory.
    pub(super) fn element_bytes(&self) -> usize {
        if self.half.is_some() { 2 } else { self.kind.bytes() }
    }
}

/// Where a buffer's contents come from.
#[derive(Clone, Debug)]
pub(super) enum Holder {
    /// The caller's input of this number.
    Input(usize),
    /// An operation; the caller reads it as its output of this number.
    Output(usize),
    /// The graph.
    Constant(Bytes),
    /// An operation.
    Scratch,
}

/// A tensor that a graph computes: an expression at each place of an index space.
#[derive(Clone, Debug)]
pub(super) struct Tensor {
    /// Whether there is one for each row.
    pub by_rows: bool,
    /// Of one row.
    pub dims: Dims,
    /// The expression of its elements.
    pub node: NodeId,
}

impl Tensor {
    /// Elements of one row.
    pub(super) fn elements(&self) -> usize {
        self.dims.iter().product()
    }
}

/// A number that may count rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Count {
    /// The number, or how many for each row.
    pub factor: usize,
    /// Whether it is for each row.
    pub by_rows: bool,
}

impl Count {
    /// The number for `rows` rows.
    pub(super) fn of(self, rows: usize) -> usize {
        if self.by_rows { self.factor * rows } else { self.factor }
    }
}

/// A graph as operations.
#[derive(Debug, Default)]
pub(super) struct Work {
    /// All memory.
    pub buffers: Vec<Buffer>,
    /// All expressions.
    pub expressions: Expressions,
    /// What is done, in order.
    pub operations: Vec<Operation>,
}

impl Work {
    /// A new buffer.
    pub(super) fn buffer(&mut self, kind: Kind, by_rows: bool, elements: usize, holder: Holder) -> BufferId {
        self.buffers.push(Buffer { kind, half: None, by_rows, elements, holder });
        self.buffers.len() - 1
    }

    /// A constant buffer.
    pub(super) fn constant(&mut self, kind: Kind, bytes: Bytes) -> BufferId {
        self.buffer(kind, false, bytes.len() / kind.bytes(), Holder::Constant(bytes))
    }

    /// A tensor that fills a buffer.
    pub(super) fn whole(&mut self, buffer: BufferId, dims: &[usize]) -> Tensor {
        let Buffer { kind, by_rows, .. } = self.buffers[buffer];
        let view = View { buffer, offset: 0, strides: contiguous(dims) };
        Tensor { by_rows, dims: Dims::from_slice(dims), node: self.expressions.add(kind, Node::Load(view)) }
    }

    /// What a tensor holds.
    pub(super) fn kind(&self, tensor: &Tensor) -> Kind {
        self.expressions.kind(tensor.node)
    }
}

/// A tensor's row has fewer elements than this, so that kernels count them in 32 bits.
pub(super) const ELEMENTS_MAX: usize = 1 << 31;

/// How many elements a tensor has; `None` for [`ELEMENTS_MAX`] and more.
pub(super) fn elements(dims: &[usize]) -> Option<usize> {
    // An axis of length 0 leaves none, however long the others are.
    let count = dims.iter().try_fold(1_usize, |count, &length| count.checked_mul(length));
    count.or(dims.contains(&0).then_some(0)).filter(|&count| count < ELEMENTS_MAX)
}

/// The strides of a tensor without gaps.
pub(super) fn contiguous(dims: &[usize]) -> Strides {
    let mut strides: Strides = SmallVec::from_elem(1, dims.len());
    for axis in (1..dims.len()).rev() {
        strides[axis - 1] = strides[axis] * dims[axis] as i64;
    }
    strides
}

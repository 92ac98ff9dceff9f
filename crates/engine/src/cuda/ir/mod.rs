//! What plans consist of: buffers, expressions over their elements, and operations in order.
//!
//! Everything is described for one row. Axis 0 of a graph's tensor `[batch, …]` has `k` entries per row, where `k` is 1
//! unless the graph merges axes, and its dims here are `[k, …]`. `by_rows` says that every row has such a tensor. So no
//! shape depends on the number of rows, and an operation is the same for each of them.

mod attention;
mod expressions;
mod operations;

use bytes::Bytes;
use paternoster_model::DataType;
use smallvec::SmallVec;

pub(super) use self::{
    attention::{Attention, Mask, Vectors},
    expressions::{Expressions, Fetch, Function, Index, Lookup, Node, Place, View, WEIGHT_MAX},
    operations::{Convolution, Factor, Operation, Product, Rectified, Reduce, Reduction, RowKernel, Rowwise, Store},
};

/// Lengths of the axes of one row of a tensor.
pub(super) type Dims = SmallVec<[usize; 4]>;
/// Distance in elements between two entries of an axis.
pub(super) type Strides = SmallVec<[i64; 4]>;

/// Type of elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Kind {
    /// FP32.
    F32,
    /// INT64.
    I64,
    /// INT32.
    I32,
    /// BOOL, one byte each.
    Bool,
}

impl Kind {
    /// Returns the type for a datatype; `None` if no kernel supports it.
    pub(super) fn of(datatype: DataType) -> Option<Self> {
        match datatype {
            DataType::Fp32 => Some(Self::F32),
            DataType::Int64 => Some(Self::I64),
            DataType::Int32 => Some(Self::I32),
            DataType::Bool => Some(Self::Bool),
            _ => None,
        }
    }

    /// Returns the size of an element in bytes.
    pub(super) fn bytes(self) -> usize {
        match self {
            Self::F32 | Self::I32 => 4,
            Self::I64 => 8,
            Self::Bool => 1,
        }
    }

    /// Returns whether it is an integer or truth value.
    pub(super) fn is_whole(self) -> bool {
        self != Self::F32
    }
}

/// A 16-bit type in which the elements of an fp32 buffer may be stored. They are computed in fp32.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Half {
    /// FP16.
    F16,
    /// BF16.
    Bf16,
}

/// Index of a buffer in [`Work::buffers`].
pub(super) type BufferId = usize;
/// Index of an expression in [`Expressions`].
pub(super) type NodeId = usize;

/// Memory for a tensor, row-major and contiguous.
#[derive(Clone, Debug)]
pub(super) struct Buffer {
    /// Type of its elements.
    pub kind: Kind,
    /// Type to which elements are rounded when stored, if any. The bytes of a constant are rounded later, when they are
    /// copied to a card.
    pub half: Option<Half>,
    /// Whether every row has its own.
    pub by_rows: bool,
    /// Number of elements in one row, or in total if it is not by rows.
    pub elements: usize,
    /// Where its content comes from.
    pub holder: Holder,
}

impl Buffer {
    /// Returns the size of a stored element in bytes.
    pub(super) fn element_bytes(&self) -> usize {
        if self.half.is_some() { 2 } else { self.kind.bytes() }
    }
}

/// Where a buffer's content comes from.
#[derive(Clone, Debug)]
pub(super) enum Holder {
    /// The caller's input with this index.
    Input(usize),
    /// An operation; the caller reads it as the output with this index.
    Output(usize),
    /// The graph.
    Constant(Bytes),
    /// An operation, for other operations.
    Scratch,
}

/// A tensor of the graph: an expression evaluated at every place of an index space.
#[derive(Clone, Debug)]
pub(super) struct Tensor {
    /// Whether every row has its own.
    pub by_rows: bool,
    /// Lengths of the axes of one row.
    pub dims: Dims,
    /// Expression of its elements.
    pub node: NodeId,
}

impl Tensor {
    /// Returns the number of elements in one row.
    pub(super) fn elements(&self) -> usize {
        self.dims.iter().product()
    }
}

/// A number that may be per row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Count {
    /// The number, or the number per row.
    pub factor: usize,
    /// Whether it is per row.
    pub by_rows: bool,
}

impl Count {
    /// Returns the number for `rows` rows.
    pub(super) fn of(self, rows: usize) -> usize {
        if self.by_rows { self.factor * rows } else { self.factor }
    }
}

/// A graph as operations.
#[derive(Debug, Default)]
pub(super) struct Work {
    /// All buffers.
    pub buffers: Vec<Buffer>,
    /// All expressions.
    pub expressions: Expressions,
    /// The operations, in order.
    pub operations: Vec<Operation>,
}

impl Work {
    /// Adds a buffer.
    pub(super) fn buffer(&mut self, kind: Kind, by_rows: bool, elements: usize, holder: Holder) -> BufferId {
        self.buffers.push(Buffer { kind, half: None, by_rows, elements, holder });
        self.buffers.len() - 1
    }

    /// Adds a constant buffer.
    pub(super) fn constant(&mut self, kind: Kind, bytes: Bytes) -> BufferId {
        self.buffer(kind, false, bytes.len() / kind.bytes(), Holder::Constant(bytes))
    }

    /// Returns a tensor that fills a buffer.
    pub(super) fn whole(&mut self, buffer: BufferId, dims: &[usize]) -> Tensor {
        let Buffer { kind, by_rows, .. } = self.buffers[buffer];
        let view = View { buffer, offset: 0, strides: contiguous(dims) };
        Tensor { by_rows, dims: Dims::from_slice(dims), node: self.expressions.add(kind, Node::Load(view)) }
    }

    /// Returns the type of a tensor's elements.
    pub(super) fn kind(&self, tensor: &Tensor) -> Kind {
        self.expressions.kind(tensor.node)
    }
}

/// Limit on the elements of a tensor's row, since kernels count them in 32 bits.
pub(super) const ELEMENTS_MAX: usize = 1 << 31;

/// Returns the number of elements; `None` from [`ELEMENTS_MAX`] on.
pub(super) fn elements(dims: &[usize]) -> Option<usize> {
    // An axis of length 0 makes the product 0 even if the other lengths overflow.
    let count = dims.iter().try_fold(1_usize, |count, &length| count.checked_mul(length));
    count.or(dims.contains(&0).then_some(0)).filter(|&count| count < ELEMENTS_MAX)
}

/// Returns the strides of a contiguous tensor.
pub(super) fn contiguous(dims: &[usize]) -> Strides {
    let mut strides: Strides = SmallVec::from_elem(1, dims.len());
    for axis in (1..dims.len()).rev() {
        strides[axis - 1] = strides[axis] * dims[axis] as i64;
    }
    strides
}

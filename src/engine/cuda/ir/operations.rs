//! What is done with memory, before it is made launches.

use super::{BufferId, Count, Dims, NodeId, View};

/// What writes buffers. In each list of operations, one comes after what it reads is written.
#[derive(Clone, Debug)]
pub enum Operation {
    /// Elements are computed and stored.
    Store(Store),
    /// A matrix product.
    Product(Product),
    /// One of the written kernels over the rows of a matrix.
    Rowwise(Rowwise),
    /// Elements are computed and summed up.
    Reduce(Reduce),
}

/// Computes an expression at each place and stores it.
#[derive(Clone, Debug)]
pub struct Store {
    /// Whether it is done for each row.
    pub by_rows: bool,
    /// The places, without axes of length 1.
    pub dims: Dims,
    /// The expression.
    pub node: NodeId,
    /// Where it goes.
    pub to: View,
}

/// A factor of a product.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Factor {
    /// Where it lies.
    pub buffer: BufferId,
    /// Its first element.
    pub offset: i64,
    /// From row to row, or from column to column where it lies by columns.
    pub leading: usize,
    /// It lies by columns.
    pub is_transposed: bool,
    /// From one matrix of the batch to the next.
    pub batch_stride: usize,
}

/// A matrix product: `d = alpha · a · b + bias`.
#[derive(Clone, Debug)]
pub struct Product {
    /// Rows of `a`.
    pub m: Count,
    /// Columns of `b`.
    pub n: usize,
    /// Columns of `a`.
    pub k: usize,
    /// How many there are.
    pub batches: Count,
    /// Left.
    pub a: Factor,
    /// Right.
    pub b: Factor,
    /// A constant buffer of `n` elements.
    pub bias: Option<BufferId>,
    /// What the product is multiplied by.
    pub alpha: f32,
    /// Where it goes.
    pub d: BufferId,
}

/// A written kernel over the rows of a matrix, of which `rows.factor` belong to each of the batch's.
#[derive(Clone, Debug)]
pub struct Rowwise {
    /// Which one.
    pub kernel: RowKernel,
    /// Rows of the matrix.
    pub rows: Count,
    /// Its columns.
    pub columns: usize,
    /// What it reads.
    pub from: BufferId,
    /// What it writes.
    pub to: BufferId,
}

/// Kernels over the rows of a matrix.
#[derive(Clone, Debug)]
pub enum RowKernel {
    /// `softmax`.
    Softmax,
    /// `layer_norm`.
    LayerNorm {
        /// What keeps a variance of zero from dividing by zero.
        epsilon: f32,
        /// `[columns]`.
        scale: BufferId,
        /// `[columns]`.
        bias: Option<BufferId>,
    },
    /// `argmax_i64`.
    ArgMax {
        /// What it writes beside the places.
        done: BufferId,
    },
}

/// What elements become one by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reduction {
    /// Their sum.
    Sum,
    /// The largest.
    Max,
    /// The smallest.
    Min,
}

/// Computes an expression and reduces it over its last axes.
#[derive(Clone, Debug)]
pub struct Reduce {
    /// How.
    pub reduction: Reduction,
    /// Whether it is done for each row.
    pub by_rows: bool,
    /// The places of the results.
    pub outer: Dims,
    /// What is reduced at each of them.
    pub inner: Dims,
    /// The expression, over `outer` and `inner`.
    pub node: NodeId,
    /// Where results go, without gaps.
    pub to: BufferId,
}

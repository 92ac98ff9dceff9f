//! Operations on memory, before they become launches.

use super::{Attention, BufferId, Count, Dims, Expressions, NodeId, View};

/// An operation that writes buffers. In a list of operations, each comes after those that write what it reads.
#[derive(Clone, Debug)]
pub(crate) enum Operation {
    /// Computes and stores elements.
    Store(Store),
    /// A matrix product.
    Product(Product),
    /// A convolution of images.
    Convolution(Convolution),
    /// A handwritten kernel over the rows of a matrix.
    Rowwise(Rowwise),
    /// Attention of queries to keys.
    Attention(Attention),
    /// Computes elements and reduces them.
    Reduce(Reduce),
}

impl Operation {
    /// Returns the buffers that it writes.
    pub(crate) fn writes(&self) -> Vec<BufferId> {
        match self {
            Self::Store(store) => vec![store.to.buffer],
            Self::Product(product) => vec![product.d],
            Self::Convolution(convolution) => vec![convolution.y],
            Self::Rowwise(rowwise) => rowwise.writes(),
            Self::Attention(attention) => vec![attention.out.buffer],
            Self::Reduce(reduce) => vec![reduce.to],
        }
    }

    /// Returns the buffers that it reads.
    pub(crate) fn reads(&self, expressions: &Expressions) -> Vec<BufferId> {
        match self {
            Self::Store(Store { node, .. }) | Self::Reduce(Reduce { node, .. }) => expressions.buffers(*node),
            Self::Product(product) => product.reads(),
            Self::Convolution(convolution) => convolution.reads(),
            Self::Rowwise(rowwise) => rowwise.reads(),
            Self::Attention(attention) => attention.reads(),
        }
    }
}

/// Computes an expression at every place of an index space and stores it.
#[derive(Clone, Debug)]
pub(crate) struct Store {
    /// Whether it is done for every row.
    pub by_rows: bool,
    /// The index space, without axes of length 1.
    pub dims: Dims,
    /// The expression.
    pub node: NodeId,
    /// Where the result is stored.
    pub to: View,
}

/// An operand of a matrix product.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Factor {
    /// The buffer that holds it.
    pub buffer: BufferId,
    /// Index of its first element.
    pub offset: i64,
    /// Leading dimension: the distance between rows, or between columns if it is column-major.
    pub leading: usize,
    /// Whether it is column-major.
    pub is_transposed: bool,
    /// Distance between two matrices of the batch.
    pub batch_stride: usize,
}

/// A matrix product: `d = alpha · a · b + bias`.
#[derive(Clone, Debug)]
pub(crate) struct Product {
    /// Rows of `a`.
    pub m: Count,
    /// Columns of `b`.
    pub n: usize,
    /// Columns of `a`.
    pub k: usize,
    /// Number of matrices.
    pub batches: Count,
    /// Left operand.
    pub a: Factor,
    /// Right operand.
    pub b: Factor,
    /// Constant buffer of `n` elements to add.
    pub bias: Option<BufferId>,
    /// Factor for the product.
    pub alpha: f32,
    /// Buffer of the result.
    pub d: BufferId,
}

impl Product {
    /// Returns the floating-point operations for a batch of `rows` rows.
    pub(crate) fn flops(&self, rows: usize) -> f64 {
        let lengths = [self.m.of(rows), self.n, self.k, self.batches.of(rows)];
        lengths.iter().fold(2.0, |flops, &length| flops * length as f64)
    }

    /// Returns the buffers that it reads.
    pub(crate) fn reads(&self) -> Vec<BufferId> {
        [self.a.buffer, self.b.buffer].into_iter().chain(self.bias).collect()
    }
}

/// A convolution of contiguous images `[images, channels, height, width]`. Pairs are height and width.
#[derive(Clone, Debug)]
pub(crate) struct Convolution {
    /// Whether it is a transposed convolution, which spreads each element over a window of the result. Its filter is
    /// `[inputs, outputs / groups, …]`; that of an ordinary one is `[outputs, inputs / groups, …]`.
    pub is_transposed: bool,
    /// Number of images.
    pub images: Count,
    /// Channels of the operand.
    pub inputs: usize,
    /// Channels of the result.
    pub outputs: usize,
    /// Groups of channels that are convolved separately.
    pub groups: usize,
    /// Size of the operand's images.
    pub size: [usize; 2],
    /// Size of the result's images.
    pub out: [usize; 2],
    /// Size of the filter.
    pub kernel: [usize; 2],
    /// Zeros on each side.
    pub pads: [usize; 2],
    /// Distance between windows.
    pub strides: [usize; 2],
    /// Distance between the elements of a window.
    pub dilations: [usize; 2],
    /// Buffer of the operand.
    pub x: BufferId,
    /// Buffer of the filter.
    pub w: BufferId,
    /// Bias, addend and rectifier to apply in the same call, if any.
    pub rectified: Option<Rectified>,
    /// Buffer of the result.
    pub y: BufferId,
}

/// What a convolution's call applies to the result: `y = max(0, convolution + addend + bias)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rectified {
    /// Constant buffer with one element per channel.
    pub bias: BufferId,
    /// Buffer of images like those of the result.
    pub addend: Option<BufferId>,
}

impl Convolution {
    /// Returns the floating-point operations for a batch of `rows` rows: two for each entry of a window and each
    /// channel of its group, at every position of the window.
    pub(crate) fn flops(&self, rows: usize) -> f64 {
        let [height, width] = if self.is_transposed { self.size } else { self.out };
        let channels = [self.inputs, self.outputs / self.groups];
        let window = [self.kernel[0], self.kernel[1], height, width, self.images.of(rows)];
        channels.iter().chain(&window).fold(2.0, |flops, &length| flops * length as f64)
    }

    /// Returns the buffers that it reads.
    pub(crate) fn reads(&self) -> Vec<BufferId> {
        let more = self.rectified.map(|Rectified { bias, addend }| [Some(bias), addend]);
        [self.x, self.w].into_iter().chain(more.into_iter().flatten().flatten()).collect()
    }
}

/// A handwritten kernel over the rows of a matrix; each row of the batch has `rows.factor` of them.
#[derive(Clone, Debug)]
pub(crate) struct Rowwise {
    /// The kernel.
    pub kernel: RowKernel,
    /// Rows of the matrix.
    pub rows: Count,
    /// Columns of the matrix.
    pub columns: usize,
    /// Buffer that it reads.
    pub from: BufferId,
    /// Buffer that it writes.
    pub to: BufferId,
}

impl Rowwise {
    /// Returns the buffers that it writes.
    pub(crate) fn writes(&self) -> Vec<BufferId> {
        match self.kernel {
            RowKernel::ArgMax { done } => vec![self.to, done],
            RowKernel::LayerNorm { sum, .. } => [self.to].into_iter().chain(sum).collect(),
            RowKernel::Softmax => vec![self.to],
        }
    }

    /// Returns the buffers that it reads.
    pub(crate) fn reads(&self) -> Vec<BufferId> {
        let more = match self.kernel {
            RowKernel::LayerNorm { scale, bias, residual, .. } => [Some(scale), bias, residual],
            RowKernel::Softmax | RowKernel::ArgMax { .. } => [None; 3],
        };
        more.into_iter().flatten().chain([self.from]).collect()
    }
}

/// Handwritten kernels over the rows of a matrix.
#[derive(Clone, Debug)]
pub(crate) enum RowKernel {
    /// `softmax`.
    Softmax,
    /// `layer_norm`.
    LayerNorm {
        /// Added to the variance, so that it is never zero.
        epsilon: f32,
        /// `[columns]`.
        scale: BufferId,
        /// `[columns]`.
        bias: Option<BufferId>,
        /// Added to what is normalised; of the same size.
        residual: Option<BufferId>,
        /// Second buffer that the kernel writes: the sum that it normalises.
        sum: Option<BufferId>,
    },
    /// `argmax_i64`.
    ArgMax {
        /// Second buffer that the kernel writes, which nothing reads.
        done: BufferId,
    },
}

/// How elements are reduced to one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reduction {
    /// Their sum.
    Sum,
    /// Their maximum.
    Max,
    /// Their minimum.
    Min,
}

/// Computes an expression and reduces it over its last axes.
#[derive(Clone, Debug)]
pub(crate) struct Reduce {
    /// The reduction.
    pub reduction: Reduction,
    /// Whether it is done for every row.
    pub by_rows: bool,
    /// Index space of the results.
    pub outer: Dims,
    /// Index space of the elements that are reduced to one result.
    pub inner: Dims,
    /// The expression, over `outer` and `inner`.
    pub node: NodeId,
    /// Buffer of the results, contiguous.
    pub to: BufferId,
}

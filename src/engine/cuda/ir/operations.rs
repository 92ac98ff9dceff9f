//! What is done with memory, before it is made launches.

use super::{BufferId, Count, Dims, Expressions, NodeId, View};

/// What writes buffers. In each list of operations, one comes after what it reads is written.
#[derive(Clone, Debug)]
pub(crate) enum Operation {
    /// Elements are computed and stored.
    Store(Store),
    /// A matrix product.
    Product(Product),
    /// A convolution of images.
    Convolution(Convolution),
    /// One of the written kernels over the rows of a matrix.
    Rowwise(Rowwise),
    /// Elements are computed and summed up.
    Reduce(Reduce),
}

impl Operation {
    /// The buffers that it writes.
    pub(crate) fn writes(&self) -> Vec<BufferId> {
        match self {
            Self::Store(store) => vec![store.to.buffer],
            Self::Product(product) => vec![product.d],
            Self::Convolution(convolution) => vec![convolution.y],
            Self::Rowwise(rowwise) => rowwise.writes(),
            Self::Reduce(reduce) => vec![reduce.to],
        }
    }

    /// The buffers that it reads.
    pub(crate) fn reads(&self, expressions: &Expressions) -> Vec<BufferId> {
        match self {
            Self::Store(Store { node, .. }) | Self::Reduce(Reduce { node, .. }) => expressions.buffers(*node),
            Self::Product(product) => product.reads(),
            Self::Convolution(convolution) => convolution.reads(),
            Self::Rowwise(rowwise) => rowwise.reads(),
        }
    }
}

/// Computes an expression at each place and stores it.
#[derive(Clone, Debug)]
pub(crate) struct Store {
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
pub(crate) struct Factor {
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
pub(crate) struct Product {
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

impl Product {
    /// Floating-point operations of a batch of so many rows.
    pub(crate) fn flops(&self, rows: usize) -> f64 {
        let lengths = [self.m.of(rows), self.n, self.k, self.batches.of(rows)];
        lengths.iter().fold(2.0, |flops, &length| flops * length as f64)
    }

    /// The buffers that it reads.
    pub(crate) fn reads(&self) -> Vec<BufferId> {
        [self.a.buffer, self.b.buffer].into_iter().chain(self.bias).collect()
    }
}

/// A convolution of images `[images, channels, height, width]`, without gaps. Pairs are of height and width.
#[derive(Clone, Debug)]
pub(crate) struct Convolution {
    /// Whether each element that is read is spread over a window of those that are written. The filter is then
    /// `[inputs, outputs / groups, …]`, else `[outputs, inputs / groups, …]`.
    pub is_transposed: bool,
    /// How many images there are.
    pub images: Count,
    /// Channels that are read.
    pub inputs: usize,
    /// Channels that are written.
    pub outputs: usize,
    /// Parts of the channels that are convolved apart.
    pub groups: usize,
    /// Of the images that are read.
    pub size: [usize; 2],
    /// Of the images that are written.
    pub out: [usize; 2],
    /// Of the filter.
    pub kernel: [usize; 2],
    /// Zeros on either side.
    pub pads: [usize; 2],
    /// From window to window.
    pub strides: [usize; 2],
    /// From element to element of a window.
    pub dilations: [usize; 2],
    /// What it reads.
    pub x: BufferId,
    /// The filter.
    pub w: BufferId,
    /// What follows at once, if anything does.
    pub rectified: Option<Rectified>,
    /// What it writes.
    pub y: BufferId,
}

/// What follows a convolution at once: `y = max(0, convolution + addend + bias)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rectified {
    /// A constant buffer of an element for each channel.
    pub bias: BufferId,
    /// Images like those that are written.
    pub addend: Option<BufferId>,
}

impl Convolution {
    /// Floating-point operations of a batch of so many rows: two for each entry of a window and channel of its group,
    /// at each place that windows are moved to.
    pub(crate) fn flops(&self, rows: usize) -> f64 {
        let [height, width] = if self.is_transposed { self.size } else { self.out };
        let channels = [self.inputs, self.outputs / self.groups];
        let window = [self.kernel[0], self.kernel[1], height, width, self.images.of(rows)];
        channels.iter().chain(&window).fold(2.0, |flops, &length| flops * length as f64)
    }

    /// The buffers that it reads.
    pub(crate) fn reads(&self) -> Vec<BufferId> {
        let more = self.rectified.map(|Rectified { bias, addend }| [Some(bias), addend]);
        [self.x, self.w].into_iter().chain(more.into_iter().flatten().flatten()).collect()
    }
}

/// A written kernel over the rows of a matrix, of which `rows.factor` belong to each of the batch's.
#[derive(Clone, Debug)]
pub(crate) struct Rowwise {
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

impl Rowwise {
    /// The buffers that it writes.
    pub(crate) fn writes(&self) -> Vec<BufferId> {
        match self.kernel {
            RowKernel::ArgMax { done } => vec![self.to, done],
            RowKernel::Softmax | RowKernel::LayerNorm { .. } => vec![self.to],
        }
    }

    /// The buffers that it reads.
    pub(crate) fn reads(&self) -> Vec<BufferId> {
        let more = match self.kernel {
            RowKernel::LayerNorm { scale, bias, .. } => [Some(scale), bias],
            RowKernel::Softmax | RowKernel::ArgMax { .. } => [None; 2],
        };
        more.into_iter().flatten().chain([self.from]).collect()
    }
}

/// Kernels over the rows of a matrix.
#[derive(Clone, Debug)]
pub(crate) enum RowKernel {
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
pub(crate) enum Reduction {
    /// Their sum.
    Sum,
    /// The largest.
    Max,
    /// The smallest.
    Min,
}

/// Computes an expression and reduces it over its last axes.
#[derive(Clone, Debug)]
pub(crate) struct Reduce {
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

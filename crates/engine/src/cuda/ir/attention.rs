//! Attention as one operation.

use super::BufferId;

/// Attention of each row's queries to its keys, by heads: `out = softmax(scale · q · kᵀ + mask) · v`, where the softmax
/// is over the keys (`kernels/attention.cu`).
#[derive(Clone, Debug)]
pub(crate) struct Attention {
    /// Heads, which do not share queries, keys and values.
    pub heads: usize,
    /// Queries of a row.
    pub queries: usize,
    /// Keys of a row, and values.
    pub keys: usize,
    /// Elements of a query, a key and a value.
    pub head_size: usize,
    /// Factor for the products of queries and keys.
    pub scale: f32,
    /// Queries.
    pub q: Vectors,
    /// Keys.
    pub k: Vectors,
    /// Values.
    pub v: Vectors,
    /// Results, one for each query.
    pub out: Vectors,
    /// Mask of the keys, if they have one.
    pub mask: Option<Mask>,
    /// The padded axis to which the keys belong, by its index among the lengths of a run. Keys beyond a row's own
    /// length are left out if they are masked. `None` if all keys count.
    pub axis: Option<usize>,
    /// Whether queries and keys are the same tokens. The results of tokens whose key is left out are then zeros.
    pub is_own: bool,
}

/// Vectors in a buffer: those of a token (a query or a key) for each head of each row. Their elements are adjacent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Vectors {
    /// The buffer.
    pub buffer: BufferId,
    /// Index of the first element.
    pub offset: usize,
    /// Distance between two rows.
    pub row: usize,
    /// Distance between two heads.
    pub head: usize,
    /// Distance between two tokens.
    pub token: usize,
}

/// A mask of keys: `[keys]` in each row, fp32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mask {
    /// The buffer.
    pub buffer: BufferId,
    /// Whether scores become the mask where it is not 0. Otherwise it is added to them.
    pub replaces: bool,
}

impl Attention {
    /// Returns the floating-point operations for a batch of `rows` rows of full length.
    pub(crate) fn flops(&self, rows: usize) -> f64 {
        let lengths = [rows, self.heads, self.queries, self.keys, self.head_size];
        lengths.iter().fold(4.0, |flops, &length| flops * length as f64)
    }

    /// Returns the buffers that it reads.
    pub(crate) fn reads(&self) -> Vec<BufferId> {
        let vectors = [self.q, self.k, self.v].map(|vectors| vectors.buffer);
        vectors.into_iter().chain(self.mask.map(|mask| mask.buffer)).collect()
    }
}

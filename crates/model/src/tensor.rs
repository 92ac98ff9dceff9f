//! Specifications of a model's input and output tensors.

use std::sync::Arc;

use bytes::Bytes;
use smallvec::SmallVec;

use super::{AxisLength, DataType, SymbolId};

/// Dimensions of a tensor. In a specification, −1 is a variable dimension.
pub type Dims = SmallVec<[i64; 4]>;

/// One input of a request in wire form.
#[derive(Clone, Debug)]
pub struct InputTensor {
    /// Full shape, batch dimension included.
    pub shape: Dims,
    /// Raw little-endian elements; BYTES elements each preceded by a four-byte length. Its address may be unaligned.
    pub data: Bytes,
}

/// One input or output of a model, as declared in its configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorSpec {
    /// Name on the wire and in the graph.
    pub name: String,
    /// Element type.
    pub datatype: DataType,
    /// Dimensions on the wire without the batch; −1 if variable.
    pub dims: Dims,
    /// Dimensions in the graph, if they differ from `dims` (Triton's `reshape`), without the batch.
    pub reshape: Option<Dims>,
    /// Whether a request may omit this input.
    pub optional: bool,
    /// The symbol of each dimension of `dims`, to whose length requests are padded (inputs) or from whose length they
    /// are cut back (outputs). Empty if no axis is padded.
    pub symbols: SmallVec<[Option<SymbolId>; 4]>,
    /// Dimensions of an output whose length follows from those of padded axes in another way, by axis: they are cut
    /// back to it too.
    pub computed: Vec<(usize, AxisLength)>,
    /// Fill value of an input's padded axes.
    pub pad_value: f64,
    /// Labels of an output's classes by index, for the classification extension.
    pub labels: Arc<[String]>,
}

impl TensorSpec {
    /// Creates a specification without reshape, padding or labels.
    pub fn new(name: impl Into<String>, datatype: DataType, dims: &[i64]) -> Self {
        Self {
            name: name.into(),
            datatype,
            dims: Dims::from_slice(dims),
            reshape: None,
            optional: false,
            symbols: SmallVec::new(),
            computed: Vec::new(),
            pad_value: 0.0,
            labels: Arc::default(),
        }
    }

    /// Returns the dimensions in the graph, without the batch.
    pub fn graph_dims(&self) -> &Dims {
        self.reshape.as_ref().unwrap_or(&self.dims)
    }

    /// Returns the dimensions in the graph of a row that has `dims` on the wire.
    pub fn to_graph(&self, dims: &[i64]) -> Dims {
        self.reshape.as_ref().map_or_else(|| Dims::from_slice(dims), |reshape| substitute(reshape, &self.dims, dims))
    }

    /// Returns the dimensions on the wire of a row that has `dims` in the graph.
    pub fn to_wire(&self, dims: &[i64]) -> Dims {
        self.reshape.as_ref().map_or_else(|| Dims::from_slice(dims), |reshape| substitute(&self.dims, reshape, dims))
    }

    /// Returns whether an axis of `dims` varies and is not padded.
    pub fn is_open(&self, axis: usize) -> bool {
        self.dims[axis] < 0 && !matches!(self.symbols.get(axis), Some(Some(_)))
    }

    /// Returns `dims` with the lengths of the axes that follow from padded ones. `lengths` are those of the padded
    /// axes, indexed by [`SymbolId`].
    pub fn dims_at(&self, lengths: &[u32]) -> Dims {
        let mut dims = self.dims.clone();
        for (axis, length) in self.padded_lengths(lengths) {
            if let (Some(dim), Some(length)) = (dims.get_mut(axis), length) {
                *dim = i64::from(length);
            }
        }
        dims
    }

    /// Returns the axes whose lengths follow from those of padded axes, with these lengths; `None` if they make no
    /// length.
    pub fn padded_lengths(&self, lengths: &[u32]) -> impl Iterator<Item = (usize, Option<u32>)> {
        let symbols = self.symbols.iter().enumerate();
        let same = symbols.filter_map(|(axis, symbol)| Some((axis, lengths.get(usize::from((*symbol)?.0)).copied())));
        same.chain(self.computed.iter().map(|(axis, length)| (*axis, length.value(lengths))))
    }

    /// Whether the length of an axis follows from those of padded axes.
    pub fn has_padded_axes(&self) -> bool {
        self.symbols.iter().any(Option::is_some) || !self.computed.is_empty()
    }
}

/// Returns `target` with its variable dimensions replaced, in order, by the dimensions of `actual` that are variable in
/// `declared`.
fn substitute(target: &[i64], declared: &[i64], actual: &[i64]) -> Dims {
    let mut variable = declared.iter().zip(actual).filter(|(declared, _)| **declared < 0).map(|(_, actual)| *actual);
    target.iter().map(|&dim| if dim < 0 { variable.next().unwrap_or(dim) } else { dim }).collect()
}

/// Returns the number of elements of a shape; `None` if a dimension is negative or the product overflows.
pub fn element_count(shape: &[i64]) -> Option<usize> {
    shape.iter().try_fold(1_usize, |count, &dim| count.checked_mul(usize::try_from(dim).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reshaped(dims: &[i64], reshape: &[i64]) -> TensorSpec {
        TensorSpec { reshape: Some(Dims::from_slice(reshape)), ..TensorSpec::new("t", DataType::Fp32, dims) }
    }

    #[test]
    fn variable_dimensions_keep_their_order_in_both_directions() {
        let spec = reshaped(&[-1, -1], &[-1, 1, -1]);
        assert_eq!(spec.to_graph(&[4, 5]).as_slice(), [4, 1, 5]);
        assert_eq!(spec.to_wire(&[4, 1, 5]).as_slice(), [4, 5]);
        assert_eq!(reshaped(&[1], &[]).to_graph(&[1]).as_slice(), [0_i64; 0]);
        assert_eq!(TensorSpec::new("t", DataType::Fp32, &[3, -1]).to_graph(&[2, 7]).as_slice(), [2, 7]);
    }
}

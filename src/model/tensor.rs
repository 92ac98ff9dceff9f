//! Tensor specifications: what a model expects of an input and promises of an output.

use smallvec::SmallVec;

use super::{DataType, SymbolId};

/// Dimensions of a tensor. In a specification −1 stands for a variable dimension.
pub type Dims = SmallVec<[i64; 4]>;

/// One input or output of a model, as its configuration declares it.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorSpec {
    /// Name on the wire and in the graph.
    pub name: String,
    /// Element type.
    pub datatype: DataType,
    /// Dimensions on the wire without the batch; −1 where variable.
    pub dims: Dims,
    /// Dimensions that the graph sees in place of `dims` (Triton's `reshape`), without the batch.
    pub reshape: Option<Dims>,
    /// Whether a request may leave this input out.
    pub optional: bool,
    /// Per dimension of `dims`: the symbol whose length requests are padded to (inputs) or cut back from (outputs).
    /// Empty where no axis is padded.
    pub symbols: SmallVec<[Option<SymbolId>; 4]>,
    /// What an input's padded axes are filled with.
    pub pad_value: f64,
    /// Labels of an output's classes, for the classification extension, by index.
    pub labels: Vec<String>,
}

impl TensorSpec {
    /// A tensor with neither reshape, padding nor labels.
    pub fn new(name: impl Into<String>, datatype: DataType, dims: &[i64]) -> Self {
        Self {
            name: name.into(),
            datatype,
            dims: Dims::from_slice(dims),
            reshape: None,
            optional: false,
            symbols: SmallVec::new(),
            pad_value: 0.0,
            labels: Vec::new(),
        }
    }

    /// The dims with padded axes as long as their symbols are, which are given by number.
    pub fn dims_at(&self, lengths: &[u32]) -> Dims {
        let mut dims = self.dims.clone();
        for (dim, symbol) in dims.iter_mut().zip(&self.symbols) {
            if let Some(length) = symbol.and_then(|symbol| lengths.get(usize::from(symbol.0))) {
                *dim = i64::from(*length);
            }
        }
        dims
    }
}

/// The number of elements of a shape; `None` where a dimension is negative or the product overflows.
pub fn element_count(shape: &[i64]) -> Option<usize> {
    shape.iter().try_fold(1_usize, |count, &dim| count.checked_mul(usize::try_from(dim).ok()?))
}
